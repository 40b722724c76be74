"""A front's links to leaders: every wait ends, what is in flight is bounded, batches keep their order."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from uuid import uuid4

import pytest

from fix_client import FakeCluster
from fix_fake_broker import LOSE_ANSWER
from fix_link import Link
from headrace.broker.bodies import build
from headrace.broker.handlers import api_versions
from headrace.broker.network.links import COMING_MAX_S, IN_FLIGHT_MAX_BYTES, RESPONSE_WAIT_MAX_S, Lost
from headrace.broker.network.peers import Peers
from headrace.broker.network.receiving import ReceiveBound
from headrace.client.connection import CONNECT_MAX_S
from headrace.wire.apis import ApiKey
from headrace.wire.batch import hop
from headrace.wire.messages import decode_request, encode_response
from headrace.wire.primitives import NO_UUID
from headrace.wire.produce import ProducePartition, ProduceRequest, ProduceResponse, ProduceTopic
from headrace.wire.records import Record, decode_records, encode_batch

MEBIBYTE = 1 << 20
LARGE_BYTES = 20_000  # a link's connection does not copy so much


@pytest.fixture
def silent() -> Iterator[int]:
    """The port of a leader that accepts connections but never reads."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def batch(text: bytes) -> bytes:
    return encode_batch([Record(0, 1_000, None, text)])


def test_idle_links_leave_no_timers_behind(link: Link, fake_cluster: Callable[..., FakeCluster]) -> None:
    port = fake_cluster().brokers[0].port
    for number in range(300):
        responses: list[ProduceResponse | Lost] = []
        assert link.send(port, batch(b"%d" % number), responses)
        link.turn_until(lambda responses=responses: responses)  # type: ignore[misc]
        assert isinstance(responses[0], ProduceResponse)
    assert link.timer_count == 1
    assert link.peers.is_idle


@pytest.mark.parametrize("acks", [0, -1])
def test_a_leader_that_reads_nothing_is_sent_no_more_than_the_bound(
    link: Link, fake_cluster: Callable[..., FakeCluster], acks: int
) -> None:
    cluster = fake_cluster()
    port = cluster.brokers[0].port
    first: list[ProduceResponse | Lost] = []
    link.send(port, batch(b"first"), first)
    link.turn_until(lambda: first)
    responses: list[ProduceResponse | Lost] = []
    big = batch(bytes(MEBIBYTE))
    accepted = 0
    with cluster.lock:  # its thread waits for it and stops reading
        for _ in range(2 * IN_FLIGHT_MAX_BYTES // MEBIBYTE):
            accepted += link.send(port, big, responses, acks=acks)
            link.loop.turn(0)
        in_kernel = len(responses)  # with acks=0 nothing more is known
        assert accepted - in_kernel <= IN_FLIGHT_MAX_BYTES // MEBIBYTE
        link.set_forward(RESPONSE_WAIT_MAX_S)
    assert len(responses) == accepted
    assert all(isinstance(each, Lost) and each.was_sent for each in responses[in_kernel:])
    assert link.peers.is_idle


def test_a_leader_that_accepts_connections_but_never_responds_times_out(link: Link, silent: int) -> None:
    responses: list[ProduceResponse | Lost] = []
    assert link.send(silent, batch(b"1"), responses)
    for _ in range(3):  # the connection opens
        link.loop.turn(0.05)
    assert not link.peers.is_idle
    link.set_forward(CONNECT_MAX_S)
    [lost] = responses
    assert isinstance(lost, Lost) and not lost.was_sent
    assert link.peers.is_idle


def test_a_connection_that_is_not_accepted_times_out(link: Link) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        address = server.getsockname()
        with socket.create_connection(address):  # the queue is full: further SYNs are dropped
            responses: list[ProduceResponse | Lost] = []
            assert link.send(address[1], batch(b"1"), responses)
            link.loop.turn(0.05)
            link.set_forward(CONNECT_MAX_S - 1)
            assert not responses
            link.set_forward(1)
            [lost] = responses
            assert isinstance(lost, Lost) and not lost.was_sent
            assert "did not accept a connection" in lost.problem


def test_a_response_that_does_not_come_ends_the_link(
    link: Link, fake_cluster: Callable[..., FakeCluster]
) -> None:
    cluster = fake_cluster()
    responses: list[ProduceResponse | Lost] = []
    link.send(cluster.brokers[0].port, batch(b"1"), responses)
    link.turn_until(lambda: responses)
    with cluster.lock:
        link.send(cluster.brokers[0].port, batch(b"2"), responses)
        for _ in range(3):
            link.loop.turn(0.05)
        link.set_forward(RESPONSE_WAIT_MAX_S - 1)
        assert len(responses) == 1
        link.set_forward(1)
    assert isinstance(responses[1], Lost) and responses[1].was_sent
    # The next request opens another link.
    link.send(cluster.brokers[0].port, batch(b"3"), responses)
    link.turn_until(lambda: len(responses) == 3)
    assert isinstance(responses[2], ProduceResponse)


class SlowBroker:
    """Answers the first request after ApiVersions with a response of 8 MiB, a piece of it at a time."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self._next = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def send_piece(self) -> None:
        self._next.release()

    def close(self) -> None:
        self._server.close()
        self._next.release(1_000)
        self._thread.join(10)

    def _serve(self) -> None:
        with suppress(OSError), self._server.accept()[0] as connection:
            request = decode_request(memoryview(self._frame(connection)))
            body = build(18, request.version, api_versions.respond(request, [(0, 0, 9), (18, 0, 4)]))
            connection.sendall(encode_response(body, correlation_id=request.correlation_id))
            request = decode_request(memoryview(self._frame(connection)))
            connection.sendall(struct.pack(">ii", 8 * MEBIBYTE, request.correlation_id))
            while self._next.acquire(timeout=60):
                connection.sendall(bytes(1_000))

    @staticmethod
    def _frame(connection: socket.socket) -> bytes:
        file = connection.makefile("rb")
        return file.read(*struct.unpack(">i", file.read(4)))


def test_a_response_whose_bytes_come_is_awaited_but_not_for_ever(link: Link) -> None:
    broker = SlowBroker()
    responses: list[ProduceResponse | Lost] = []
    try:
        assert link.send(broker.port, batch(b"x"), responses)
        for _ in range(int((RESPONSE_WAIT_MAX_S + COMING_MAX_S) / (RESPONSE_WAIT_MAX_S * 0.9))):
            broker.send_piece()
            for _ in range(10):
                link.loop.turn(0.02)
            link.set_forward(RESPONSE_WAIT_MAX_S * 0.9)
            assert responses == []
        broker.send_piece()
        for _ in range(10):
            link.loop.turn(0.02)
        link.set_forward(RESPONSE_WAIT_MAX_S * 0.9)
        link.turn_until(lambda: responses)
        assert isinstance(responses[0], Lost) and "did not respond within" in responses[0].problem
    finally:
        broker.close()


def test_a_refused_connection_fails_at_once(link: Link) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    responses: list[ProduceResponse | Lost] = []
    assert link.send(port, batch(b"1"), responses)
    link.turn_until(lambda: responses)
    assert isinstance(responses[0], Lost) and not responses[0].was_sent
    assert link.peers.is_idle


def test_batches_keep_their_order_and_bytes(link: Link, fake_cluster: Callable[..., FakeCluster]) -> None:
    """Also batches that wait for the connection while their frame is overwritten."""
    cluster = fake_cluster()
    responses: list[ProduceResponse | Lost] = []
    for number in range(200):
        scratch = bytearray(batch(b"%03d" % number))
        link.send(cluster.brokers[0].port, memoryview(scratch), responses)
        scratch[:] = bytes(len(scratch))
        if number > 100:
            link.loop.turn(0)
    link.turn_until(lambda: len(responses) == 200)
    stored = b"".join(cluster.log().batches)
    values = [record.value for at, _ in hop(stored) for record in decode_records(stored, at)]
    assert values == [b"%03d" % number for number in range(200)]


@pytest.mark.parametrize("acks", [0, -1])
def test_a_batch_that_waits_for_its_link_is_not_overwritten_by_the_next_frame(
    link: Link, fake_cluster: Callable[..., FakeCluster], acks: int
) -> None:
    """All clients' frames are received into one buffer: a large batch that the link had not sent yet was
    replaced by the one that came next, and stored in its place.
    """
    cluster = fake_cluster()
    port = cluster.brokers[0].port
    responses: list[ProduceResponse | Lost] = []
    link.send(port, batch(b"first"), responses)
    link.turn_until(lambda: responses)
    scratch = bytearray(batch(b"1" * LARGE_BYTES))
    link.send(port, memoryview(scratch), responses, acks=acks)
    scratch[:] = batch(b"2" * LARGE_BYTES)
    link.send(port, memoryview(scratch), responses, acks=acks)
    link.turn_until(lambda: len(responses) == 3 and len(cluster.log().batches) == 3)
    stored = b"".join(cluster.log().batches)
    values = [record.value for at, _ in hop(stored) for record in decode_records(stored, at)]
    assert values == [b"first", b"1" * LARGE_BYTES, b"2" * LARGE_BYTES]


def test_a_topic_that_is_named_by_its_id_is_passed_on_by_its_id(
    link: Link, fake_cluster: Callable[..., FakeCluster]
) -> None:
    """By its name, the records of a topic that was deleted would go to one that was made again."""
    cluster = fake_cluster()
    responses: list[ProduceResponse | Lost] = []
    for named in (ProduceTopic("", uuid4(), []), ProduceTopic("t", NO_UUID, [])):
        topics = [named._replace(partitions=[ProducePartition(0, batch(b"1"))])]
        link.peers.send(
            "127.0.0.1",
            cluster.brokers[0].port,
            ProduceRequest(None, -1, 1_000, topics),
            responses.append,
        )
        link.turn_until(lambda: responses)
        [sent] = cluster.requests_of(ApiKey.PRODUCE)[-1].body.topics
        assert (sent.name, sent.topic_id) == (named.name, named.topic_id)
        responses.clear()


def test_a_lost_response_fails_all_that_is_in_flight_in_order(
    link: Link, fake_cluster: Callable[..., FakeCluster]
) -> None:
    cluster = fake_cluster()
    responses: list[ProduceResponse | Lost] = []
    link.send(cluster.brokers[0].port, batch(b"0"), responses)
    link.turn_until(lambda: responses)
    cluster.next(ApiKey.PRODUCE, LOSE_ANSWER)
    for number in range(1, 4):
        link.send(cluster.brokers[0].port, batch(b"%d" % number), responses)
    link.turn_until(lambda: len(responses) == 4)
    assert all(isinstance(each, Lost) and each.was_sent for each in responses[1:])


# --- names ---


class NameServer:
    """Resolves names when a test allows it."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.may_answer = threading.Event()

    def __call__(self, host: str) -> str:
        self.asked.append(host)
        assert self.may_answer.wait(60)
        if host == "unknown":
            raise OSError("no such host")
        return "127.0.0.1"


@pytest.fixture
def names(link: Link) -> Iterator[NameServer]:
    server = NameServer()
    link.peers = Peers(link.loop, lambda: link.now_s, resolve=server)
    yield server
    server.may_answer.set()


def test_a_slow_name_server_does_not_hold_the_loop(
    link: Link, names: NameServer, fake_cluster: Callable[..., FakeCluster]
) -> None:
    port = fake_cluster().brokers[0].port
    responses: list[ProduceResponse | Lost] = []
    assert link.send(port, batch(b"1"), responses, host="leader")
    assert link.send(port, batch(b"2"), responses, host="leader")
    link.turn_until(lambda: names.asked)
    assert not responses
    names.may_answer.set()
    link.turn_until(lambda: len(responses) == 2)
    assert all(isinstance(each, ProduceResponse) for each in responses)
    assert names.asked == ["leader"]


def test_a_name_that_is_not_resolved_in_time_fails(link: Link, names: NameServer) -> None:
    responses: list[ProduceResponse | Lost] = []
    assert link.send(1, batch(b"1"), responses, host="leader")
    link.set_forward(CONNECT_MAX_S)
    [lost] = responses
    assert isinstance(lost, Lost) and not lost.was_sent
    assert "leader was not resolved" in lost.problem
    assert link.peers.is_idle
    names.may_answer.set()
    link.loop.turn(0.05)  # the late answer finds no link


def test_an_unknown_name_fails(link: Link, names: NameServer) -> None:
    names.may_answer.set()
    responses: list[ProduceResponse | Lost] = []
    assert link.send(1, batch(b"1"), responses, host="unknown")
    link.turn_until(lambda: responses)
    assert isinstance(responses[0], Lost) and "unknown cannot be resolved" in responses[0].problem


# --- the bound that passed requests and received ones share ---


@pytest.mark.parametrize("acks", [0, -1])
def test_passed_requests_count_against_the_receive_bound(
    link: Link, fake_cluster: Callable[..., FakeCluster], acks: int
) -> None:
    cluster = fake_cluster()
    port = cluster.brokers[0].port
    bound = ReceiveBound(8 * MEBIBYTE)
    link.peers = Peers(link.loop, lambda: link.now_s, bound=bound)
    big = batch(bytes(MEBIBYTE))
    responses: list[ProduceResponse | Lost] = []
    with cluster.lock:
        accepted = 0
        for _ in range(40):
            accepted += link.send(port, big, responses, acks=acks)
            link.loop.turn(0)
        assert accepted < 40
        assert bound.reserved_bytes == bound.passed_on_bytes <= 9 * MEBIBYTE
    link.turn_until(lambda: len(responses) == accepted)
    assert bound.reserved_bytes == bound.passed_on_bytes == 0
