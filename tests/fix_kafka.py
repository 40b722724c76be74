"""A real Apache Kafka broker for tests: a single KRaft node out of Maven Central's jars. No Docker needed.

Fixture: `apache_kafka` (an `ApacheKafka`, session-scoped): what works with headrace must work with it too.
Ready in about five seconds. Topics are made on demand; small segments, so that a test's records span several.
"""

import base64
import contextlib
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from fix_java import QUIET, KafkaTool, class_path
from fix_ports import free_port
from fix_zookeeper import die_with_parent

START_WAIT_MAX_S: Final = 120.0
SEGMENT_BYTES: Final = 1 << 20


class ApacheKafka:
    """One broker process; what was written stays over `kill` and `start`."""

    def __init__(self, jars: Path, directory: Path, host: str = "127.0.0.1") -> None:
        self._jars = jars
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self.host, self.port = host, free_port(host)
        directory.mkdir(parents=True, exist_ok=True)
        self._properties = directory / "server.properties"
        controller = f"{host}:{free_port(host)}"
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap}",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": f"1@{controller}",
            "log.dirs": str(directory / "data"),
            "log.segment.bytes": str(SEGMENT_BYTES),
            "auto.create.topics.enable": "true",
            "offsets.topic.num.partitions": "1",
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            "num.network.threads": "1",
            "num.io.threads": "2",
            # Event times in tests are of any year: retention must delete nothing.
            "log.retention.ms": "-1",
        }
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        # "--name=value": an id that begins with a dash would be parsed as an option.
        KafkaTool(jars)(
            "kafka.tools.StorageTool",
            "format",
            f"--cluster-id={cluster_id}",
            "--config",
            str(self._properties),
        )

    @property
    def bootstrap(self) -> str:
        return f"{self.host}:{self.port}"

    def start(self) -> None:
        with (self._directory / "out.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    "java",
                    "-Xmx384m",
                    "-XX:+UseSerialGC",
                    QUIET,
                    "-cp",
                    class_path(self._jars),
                    "kafka.Kafka",
                    str(self._properties),
                ],
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent,
            )
        self._wait_until_ready()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(timeout=30)
            self._process = None

    def _wait_until_ready(self) -> None:
        # The listener is opened last, once the broker is registered and unfenced.
        deadline = time.monotonic() + START_WAIT_MAX_S
        while time.monotonic() < deadline:
            assert self._process is not None
            assert self._process.poll() is None, f"Apache Kafka ended: {self._log()}"
            with contextlib.suppress(OSError), socket.create_connection((self.host, self.port), timeout=1):
                return
            time.sleep(0.05)
        raise TimeoutError(f"Apache Kafka was not ready within {START_WAIT_MAX_S:g} s: {self._log()}")

    def _log(self) -> str:
        return (self._directory / "out.log").read_text(errors="replace")[-3000:]


@pytest.fixture(scope="session")
def apache_kafka(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    broker = ApacheKafka(kafka_jars, tmp_path_factory.mktemp("apache-kafka"))
    broker.start()
    try:
        yield broker
    finally:
        broker.kill()
