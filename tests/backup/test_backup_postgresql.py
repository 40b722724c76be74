"""A PostgreSQL unit in a backup: dumped while it runs, stopped or killed, and made again from the dump."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from fix_postgresql import UNIT, Server, needs_postgresql
from headrace.agent.airflow_environment import airflow_python
from headrace.agent.configuration import PostgresqlConfiguration
from headrace.agent.host import Host
from headrace.agent.kinds import unit_of
from headrace.backup import postgresql_dump
from headrace.backup.errors import BackupError
from headrace.backup.manifest import Manifest, Piece
from headrace.backup.pace import Pace
from headrace.backup.units import HomeUnit
from headrace.backup.writer import Writer
from headrace.process.leftovers import processes_in

pytestmark = needs_postgresql
ROWS: Final = [(number, f"row {number}\n\t'é'") for number in range(1000)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    made = Server(tmp_path_factory.mktemp("postgresql"))
    made.start()
    made.wait_ready()
    made.ask("CREATE TABLE kept (n int PRIMARY KEY, said text)")
    made.ask("INSERT INTO kept SELECT n, 'row ' || n || E'\\n\\t''é''' FROM generate_series(0, 999) AS n")
    yield made
    if made.process is not None:
        made.end(signal.SIGINT)


def unit(server: Server) -> HomeUnit:
    """The unit as a backup sees it: whether it runs, and what is wrong with it."""
    configuration = PostgresqlConfiguration(
        datacenter="analysis", data_dir=server.data, python=airflow_python().absolute()
    )
    made = unit_of(UNIT, configuration, Host.here(server.home))
    if server.process is None:
        return HomeUnit(made, None, "it is stopped")
    return HomeUnit(made, server.process.pid, server.problem())


def dumped(server: Server, folder: Path) -> Path:
    folder.mkdir()
    before = {path.name for path in server.home.iterdir()}
    with Writer(folder, [], Pace()) as writer:
        facts, problem = postgresql_dump.copy(unit(server), writer)
        assert problem is None
        assert facts["form"] == "pg_dump" and facts["major_version"] >= 9
        assert list(writer.files) == [f"{UNIT}/{postgresql_dump.DUMP}"]
    assert {path.name for path in folder.iterdir()} == {UNIT, "journal.jsonl"}, "nothing else is left"
    assert {path.name for path in server.home.iterdir()} == before
    return folder / UNIT / postgresql_dump.DUMP


def check_restored(dump: Path, home: Path) -> None:
    """Makes the data again, and runs the unit's own server on it."""
    again = Server(home)
    postgresql_dump.restore(dump, again.data, home / "scratch")
    assert not processes_in(again.cluster.resolve()), "the private server has ended"
    again.start()
    again.wait_ready()
    assert again.ask("SELECT n, said FROM kept ORDER BY n") == ROWS
    assert again.ask("SELECT current_user") == [("airflow",)]
    assert again.end(signal.SIGINT) == 0


def test_a_server_that_runs_is_dumped_and_goes_on(server: Server, tmp_path: Path) -> None:
    dump = dumped(server, tmp_path / "backup")
    assert server.ask("SELECT count(*) FROM kept") == [(1000,)]
    check_restored(dump, tmp_path / "again")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_files_of_a_server_that_does_not_run_are_dumped(
    server: Server, number: signal.Signals, tmp_path: Path
) -> None:
    server.end(number)
    try:
        dump = dumped(server, tmp_path / "backup")
        check_restored(dump, tmp_path / "again")
    finally:
        server.start()
        server.wait_ready()
    assert server.ask("SELECT count(*) FROM kept") == [(1000,)]


def test_what_cannot_be_dumped_is_a_problem_with_its_cause(server: Server, tmp_path: Path) -> None:
    def problem() -> str:
        folder = tmp_path / "backup"
        folder.mkdir(exist_ok=True)
        with Writer(folder, [], Pace()) as writer:
            _, said = postgresql_dump.copy(unit(server), writer)
            assert not writer.files
        assert said is not None and "\n" not in said
        assert said.startswith(f"{UNIT}: its database is not in this backup: ")
        return said

    version = server.cluster / "PG_VERSION"
    before = version.read_text()
    try:
        version.write_text("9\n")
        assert "it is PostgreSQL 9's, whose pg_dump is not on this host" in problem()
        version.write_text("x")
        assert f"{version} cannot be read" in problem()
    finally:
        version.write_text(before)
    assert server.process is not None
    server.process.send_signal(signal.SIGSTOP)
    try:
        assert "does not answer" in problem()
    finally:
        server.process.send_signal(signal.SIGCONT)
    server.wait_ready()


def test_a_dump_that_is_none_makes_no_data_and_leaves_no_server(tmp_path: Path) -> None:
    dump = tmp_path / "dump"
    dump.write_bytes(b"PGDMP, and then nothing that pg_restore knows")
    with pytest.raises(BackupError, match="pg_restore failed: pg_restore: error: "):
        postgresql_dump.restore(dump, tmp_path / "data", tmp_path / "scratch")
    assert not processes_in((tmp_path / "data" / "cluster").resolve())


def test_a_host_without_postgresql_is_told_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    piece = Piece(UNIT, "postgresql", "analysis", "data/analysis/postgresql", {})
    postgresql_dump.check_host(Manifest(0, 0, "/home", "host", {}, {}, (piece,), ()))
    monkeypatch.setattr(postgresql_dump, "problem", lambda _: "PostgreSQL is not installed")
    postgresql_dump.check_host(Manifest(0, 0, "/home", "host", {}, {}, (), ()))
    with pytest.raises(BackupError, match="PostgreSQL database, and PostgreSQL is not installed: install it"):
        postgresql_dump.check_host(Manifest(0, 0, "/home", "host", {}, {}, (piece,), ()))
