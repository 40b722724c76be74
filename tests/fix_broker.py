"""Real headrace brokers for tests: processes on free ports of 127.0.0.1, on the test run's ZooKeeper.

Fixture: `broker_cluster`, a factory: `cluster = broker_cluster(count=3, config={"num.partitions": "4"})`
starts brokers on a chroot and data directories of their own and returns a `BrokerCluster` when all are ready.
They die with the test, and with pytest, however it ends. `one_broker` is a shared cluster of a single broker
for a whole test run: use topics of your own names there. `RawClient` speaks the protocol frame by frame.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Self

import pytest
from kio.schema.create_topics.v7.request import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from kio.schema.list_offsets.v7.request import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kio.schema.metadata.v12.request import MetadataRequest
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i8, i16, i32, i64

from fix_ports import free_port
from fix_zookeeper import ZooKeeperRoom, ZooKeeperServer, die_with_parent, room_on
from headrace.wire import fetch, produce
from headrace.wire.messages import decode_response, encode_request
from headrace.wire.primitives import NO_UUID, Buffer

READY_WAIT_MAX_S: Final = 90.0
STOP_WAIT_MAX_S: Final = 60.0
# Tests may use topics that nobody has created, as on the one-machine site. The broker's default is false.
TEST_SETTINGS: Final = {"auto.create.topics.enable": "true"}


class BrokerProcess:
    """One broker: its address stays the same over restarts."""

    def __init__(
        self, broker_id: int, directory: Path, zookeeper: str, datacenter: str, config: Mapping[str, str]
    ) -> None:
        self.broker_id = broker_id
        self.host = "127.0.0.1"
        self.port = free_port(self.host)
        self.data_dir = directory / f"broker-{broker_id}"
        self.log_file = directory / f"broker-{broker_id}.log"
        self.zookeeper = zookeeper
        self.datacenter = datacenter
        self.config = dict(config)
        self.extra_arguments: list[str] = []
        self.environment: dict[str, str] = {}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, *, wait: bool = True) -> None:
        """Start the process; `wait` until it reports that it is ready."""
        command = [sys.executable, "-m", "headrace.broker", "--broker-id", str(self.broker_id)]
        command += ["--datacenter", self.datacenter, "--listen", self.address, "--zookeeper", self.zookeeper]
        command += ["--data-dir", str(self.data_dir), *self.extra_arguments]
        for name, value in self.config.items():
            command += ["--set", f"{name}={value}"]
        self._ready_count = self.output().count(self._ready_line)
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.environment},
                preexec_fn=die_with_parent,
            )
        if wait:
            self.wait_until_ready()

    @property
    def _ready_line(self) -> str:
        return f"broker {self.broker_id} ready on {self.address}"

    def wait_until_ready(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + READY_WAIT_MAX_S
        while self.output().count(self._ready_line) <= self._ready_count:
            assert self._process.poll() is None, f"broker {self.broker_id} ended:\n{self.output()[-4000:]}"
            assert time.monotonic() < deadline, (
                f"broker {self.broker_id} is not ready:\n{self.output()[-4000:]}"
            )
            time.sleep(0.02)

    def sees(self) -> set[int]:
        """The brokers that it knows to be alive."""
        request = MetadataRequest(
            topics=(), allow_auto_topic_creation=False, include_topic_authorized_operations=False
        )
        with RawClient(self.address) as client:
            return {each.node_id for each in client.call(request).brokers}

    def output(self) -> str:
        """All it has written so far."""
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    def stop(self) -> int:
        """SIGTERM, and wait; the exit code."""
        return self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        self.stop()
        self.start()

    def send_signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def _end(self, how: int) -> int:
        if self._process is None:
            return 0
        process, self._process = self._process, None
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.send_signal(how)
        return process.wait(STOP_WAIT_MAX_S)


class BrokerCluster:
    """The brokers of one datacenter."""

    def __init__(
        self,
        zookeeper: ZooKeeperRoom,
        directory: Path,
        count: int,
        datacenter: str,
        config: Mapping[str, str],
    ) -> None:
        self.zookeeper = zookeeper
        self.directory = directory
        self.datacenter = datacenter
        self.brokers = [
            BrokerProcess(number, directory, zookeeper.hosts, datacenter, {**TEST_SETTINGS, **config})
            for number in range(1, count + 1)
        ]

    @property
    def bootstrap(self) -> str:
        """For clients: `host:port,host:port`."""
        return ",".join(broker.address for broker in self.brokers)

    def __getitem__(self, broker_id: int) -> BrokerProcess:
        return self.brokers[broker_id - 1]

    def start(self) -> None:
        for broker in self.brokers:
            broker.start(wait=False)
        for broker in self.brokers:
            broker.wait_until_ready()
        everybody = {broker.broker_id for broker in self.brokers}
        deadline = time.monotonic() + READY_WAIT_MAX_S
        # A broker sees the others a moment after it is ready itself.
        while len(everybody) > 1 and any(broker.sees() != everybody for broker in self.brokers):
            assert time.monotonic() < deadline, f"not all of brokers {everybody} see all others"
            time.sleep(0.02)

    def close(self) -> None:
        for broker in self.brokers:
            broker.kill()


StartCluster = Callable[..., BrokerCluster]


def _starter(server: ZooKeeperServer, started: list[BrokerCluster]) -> StartCluster:
    def start(
        count: int = 1,
        config: Mapping[str, str] | None = None,
        *,
        datacenter: str = "test",
        zookeeper: ZooKeeperRoom | None = None,
        arguments: Callable[[int], list[str]] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> BrokerCluster:
        directory = Path(tempfile.mkdtemp(prefix="headrace-brokers-"))
        cluster = BrokerCluster(zookeeper or room_on(server), directory, count, datacenter, config or {})
        started.append(cluster)
        for broker in cluster.brokers:
            broker.extra_arguments = arguments(broker.broker_id) if arguments else []
            broker.environment |= environment or {}
        cluster.start()
        return cluster

    return start


def _close_all(started: list[BrokerCluster]) -> None:
    for cluster in started:
        cluster.close()
        shutil.rmtree(cluster.directory, ignore_errors=True)


@pytest.fixture
def broker_cluster(zookeeper_server: ZooKeeperServer) -> Iterator[StartCluster]:
    started: list[BrokerCluster] = []
    try:
        yield _starter(zookeeper_server, started)
    finally:
        _close_all(started)


@pytest.fixture(scope="module")
def module_clusters(zookeeper_server: ZooKeeperServer) -> Iterator[StartCluster]:
    started: list[BrokerCluster] = []
    try:
        yield _starter(zookeeper_server, started)
    finally:
        _close_all(started)


@pytest.fixture(scope="session")
def one_broker(zookeeper_server: ZooKeeperServer) -> Iterator[BrokerCluster]:
    started: list[BrokerCluster] = []
    try:
        yield _starter(zookeeper_server, started)(1)
    finally:
        _close_all(started)


def batches_of(result: fetch.FetchPartitionResult) -> Buffer:
    """The bytes that a fetch returned."""
    assert result.records is not None and not isinstance(result.records, int)
    return result.records


class RawClient:
    """A client that sends given frames and reads single responses: for requests that no real client sends."""

    def __init__(self, address: str, *, timeout_s: float = 60.0) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = self.socket.makefile("rb")
        self._correlation_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._stream.close()
        self.socket.close()

    def next_id(self) -> int:
        self._correlation_id += 1
        return self._correlation_id

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def receive(self) -> memoryview:
        """The next frame; `EOFError` when the broker has closed the connection."""
        try:
            head = self._stream.read(4)
            body = self._stream.read(int.from_bytes(head, "big")) if len(head) == 4 else b""
        except ConnectionResetError:
            head = b""
        if len(head) < 4:
            raise EOFError("the broker closed the connection")
        return memoryview(body)

    def call(self, body: Any) -> Any:
        """Send one of kio's requests; returns its response's body."""
        self.send(encode_request(body, correlation_id=self.next_id(), client_id="raw"))
        correlation_id, response = decode_response(
            self.receive(), api_key=body.__api_key__, version=body.__version__
        )
        assert correlation_id == self._correlation_id
        return response

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> Any:
        """CreateTopics; the topic's result, which must be a success."""
        topic = CreatableTopic(
            name=TopicName(name),
            num_partitions=i32(partitions),
            replication_factor=i16(1),
            assignments=(),
            configs=tuple(
                CreatableTopicConfig(name=key, value=value) for key, value in (config or {}).items()
            ),
        )
        (result,) = self.call(CreateTopicsRequest(topics=(topic,))).topics
        assert result.error_code.name == "none", (result.error_code, result.error_message)
        return result

    def produce_frame(
        self, topic: str, partition: int, batch: bytes, *, acks: int = -1, version: int = 9
    ) -> bytes:
        request = produce.ProduceRequest(
            None,
            acks,
            30_000,
            [produce.ProduceTopic(topic, NO_UUID, [produce.ProducePartition(partition, batch)])],
        )
        return produce.encode_request(
            request, version=version, correlation_id=self.next_id(), client_id="raw"
        )

    def read_produced(self, *, version: int = 9) -> produce.ProducePartitionResult:
        _, response = produce.decode_response(self.receive(), version=version)
        return response.topics[0].partitions[0]

    def produce(
        self, topic: str, partition: int, batch: bytes, *, acks: int = -1, version: int = 9
    ) -> produce.ProducePartitionResult:
        """Send one batch; returns its result."""
        self.send(self.produce_frame(topic, partition, batch, acks=acks, version=version))
        return self.read_produced(version=version)

    def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        max_wait_ms: int = 0,
        min_bytes: int = 1,
        max_bytes: int = 1 << 20,
        version: int = 12,
    ) -> fetch.FetchPartitionResult:
        """One fetch of one partition."""
        request = fetch.FetchRequest(
            max_wait_ms,
            min_bytes,
            1 << 30,
            [fetch.FetchTopic(topic, NO_UUID, [fetch.FetchPartition(partition, offset, max_bytes)])],
        )
        self.send(
            fetch.encode_request(request, version=version, correlation_id=self.next_id(), client_id="raw")
        )
        _, response = fetch.decode_response(self.receive(), version=version)
        return response.topics[0].partitions[0]

    def read_all(self, topic: str, partition: int) -> bytes:
        """Every batch of the partition, from its start to what is visible now."""
        data = b""
        result = self.fetch(topic, partition, 0)
        while result.records:
            data += batches_of(result)
            result = self.fetch(topic, partition, len(data))
        return data

    def list_offset(self, topic: str, partition: int, timestamp: int) -> tuple[int, int]:
        """`(offset, timestamp)` for a timestamp, or for -1 latest, -2 earliest, -3 greatest."""
        wanted = ListOffsetsPartition(partition_index=i32(partition), timestamp=i64(timestamp))
        topics = (ListOffsetsTopic(name=TopicName(topic), partitions=(wanted,)),)
        response = self.call(
            ListOffsetsRequest(replica_id=BrokerId(-1), isolation_level=i8(0), topics=topics)
        )
        (found,) = response.topics[0].partitions
        assert found.error_code.name == "none", found.error_code
        return found.offset, found.timestamp
