"""Apache Kafka as a peer: one KRaft node out of Maven Central's jars, with the settings that Kafka ships."""

from __future__ import annotations

import base64
import os
import shutil
import time
import uuid
from collections.abc import Collection
from pathlib import Path
from typing import Final

from peers.jars import bench_jars, class_path
from peers.topics import Topics
from peers.waiting import check_port_free, wait_for_listener
from side_by_side.process import PinnedProcess, ProcessFailedError

from headrace.warehouse.jars import java

VERSION: Final = "4.4.0"
PORT: Final = 9092
CONTROLLER_PORT: Final = 9093
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


def server_properties(host: str, data_dir: Path, *, fsync: bool) -> str:
    """Returns server.properties: what Kafka ships, with addresses, folders and factors of a single node."""
    listener, controller = f"PLAINTEXT://{host}:{PORT}", f"CONTROLLER://{host}:{CONTROLLER_PORT}"
    settings: dict[str, object] = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@{host}:{CONTROLLER_PORT}",
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
    """One node, broker and controller. With `fsync` it flushes each message before it is acknowledged."""

    def __init__(self, home: Path, address: str, cores: Collection[int], *, fsync: bool = False) -> None:
        """`home` is a folder of this peer alone, `address` a loopback host such as 127.106.0.2."""
        self.name = f"Apache Kafka {VERSION}" + (", fsync" if fsync else "")
        self.bootstrap = f"{address}:{PORT}"
        self._home = home
        self._address = address
        self._cores = cores
        self._fsync = fsync
        self._properties = home / "server.properties"
        self._data_dir = home / "data"
        self._topics = Topics(self.bootstrap, [self._data_dir])
        self._process: PinnedProcess | None = None

    def start(self) -> None:
        self.stop()
        check_port_free(self._address, PORT)
        self._home.mkdir(parents=True)
        self._properties.write_text(server_properties(self._address, self._data_dir, fsync=self._fsync))
        self._format()
        self._topics = Topics(self.bootstrap, [self._data_dir])
        self._process = self._launch()
        # The listener is opened last, once the broker is registered and unfenced.
        wait_for_listener(self._process, self._address, PORT)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process = None
        shutil.rmtree(self._home, ignore_errors=True)

    def pids(self) -> list[int]:
        return [self._running().pid]

    def memory_bytes(self) -> int:
        return self._running().memory_bytes()

    def create_topic(self, topic: str, partitions: int = 1) -> None:
        self._topics.create(topic, partitions)

    def delete_topic(self, topic: str) -> None:
        self._topics.delete(topic)

    def restart_after_kill(self) -> float:
        before = self._topics.log_ends()
        self._running().kill()
        started_s = time.monotonic()
        self._process = self._launch()
        wait_for_listener(self._process, self._address, PORT)
        self._topics.wait_for_log_ends(before, self._process)
        return time.monotonic() - started_s

    # --- the process ---

    def _running(self) -> PinnedProcess:
        if self._process is None:
            raise ProcessFailedError(f"{self.name} is not started")
        return self._process

    def _launch(self) -> PinnedProcess:
        return PinnedProcess(
            [java(), *HEAP, *JVM, QUIET, "-cp", self._class_path(), "kafka.Kafka", str(self._properties)],
            cores=self._cores,
            log=self._home / "broker.log",
            env=JAVA_ENV,
        )

    def _format(self) -> None:
        # Joined by "=": an id that begins with a dash would be parsed as an option.
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        command = ["kafka.tools.StorageTool", "format", f"--cluster-id={cluster_id}"]
        formatting = PinnedProcess(
            [java(), QUIET, "-cp", self._class_path(), *command, "--config", str(self._properties)],
            cores=self._cores,
            log=self._home / "format.log",
            env=JAVA_ENV,
        )
        if formatting.wait(FORMAT_WAIT_MAX_S) != 0:
            raise ProcessFailedError(f"Kafka could not format its folder: {formatting.log_tail()}")

    @staticmethod
    def _class_path() -> str:
        return class_path(bench_jars("kafka"))
