"""What a leader writes into a batch: its base offset and its epoch, and nothing else. Also mirror partitions,
and the directories of an older headrace.
"""

import time
import uuid
from collections.abc import Iterator
from dataclasses import replace

import pytest
from kio.schema.metadata.v12.request import MetadataRequest, MetadataRequestTopic
from kio.schema.types import TopicName

from fix_broker import BrokerCluster, RawClient, StartCluster
from headrace.coordination.topics import TopicRegistry
from headrace.log.directory import OWNER_FILE
from headrace.wire.batch import HEADER_SIZE_BYTES, hop, read_header, readdress, seal
from headrace.wire.compression import Codec, compress
from headrace.wire.errors import ErrorCode
from headrace.wire.records import Record, decode_records, encode_batch

WAIT_MAX_S = 30.0


@pytest.fixture
def client(one_broker: BrokerCluster) -> Iterator[RawClient]:
    with RawClient(one_broker.bootstrap) as made:
        yield made


def batch(count: int, codec: Codec = Codec.NONE, *, leader_epoch: int = -1) -> bytes:
    records = [Record(i, 1_000 + i, b"k", b"value %d" % i) for i in range(count)]
    return encode_batch(records, codec=codec, partition_leader_epoch=leader_epoch)


def squeezed(count: int) -> bytes:
    """A batch of at least as many records as bytes, as a client other than ours may send it."""
    plain = encode_batch([Record(i, 1_000, None, b"") for i in range(count)])
    return bytes(
        seal(
            compress(Codec.ZSTD, plain[HEADER_SIZE_BYTES:]),
            attributes=int(Codec.ZSTD),
            record_count=count,
            base_timestamp_ms=1_000,
            max_timestamp_ms=1_000,
        )
    )


def new_topic(client: RawClient, **config: str) -> str:
    name = f"t-{uuid.uuid4().hex[:8]}"
    client.create_topic(name, config={name.replace("_", "."): value for name, value in config.items()})
    return name


def read_flushed(client: RawClient, topic: str, size_bytes: int) -> bytes:
    """All batches of partition 0, once so many bytes are visible."""
    deadline = time.monotonic() + WAIT_MAX_S
    while client.list_offset(topic, 0, -1)[0] < size_bytes:
        assert time.monotonic() < deadline
    return client.read_all(topic, 0)


@pytest.mark.parametrize("acks", [1, -1])
def test_a_stored_batch_differs_in_base_offset_and_epoch_alone(client: RawClient, acks: int) -> None:
    topic = new_topic(client)
    sent, offsets = [], []
    for number, codec in enumerate((*Codec, *Codec)):  # the first one leaves a template for the fast path
        raw = batch(3 + number * 5, codec)
        result = client.produce(topic, 0, raw, acks=acks)
        assert result.error_code == 0
        sent.append(raw)
        offsets.append(result.base_offset)
    data = read_flushed(client, topic, sum(map(len, sent)))
    assert len(data) == client.list_offset(topic, 0, -1)[0]
    for raw, answered, (at, header) in zip(sent, offsets, hop(data), strict=True):
        made = read_header(raw)
        expected = at + len(raw) - made.record_count
        assert header == made._replace(base_offset=expected, partition_leader_epoch=0)
        assert answered == expected
        assert data[at + HEADER_SIZE_BYTES : at + len(raw)] == raw[HEADER_SIZE_BYTES:]
        assert decode_records(data, at)[-1].offset + 1 == at + len(raw), "the address of the next batch"


def test_log_append_time_and_offsets_by_time(client: RawClient) -> None:
    topic = new_topic(client, message_timestamp_type="LogAppendTime")
    result = client.produce(topic, 0, batch(5))
    data = read_flushed(client, topic, len(batch(5)))
    header = read_header(data)
    assert (header.is_log_append_time, header.is_stored_at(0)) == (True, True)
    assert client.list_offset(topic, 0, 1)[0] == result.base_offset == len(data) - 5
    assert client.list_offset(topic, 0, -3) == (len(data) - 5, header.max_timestamp_ms)


def test_a_new_leader_epoch_is_stamped(broker_cluster: StartCluster) -> None:
    cluster = broker_cluster()
    with RawClient(cluster.bootstrap) as client, cluster.zookeeper.session() as session:
        client.create_topic("t")
        assert client.produce("t", 0, batch(1, leader_epoch=77)).error_code == 0
        registry = TopicRegistry(session)
        state = registry.get("t").partitions[0]
        registry.set_partition_state("t", 0, replace(state, leader_epoch=5), expected=state)
        deadline = time.monotonic() + WAIT_MAX_S
        while _epochs(client)[-1] != 5:
            assert time.monotonic() < deadline
            assert client.produce("t", 0, batch(1)).error_code == 0
        first, *rest = _epochs(client)
        assert first == 0, "not the 77 that the producer sent"
        assert rest == sorted(rest) and rest[-1] == 5
        cluster[1].kill()
        cluster[1].start()
        with RawClient(cluster.bootstrap) as again:
            assert again.produce("t", 0, batch(1)).error_code == 0
            assert _epochs(again)[-1] == 5


def _epochs(client: RawClient) -> list[int]:
    return [header.partition_leader_epoch for _, header in hop(client.read_all("t", 0))]


# --- mirror partitions ---


def test_a_mirror_keeps_the_source_s_bytes(client: RawClient) -> None:
    mirror = new_topic(client, headrace_mirror="true")
    stored = bytearray(batch(4, Codec.ZSTD))
    base_offset = readdress(stored, 0, 700, leader_epoch=41)
    result = client.produce(mirror, 0, bytes(stored))
    assert (result.error_code, result.base_offset) == (0, base_offset)
    assert client.fetch(mirror, 0, 700).records == stored


@pytest.mark.parametrize("count", [1, 50, 10_000, 100_000])
def test_a_mirror_refuses_what_a_producer_made(client: RawClient, count: int) -> None:
    """However many records the batch has: by its offsets alone a large one looks like a stored one."""
    mirror = new_topic(client, headrace_mirror="true")
    raw = squeezed(count)
    assert client.produce(mirror, 0, raw).error_code == ErrorCode.POLICY_VIOLATION
    assert client.list_offset(mirror, 0, -1)[0] == 0


def test_metadata_gives_no_leader_epoch_for_a_mirror(client: RawClient) -> None:
    """Its batches have the source's epochs. If these were greater, Java's consumer would ignore Metadata."""
    epochs = []
    for topic in (new_topic(client), new_topic(client, headrace_mirror="true")):
        (described,) = client.call(
            MetadataRequest(
                topics=(MetadataRequestTopic(topic_id=None, name=TopicName(topic)),),
                allow_auto_topic_creation=False,
                include_topic_authorized_operations=False,
            )
        ).topics
        epochs.append(described.partitions[0].leader_epoch)
    assert epochs == [0, -1]


# --- data directories of an older headrace ---


def test_a_broker_refuses_an_old_data_directory(broker_cluster: StartCluster) -> None:
    cluster = broker_cluster()
    with RawClient(cluster.bootstrap) as client:
        client.create_topic("t")
        client.produce("t", 0, batch(1))
    broker = cluster[1]
    broker.stop()
    owner = broker.data_dir / OWNER_FILE
    owner.write_text('{"broker_id": 1}')
    before = {path: path.read_bytes() for path in broker.data_dir.rglob("*") if path.is_file()}
    with pytest.raises(AssertionError, match="broker 1 ended"):
        broker.start()
    assert f"broker 1: {owner}: it lacks log_format 2: an older headrace wrote this log" in broker.output()
    assert {path: path.read_bytes() for path in before} == before
