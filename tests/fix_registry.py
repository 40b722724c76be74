"""Real registry processes over the test's own chroot: `registry_url` (one), `start_registry` (any number)."""

import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO

import pytest

from fix_zookeeper import ZooKeeperRoom, ZooKeeperServer, die_with_parent, room_on


@dataclass
class RegistryProcess:
    process: subprocess.Popen[str]
    url: str

    def stop(self) -> int:
        """Sends SIGTERM and returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


StartRegistry = Callable[..., RegistryProcess]


def launch(
    hosts: str, listen: str = "127.0.0.1:0", *options: str, log: IO[bytes] | None = None
) -> RegistryProcess:
    """Starts a registry, and returns once it serves. `log`: where its standard error goes."""
    command = [sys.executable, "-m", "headrace.registry", "--listen", listen, "--zookeeper", hosts, *options]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=log, text=True, preexec_fn=die_with_parent
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.search(r"http://\S+", line)
    assert found, f"the registry printed {line!r} and exited with {process.wait(timeout=60)}"
    return RegistryProcess(process, found[0])


@pytest.fixture
def start_registry(zookeeper: ZooKeeperRoom) -> Iterator[StartRegistry]:
    """Starts a registry; `listen` defaults to a free port, `hosts` to the test's ZooKeeper."""
    running: list[RegistryProcess] = []

    def start(
        listen: str = "127.0.0.1:0", hosts: str | None = None, options: Sequence[str] = ()
    ) -> RegistryProcess:
        running.append(launch(hosts or zookeeper.hosts, listen, *options))
        return running[-1]

    yield start
    for each in running:
        each.kill()


@pytest.fixture(scope="session")
def shared_registry(zookeeper_server: ZooKeeperServer) -> Iterator[tuple[RegistryProcess, ZooKeeperRoom]]:
    room = room_on(zookeeper_server)
    registry = launch(room.hosts)
    yield registry, room
    registry.kill()


@pytest.fixture
def registry_url(shared_registry: tuple[RegistryProcess, ZooKeeperRoom]) -> str:
    registry, room = shared_registry
    with room.session() as session:
        for branch in ("ids", "subjects", "settings"):
            for name in session.children_or_empty(f"/headrace/registry/{branch}"):
                session.delete(f"/headrace/registry/{branch}/{name}")
    return registry.url
