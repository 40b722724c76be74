"""What is fuzzed: a ZooKeeper and a broker as processes; a registry, an agent and an auditor for the targets
that need them. And how they fare.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Final, Self

import psutil
from kio.schema.api_versions.v0.request import ApiVersionsRequest
from kio.schema.metadata.v12.request import MetadataRequest

from fix_agent import RunningAgent
from fix_broker import BrokerCluster, RawClient
from fix_registry import RegistryProcess, launch
from fix_zookeeper import ZooKeeperServer, room_on
from fuzzing.audited import AuditedHours
from fuzzing.fronts import Fronts
from fuzzing.honest import TOPIC, HonestClient
from fuzzing.requests import Names, RequestMaker
from fuzzing.sessions import PARTITIONS as SESSION_PARTITIONS
from fuzzing.sessions import TOPIC as SESSION_TOPIC

TOPICS: Final = ("fuzz-a", "fuzz-b", "fuzz.c", "fuzz-headers")
RECORDS_TOPIC: Final = "records-3b0e"
"""A name that no generated request holds: nobody else deletes it."""
CAPTURED_TOPICS: Final = ("kcat-none", "java-none", "kafka-python-none", "confluent-kafka-none")
"""The topics in the requests that real clients sent."""
PARTITIONS: Final = 3
GROUPS: Final = ("group-a", "group-b")
CONFIGS: Final = ("retention.ms", "cleanup.policy", "segment.bytes", "max.message.bytes", "compression.type")
SETTINGS: Final = {
    "log.segment.bytes": str(1 << 20),
    "auto.create.topics.enable": "true",
    "group.initial.rebalance.delay.ms": "0",
}
MEMORY_MAX_BYTES: Final = 700 << 20
"""Of a broker: what it holds at rest, what its bounds allow for requests, and what one batch unpacks to."""
_TROUBLE: Final = re.compile(r"Traceback \(most recent|\bCRITICAL\b|RecursionError|MemoryError")


class AgentAddress:
    """Where a running agent listens, and the headers that it wants."""

    def __init__(self, agent: RunningAgent) -> None:
        self.address = agent.address
        self.url = f"http://{agent.address}"
        token = (agent.home / "agent" / "token").read_text().strip()
        self.headers = {"Authorization": f"Bearer {token}"}


class World:
    """Started once for many rounds; renewed when too much was stored in it."""

    def __init__(self, server: ZooKeeperServer) -> None:
        self._server = server
        self._directory = Path(tempfile.mkdtemp(prefix="headrace-fuzz-"))
        self._cluster = BrokerCluster(room_on(server), self._directory, 1, "fuzz", SETTINGS)
        self._registry: RegistryProcess | None = None
        self._agent: RunningAgent | None = None
        self._audited: AuditedHours | None = None
        self._fronts: Fronts | None = None
        self._registry_log = self._directory / "registry.log"
        self._read = Counter[Path]()
        self.names = Names()
        self.maker: RequestMaker

    def __enter__(self) -> Self:
        self._cluster.start()
        with RawClient(self.address) as client:
            client.create_topic(TOPIC)
            client.create_topic(SESSION_TOPIC, SESSION_PARTITIONS)
            for name in (*TOPICS, RECORDS_TOPIC):
                client.create_topic(name, PARTITIONS)
            for name in CAPTURED_TOPICS:
                client.create_topic(name)
            served = client.call(ApiVersionsRequest()).api_keys
            asked = MetadataRequest(
                topics=None, allow_auto_topic_creation=False, include_topic_authorized_operations=False
            )
            ids = [each.topic_id for each in client.call(asked).topics if each.name in TOPICS]
        self.names = Names(list(TOPICS), [each for each in ids if each], list(GROUPS), list(CONFIGS))
        versions = [(each.api_key, each.min_version, each.max_version) for each in served]
        self.maker = RequestMaker(versions, self.names)
        self.trouble()
        return self

    def __exit__(self, *_: object) -> None:
        if self._audited is not None:
            self._audited.close()
        if self._fronts is not None:
            self._fronts.close()
        if self._registry is not None:
            self._registry.kill()
        if self._agent is not None:
            self._agent.close()
        self._cluster.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    @property
    def address(self) -> str:
        return self._cluster.bootstrap

    @property
    def datacenter(self) -> str:
        return self._cluster.datacenter

    @property
    def data_dir(self) -> Path:
        return self._cluster.brokers[0].data_dir

    @property
    def zookeeper_hosts(self) -> str:
        return self._cluster.zookeeper.hosts

    def registry_url(self) -> str:
        """The schema registry on the same ZooKeeper, started at the first call."""
        if self._registry is None:
            with self._registry_log.open("ab") as log:
                self._registry = launch(self.zookeeper_hosts, log=log)
        return self._registry.url

    def agent(self) -> AgentAddress:
        """The agent of a host with a home of its own, started at the first call."""
        if self._agent is None:
            home = self._directory / "home"
            home.mkdir()
            self._agent = RunningAgent(home)
            self._agent.start()
        return AgentAddress(self._agent)

    def audited(self) -> AuditedHours:
        """Hours that are proven complete, and their auditor; started at the first call."""
        if self._audited is None:
            self._audited = AuditedHours(self._cluster, self.registry_url(), self._directory)
            self._audited.start()
        return self._audited

    def fronts(self) -> Fronts:
        """Two brokers of another cluster, with front listeners; started at the first call."""
        if self._fronts is None:
            self._fronts = Fronts(self._server, self._directory / "fronts")
            self._fronts.start()
        return self._fronts

    def kill(self) -> None:
        """SIGKILLs the broker."""
        self._cluster.brokers[0].kill()

    def honest(self) -> HonestClient:
        client = HonestClient(self.address)
        client.start()
        return client

    def memory_bytes(self) -> int:
        return int(psutil.Process(self._cluster.brokers[0].pid).memory_info().rss)

    def trouble(self) -> str | None:
        """What a process wrote since the last call that it never should; or that a broker has ended."""
        brokers = [*self._cluster.brokers, *(self._fronts.cluster.brokers if self._fronts else ())]
        for broker in brokers:
            if not broker.is_running:
                return f"the broker ended: {broker.output()[-2000:]}"
        logs = [*(broker.log_file for broker in brokers), self._registry_log]
        logs.append(self._directory / "home" / "agent.out")
        if self._audited is not None:
            logs.append(self._audited.auditor.log_file)
        for path in logs:
            output = path.read_text(errors="replace") if path.exists() else ""
            new, self._read[path] = output[self._read[path] :], len(output)
            found = _TROUBLE.search(new)
            if found:
                return f"{path.stem} wrote: {new[max(0, found.start() - 300) : found.end() + 2500]}"
        held_bytes = max(self.memory_bytes(), self._fronts.memory_bytes() if self._fronts else 0)
        if held_bytes > MEMORY_MAX_BYTES:
            return f"a broker holds {held_bytes >> 20} MiB"
        return None if self._audited is None else self._audited.trouble()

    def settle(self, wait_max_s: float = 10.0) -> None:
        """Waits until the broker has closed the connections of the round and rests."""
        process = psutil.Process(self._cluster.brokers[0].pid)
        deadline = time.monotonic() + wait_max_s
        while time.monotonic() < deadline and process.cpu_percent(0.2) > 20:
            continue
