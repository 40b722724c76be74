"""A real balancer process in front of real brokers, for tests: either engine, on free ports.

Owns: `BalancerProcess` (starts it, reads its status), and `start_balanced`, which starts brokers behind it.
Fixture: `balanced_cluster`, for each engine that this machine has.
"""

import contextlib
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from fix_broker import BrokerCluster, BrokerProcess
from fix_ports import free_port, free_ports
from fix_zookeeper import ZooKeeperServer, die_with_parent, room_on

ENGINES: Final = ("haproxy", "embedded")
WAIT_MAX_S: Final = 60.0


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_MAX_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {WAIT_MAX_S:g} s: {what}"
        time.sleep(0.02)


class BalancerProcess:
    def __init__(self, engine: str, zookeeper: str, directory: Path) -> None:
        self.engine = engine
        self.port, self.status_port, self.statistics_port = free_ports(3)
        self.log_file = directory / "balancer.log"
        command = [sys.executable, "-m", "headrace.balancer", "--engine", engine]
        command += ["--listen", self.address, "--status", f"127.0.0.1:{self.status_port}"]
        command += ["--statistics", f"127.0.0.1:{self.statistics_port}"]
        command += ["--zookeeper", zookeeper, "--directory", str(directory / "balancer")]
        self._command = command
        self.start()

    def start(self) -> None:
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(self._command, stdout=log, stderr=log, preexec_fn=die_with_parent)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def page(self) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.status_port}/", timeout=20) as answer:
            return str(answer.read().decode())

    def status(self) -> dict[str, Any]:
        url = f"http://127.0.0.1:{self.status_port}/status"
        with urllib.request.urlopen(url, timeout=20) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def withdrawn(self) -> dict[int, str]:
        """The condition of each broker whose front is withdrawn, by broker id."""
        return {row["broker_id"]: row["condition"] for row in self.status()["withdrawn"]}

    def backends(self) -> dict[int, dict[str, Any]]:
        """Rows of the status by broker id; empty while the balancer does not respond."""
        assert self.process.poll() is None, f"the balancer ended:\n{self.output()[-4000:]}"
        with contextlib.suppress(OSError):
            return {row["broker_id"]: row for row in self.status()["backends"]}
        return {}

    def wait_serving(self, *broker_ids: int) -> None:
        """Returns once exactly these brokers are healthy and get new connections."""

        def serving() -> bool:
            rows = self.backends().items()
            return {each for each, row in rows if row["is_up"] and row["phase"] == "ready"} == set(broker_ids)

        wait_until(serving, f"brokers {broker_ids} serve:\n{self.output()[-2000:]}")

    def output(self) -> str:
        return self.log_file.read_text(errors="replace")

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(WAIT_MAX_S)


@dataclass
class Balanced:
    """Brokers and the balancer in front of them."""

    cluster: BrokerCluster
    balancer: BalancerProcess

    def broker(self, broker_id: int) -> BrokerProcess:
        """A broker of the cluster; a new one, not started yet, for another id."""
        known = {each.broker_id: each for each in self.cluster.brokers}
        if broker_id not in known:
            like = self.cluster.brokers[0]
            made = BrokerProcess(
                broker_id, self.cluster.directory, like.zookeeper, like.datacenter, like.config
            )
            made.extra_arguments = _front(self.balancer)
            self.cluster.brokers.append(made)
            return made
        return known[broker_id]


def _front(balancer: BalancerProcess) -> list[str]:
    return ["--front-listen", f"127.0.0.1:{free_port()}", "--front-advertise", balancer.address]


@contextlib.contextmanager
def start_balanced(server: ZooKeeperServer, engine: str, broker_count: int) -> Iterator[Balanced]:
    directory = Path(tempfile.mkdtemp(prefix="headrace-balanced-"))
    room = room_on(server)
    cluster = BrokerCluster(room, directory, broker_count, "test", {})
    balancer = BalancerProcess(engine, room.hosts, directory)
    try:
        for broker in cluster.brokers:
            broker.extra_arguments = _front(balancer)
        cluster.start()
        balancer.wait_serving(*(broker.broker_id for broker in cluster.brokers))
        yield Balanced(cluster, balancer)
    finally:
        for broker in cluster.brokers:
            if broker.is_running:
                broker.send_signal(signal.SIGCONT)
        if balancer.process.poll() is None:
            balancer.stop()
        cluster.close()
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="module", params=ENGINES)
def shared_balanced(request: pytest.FixtureRequest, zookeeper_server: ZooKeeperServer) -> Iterator[Balanced]:
    if (
        request.param == "haproxy"
        and shutil.which("haproxy", path="/usr/sbin:/usr/bin:/usr/local/sbin") is None
    ):
        pytest.skip("haproxy is not installed")
    with start_balanced(zookeeper_server, request.param, 2) as made:
        yield made


@pytest.fixture
def balanced_cluster(shared_balanced: Balanced) -> Balanced:
    """Brokers 1 and 2 behind a balancer, all serving at the start of each test."""
    balancer, cluster = shared_balanced.balancer, shared_balanced.cluster
    for broker in cluster.brokers[2:]:
        if broker.is_running:
            broker.stop()
    for broker in cluster.brokers[:2]:
        if not broker.is_running:
            broker.start()
    if balancer.process.poll() is not None:
        balancer.start()
    balancer.wait_serving(1, 2)
    return shared_balanced
