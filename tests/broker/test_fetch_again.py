"""Fetch requests that repeat an earlier one: whatever a connection sent before, the response is the same."""

import datetime
import random
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from kio.schema.delete_topics.v5.request import DeleteTopicsRequest
from kio.schema.types import TopicName
from kio.static.primitive import i32Timedelta

from fix_broker import BrokerCluster, RawClient, batches_of
from headrace.broker.core import ClientConnection, Service
from headrace.broker.handlers import fetch_again
from headrace.broker.state import BrokerState
from headrace.log.files import FileSlice
from headrace.log.partition import PartitionLog
from headrace.wire import fetch
from headrace.wire.batch import read_header
from headrace.wire.errors import ErrorCode
from headrace.wire.messages import decode_request
from headrace.wire.primitives import NO_UUID
from headrace.wire.records import Record, encode_batch

PARTITIONS = 2
FIVE_S = i32Timedelta.parse(datetime.timedelta(seconds=5))


class Topic:
    """A topic with batches of many sizes, over several segments, the same in each partition."""

    def __init__(self, client: RawClient) -> None:
        self.name = f"t-{uuid.uuid4().hex[:8]}"
        self.id = client.create_topic(self.name, PARTITIONS, {"segment.bytes": "50000"}).topic_id
        self.starts = [0]
        draw = random.Random(1)
        for _ in range(40):
            values = [bytes(draw.randrange(4_000)) for _ in range(draw.randrange(1, 4))]
            raw = encode_batch([Record(i, 1_000 + i, None, value) for i, value in enumerate(values)])
            for partition in range(PARTITIONS):  # acks=all: visible, once it is acknowledged
                base_offset = client.produce(self.name, partition, raw).base_offset
                assert base_offset + len(values) == self.starts[-1] + len(raw)
            self.starts.append(self.starts[-1] + len(raw))

    def frame(
        self,
        version: int,
        offset: int,
        *,
        partition: int = 0,
        max_bytes: int = 1 << 20,
        min_bytes: int = 1,
        leader_epoch: int = -1,
        session: tuple[int, int] = (0, -1),
        correlation_id: int = 5,
        wants_addresses: bool = False,
    ) -> bytes:
        parts = [fetch.FetchPartition(partition, offset, max_bytes, leader_epoch)]
        topics = [fetch.FetchTopic(self.name, self.id, parts)]
        session_id, epoch = session
        request = fetch.FetchRequest(
            *(0, min_bytes, 1 << 20, topics),
            session_id=session_id,
            session_epoch=epoch,
            wants_addresses=wants_addresses,
        )
        return fetch.encode_request(request, version=version, correlation_id=correlation_id, client_id="raw")


@pytest.fixture
def client(one_broker: BrokerCluster) -> Iterator[RawClient]:
    with RawClient(one_broker.bootstrap) as made:
        yield made


@pytest.fixture(scope="module")
def topic(one_broker: BrokerCluster) -> Topic:
    with RawClient(one_broker.bootstrap) as client:
        return Topic(client)


def ask(client: RawClient, frame: bytes) -> bytes:
    client.send(frame)
    return bytes(client.receive())


@pytest.mark.parametrize("wants_addresses", [False, True])
@pytest.mark.parametrize("version", range(fetch.VERSION_MIN, fetch.VERSION_MAX + 1))
def test_each_offset_gets_the_response_of_a_new_connection(
    one_broker: BrokerCluster, client: RawClient, topic: Topic, version: int, wants_addresses: bool
) -> None:
    end = topic.starts[-1]
    offsets = [*topic.starts, 1, end - 1, end + 1, -1, 0, topic.starts[7] + 2]
    random.Random(version).shuffle(offsets)
    for number, offset in enumerate(offsets):
        frame = topic.frame(
            version, offset, correlation_id=number, max_bytes=20_000, wants_addresses=wants_addresses
        )
        with RawClient(one_broker.bootstrap) as other:
            assert ask(client, frame) == ask(other, frame), offset


def test_an_answer_says_where_its_records_begin(client: RawClient, topic: Topic) -> None:
    """Also in answers to requests that name an offset inside a batch, and only if it is asked for."""
    draw = random.Random(3)
    for number in range(200):
        offset, wants = draw.randrange(topic.starts[-1]), draw.random() < 0.8
        frame = topic.frame(12, offset, correlation_id=number, max_bytes=9_000, wants_addresses=wants)
        _, response = fetch.decode_response(memoryview(ask(client, frame)), version=12)
        [result] = response.topics[0].partitions
        assert result.address == (max(start for start in topic.starts if start <= offset) if wants else -1)
        assert isinstance(result.records, memoryview)
        assert not wants or read_header(result.records).is_stored_at(result.address)


def test_requests_that_differ_in_more_than_their_offset(
    one_broker: BrokerCluster, client: RawClient, topic: Topic
) -> None:
    draw = random.Random(2)
    for _ in range(200):
        frame = topic.frame(
            draw.choice((11, 12)),
            draw.choice(topic.starts),
            partition=draw.randrange(PARTITIONS + 1),
            max_bytes=draw.choice((0, 1, 9_000, 1 << 20)),
            min_bytes=draw.choice((0, 1, 60_000)),
            leader_epoch=draw.choice((-1, -1, 0, 7)),
            session=draw.choice(((0, -1), (0, -1), (0, 0), (7, -1), (7, 0), (7, 1), (0, 1))),
        )
        with RawClient(one_broker.bootstrap) as other:
            assert ask(client, frame) == ask(other, frame)
            assert ask(other, frame) == ask(client, frame)


def test_a_repeated_request_for_a_deleted_topic(client: RawClient) -> None:
    gone = Topic(client)
    frames = {version: gone.frame(version, 0) for version in (11, 13)}
    for version, frame in frames.items():
        for _ in range(2):
            _, response = fetch.decode_response(memoryview(ask(client, frame)), version=version)
            assert response.topics[0].partitions[0].records
    client.call(DeleteTopicsRequest(topic_names=(TopicName(gone.name),), timeout=FIVE_S))
    for version, expected in (
        (13, ErrorCode.UNKNOWN_TOPIC_ID),
        (11, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ):
        _, response = fetch.decode_response(memoryview(ask(client, frames[version])), version=version)
        assert response.topics[0].partitions[0].error_code == expected


def test_a_repeated_request_by_id_never_gets_the_topic_that_was_made_again(client: RawClient) -> None:
    """A mirror fetches by id, so that it never mixes the two."""
    before = Topic(client)
    frame = before.frame(13, 0)
    for _ in range(2):
        _, response = fetch.decode_response(memoryview(ask(client, frame)), version=13)
        assert response.topics[0].partitions[0].records
    client.call(DeleteTopicsRequest(topic_names=(TopicName(before.name),), timeout=FIVE_S))
    assert client.create_topic(before.name, PARTITIONS).topic_id != before.id
    client.produce(before.name, 0, encode_batch([Record(0, 1_000, None, b"another topic's")]))
    _, response = fetch.decode_response(memoryview(ask(client, frame)), version=13)
    assert response.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize("version", range(fetch.VERSION_MIN, fetch.VERSION_MAX + 1))
def test_the_offset_is_found_in_every_version(version: int) -> None:
    mark = 0x1122334455667788
    parts = [fetch.FetchPartition(3, mark, 1 << 20)]
    for client_id in (None, "", "consumer"):
        frame = fetch.encode_request(
            fetch.FetchRequest(500, 1, 1 << 20, [fetch.FetchTopic("topic", uuid.uuid4(), parts)]),
            version=version,
            correlation_id=1,
            client_id=client_id,
        )[4:]
        assert fetch.offset_position(memoryview(frame), version) == frame.index(mark.to_bytes(8, "big"))


class Stand:
    """A partition's log behind the fast path alone: no general path answers in its place."""

    def __init__(self, directory: Path) -> None:
        self.log = PartitionLog(directory)
        self.raw = encode_batch([Record(0, 1_000, None, bytes(100))])
        for _ in range(3):
            self.log.append(self.raw)
        self.log.flush()
        self.partition = SimpleNamespace(
            log=self.log, leader_epoch=0, visible_address=2 * len(self.raw), topic_id=NO_UUID
        )
        partitions = {("t", 0): self.partition}
        state = SimpleNamespace(
            partitions=SimpleNamespace(get=lambda topic, index: partitions.get((topic, index))),
            config={"fetch.max.bytes": 1 << 20},
        )
        self.partitions = partitions
        self.state = cast(BrokerState, state)
        self.connection = ClientConnection(
            cast(Service, None),
            peer="test",
            frame_limit_bytes=1 << 20,
            on_output=lambda _: None,
            on_abort=pytest.fail,
        )

    def frame(self, offset: int, min_bytes: int = 1) -> memoryview:
        parts = [fetch.FetchPartition(0, offset, 1 << 20, 0)]
        request = fetch.FetchRequest(500, min_bytes, 1 << 20, [fetch.FetchTopic("t", NO_UUID, parts)])
        return memoryview(fetch.encode_request(request, version=12, correlation_id=9, client_id="test")[4:])

    def learn(self, offset: int = 0, min_bytes: int = 1) -> None:
        frame = self.frame(offset, min_bytes)
        fetch_again.learn(self.state, self.connection, frame, decode_request(frame))

    def serves(self, offset: int, min_bytes: int = 1) -> bool:
        return fetch_again.serve(self.state, self.connection, self.frame(offset, min_bytes), 12, 9)


def test_the_fast_path_sends_what_is_visible(tmp_path: Path) -> None:
    stand = Stand(tmp_path)
    assert not stand.serves(0), "nothing was learnt yet"
    stand.learn()
    assert stand.serves(len(stand.raw))
    stand.connection.release_responses()
    sent = b"".join(
        part.read() if isinstance(part, FileSlice) else bytes(part) for part in stand.connection.outgoing
    )
    assert int.from_bytes(sent[:4], "big") == len(sent) - 4
    correlation_id, response = fetch.decode_response(memoryview(sent)[4:], version=12)
    result = response.topics[0].partitions[0]
    assert (correlation_id, result.error_code, result.high_watermark) == (9, 0, 2 * len(stand.raw))
    assert read_header(batches_of(result)).address == len(stand.raw) == len(batches_of(result))


def test_the_fast_path_leaves_all_else_to_the_general_one(tmp_path: Path) -> None:
    stand = Stand(tmp_path)
    size = len(stand.raw)
    stand.learn(min_bytes=size + 1)
    assert stand.serves(0, size + 1)
    assert not stand.serves(0), "another request"
    assert not stand.serves(size, size + 1), "too little is visible"
    stand.learn()
    for offset in (2 * size, 3 * size, 4 * size, -1):
        assert not stand.serves(offset)
    stand.partition.leader_epoch = 1
    assert not stand.serves(0)
    stand.partition.leader_epoch = 0
    assert stand.serves(0)
    stand.log.take_offline("a test")
    assert not stand.serves(0)
    stand.partitions.clear()
    assert not stand.serves(0)
