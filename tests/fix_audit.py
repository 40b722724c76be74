"""Real mirror and auditor processes for tests.

Fixtures: `start_mirror(source, target, *extra)` and `start_auditor(cluster, registry_url, *extra)`, both
for clusters of `fix_broker`. The processes are killed after the test. They log to files in its directory.
"""

import json
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from fix_audit_world import HOUR_A
from fix_broker import BrokerCluster
from fix_zookeeper import die_with_parent
from headrace.events.publisher import EventPublisher
from headrace.events.schemas import read_schema

WAIT_MAX_S: Final = 60.0
STOP_WAIT_MAX_S: Final = 40.0


def wait_for(condition: Callable[[], object], explain: Callable[[], object] = lambda: "") -> None:
    """Returns once `condition` holds; fails the test with `explain` after `WAIT_MAX_S`."""
    deadline = time.monotonic() + WAIT_MAX_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {WAIT_MAX_S} s: {str(explain())[-4000:]}"
        time.sleep(0.05)


class ServiceProcess:
    """A process that prints one line with its status address once it runs."""

    def __init__(self, command: list[str], log_file: Path) -> None:
        self.command = command
        self.log_file = log_file
        self.status_url = ""
        self._ready_before = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self, *, wait: bool = True) -> None:
        """Starts the process; it dies with the thread that calls this."""
        self._ready_before = self._times_ready()
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *self.command], stdout=log, stderr=log, preexec_fn=die_with_parent
            )
        if wait:
            self.wait_until_ready()

    def wait_until_ready(self) -> None:
        wait_for(lambda: self._times_ready() > self._ready_before, self.output)
        self.status_url = re.findall(r"status on (http://\S+)\n", self.output())[-1]

    def _times_ready(self) -> int:
        return len(re.findall(r"status on http://\S+\n", self.output()))

    def output(self) -> str:
        """All it has logged so far, over all restarts."""
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    def status(self) -> dict[str, Any]:
        with urllib.request.urlopen(self.status_url, timeout=10) as response:
            found: dict[str, Any] = json.load(response)
            return found

    def partitions(self) -> dict[tuple[str, int], dict[str, Any]]:
        """Its status by (topic, partition)."""
        return {(each["topic"], each["partition"]): each for each in self.status()["partitions"]}

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def terminate(self) -> int:
        """Sends SIGTERM and waits; returns the exit code."""
        assert self._process is not None
        process, self._process = self._process, None
        process.send_signal(signal.SIGTERM)
        return process.wait(STOP_WAIT_MAX_S)


class MirrorProcess(ServiceProcess):
    """One `python -m headrace.mirror`."""

    def __init__(self, source: BrokerCluster, target: BrokerCluster, directory: Path, *extra: str) -> None:
        self.source, self.target = source, target
        command = ["headrace.mirror", "--source-datacenter", source.datacenter]
        command += ["--source-bootstrap", source.bootstrap, "--target-bootstrap", target.bootstrap]
        command += ["--target-zookeeper", target.zookeeper.hosts, *extra]
        super().__init__(command, directory / f"mirror-{source.datacenter}.log")


class AuditorProcess(ServiceProcess):
    """One `python -m headrace.audit` that reports every 0.3 s."""

    def __init__(self, cluster: BrokerCluster, registry_url: str, directory: Path, *extra: str) -> None:
        command = ["headrace.audit", "--datacenter", cluster.datacenter, "--bootstrap", cluster.bootstrap]
        command += ["--registry", registry_url, "--every", "0.3", *extra]
        super().__init__(command, directory / f"auditor-{cluster.datacenter}.log")


def publish_singly(cluster: BrokerCluster, registry_url: str, topic: str, count: int) -> None:
    """Publishes page views of a past hour, `HOUR_A`, each in a batch of its own."""
    with EventPublisher(
        datacenter=cluster.datacenter,
        service="checkout",
        bootstrap=cluster.bootstrap,
        registry_url=registry_url,
        schemas={topic: read_schema("page-view.avsc")},
        producer_options={"linger_ms": 0},
    ) as publisher:
        for number in range(count):
            event = {"remote_host": "10.0.0.1", "method": "GET", "path": f"/{number}", "status": 200}
            publisher.publish(topic, event, time_ms=HOUR_A + number)
            publisher.flush(30)


StartMirror = Callable[..., MirrorProcess]
StartAuditor = Callable[..., AuditorProcess]


@pytest.fixture
def start_mirror(tmp_path: Path) -> Iterator[StartMirror]:
    started: list[MirrorProcess] = []

    def start(source: BrokerCluster, target: BrokerCluster, *extra: str) -> MirrorProcess:
        started.append(MirrorProcess(source, target, tmp_path, *extra))
        started[-1].start()
        return started[-1]

    yield start
    for mirror in started:
        mirror.kill()


@pytest.fixture
def start_auditor(tmp_path: Path) -> Iterator[StartAuditor]:
    started: list[AuditorProcess] = []

    def start(cluster: BrokerCluster, registry_url: str, *extra: str) -> AuditorProcess:
        started.append(AuditorProcess(cluster, registry_url, tmp_path, *extra))
        started[-1].start()
        return started[-1]

    yield start
    for auditor in started:
        auditor.kill()
