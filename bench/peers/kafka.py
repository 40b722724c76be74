"""Apache Kafka as a peer: one KRaft node out of Maven Central's jars, or several, with the settings that
Kafka ships.
"""

from __future__ import annotations

import base64
import os
import shutil
import time
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from peers.jars import bench_jars, class_path
from peers.topics import Topics
from peers.waiting import check_port_free, wait_for_listener
from side_by_side.process import PinnedProcess, ProcessFailedError

from headrace.warehouse.jars import java

VERSION: Final = "4.4.0"
PORT: Final = 9092
FORMAT_WAIT_MAX_S: Final = 60.0
HEAP: Final = ("-Xms1G", "-Xmx1G")
"""As kafka-server-start.sh starts a broker."""
JVM: Final = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
"""As kafka-run-class.sh starts any of Kafka's programs."""
QUIET: Final = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
JAVA_ENV: Final = {name: "" for name in ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS") if name in os.environ}
"""Without the options that somebody has set for other JVMs."""


@dataclass(frozen=True)
class Node:
    """One node of a cluster, broker and controller: the node of that id among `count` on one host."""

    host: str
    id: int = 1
    count: int = 1

    @property
    def port(self) -> int:
        return PORT + 2 * (self.id - 1)

    @property
    def voters(self) -> str:
        """All nodes of the cluster, as `controller.quorum.voters` names them."""
        nodes = (replace(self, id=number) for number in range(1, self.count + 1))
        return ",".join(f"{node.id}@{node.host}:{node.port + 1}" for node in nodes)


def server_properties(node: Node, data_dir: Path, *, fsync: bool) -> str:
    """Returns server.properties: what Kafka ships, with addresses, folders and factors of a small cluster."""
    listener, controller = f"PLAINTEXT://{node.host}:{node.port}", f"CONTROLLER://{node.host}:{node.port + 1}"
    settings: dict[str, object] = {
        "process.roles": "broker,controller",
        "node.id": node.id,
        "controller.quorum.voters": node.voters,
        "listeners": f"{listener},{controller}",
        "advertised.listeners": listener,
        "inter.broker.listener.name": "PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "num.network.threads": 3,
        "num.io.threads": 8,
        "socket.send.buffer.bytes": 102_400,
        "socket.receive.buffer.bytes": 102_400,
        "socket.request.max.bytes": 104_857_600,
        "log.dirs": data_dir,
        "num.partitions": 1,
        "offsets.topic.replication.factor": 1,
        "share.coordinator.state.topic.replication.factor": 1,
        "share.coordinator.state.topic.min.isr": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "log.retention.hours": 168,
        "log.segment.bytes": 1_073_741_824,
        "log.retention.check.interval.ms": 300_000,
        # Not the default, a minute: a deleted topic's bytes must leave the disk before the next run.
        "log.segment.delete.delay.ms": 1000,
    }
    if fsync:
        settings["log.flush.interval.messages"] = 1
    return "".join(f"{name}={value}\n" for name, value in settings.items())


class ApacheKafka:
    """One node, broker and controller, or `count` of them. With `fsync` each flushes every message before it
    acknowledges it (to a follower's leader, too).
    """

    def __init__(
        self,
        home: Path,
        address: str,
        cores: Collection[int],
        *,
        fsync: bool = False,
        count: int = 1,
        replicas: int = 1,
        topic_config: Mapping[str, str] | None = None,
    ) -> None:
        """`home` is a folder of this peer alone, `address` a loopback host such as 127.106.0.2.

        Topics have `replicas` replicas and the settings of `topic_config`.
        """
        self.name = f"Apache Kafka {VERSION}" + (", fsync" if fsync else "")
        self._nodes = [Node(address, number, count) for number in range(1, count + 1)]
        self.bootstrap = ",".join(f"{node.host}:{node.port}" for node in self._nodes)
        self._home = home
        self._cores = cores
        self._fsync = fsync
        self._replicas, self._topic_config = replicas, topic_config
        self.environments: dict[int, Mapping[str, str]] = {}
        """By a node's id, what is added to its environment."""
        self._topics = self._no_topics()
        self._processes: list[PinnedProcess] = []

    def start(self) -> None:
        self.stop()
        # Joined by "=" below: an id that begins with a dash would be parsed as an option.
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        for node in self._nodes:
            check_port_free(node.host, node.port)
            self._folder(node).mkdir(parents=True)
            properties = server_properties(node, self._folder(node) / "data", fsync=self._fsync)
            self._properties(node).write_text(properties)
            self._format(node, cluster_id)
        self._topics = self._no_topics()
        self.launch()

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
        self._processes = []
        shutil.rmtree(self._home, ignore_errors=True)

    def pids(self) -> list[int]:
        return [process.pid for process in self._running()]

    def memory_bytes(self) -> int:
        return sum(process.memory_bytes() for process in self._running())

    def create_topic(self, topic: str, partitions: int = 1) -> None:
        self._topics.create(topic, partitions)

    def delete_topic(self, topic: str) -> None:
        self._topics.delete(topic)

    def restart_after_kill(self) -> float:
        before = self._topics.log_ends()
        self.kill()
        started_s = time.monotonic()
        self.launch()
        self._topics.wait_for_log_ends(before, self._processes[0])
        return time.monotonic() - started_s

    @property
    def data_dirs(self) -> dict[int, Path]:
        """Returns where each node keeps its logs, by its id."""
        return {node.id: self._folder(node) / "data" for node in self._nodes}

    def kill(self) -> None:
        """Ends all nodes by SIGKILL; their data stays."""
        for process in self._running():
            process.kill()

    def launch(self) -> None:
        """Starts all nodes on the data that is there; returns once they serve."""
        self._processes = [self._launch(node) for node in self._nodes]
        for node, process in zip(self._nodes, self._processes, strict=True):
            # The listener is opened last, once the broker is registered and unfenced.
            wait_for_listener(process, node.host, node.port)

    # --- the processes ---

    def _running(self) -> list[PinnedProcess]:
        if not self._processes:
            raise ProcessFailedError(f"{self.name} is not started")
        return self._processes

    def _no_topics(self) -> Topics:
        data_dirs = list(self.data_dirs.values())
        return Topics(self.bootstrap, data_dirs, replicas=self._replicas, config=self._topic_config)

    def _folder(self, node: Node) -> Path:
        return self._home / f"node-{node.id}"

    def _properties(self, node: Node) -> Path:
        return self._folder(node) / "server.properties"

    def _launch(self, node: Node) -> PinnedProcess:
        properties = str(self._properties(node))
        return PinnedProcess(
            [java(), *HEAP, *JVM, QUIET, "-cp", self._class_path(), "kafka.Kafka", properties],
            cores=self._cores,
            log=self._folder(node) / "broker.log",
            env={**JAVA_ENV, **self.environments.get(node.id, {})},
        )

    def _format(self, node: Node, cluster_id: str) -> None:
        command = ["kafka.tools.StorageTool", "format", f"--cluster-id={cluster_id}"]
        formatting = PinnedProcess(
            [java(), QUIET, "-cp", self._class_path(), *command, "--config", str(self._properties(node))],
            cores=self._cores,
            log=self._folder(node) / "format.log",
            env=JAVA_ENV,
        )
        if formatting.wait(FORMAT_WAIT_MAX_S) != 0:
            raise ProcessFailedError(f"Kafka could not format its folder: {formatting.log_tail()}")

    @staticmethod
    def _class_path() -> str:
        return class_path(bench_jars("kafka"))
