"""A real broker, frame by frame: what is produced, also again, what is fetched, and found by time."""

import threading
import time
import uuid

import pytest
from kio.schema.init_producer_id.v4.request import InitProducerIdRequest

from fix_broker import BrokerCluster, RawClient, StartCluster, batches_of
from fix_one_broker import FIVE_S, batch, wait_visible
from headrace.wire.batch import hop, read_header, seal
from headrace.wire.compression import Codec, compress
from headrace.wire.errors import ErrorCode
from headrace.wire.records import Record, decode_records, encode_batch

# --- produce and fetch ---


@pytest.mark.parametrize("version", range(3, 13))
@pytest.mark.parametrize("acks", [1, -1])
def test_produce_in_every_version(client: RawClient, topic: str, version: int, acks: int) -> None:
    end = 0
    for number in range(3):  # the first leaves a template, the others take the fast path
        raw = batch(b"%d" % number)
        result = client.produce(topic, 0, raw, acks=acks, version=version)
        end += len(raw)
        assert (result.error_code, result.base_offset, result.log_append_time_ms) == (0, end - 1, -1)
    wait_visible(client, topic, end)


@pytest.mark.parametrize("version", range(4, 13))
def test_fetch_in_every_version(client: RawClient, topic: str, version: int) -> None:
    raw = batch(b"hello", 3)
    client.produce(topic, 0, raw)
    result = client.fetch(topic, 0, 0, version=version)
    assert result.error_code == 0
    assert [record.value for record in decode_records(batches_of(result))] == [b"hello"] * 3
    assert result.high_watermark == result.last_stable_offset == len(raw)


def test_acks_0_gets_no_response_and_is_stored(client: RawClient, topic: str) -> None:
    raw = batch()
    client.send(client.produce_frame(topic, 0, raw, acks=0) * 3)
    wait_visible(client, topic, 3 * len(raw))
    assert len(client.read_all(topic, 0)) == 3 * len(raw)


def test_the_first_batch_is_whole_however_small_the_limit(client: RawClient, topic: str) -> None:
    big, small = batch(bytes(100_000)), batch()
    for raw in (big, small, small, small):
        client.produce(topic, 0, raw)
    got = client.fetch(topic, 0, 0, max_bytes=1)
    assert len(batches_of(got)) == len(big)
    got = client.fetch(topic, 0, len(big), max_bytes=2 * len(small) + 1)
    assert len(batches_of(got)) == 2 * len(small)


def test_positions_inside_a_batch(client: RawClient, topic: str) -> None:
    raw = batch(b"value", 10)
    for _ in range(2):
        client.produce(topic, 0, raw)
    size = len(raw)
    for offset, expected in (
        (0, 0),
        (9, 0),
        (size - 10, 0),
        (size - 1, 0),
        (size, size),
        (2 * size - 1, size),
    ):
        records = batches_of(client.fetch(topic, 0, offset))
        assert read_header(records).address == expected
    result = client.fetch(topic, 0, 2 * size)
    assert not result.records and result.high_watermark == 2 * size


def test_offsets_out_of_range(client: RawClient, topic: str) -> None:
    client.produce(topic, 0, batch())
    for offset in (-1, 10_000):
        assert client.fetch(topic, 0, offset).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_long_poll_ends_when_enough_is_there(
    one_broker: BrokerCluster, client: RawClient, topic: str
) -> None:
    raw = batch(bytes(500))
    with RawClient(one_broker.bootstrap) as producer:

        def later() -> None:
            for _ in range(2):
                time.sleep(0.25)
                producer.produce(topic, 0, raw)

        thread = threading.Thread(target=later)
        thread.start()
        began = time.monotonic()
        result = client.fetch(topic, 0, 0, max_wait_ms=10_000, min_bytes=len(raw) + 1)
        took = time.monotonic() - began
        thread.join()
    assert len(batches_of(result)) == 2 * len(raw)
    assert 0.4 < took < 9.5
    began = time.monotonic()
    assert not client.fetch(topic, 0, 2 * len(raw), max_wait_ms=300).records
    assert 0.25 < time.monotonic() - began < 15


def test_responses_keep_the_order_of_pipelined_requests(client: RawClient, topic: str) -> None:
    raw = batch()
    ids = []
    for number in range(200):
        client.send(client.produce_frame(topic, 0, raw, acks=(1, -1)[number % 2]))
        ids.append(client._correlation_id)
    got = [int.from_bytes(client.receive()[:4], "big") for _ in ids]
    assert got == ids


# --- idempotence ---


def test_duplicates_get_the_first_address_also_after_a_kill(broker_cluster: StartCluster) -> None:
    cluster = broker_cluster()
    sizes = []

    def numbered(sequence: int, epoch: int = 0) -> bytes:
        return batch(b"%05d" % sequence, producer_id=77, producer_epoch=epoch, base_sequence=sequence)

    with RawClient(cluster.bootstrap) as client:
        client.create_topic("t")
        for sequence in range(7):
            result = client.produce("t", 0, numbered(sequence))
            assert result.error_code == 0
            sizes.append(result.base_offset)
    for kill in (False, True):
        if kill:
            cluster[1].kill()
            cluster[1].start()
        with RawClient(cluster.bootstrap) as client:
            for sequence in (6, 5, 2):
                for version in (9, 9):  # by `produce.handler`, then by the fast path
                    result = client.produce("t", 0, numbered(sequence), version=version)
                    assert (result.error_code, result.base_offset) == (0, sizes[sequence])
            for sequence in (1, 8):
                result = client.produce("t", 0, numbered(sequence))
                assert result.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
                assert result.error_message is not None and "expected 7" in result.error_message
            assert (
                client.produce("t", 0, numbered(3, epoch=1)).error_code
                == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            )
            assert len([1 for _ in hop(client.read_all("t", 0))]) == 7
    with RawClient(cluster.bootstrap) as client:
        assert client.produce("t", 0, numbered(0, epoch=1)).error_code == 0
        assert client.produce("t", 0, numbered(7, epoch=0)).error_code == ErrorCode.INVALID_PRODUCER_EPOCH


def test_producer_ids_are_unique(broker_cluster: StartCluster) -> None:
    cluster = broker_cluster(count=2)
    seen = set()
    for broker in cluster.brokers:
        with RawClient(broker.address) as client:
            for _ in range(20):
                answer = client.call(InitProducerIdRequest(transactional_id=None, transaction_timeout=FIVE_S))
                assert answer.error_code.name == "none" and answer.producer_epoch == 0
                seen.add(answer.producer_id)
    assert len(seen) == 40


# --- offsets by time ---


def test_list_offsets(client: RawClient, topic: str) -> None:
    assert client.list_offset(topic, 0, -1) == (0, -1)
    assert client.list_offset(topic, 0, -2) == (0, -1)
    assert client.list_offset(topic, 0, 0) == (-1, -1)
    first = client.produce(topic, 0, batch(count=5, at_ms=1_000))
    second = client.produce(topic, 0, batch(count=5, at_ms=2_000))
    assert client.list_offset(topic, 0, 1_003) == (first.base_offset + 3, 1_003)
    assert client.list_offset(topic, 0, 1_500) == (second.base_offset, 2_000)
    assert client.list_offset(topic, 0, -3) == (second.base_offset + 4, 2_004)
    assert client.list_offset(topic, 0, 9_999) == (-1, -1)
    assert client.list_offset(topic, 0, -1)[0] == len(client.read_all(topic, 0))


def test_log_append_time(client: RawClient) -> None:
    name = f"t-{uuid.uuid4().hex[:8]}"
    client.create_topic(name, config={"message.timestamp.type": "LogAppendTime"})
    before = int(time.time() * 1000)
    result = client.produce(name, 0, batch(count=2, at_ms=5))
    assert before <= result.log_append_time_ms <= before + 5_000
    (first, _) = decode_records(client.read_all(name, 0))
    assert before <= first.timestamp_ms <= before + 5_000


def test_more_records_than_bytes(client: RawClient, topic: str) -> None:
    plain = encode_batch([Record(i, 1_000, None, b"") for i in range(10_000)])
    header = read_header(plain)
    squeezed = seal(
        compress(Codec.ZSTD, plain[61:]),
        attributes=int(Codec.ZSTD),
        record_count=header.record_count,
        base_timestamp_ms=1_000,
        max_timestamp_ms=1_000,
    )
    assert len(squeezed) < 10_000
    assert client.produce(topic, 0, squeezed).error_code == 0
    data = client.read_all(topic, 0)
    assert read_header(data).codec is Codec.NONE
    assert [record.offset for record in decode_records(data)] == list(range(len(data) - 10_000, len(data)))


# --- mirror partitions ---


def test_a_mirror_partition_accepts_only_batches_at_its_end_address(client: RawClient, topic: str) -> None:
    for number in range(4):
        client.produce(topic, 0, batch(b"%d" % number * 50))
    data = client.read_all(topic, 0)
    first = read_header(data).size_bytes
    mirror = f"m-{uuid.uuid4().hex[:8]}"
    client.create_topic(mirror, config={"headrace.mirror": "true"})
    assert client.produce(mirror, 0, batch()).error_code == ErrorCode.POLICY_VIOLATION
    result = client.produce(mirror, 0, data[first : 2 * first])
    assert (result.error_code, result.base_offset) == (0, 2 * first - 1), (
        "an empty one takes the first address it is given"
    )
    for wrong in (data[first : 2 * first], data[:first], data[3 * first :]):
        result = client.produce(mirror, 0, wrong)
        assert result.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert result.error_message is not None and f"ends at {2 * first}" in result.error_message
    assert client.produce(mirror, 0, batch()).error_code == ErrorCode.POLICY_VIOLATION
    assert client.produce(mirror, 0, data[2 * first :]).error_code == 0, "several batches at once"
    assert client.list_offset(mirror, 0, -2)[0] == first
    got = client.fetch(mirror, 0, first)
    assert got.records == data[first:]
