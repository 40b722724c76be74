"""Airflow's PostgreSQL in a backup: what pg_dump writes of a unit that runs, or of a stopped unit's files.

A dump is one state of the database, and any PostgreSQL of the same or a newer major version takes it. Owns
the programs' command lines; `servers` runs the private servers.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from headrace.agent.airflow_environment import airflow_python
from headrace.agent.configuration import PostgresqlConfiguration
from headrace.agent.probes import PostgresqlProbe
from headrace.backup import servers
from headrace.backup.errors import BackupError
from headrace.backup.manifest import Manifest
from headrace.backup.units import HomeUnit
from headrace.backup.writer import Writer
from headrace.postgresql.cluster import CLUSTER, environment
from headrace.postgresql.installation import Installation, fitting, installations, problem
from headrace.postgresql.place import DATABASE, PORT, ROLE, SOCKET_NAME

KIND: Final = "postgresql"
DUMP: Final = "airflow.dump"
SCRATCH: Final = "postgresql.tmp"
RUN_MAX_S: Final = 3600.0
LOCK_WAIT_MAX: Final = "30s"
"""A migration of Airflow's tables locks them; pg_dump waits for it no longer than this."""


def has_data(unit: HomeUnit) -> bool:
    return (unit.directory / CLUSTER).exists()


def size_of(unit: HomeUnit) -> int:
    """Returns the bytes of the unit's files; a dump is smaller, a copy of a stopped unit is not."""
    total = 0
    for path in (unit.directory / CLUSTER).rglob("*"):
        try:
            total += path.lstat().st_size
        except FileNotFoundError:
            continue
    return total


def copy(unit: HomeUnit, writer: Writer) -> tuple[dict[str, Any], str | None]:
    """Dumps the database. Returns facts, and what went wrong, None if nothing did. Raises `OSError`."""
    try:
        programs = _programs(unit)
        scratch = writer.folder / SCRATCH
        dump = scratch / DUMP
        scratch.mkdir(mode=0o700)
        try:
            with _sockets(unit, scratch) as sockets:
                options = [f"--lock-wait-timeout={LOCK_WAIT_MAX}", "--format=custom", "--file", str(dump)]
                _run(programs, "pg_dump", sockets, [*options, DATABASE])
            writer.adopt(f"{unit.name}/{DUMP}", dump)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    except BackupError as error:
        return {}, f"{unit.name}: its database is not in this backup: {error}"
    return {"form": "pg_dump", "major_version": programs.major}, None


def check_host(made: Manifest) -> None:
    """Raises `BackupError` if the backup holds a dump that no server of this host could take."""
    if any(piece.kind == KIND for piece in made.pieces) and (why_not := problem(_environment(None))):
        raise BackupError(
            f"this backup holds Airflow's PostgreSQL database, and {why_not}: install it (Debian, as root: "
            "apt-get install postgresql; else `make airflow` brings a wheel of it), then repeat"
        )


def restore(dump: Path, directory: Path, scratch: Path) -> None:
    """Makes the data of a unit in `directory`; the socket is below `scratch`. Raises `BackupError`,
    `OSError`.
    """
    programs = installations(_environment(None))[0]
    with servers.postgresql(directory, scratch, airflow_python()) as sockets:
        options = ["--exit-on-error", "--single-transaction", "--no-owner", "--dbname", DATABASE]
        _run(programs, "pg_restore", sockets, [*options, str(dump)])


def _environment(python: Path | None) -> Path:
    """The root of Airflow's virtual environment."""
    return (python or airflow_python()).absolute().parents[1]


def _programs(unit: HomeUnit) -> Installation:
    assert isinstance(unit.configuration, PostgresqlConfiguration)
    version = unit.directory / CLUSTER / "PG_VERSION"
    try:
        major = int(version.read_text())
    except (OSError, ValueError):
        raise BackupError(f"{version} cannot be read") from None
    programs = fitting(installations(_environment(unit.configuration.python)), major)
    if programs is None:
        raise BackupError(
            f"it is PostgreSQL {major}'s, whose pg_dump is not on this host (Debian: apt-get install "
            f"postgresql-{major})"
        )
    return programs


@contextmanager
def _sockets(unit: HomeUnit, scratch: Path) -> Iterator[Path]:
    """Yields the folder of the socket of the running server, or of one on a copy of its files.

    Raises `UnitUnreachableError`, `BackupError`, `OSError`.
    """
    assert isinstance(unit.configuration, PostgresqlConfiguration)
    if unit.is_asked():
        assert isinstance(unit.unit.probe, PostgresqlProbe)
        yield unit.unit.probe.path.parent
        return
    data = scratch / "data"
    _copy_owned(unit.directory / CLUSTER, data / CLUSTER)
    with servers.postgresql(data, scratch, unit.configuration.python or airflow_python()) as sockets:
        yield sockets


def _copy_owned(source: Path, target: Path) -> None:
    """Copies a folder with its owners: root's server runs as another user, who must own its files."""
    left_out = shutil.ignore_patterns(f"{SOCKET_NAME}*", "postmaster.pid")
    shutil.copytree(source, target, symlinks=True, ignore=left_out)
    for parent, _, names in os.walk(target):
        for path in (Path(parent), *(Path(parent) / name for name in names)):
            owner = (source / path.relative_to(target)).lstat()
            os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)


def _run(programs: Installation, name: str, sockets: Path, options: Sequence[str]) -> None:
    connection = ["--host", str(sockets), "--port", str(PORT), "--username", ROLE, "--no-password"]
    try:
        done = subprocess.run(
            [str(programs.programs / name), *connection, *options],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="backslashreplace",
            timeout=RUN_MAX_S,
            env=environment(),
            preexec_fn=servers.end_with_parent,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise BackupError(f"{name} did not end within {RUN_MAX_S:.0f} s") from None
    except OSError as error:
        raise BackupError(f"{name} cannot be run: {error.strerror}") from None
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise BackupError(f"{name} failed: {lines[0] if lines else f'exit code {done.returncode}'}")
