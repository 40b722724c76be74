"""The data of one server: made once, checked at each start, cleared of what a killed server left.

Owns the folder `cluster` of the unit's data folder, and who may connect: the user that runs the site's units,
over the Unix socket, as the kernel tells the server; nobody over TCP. So there is no password.

All paths begin at an open descriptor of the data folder, because root's server runs as another user, who may
not be able to enter the folders above it.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from headrace.postgresql.installation import Installation, fitting
from headrace.postgresql.place import DATABASE, PORT, ROLE, SOCKET_NAME
from headrace.process.leftovers import end_leftovers, processes_in

CLUSTER: Final = "cluster"
NEW: Final = "cluster.new"
LOCK_FILES: Final = ("postmaster.pid", f"{SOCKET_NAME}.lock")
INIT_TIMEOUT_S: Final = 180.0
_PR_SET_PDEATHSIG: Final = 1
_USER_MAP: Final = "headrace"
_NO_HISTORY: Final = "restore it, or move it away: Airflow then begins without a history"

SETTINGS: Final[Mapping[str, str]] = {
    "listen_addresses": "",
    "unix_socket_directories": ".",
    "unix_socket_permissions": "0700",
    "port": str(PORT),
    # A scheduler's database is small; the defaults are those of a server of its own.
    "shared_buffers": "32MB",
    "min_wal_size": "32MB",
    "max_wal_size": "256MB",
    "jit": "off",
    # The supervisor starts it again, and sees when that is hopeless; by itself it would try without end.
    "restart_after_crash": "off",
    # There are no replicas.
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_logical_replication_workers": "0",
    "logging_collector": "off",
    "log_destination": "stderr",
    "log_checkpoints": "off",
}


class ClusterError(Exception):
    """The server cannot start; one line with the way out."""


class Folder(NamedTuple):
    """The unit's data folder: an open descriptor of it, and its path for messages, without links."""

    descriptor: int
    path: Path

    def at(self, name: str) -> Path:
        """A path of something in the folder that does not pass the folders above it."""
        return Path(f"/proc/self/fd/{self.descriptor}") / name


def prepare(folder: Folder, found: Sequence[Installation], client: str) -> Installation:
    """Makes the data, or checks it, for connections of the user `client`; returns the programs to run it.

    Raises `ClusterError`, and `OSError`.
    """
    programs = _programs(folder, found)
    _end_leftovers(folder)
    if folder.at(NEW).exists():
        shutil.rmtree(folder.at(NEW))
    if folder.at(CLUSTER).exists():
        _check_control_file(folder, programs)
    else:
        _make(folder, programs)
    _write(folder.at(f"{CLUSTER}/pg_hba.conf"), f"local all all peer map={_USER_MAP}\n")
    _write(folder.at(f"{CLUSTER}/pg_ident.conf"), f'{_USER_MAP} "{client}" {ROLE}\n')
    return programs


def strangers_in(folder: Folder) -> list[str]:
    """The names of what is in the folder and not the server's."""
    return sorted({path.name for path in folder.at("").iterdir()} - {CLUSTER, NEW})


def server_command(folder: Folder, programs: Installation) -> list[str]:
    """The server's command line; the descriptor stays open in it."""
    command = [str(programs.programs / "postgres"), "-D", str(folder.at(CLUSTER))]
    for name, value in SETTINGS.items():
        command += ["-c", f"{name}={value}"]
    return command


def _end_leftovers(folder: Folder) -> None:
    """Ends the processes of an earlier server, and removes its lock files.

    Another process may have its pid by now, and would keep a new server from starting.
    """
    for name in (CLUSTER, NEW):
        directory = folder.path / name
        if ended := end_leftovers(directory):
            say(f"killed {len(ended)} processes of an earlier server, such as {ended[0]}")
        if left := processes_in(directory):
            raise ClusterError(f"process {left[0]} of an earlier server in {directory} does not end; end it")
    for name in LOCK_FILES:
        lock = folder.at(CLUSTER) / name
        if lock.exists():
            lock.unlink()
            say(f"the last server was killed: removed its {name}; the database recovers from its log")


def _programs(folder: Folder, found: Sequence[Installation]) -> Installation:
    major = _major_of_data(folder)
    programs = fitting(found, major)
    if programs is not None:
        return programs
    if major is None:
        raise ClusterError("PostgreSQL is not installed")
    here = ", ".join(str(each.major) for each in found) or "none"
    raise ClusterError(
        f"the data in {folder.path / CLUSTER} is PostgreSQL {major}'s, and this host has {here}: install "
        f"that version, too (Debian: apt-get install postgresql-{major}), or upgrade the data as "
        "docs/airflow.md says"
    )


def _major_of_data(folder: Folder) -> int | None:
    """The major version that the data is of; None if there is none yet."""
    if not folder.at(CLUSTER).exists():
        return None
    owner = folder.at(CLUSTER).stat().st_uid
    if owner != os.geteuid():
        raise ClusterError(
            f"{folder.path / CLUSTER} belongs to user {owner}, and the server would run as user "
            f"{os.geteuid()}: start the site as the user that made it, or `chown -R` the folder"
        )
    try:
        return int(folder.at(f"{CLUSTER}/PG_VERSION").read_text())
    except (OSError, ValueError):
        raise ClusterError(
            f"{folder.path / CLUSTER} is not PostgreSQL's data: its PG_VERSION cannot be read; {_NO_HISTORY}"
        ) from None


def _check_control_file(folder: Folder, programs: Installation) -> None:
    """Raises `ClusterError` if the file from which a server starts is damaged."""
    tool = programs.programs / "pg_controldata"
    if not tool.exists():
        return
    done = _ran([str(tool), "-D", str(folder.at(CLUSTER))], folder)
    problems = [line for line in done.stdout.splitlines() if "WARNING" in line or "error:" in line]
    if done.returncode or problems:
        said = (problems or done.stdout.splitlines() or [f"exit code {done.returncode}"])[0]
        raise ClusterError(
            f"{folder.path / CLUSTER} is damaged, its control file cannot be believed ({said.strip()}): "
            f"{_NO_HISTORY}"
        )


def _make(folder: Folder, programs: Installation) -> None:
    """Makes the data under another name first: a crash leaves nothing that looks whole."""
    new = str(folder.at(NEW))
    options = ["-U", ROLE, "-A", "peer", "-E", "UTF8", "--no-locale", "--data-checksums"]
    _run([str(programs.programs / "initdb"), "-D", new, *options], folder)
    single = [str(programs.programs / "postgres"), "--single", "-c", "exit_on_error=true", "-D", new]
    _run([*single, "postgres"], folder, f"CREATE DATABASE {DATABASE}\n")
    folder.at(NEW).rename(folder.at(CLUSTER))
    os.fsync(folder.descriptor)
    say(f"made a database of PostgreSQL {programs.major} in {folder.path / CLUSTER}")


def _run(command: Sequence[str], folder: Folder, standard_input: str = "") -> None:
    done = _ran(command, folder, standard_input)
    if done.returncode:
        lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line.lower() or "FATAL" in line or "PANIC" in line]
        said = (errors or lines or [f"exit code {done.returncode}"])[0]
        raise ClusterError(f"{Path(command[0]).name} cannot make the database in {folder.path}: {said}")


def _ran(
    command: Sequence[str], folder: Folder, standard_input: str = ""
) -> subprocess.CompletedProcess[str]:
    """Runs one of PostgreSQL's programs; its errors are in what it printed."""
    return subprocess.run(
        command,
        input=standard_input,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=INIT_TIMEOUT_S,
        # Programs of older versions return to their working directory, which this user must be able to enter.
        cwd="/",
        env=environment(),
        pass_fds=(folder.descriptor,),
        preexec_fn=_die_with_parent,
        check=False,
    )


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def environment() -> dict[str, str]:
    """The variables for PostgreSQL's programs: none that changes what they do, and no secrets of the user."""
    kept = ("PATH", "TZ", "HEADRACE_HOME", "HEADRACE_UNIT", "HEADRACE_DEFINITION")
    return {name: os.environ[name] for name in kept if name in os.environ}


def _write(path: Path, text: str) -> None:
    """Replaces a file that has another text."""
    if path.exists() and path.read_text(errors="replace") == text:
        return
    new = path.with_name(f"{path.name}.new")
    new.write_text(text)
    new.chmod(0o600)
    new.replace(path)


def say(text: str) -> None:
    """Prints a line into the unit's log."""
    print(f"postgresql: {text}", flush=True)
