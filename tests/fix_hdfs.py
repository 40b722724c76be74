"""A real HDFS, a NameNode and a DataNode: one for the session, or one for a single test."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fix_ports import free_ports
from fix_zookeeper import die_with_parent
from headrace.warehouse.hdfs.client import HdfsClient
from headrace.warehouse.hdfs.local import HdfsConfig, Role, command
from headrace.warehouse.jars import ensure_jars

READY_TIMEOUT_S = 120.0


@dataclass
class HdfsProcess:
    """An HDFS that a test may kill and start again; its data stays."""

    config: HdfsConfig
    log: Path
    processes: dict[Role, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def hdfs_url(self) -> str:
        return self.config.hdfs_url

    @property
    def webhdfs_url(self) -> str:
        return self.config.webhdfs_url

    def client(self, *, patience_s: float = 30.0, user: str | None = None) -> HdfsClient:
        return HdfsClient(self.webhdfs_url, patience_s=patience_s, user=user)

    def start(self, role: Role = "both") -> None:
        with self.log.open("ab") as log:
            self.processes[role] = subprocess.Popen(
                command(self.config, role), stdout=log, stderr=log, preexec_fn=die_with_parent
            )

    def kill(self, role: Role = "both", with_signal: int = signal.SIGKILL) -> None:
        process = self.processes.pop(role)
        process.send_signal(with_signal)
        process.wait(timeout=60)

    def wait_ready(self) -> None:
        """Waits until this HDFS takes writes."""
        deadline = time.monotonic() + READY_TIMEOUT_S
        with self.client() as client:
            while (problem := client.problem()) is not None:
                log = self.log.read_text(errors="replace")[-4000:]
                assert time.monotonic() < deadline, f"{problem}\n{log}"
                time.sleep(0.2)

    def stop(self) -> None:
        for role in list(self.processes):
            self.kill(role)


def hdfs_process(directory: Path, **settings: str) -> HdfsProcess:
    """An HDFS on free ports, not yet started."""
    rpc, http, data, ipc, data_http = free_ports(5)
    config = HdfsConfig(
        "127.0.0.1",
        directory / "hdfs",
        rpc_port=rpc,
        http_port=http,
        data_port=data,
        data_ipc_port=ipc,
        data_http_port=data_http,
        extra=settings,
    )
    return HdfsProcess(config, directory / "hdfs.log")


@pytest.fixture(scope="session")
def java_jars() -> dict[str, Path]:
    """The Java artifacts, in `$HEADRACE_HOME`, by default the checkout's `.headrace/`."""
    home = Path(os.environ.get("HEADRACE_HOME", Path(__file__).parents[1] / ".headrace")).resolve()
    os.environ["HEADRACE_HOME"] = str(home)
    return ensure_jars(progress=lambda line: print(line, file=sys.stderr))


@pytest.fixture(scope="session")
def hdfs(java_jars: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[HdfsProcess]:
    """The session's HDFS. Tests that kill or fill it use `own_hdfs`."""
    process = hdfs_process(tmp_path_factory.mktemp("hdfs"))
    process.start()
    try:
        process.wait_ready()
        yield process
    finally:
        process.stop()


@pytest.fixture
def own_hdfs(java_jars: dict[str, Path], tmp_path: Path) -> Iterator[HdfsProcess]:
    """An HDFS for this test alone, its NameNode and DataNode in two processes."""
    process = hdfs_process(tmp_path)
    process.start("namenode")
    process.start("datanode")
    try:
        process.wait_ready()
        yield process
    finally:
        process.stop()
