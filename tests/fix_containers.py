"""ZooKeeper and brokers as containers of headrace run them: in real containers, and as processes of this
machine that run the same program (`containers/headrace-container`) with the same arguments.

Owns: `Member` (one of them, in either way), `Cluster`. Fixtures: `either_cluster`, a test's own ZooKeeper and
brokers, once in processes and once in containers, and `run_container`, for tests of the image itself. All of
them are on 127.0.0.1: containers have the machine's network. Without a Docker engine or the image
(`make image`) the fixtures skip. Containers that a killed test run left are removed by the next one, which
finds them by the pid in their label.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

import container_image
from fix_ports import free_ports
from fix_zookeeper import die_with_parent
from headrace.agent.probes import BrokerProbe, Probe, ZooKeeperProbe
from headrace.site.addresses import Address

if TYPE_CHECKING:
    from docker.models.containers import Container

PROGRAM: Final = container_image.HERE / "headrace-container"
HOST: Final = "127.0.0.1"
BROKERS: Final = 2
READY_WAIT_MAX_S: Final = 90.0
STOP_WAIT_MAX_S: Final = 60
OWNER_LABEL: Final = "headrace.test"
"""The label with the pid of the test process that owns the container."""


class Member(ABC):
    """One unit, alone in its own home. `probe` checks whether it is ready; None for what cannot be probed."""

    def __init__(self, arguments: Sequence[str], probe: Probe | None = None) -> None:
        self.arguments = list(arguments)
        self.probe = probe

    def start(self, *, wait: bool = True) -> None:
        """Starts it, the first time or again with its data; with `wait` returns once it is ready."""
        self._start()
        if wait:
            self.wait_until_ready()

    def wait_until_ready(self) -> None:
        assert self.probe is not None
        deadline = time.monotonic() + READY_WAIT_MAX_S
        while problem := self.probe.check():
            assert self.is_running, f"{self.arguments} ended:\n{self.output()[-4000:]}"
            assert time.monotonic() < deadline, f"{problem}:\n{self.output()[-4000:]}"
            time.sleep(0.05)

    @property
    @abstractmethod
    def is_running(self) -> bool: ...

    @abstractmethod
    def _start(self) -> None: ...

    @abstractmethod
    def stop(self) -> int:
        """Sends SIGTERM and waits; returns the exit code, 128 + n for a process ended by signal n."""

    @abstractmethod
    def kill(self) -> None:
        """Sends SIGKILL and waits."""

    @abstractmethod
    def output(self) -> str:
        """Everything it has written."""

    @abstractmethod
    def run(self, *words: str) -> tuple[int, str]:
        """Runs another command where it runs; returns exit code and output."""

    @abstractmethod
    def close(self) -> None:
        """Removes it and its data."""


class ProcessMember(Member):
    """A process of this machine. `home` is its `$HEADRACE_HOME`."""

    def __init__(self, arguments: Sequence[str], probe: Probe | None, home: Path) -> None:
        super().__init__(arguments, probe)
        home.mkdir()
        path = f"{PROGRAM.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        self._environment = {**os.environ, "HEADRACE_HOME": str(home), "PATH": path}
        self._log = home / "stdout"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [PROGRAM, *self.arguments],
                stdout=log,
                stderr=log,
                env=self._environment,
                preexec_fn=die_with_parent,
            )

    def stop(self) -> int:
        return self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> int:
        assert self._process is not None
        self._process.send_signal(how)
        code = self._process.wait(STOP_WAIT_MAX_S)
        return code if code >= 0 else 128 - code

    def output(self) -> str:
        return self._log.read_text(errors="replace")

    def run(self, *words: str) -> tuple[int, str]:
        # By `env`, since Popen would look for the program in this process's PATH.
        command = ["/usr/bin/env", *words]
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout

    def close(self) -> None:
        if self.is_running:
            self.kill()


class ContainerMember(Member):
    """A container with a volume of its own. `options` go to the engine, by the names of docker's `run`."""

    def __init__(self, arguments: Sequence[str], probe: Probe | None, image: str, **options: Any) -> None:
        from testcontainers.core.container import DockerContainer

        super().__init__(arguments, probe)
        labels = {OWNER_LABEL: str(os.getpid())}
        self._made = DockerContainer(image).with_command(self.arguments)
        self._made.with_kwargs(network_mode="host", labels=labels, **options)
        self._container: Container | None = None

    @property
    def container(self) -> Container:
        assert self._container is not None
        return self._container

    @property
    def is_running(self) -> bool:
        self.container.reload()
        return bool(self.container.status == "running")

    def _start(self) -> None:
        if self._container is None:
            self._container = self._made.start().get_wrapped_container()
        else:
            self._container.start()

    def stop(self) -> int:
        self.container.stop(timeout=STOP_WAIT_MAX_S)
        return int(self.container.wait()["StatusCode"])

    def kill(self) -> None:
        self.container.kill("SIGKILL")
        self.container.wait()

    def output(self) -> str:
        return bytes(self.container.logs()).decode(errors="replace")

    def run(self, *words: str) -> tuple[int, str]:
        code, output = self.container.exec_run(list(words))
        return code, output.decode()

    def close(self) -> None:
        if self._container is not None:
            self._made.stop(force=True, delete_volume=True)


Make = Callable[[str, list[str], Probe | None], Member]


class Cluster:
    """A ZooKeeper and its brokers. `make`: name, arguments, probe → member."""

    def __init__(self, make: Make) -> None:
        port, *ports = free_ports(1 + BROKERS, HOST)
        zookeeper = Address(HOST, port)
        common = ["--datacenter", "test"]
        self.zookeeper = make(
            "zookeeper", ["zookeeper", *common, "--listen", str(zookeeper)], ZooKeeperProbe(zookeeper)
        )
        self.addresses = [Address(HOST, port) for port in ports]
        self.brokers = [
            make(
                f"broker-{broker_id}",
                [
                    *("broker", *common, "--broker-id", str(broker_id), "--listen", str(address)),
                    *("--zookeeper", str(zookeeper), "--set", "log.segment.bytes=262144"),
                ],
                BrokerProbe(address, broker_id),
            )
            for broker_id, address in enumerate(self.addresses, 1)
        ]

    @property
    def bootstrap(self) -> str:
        return ",".join(map(str, self.addresses))

    def start(self) -> None:
        self.zookeeper.start()
        for broker in self.brokers:
            broker.start(wait=False)
        for broker in self.brokers:
            broker.wait_until_ready()


@pytest.fixture(scope="session")
def container_image_id() -> str:
    """The image of this content; skips without it, or without an engine."""
    if problem := container_image.engine_problem():
        pytest.skip(problem)
    import docker
    from testcontainers.core.config import testcontainers_config

    # testcontainers' reaper is an image from a registry; `_sweep` does its work.
    testcontainers_config.ryuk_disabled = True
    wanted = container_image.content()
    client = docker.from_env()
    try:
        _sweep(client)
        found = client.images.list(filters={"label": f"{container_image.LABEL}={wanted}"})
    finally:
        client.close()
    if not found:
        pytest.skip(f"the container image of this content ({wanted}) does not exist: `make image` builds it")
    return str(found[0].id)


def _sweep(client: Any) -> None:
    """Removes the containers of test runs that have ended."""
    for container in client.containers.list(all=True, filters={"label": OWNER_LABEL}):
        if not Path("/proc", container.labels[OWNER_LABEL]).exists():
            container.remove(force=True, v=True)


RunContainer = Callable[..., ContainerMember]


@pytest.fixture
def run_container(container_image_id: str) -> Iterator[RunContainer]:
    """`run_container("agent", …, probe=None, user=…)`: a started container of the image."""
    with ExitStack() as closing:

        def run(*arguments: str, probe: Probe | None = None, **options: Any) -> ContainerMember:
            member = ContainerMember(arguments, probe, container_image_id, **options)
            closing.callback(member.close)
            member.start(wait=probe is not None)
            return member

        yield run


@pytest.fixture(params=["processes", pytest.param("containers", marks=pytest.mark.container)])
def either_cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    with ExitStack() as closing:

        def in_process(name: str, arguments: list[str], probe: Probe | None) -> Member:
            return ProcessMember(arguments, probe, tmp_path / name)

        def in_container(name: str, arguments: list[str], probe: Probe | None) -> Member:
            return ContainerMember(arguments, probe, request.getfixturevalue("container_image_id"))

        make = in_process if request.param == "processes" else in_container

        def make_and_close(name: str, arguments: list[str], probe: Probe | None) -> Member:
            member = make(name, arguments, probe)
            closing.callback(member.close)
            return member

        cluster = Cluster(make_and_close)
        cluster.start()
        yield cluster
