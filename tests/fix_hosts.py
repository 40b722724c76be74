"""Several hosts on this machine, each with an agent of its own, and the HCL of three brokers on them.

Owns: `BrokersOnHosts`, `die`, and what the tests of hosts ask of one topic. Fixture: `hosts`, which starts
agents.
"""

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import pytest

import quick_kinds_agent
from fix_agent import HOST, RunningAgent
from fix_ports import free_port
from fix_zookeeper import ZooKeeperRoom
from headrace.agent.processes import unit_processes
from headrace.client.admin import Admin
from headrace.client.consumer import Consumer
from headrace.client.producer import Producer

TOPIC = "clicks"
WAIT_MAX_S = 120.0

StartHosts = Callable[[Iterable[str]], dict[str, RunningAgent]]


class BrokersOnHosts:
    """Three brokers, in HCL: `hosts` says where each of them is, `known` which agents the provider has."""

    def __init__(
        self, agents: Mapping[str, RunningAgent], zookeeper: ZooKeeperRoom, hosts: Iterable[str]
    ) -> None:
        self.agents = agents
        self.zookeeper = zookeeper
        self.hosts = list(hosts)
        self.known = list(agents)
        self.listens = [f"{HOST}:{free_port(HOST)}" for _ in self.hosts]

    def move(self, number: int, host: str) -> None:
        """Gives a broker another host, and an address of that host."""
        self.hosts[number - 1] = host
        self.listens[number - 1] = f"{HOST}:{free_port(HOST)}"

    def hcl(self) -> str:
        agents = "".join(
            f'    "{host}" = {{ url = "http://{self.agents[host].address}", '
            f'token_file = "{self.agents[host].home}/agent/token" }}\n'
            for host in self.known
        )
        return f'provider "headrace" {{\n  agents = {{\n{agents}  }}\n}}\n' + "".join(
            f"""
resource "headrace_broker" "b{number}" {{
  host       = "{host}"
  name       = "b{number}"
  datacenter = "east"
  broker_id  = {number}
  zookeeper  = "{self.zookeeper.hosts}"
  listen     = "{listen}"
  settings   = {{ "zookeeper.session.timeout.ms" = "4000" }}
}}
"""
            for number, (host, listen) in enumerate(zip(self.hosts, self.listens, strict=True), 1)
        )

    def home(self, number: int) -> Path:
        return self.agents[self.hosts[number - 1]].home


def die(agent: RunningAgent) -> None:
    """Everything on the host ends at once, as in a power cut."""
    agent.end(signal.SIGKILL)
    os.kill(int(agent.supervisor.pid_path.read_text()), signal.SIGKILL)
    for process in unit_processes(agent.home):
        process.kill()


def publish(bootstrap: list[str], numbers: Iterable[int]) -> None:
    with Producer(bootstrap) as producer:
        for number in numbers:
            producer.send(TOPIC, b"event %d" % number, partition=0)


def records(bootstrap: list[str], count: int) -> list[bytes]:
    found: list[bytes] = []
    deadline = time.monotonic() + WAIT_MAX_S
    with Consumer(bootstrap, auto_offset_reset="error") as consumer:
        consumer.assign([(TOPIC, 0)])
        consumer.seek(TOPIC, 0, 0)
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} records are there"
            found += [record.value or b"" for record in consumer.poll(1.0)]
    return found


def log_bytes(home: Path, name: str) -> bytes:
    (path,) = home.glob(f"data/{name}/**/{TOPIC}-0/*.log")
    return path.read_bytes()


def in_sync(bootstrap: str) -> list[int]:
    """The ids of the brokers that have all of the topic's partition."""
    with Admin(bootstrap) as admin:
        return sorted(admin.topic(TOPIC).partitions[0].isr)


@pytest.fixture
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartHosts]:
    started: dict[str, RunningAgent] = {}

    def start(names: Iterable[str]) -> dict[str, RunningAgent]:
        for name in names:
            home = tmp_path_factory.mktemp(name) / "home"
            home.mkdir()
            started[name] = RunningAgent(home)
            started[name].start(quick_kinds_agent.PROGRAM)
        return started

    try:
        yield start
    finally:
        for agent in started.values():
            agent.close()
