"""A ZooKeeper, an HDFS and a PostgreSQL of our own, for as long as the files of a stopped unit are read, or
those of a new unit are written. They listen on a free port of loopback, PostgreSQL on a socket of its folder.

They end with this process; only root's PostgreSQL, which runs as another user, outlives a SIGKILL, until it
finds, within a minute, that its folder was removed.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from headrace.agent.configuration import (
    Configuration,
    HdfsConfiguration,
    PostgresqlConfiguration,
    ZooKeeperConfiguration,
)
from headrace.agent.folders import write_files
from headrace.agent.host import Host
from headrace.agent.kinds import unit_of
from headrace.backup.errors import BackupError
from headrace.postgresql.place import socket_folder
from headrace.site.addresses import Address

HOST: Final = "127.0.0.1"
STOP_WAIT_MAX_S: Final = 60.0
POLL_S: Final = 0.1
ZOOKEEPER_HEAP_MIB: Final = 256
_PR_SET_PDEATHSIG: Final = 1
_LIBC: Final = ctypes.CDLL(None)


@contextmanager
def zookeeper(directory: Path, home: Path) -> Iterator[str]:
    """Runs a ZooKeeper on this data directory of a unit; yields its address. Raises `BackupError`."""
    (port,) = _free_ports(1)
    configuration = ZooKeeperConfiguration(
        datacenter="backup",
        listen=Address(HOST, port),
        data_dir=directory.absolute(),
        heap_mib_max=ZOOKEEPER_HEAP_MIB,
    )
    with _running("zookeeper", configuration, directory, home):
        yield f"{HOST}:{port}"


@contextmanager
def hdfs(directory: Path, home: Path) -> Iterator[str]:
    """Runs an HDFS on this data directory of a unit; yields the URL of its WebHDFS. Raises `BackupError`."""
    rpc, http, data, data_ipc, data_http = _free_ports(5)
    configuration = HdfsConfiguration(
        datacenter="backup",
        host=HOST,
        rpc_port=rpc,
        http_port=http,
        data_port=data,
        data_ipc_port=data_ipc,
        data_http_port=data_http,
        data_dir=directory.absolute(),
    )
    with _running("hdfs", configuration, directory, home):
        yield f"http://{HOST}:{http}"


@contextmanager
def postgresql(directory: Path, home: Path, python: Path) -> Iterator[Path]:
    """Runs a PostgreSQL on this data directory of a unit; yields the folder of its socket, which is found
    below `home`. `python`: of Airflow's environment. Raises `BackupError`.
    """
    configuration = PostgresqlConfiguration(
        datacenter="backup", data_dir=directory.absolute(), python=python.absolute()
    )
    sockets = socket_folder(home.absolute(), "postgresql")
    try:
        with _running("postgresql", configuration, directory, home):
            yield sockets
    finally:
        sockets.unlink(missing_ok=True)


@contextmanager
def _running(name: str, configuration: Configuration, directory: Path, home: Path) -> Iterator[None]:
    unit = unit_of(name, configuration, Host.here(home))
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_files(unit.files, unit.kept_before)
    # Beside its data: PostgreSQL refuses a folder with files of others.
    log = directory.with_name(f"{directory.name}.log")
    with log.open("wb") as output:
        process = subprocess.Popen(
            unit.command,
            env={**os.environ, "HEADRACE_HOME": str(home), **unit.environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=end_with_parent,
        )
    try:
        deadline = time.monotonic() + unit.start_timeout_s
        while (problem := unit.probe.check()) is not None:
            if process.poll() is not None or time.monotonic() > deadline:
                raise BackupError(f"a {name} on {directory} did not start ({problem}): {_last_line(log)}")
            time.sleep(POLL_S)
        yield
    finally:
        process.send_signal(signal.Signals[f"SIG{unit.stop_signal}"])
        try:
            process.wait(STOP_WAIT_MAX_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        log.unlink(missing_ok=True)


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="backslashreplace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "it wrote nothing")


def end_with_parent() -> None:
    """To be run in a child before its program: it ends when this process does."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server((HOST, 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
