"""The front listener behind a plain TCP balancer: producers see one node, every record reaches its leader."""

import contextlib
import itertools
import signal
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest
from kio.schema.metadata.v12.request import MetadataRequest, MetadataRequestTopic
from kio.schema.types import TopicName

from fix_broker import BrokerCluster, RawClient, StartCluster
from fix_ports import free_port
from fix_zookeeper import ZooKeeperRoom
from headrace.broker.front import VIRTUAL_NODE_ID
from headrace.coordination.fronts import FrontRegistry
from headrace.wire.batch import hop
from headrace.wire.errors import ErrorCode
from headrace.wire.produce import (
    ProducePartition,
    ProduceRequest,
    ProduceTopic,
    decode_response,
    encode_request,
)
from headrace.wire.records import Record, decode_records, encode_batch


class Balancer:
    """Connects each client to the next backend that accepts, as HAProxy in TCP mode does."""

    def __init__(self, backends: list[int]) -> None:
        self.backends = itertools.cycle(backends)
        self.count = len(backends)
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.socket.getsockname()[1]
        self.open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.socket.accept()
                for _ in range(self.count):
                    with contextlib.suppress(OSError):
                        backend = socket.create_connection(("127.0.0.1", next(self.backends)))
                        break
                else:
                    client.close()
                    continue
                self.open += [client, backend]
                for source, sink in ((client, backend), (backend, client)):
                    threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        # Closing alone does not wake a thread that waits in accept.
        self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        for each in self.open:
            each.close()


@contextlib.contextmanager
def balanced(
    start: StartCluster, room: ZooKeeperRoom, count: int
) -> Iterator[tuple[BrokerCluster, Balancer]]:
    fronts = [free_port() for _ in range(count)]
    balancer = Balancer(fronts)
    try:
        cluster = start(
            count,
            zookeeper=room,
            arguments=lambda broker_id: [
                "--front-listen",
                f"127.0.0.1:{fronts[broker_id - 1]}",
                "--front-advertise",
                f"127.0.0.1:{balancer.port}",
            ],
        )
        yield cluster, balancer
    finally:
        balancer.close()


@pytest.fixture
def front(broker_cluster: StartCluster, zookeeper: ZooKeeperRoom) -> Iterator[tuple[BrokerCluster, Balancer]]:
    with balanced(broker_cluster, zookeeper, 2) as made:
        yield made


def leaders(cluster: BrokerCluster, topic: str) -> dict[int, int]:
    with RawClient(cluster[1].address) as client:
        request = MetadataRequest(
            topics=(MetadataRequestTopic(topic_id=None, name=TopicName(topic)),),
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
        )
        (found,) = client.call(request).topics
        return {each.partition_index: each.leader_id for each in found.partitions}


def stored(cluster: BrokerCluster, topic: str) -> dict[int, list[tuple[bytes | None, bytes | None]]]:
    records = {}
    for partition, leader in leaders(cluster, topic).items():
        with RawClient(cluster[leader].address) as client:
            data = client.read_all(topic, partition)
        records[partition] = [(r.key, r.value) for at, _ in hop(data) for r in decode_records(data, at)]
    return records


def test_the_cluster_looks_like_one_node(front: tuple[BrokerCluster, Balancer]) -> None:
    cluster, balancer = front
    with RawClient(cluster[1].address) as client:
        client.create_topic("t", partitions=4)
    for _ in range(2):
        with RawClient(f"127.0.0.1:{balancer.port}") as client:
            request = MetadataRequest(
                topics=None, allow_auto_topic_creation=False, include_topic_authorized_operations=False
            )
            answer = client.call(request)
            (node,) = answer.brokers
            assert (node.node_id, node.host, node.port) == (VIRTUAL_NODE_ID, "127.0.0.1", balancer.port)
            assert {p.leader_id for t in answer.topics for p in t.partitions} == {VIRTUAL_NODE_ID}
            assert client.fetch("t", 0, 0).error_code == ErrorCode.INVALID_REQUEST
    assert set(leaders(cluster, "t").values()) == {1, 2}


def test_batches_reach_their_leaders_and_errors_come_back(front: tuple[BrokerCluster, Balancer]) -> None:
    cluster, balancer = front
    with RawClient(cluster[1].address) as client:
        client.create_topic("t", partitions=2)
    raw = encode_batch([Record(0, 1_000, None, b"v")], producer_id=5, producer_epoch=0, base_sequence=0)
    with RawClient(f"127.0.0.1:{balancer.port}") as client:
        for partition in (0, 1):
            result = client.produce("t", partition, raw)
            assert (result.error_code, result.partition, result.base_offset) == (0, partition, len(raw) - 1)
            again = client.produce("t", partition, raw)
            assert again.base_offset == len(raw) - 1, "a duplicate, at its first offset"
            bad = bytearray(raw)
            bad[-1] ^= 1
            assert client.produce("t", partition, bytes(bad)).error_code == ErrorCode.CORRUPT_MESSAGE
        assert client.produce("t", 9, raw).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert {p: len(records) for p, records in stored(cluster, "t").items()} == {0: 1, 1: 1}


def test_a_request_by_topic_id_reaches_all_leaders(front: tuple[BrokerCluster, Balancer]) -> None:
    cluster, balancer = front
    with RawClient(cluster[1].address) as client:
        topic_id = client.create_topic("t", partitions=4).topic_id
    parts = [
        ProducePartition(each, encode_batch([Record(0, 1_000, None, b"%d" % each)])) for each in range(4)
    ]
    with RawClient(f"127.0.0.1:{balancer.port}") as client:
        for wanted, code in ((topic_id, ErrorCode.NONE), (uuid4(), ErrorCode.UNKNOWN_TOPIC_ID)):
            request = ProduceRequest(None, -1, 30_000, [ProduceTopic("", wanted, parts)])
            client.send(encode_request(request, version=13, correlation_id=client.next_id(), client_id="raw"))
            [result] = decode_response(client.receive(), version=13)[1].topics
            assert result.topic_id == wanted
            assert [(each.partition, each.error_code) for each in result.partitions] == [
                (partition, code) for partition in range(4)
            ]
    assert stored(cluster, "t") == {each: [(None, b"%d" % each)] for each in range(4)}


@pytest.mark.real_client
def test_keys_keep_their_order_through_the_balancer(front: tuple[BrokerCluster, Balancer]) -> None:
    from confluent_kafka import Producer

    cluster, balancer = front
    with RawClient(cluster[1].address) as client:
        client.create_topic("t", partitions=4)
    producers = [
        Producer(
            {
                "bootstrap.servers": f"127.0.0.1:{balancer.port}",
                "enable.idempotence": True,
                "compression.type": codec,
                "linger.ms": 2,
            }
        )
        for codec in ("lz4", "zstd")
    ]
    for number in range(5_000):
        for name, producer in enumerate(producers):
            producer.produce("t", key=b"%d-%d" % (name, number % 20), value=b"%d" % number)
            producer.poll(0)
    assert [producer.flush(20) for producer in producers] == [0, 0]
    by_key = defaultdict(list)
    for records in stored(cluster, "t").values():
        for key, value in records:
            by_key[key].append(int(value or b""))
    assert len(by_key) == 40
    for key, values in by_key.items():
        assert key is not None
        assert values == list(range(int(key.split(b"-")[1]), 5_000, 20))


def test_a_dead_leader_is_reported_and_found_again(front: tuple[BrokerCluster, Balancer]) -> None:
    cluster, _ = front
    with RawClient(cluster[1].address) as client:
        client.create_topic("t", partitions=2)
    led = {leader: partition for partition, leader in leaders(cluster, "t").items()}
    raw = encode_batch([Record(0, 1_000, None, b"v")])
    with RawClient(f"127.0.0.1:{_front_port(cluster, 1)}") as client:
        assert client.produce("t", led[2], raw).error_code == 0
        cluster[2].kill()
        code = ErrorCode(client.produce("t", led[2], raw).error_code)
        # Not NETWORK_EXCEPTION: librdkafka would not retry it.
        assert code in (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.LEADER_NOT_AVAILABLE)
        assert client.produce("t", led[1], raw).error_code == 0, "others are not disturbed"
        cluster[2].start()
        deadline = time.monotonic() + 60
        while client.produce("t", led[2], raw).error_code:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def _front_port(cluster: BrokerCluster, broker_id: int) -> int:
    arguments = cluster[broker_id].extra_arguments
    return int(arguments[arguments.index("--front-listen") + 1].rpartition(":")[2])


def numbered(partition: int, sequence: int) -> bytes:
    """One record of producer 7; every sequence number from 0 on."""
    record = Record(0, 1_000, b"k", b"%d" % sequence)
    return encode_batch([record], producer_id=7 + partition, producer_epoch=0, base_sequence=sequence)


def test_a_batch_behind_a_refused_one_waits_for_it(front: tuple[BrokerCluster, Balancer]) -> None:
    """Otherwise a leader that does not know the producer would accept the second batch as its first."""
    cluster, _ = front
    with RawClient(cluster[1].address) as client:
        client.create_topic("t", partitions=2)
    led = {leader: partition for partition, leader in leaders(cluster, "t").items()}[2]
    with RawClient(f"127.0.0.1:{_front_port(cluster, 1)}") as client:
        cluster[2].stop()
        assert ErrorCode(client.produce("t", led, numbered(led, 0)).error_code).retriable
        cluster[2].start()
        deadline = time.monotonic() + 60
        while client.produce("t", led, encode_batch([Record(0, 1_000, None, b"x")])).error_code:
            assert time.monotonic() < deadline, "the leader is not found again"
            time.sleep(0.05)
        assert ErrorCode(client.produce("t", led, numbered(led, 1)).error_code).retriable
        assert [client.produce("t", led, numbered(led, each)).error_code for each in range(3)] == [0, 0, 0]
    values = [value for key, value in stored(cluster, "t")[led] if key]
    assert values == [b"0", b"1", b"2"]


def test_a_stopping_broker_completes_received_requests_and_accepts_no_more(
    front: tuple[BrokerCluster, Balancer],
) -> None:
    """Exactly the acknowledged records are stored: even without idempotence no retry is needed."""
    cluster, _ = front
    with RawClient(cluster[1].address) as client:
        client.create_topic("t", partitions=2)
    answered = [0, 0]
    with RawClient(f"127.0.0.1:{_front_port(cluster, 1)}") as client:
        # The broker does not wait until a slow client has read thousands of responses.
        room = threading.Semaphore(100)

        def send() -> None:
            with contextlib.suppress(OSError):
                for number in range(20_000):
                    room.acquire()
                    batch = encode_batch([Record(0, 1_000, None, b"%d" % number)])
                    client.send(client.produce_frame("t", number % 2, batch))

        sender = threading.Thread(target=send, daemon=True)
        sender.start()
        with contextlib.suppress(EOFError):
            while True:
                result = client.read_produced()
                assert result.error_code == 0, result
                answered[result.partition] += 1
                room.release()
                if sum(answered) == 500:
                    cluster[1].send_signal(signal.SIGTERM)
        room.release(20_000)
    sender.join(20)
    assert cluster[1].stop() == 0
    assert 500 <= sum(answered) < 20_000, "it was stopped in the middle"
    cluster[1].start()
    assert [len(records) for _, records in sorted(stored(cluster, "t").items())] == answered


def test_a_broker_leaves_a_balancer_before_it_stops(
    front: tuple[BrokerCluster, Balancer], zookeeper: ZooKeeperRoom
) -> None:
    cluster, _ = front
    with RawClient(cluster[1].address) as client:
        client.create_topic("late")
    with zookeeper.session() as session:
        fronts = FrontRegistry(session)
        assert [each.broker_id for each in fronts.live()] == [1, 2]
        mark = fronts.mark(1, "a-balancer")
        cluster[1].send_signal(signal.SIGTERM)
        _wait_until(lambda: [each.broker_id for each in fronts.live()] == [2])
        with RawClient(f"127.0.0.1:{_front_port(cluster, 1)}") as client:
            assert client.produce("late", 0, encode_batch([Record(0, 1, None, b"v")])).error_code == 0
            mark.release()
            _wait_until(lambda: not cluster[1].is_running)
        assert cluster[1].stop() == 0
        # A broker that no balancer has marked does not wait.
        assert fronts.balancers_of(2) == []
        assert cluster[2].stop() == 0
        assert "still sends connections" not in cluster[2].output()


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)
