"""One client sends the largest request of each API that a broker reads: others are served meanwhile, the
event loop takes no long turn, and a larger one ends that client's connection alone.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from fix_broker import RawClient
from fix_turns import MeasuredBroker, StartMeasured
from headrace.broker.service import OTHER_REQUEST_MAX_BYTES
from headrace.wire import fetch, produce
from headrace.wire.batch import seal
from headrace.wire.errors import ErrorCode
from headrace.wire.primitives import REQUEST_ITEMS_MAX, uvarint

# About 50 ms at most on a quiet core; before, 1 to 24 s. Other programs on the same core make CPU dearer.
TURN_MAX_S: Final = 0.25
ANSWER_MAX_S: Final = 240.0  # the whole request, beside other tests: thousands of writes to ZooKeeper
ROOM: Final = 10  # items that requests have beside the array that is tested
ITEMS: Final = REQUEST_ITEMS_MAX - ROOM
HOT_ITEMS: Final = produce.REQUEST_PARTITIONS_MAX - ROOM
TOPIC: Final = b"real"
TIMEOUT_MS: Final = 1_000
BATCHES: Final = 400_000  # the smallest ones take 24 MB
SERVED_WAIT_MAX_S: Final = 60.0

Frame = Callable[[int], bytes]


def head(api_key: int, version: int, *, flexible: bool = False) -> bytes:
    return struct.pack(">hhih", api_key, version, 7, -1) + (b"\0" if flexible else b"")


def text(value: bytes) -> bytes:
    return struct.pack(">h", len(value)) + value


def names(count: int, start: bytes = b"x") -> list[bytes]:
    return [text(start + b"%05d" % number) for number in range(count)]


def array(items: list[bytes]) -> bytes:
    return struct.pack(">i", len(items)) + b"".join(items)


def produce_topics(count: int) -> bytes:
    return head(0, 3) + struct.pack(">hhi", -1, 1, 1000) + array([text(b"") + array([])] * count)


def produce_partitions(count: int) -> bytes:
    parts = array([struct.pack(">ii", number, -1) for number in range(count)])
    return head(0, 3) + struct.pack(">hhi", -1, 1, 1000) + array([text(TOPIC) + parts])


def produce_unknown_topics(count: int) -> bytes:
    one = text(b"q") + array([struct.pack(">ii", 0, -1)])
    return head(0, 3) + struct.pack(">hhi", -1, 1, 1000) + array([one] * (count // 2))


def fetch_partitions(count: int) -> bytes:
    parts = array([struct.pack(">iqi", 0, 0, 1 << 20)] * count)
    return head(1, 4) + struct.pack(">iiiib", -1, 0, 1, 1 << 20, 0) + array([text(TOPIC) + parts])


def fetch_unknown(count: int) -> bytes:
    parts = array([struct.pack(">iqi", number, 0, 1 << 20) for number in range(1, count + 1)])
    return head(1, 4) + struct.pack(">iiiib", -1, 0, 1, 1 << 20, 0) + array([text(TOPIC) + parts])


def list_offsets(count: int) -> bytes:
    parts = array([struct.pack(">iq", 0, -1)] * count)
    return head(2, 1) + struct.pack(">i", -1) + array([text(TOPIC) + parts])


def metadata(count: int) -> bytes:
    return head(3, 4) + array(names(count)) + b"\0"


def metadata_that_creates(count: int) -> bytes:
    return head(3, 4) + array(names(count, b"created-")) + b"\1"


def metadata_of_empty_names(count: int) -> bytes:
    return head(3, 4) + array([text(b"")] * count) + b"\0"


def metadata_of_one_topic(count: int) -> bytes:
    return head(3, 4) + array([text(b"wide")] * count) + b"\0"


def offset_commit(count: int) -> bytes:
    parts = array([struct.pack(">iqh", 0, number, -1) for number in range(count)])
    return head(8, 2) + text(b"g") + struct.pack(">ihq", -1, 0, -1) + array([text(TOPIC) + parts])


def offset_fetch(count: int) -> bytes:
    parts = array([struct.pack(">i", number) for number in range(count)])
    return head(9, 1) + text(b"g") + array([text(TOPIC) + parts])


def find_coordinator(count: int) -> bytes:
    keys = b"".join(uvarint(7) + b"x%05d" % number for number in range(count))
    return head(10, 4, flexible=True) + b"\0" + uvarint(count + 1) + keys + b"\0"


def join_group(count: int) -> bytes:
    protocols = array([text(b"p%05d" % number) + struct.pack(">i", 0) for number in range(count)])
    return head(11, 2) + text(b"g") + struct.pack(">ii", 10_000, 10_000) + text(b"") + text(b"c") + protocols


def leave_group(count: int) -> bytes:
    return head(13, 3) + text(b"g") + array([text(b"m") + struct.pack(">h", -1)] * count)


def sync_group(count: int) -> bytes:
    given = array([text(b"m%05d" % number) + struct.pack(">i", 0) for number in range(count)])
    return head(14, 0) + text(b"g") + struct.pack(">i", 1) + text(b"m") + given


def describe_groups(count: int) -> bytes:
    return head(15, 0) + array(names(count))


def delete_groups(count: int) -> bytes:
    return head(42, 0) + array(names(count))


def offset_delete(count: int) -> bytes:
    parts = array([struct.pack(">i", number) for number in range(count)])
    return head(47, 0) + text(b"g") + array([text(TOPIC) + parts])


def create_topics(count: int, *, validate_only: bool = True) -> bytes:
    topics = [name + struct.pack(">ihii", 1, 1, 0, 0) for name in names(count)]
    return head(19, 2) + array(topics) + struct.pack(">ib", TIMEOUT_MS, validate_only)


def delete_topics(count: int) -> bytes:
    return head(20, 1) + array(names(count)) + struct.pack(">i", TIMEOUT_MS)


def create_partitions(count: int) -> bytes:
    topics = [name + struct.pack(">ii", 5, -1) for name in names(count)]
    return head(37, 0) + array(topics) + struct.pack(">ib", TIMEOUT_MS, 0)


def describe_configs(count: int) -> bytes:
    return head(32, 1) + array([b"\2" + name + struct.pack(">i", -1) for name in names(count)]) + b"\0"


def describe_one_config(count: int) -> bytes:
    return head(32, 1) + array([b"\2" + text(TOPIC) + struct.pack(">i", -1)] * count) + b"\0"


def alter_configs(count: int) -> bytes:
    return head(33, 0) + array([b"\2" + name + struct.pack(">i", 0) for name in names(count)]) + b"\1"


def alter_incrementally(count: int) -> bytes:
    return head(44, 0) + array([b"\2" + name + struct.pack(">i", 0) for name in names(count)]) + b"\1"


def describe_log_dirs(count: int) -> bytes:
    parts = array([struct.pack(">i", number) for number in range(count)])
    return head(35, 1) + array([text(TOPIC) + parts])


def log_dirs_of_unknown_topics(count: int) -> bytes:
    return head(35, 1) + array([name + array([]) for name in names(count)])


def delete_records(count: int) -> bytes:
    parts = array([struct.pack(">iq", number, -1) for number in range(count)])
    return head(21, 1) + array([b"\0\4wide" + parts]) + struct.pack(">i", TIMEOUT_MS)


def leader_epochs(count: int) -> bytes:
    parts = array([struct.pack(">iii", number % 2, -1, 0) for number in range(count)])
    return head(23, 3) + struct.pack(">i", -1) + array([text(TOPIC) + parts])


def elect_leaders(count: int) -> bytes:
    parts = array([struct.pack(">i", number) for number in range(count)])
    return head(43, 1) + b"\0" + array([text(TOPIC) + parts]) + struct.pack(">i", TIMEOUT_MS)


def alter_reassignments(count: int) -> bytes:
    one = struct.pack(">i", 1)
    parts = b"".join(struct.pack(">i", number) + uvarint(2) + one + b"\0" for number in range(count // 2))
    topic = uvarint(len(TOPIC) + 1) + TOPIC + uvarint(count // 2 + 1) + parts + b"\0"
    return head(45, 0, flexible=True) + struct.pack(">i", TIMEOUT_MS) + uvarint(2) + topic + b"\0"


def list_reassignments(count: int) -> bytes:
    parts = b"".join(struct.pack(">i", number) for number in range(count))
    topic = uvarint(len(TOPIC) + 1) + TOPIC + uvarint(count + 1) + parts + b"\0"
    return head(46, 0, flexible=True) + struct.pack(">i", TIMEOUT_MS) + uvarint(2) + topic + b"\0"


HOT: Final[tuple[Frame, ...]] = (
    produce_topics,
    produce_partitions,
    produce_unknown_topics,
    fetch_partitions,
    fetch_unknown,
)
CONTROL: Final[tuple[Frame, ...]] = (
    list_offsets,
    metadata,
    metadata_that_creates,
    metadata_of_empty_names,
    metadata_of_one_topic,
    offset_commit,
    offset_fetch,
    find_coordinator,
    join_group,
    leave_group,
    sync_group,
    describe_groups,
    delete_groups,
    offset_delete,
    create_topics,
    delete_topics,
    create_partitions,
    describe_configs,
    describe_one_config,
    alter_configs,
    alter_incrementally,
    describe_log_dirs,
    log_dirs_of_unknown_topics,
    delete_records,
    leader_epochs,
    elect_leaders,
    alter_reassignments,
    list_reassignments,
)


@pytest.fixture(scope="module")
def broker(measured_broker: StartMeasured) -> MeasuredBroker:
    started = measured_broker({"auto.create.topics.enable": "true"})
    with RawClient(started.bootstrap) as client:
        client.create_topic(TOPIC.decode())
        client.create_topic("wide", partitions=100)
    return started


class Others:
    """A client that asks for nothing much, again and again."""

    def __init__(self, bootstrap: str) -> None:
        self._served = 0
        self._client = RawClient(bootstrap)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.wait(0.002):
            self._client.send(framed(head(18, 0)))
            self._client.receive()
            self._served += 1

    @property
    def are_served(self) -> bool:
        """Waits for two more responses: the first may belong to a request of before."""
        wanted = self._served + 2
        deadline_s = time.monotonic() + SERVED_WAIT_MAX_S
        while self._served < wanted and time.monotonic() < deadline_s:
            time.sleep(0.001)
        return self._served >= wanted

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._client.close()


@pytest.fixture
def others(broker: MeasuredBroker) -> Iterator[Others]:
    made = Others(broker.bootstrap)
    yield made
    made.stop()


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


@pytest.mark.parametrize("frame", (*HOT, *CONTROL), ids=lambda frame: frame.__name__)
def test_the_largest_request_takes_no_long_turn(broker: MeasuredBroker, others: Others, frame: Frame) -> None:
    body = frame(HOT_ITEMS if frame in HOT else ITEMS)
    with RawClient(broker.bootstrap, timeout_s=ANSWER_MAX_S) as client:
        broker.forget_turns()
        client.send(framed(body))
        response = client.receive()
    assert response[:4] == struct.pack(">i", 7), "the request is answered"
    assert broker.longest_turn_s < TURN_MAX_S
    assert others.are_served


@pytest.mark.parametrize("frame", (*HOT, *CONTROL), ids=lambda frame: frame.__name__)
def test_a_larger_one_ends_its_own_connection_alone(
    broker: MeasuredBroker, others: Others, frame: Frame
) -> None:
    items_max = fetch.REQUEST_PARTITIONS_MAX if frame in HOT else REQUEST_ITEMS_MAX
    with RawClient(broker.bootstrap) as client:
        broker.forget_turns()
        client.send(framed(frame(2 * items_max + 4)))
        with pytest.raises(EOFError):
            client.receive()
    assert broker.longest_turn_s < TURN_MAX_S
    assert others.are_served


def test_a_control_request_may_not_be_as_large_as_a_produce_request(
    broker: MeasuredBroker, others: Others
) -> None:
    padding = text(b"x" * 30_000)
    body = head(3, 4) + array([padding] * (OTHER_REQUEST_MAX_BYTES // 30_000 + 1)) + b"\0"
    with RawClient(broker.bootstrap) as client, pytest.raises((EOFError, OSError)):
        client.send(framed(body))  # it ends before all of it is sent
        client.receive()
    assert others.are_served


@pytest.mark.parametrize("topic", [TOPIC, b"unknown"])
def test_a_request_of_many_batches_for_one_partition_is_refused_at_the_second(
    broker: MeasuredBroker, others: Others, topic: bytes
) -> None:
    """Before, each was verified, 3 µs for every 61 bytes: 5 s of the largest request."""
    empty = seal(b"", record_count=1, base_timestamp_ms=0, max_timestamp_ms=0)
    part = struct.pack(">ii", 0, len(empty) * BATCHES) + empty * BATCHES
    body = head(0, 3) + struct.pack(">hhi", -1, 1, 1000) + array([text(topic) + array([part])])
    with RawClient(broker.bootstrap) as client:
        broker.forget_turns()
        client.send(framed(body))
        response = client.receive()
    (code,) = struct.unpack_from(">h", response, 4 + 4 + 2 + len(topic) + 4 + 4)
    expected = ErrorCode.INVALID_RECORD if topic == TOPIC else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert ErrorCode(code) is expected
    assert others.are_served  # the turn that sent the response has ended
    assert broker.longest_turn_s < TURN_MAX_S


def test_a_topic_that_is_named_often_is_described_once(broker: MeasuredBroker) -> None:
    """Otherwise 60 kB of names of one topic with 100 partitions would make 26 MB of response."""
    with RawClient(broker.bootstrap) as client:
        client.send(framed(metadata_of_one_topic(1)))
        once = bytes(client.receive())
        client.send(framed(metadata_of_one_topic(ITEMS)))
        assert bytes(client.receive()) == once
        client.send(framed(describe_one_config(1)))
        once = bytes(client.receive())
        client.send(framed(describe_one_config(ITEMS)))
        assert bytes(client.receive()) == once


def test_thousands_of_small_requests_at_once_do_not_hold_up_others(
    broker: MeasuredBroker, others: Others
) -> None:
    count = 20_000
    with RawClient(broker.bootstrap) as client:
        broker.forget_turns()
        sender = threading.Thread(target=client.send, args=(framed(describe_configs(1)) * count,))
        sender.start()
        for _ in range(count):
            client.receive()
        sender.join()
    assert broker.longest_turn_s < TURN_MAX_S
    assert others.are_served


def test_a_topic_with_many_partitions_is_opened_in_steps(broker: MeasuredBroker, others: Others) -> None:
    with RawClient(broker.bootstrap) as client:
        broker.forget_turns()
        client.create_topic("large", partitions=1_000)
        assert broker.longest_turn_s < TURN_MAX_S
        assert others.are_served
        too_many = text(b"too-large") + struct.pack(">ihii", 10_000, 1, 0, 0)
        client.send(framed(head(19, 2) + array([too_many]) + struct.pack(">ib", TIMEOUT_MS, 0)))
        assert b"must be from 1 to 2000" in bytes(client.receive())
