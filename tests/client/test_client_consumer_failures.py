"""The consumer against brokers that fail, move or refuse, and damaged batches: repeated, or reported."""

from __future__ import annotations

import pytest

from fix_client import FakeCluster, StartCluster
from fix_consumers import WAIT_S, MakeConsumer, as_stored, fill, read
from fix_fake_broker import LOSE_ANSWER, Fault, refuse
from headrace.client import Consumer
from headrace.client.errors import (
    BrokerError,
    CorruptRecordsError,
    MetadataTimeoutError,
    UnknownTopicError,
    UnsupportedApiError,
)
from headrace.wire.apis import ApiKey
from headrace.wire.batch import read_header
from headrace.wire.compression import Codec
from headrace.wire.errors import ErrorCode


def test_a_leader_that_moves_is_followed(fake_cluster: StartCluster, consumer: MakeConsumer) -> None:
    cluster = fake_cluster(brokers=2)
    fill(cluster, batches=2)
    reader = consumer(cluster)
    read(reader, 8)
    with cluster.lock:
        cluster.leaders["t", 0] = 2
    fill(cluster, batches=1)
    assert read(reader, 4) == as_stored(cluster)[8:]


@pytest.mark.parametrize(
    "fault",
    [
        LOSE_ANSWER,
        refuse(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        refuse(ErrorCode.KAFKA_STORAGE_ERROR),
        refuse(ErrorCode.CORRUPT_MESSAGE),
        Fault(raw=b"\x00\x00\x00\x04\x00\x00\x00\x00"),
        Fault(raw=b"\x7f\xff\xff\xff"),
    ],
)
def test_fetches_that_fail_are_repeated(cluster: FakeCluster, consumer: MakeConsumer, fault: Fault) -> None:
    fill(cluster)
    cluster.next(ApiKey.FETCH, fault, Fault(), fault)
    assert read(consumer(cluster), 20) == as_stored(cluster)


@pytest.mark.parametrize("fault", [LOSE_ANSWER, refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER)])
def test_lookups_that_fail_are_repeated(cluster: FakeCluster, consumer: MakeConsumer, fault: Fault) -> None:
    fill(cluster)
    cluster.next(ApiKey.LIST_OFFSETS, fault)
    assert len(read(consumer(cluster), 20)) == 20


def test_a_broker_that_restarts_is_found_again(cluster: FakeCluster, consumer: MakeConsumer) -> None:
    fill(cluster, batches=2)
    reader = consumer(cluster)
    read(reader, 8)
    cluster.brokers[0].stop()
    assert reader.poll(0.1) == []
    cluster.brokers[0].start()
    fill(cluster, batches=1)
    assert len(read(reader, 4)) == 4


def test_permanent_refusals_are_raised(cluster: FakeCluster, consumer: MakeConsumer) -> None:
    fill(cluster)
    cluster.next(ApiKey.FETCH, refuse(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    reader = consumer(cluster)
    with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
        read(reader, 20)
    assert len(read(reader, 20)) == 20


@pytest.mark.parametrize("lacking", [ApiKey.LIST_OFFSETS, ApiKey.FETCH])
def test_each_poll_says_that_a_broker_cannot_be_read(
    cluster: FakeCluster, consumer: MakeConsumer, lacking: ApiKey
) -> None:
    """Such as a balancer's front. A caller that logs errors and goes on would else wait without a word."""
    del cluster.versions[lacking]
    reader = consumer(cluster)
    for _ in range(3):
        with pytest.raises(UnsupportedApiError, match=f"does not serve {lacking.name}"):
            reader.poll(3.0)


def test_damage_is_reported_and_can_be_skipped(cluster: FakeCluster, consumer: MakeConsumer) -> None:
    fill(cluster)
    log = cluster.log()
    with cluster.lock:
        damaged = bytearray(log.batches[2])
        damaged[-1] ^= 1
        log.batches[2] = bytes(damaged)
    reader = consumer(cluster)
    assert len(read(reader, 8)) == 8
    where = read_header(log.batches[1]).next_offset
    for take in (reader.poll, reader.poll_batches):
        with pytest.raises(CorruptRecordsError, match="CRC") as caught:
            take(1.0)
        assert (caught.value.topic, caught.value.partition, caught.value.offset) == ("t", 0, where)
    assert reader.position("t", 0) == where
    reader.seek("t", 0, read_header(log.batches[2]).next_offset)
    assert len(read(reader, 8)) == 8
    trusting = consumer(cluster, check_crcs=False)
    assert len(read(trusting, 20)) == 20


def test_a_bomb_is_not_unpacked(fake_cluster: StartCluster, consumer: MakeConsumer) -> None:
    cluster = fake_cluster()
    fill(cluster, batches=1, records=1, codec=Codec.ZSTD, size_bytes=3_000_000)
    reader = consumer(cluster, decode_limit_bytes=1_000_000)
    with pytest.raises(CorruptRecordsError, match="unpacks to more than 1000000 bytes"):
        read(reader, 1)


def test_unknown_topics(fake_cluster: StartCluster, consumer: MakeConsumer) -> None:
    cluster = fake_cluster(partitions=3)
    reader = consumer(cluster)
    assert reader.partitions_for("t") == [0, 1, 2]
    with pytest.raises(UnknownTopicError, match="nope"):
        reader.partitions_for("nope")
    assert ("nope", 0) not in cluster.logs


def test_no_broker_responds(fake_cluster: StartCluster) -> None:
    cluster = fake_cluster()
    cluster.brokers[0].stop()
    with Consumer(cluster.bootstrap) as reader:
        reader.assign([("t", 0)])
        assert reader.poll(0.05) == []
        with pytest.raises(MetadataTimeoutError, match="refused"):
            reader.partitions_for("t", timeout_s=0.1)
        with pytest.raises(MetadataTimeoutError, match="refused"):
            reader.position("t", 0, timeout_s=0.1)


@pytest.mark.parametrize("batches_too_far", [1.5, -1.5])
def test_a_batch_with_wrong_offsets_is_damaged(
    fake_cluster: StartCluster, consumer: MakeConsumer, batches_too_far: float
) -> None:
    """The base offset is under no checksum. Records must not be left out because theirs look like earlier
    ones, or because those behind them do.
    """
    cluster = fake_cluster()
    fill(cluster)
    stored = as_stored(cluster)
    log = cluster.log()
    where = read_header(log.batches[1]).next_offset
    with cluster.lock:
        spoiled = bytearray(log.batches[2])
        base = read_header(spoiled).base_offset + round(batches_too_far * len(spoiled))
        spoiled[:8] = base.to_bytes(8, "big")
        log.batches[2] = bytes(spoiled)
    reader = consumer(cluster)
    assert read(reader, 8) == stored[:8]
    with pytest.raises(CorruptRecordsError, match="batch with the offsets") as caught:
        reader.poll(WAIT_S)
    behind = read_header(log.batches[3]).address
    assert (caught.value.offset, caught.value.next_offset) == (where, behind)
    reader.seek("t", 0, behind)
    assert read(reader, 8) == stored[12:]
    assert read(consumer(cluster, on_corrupt="skip"), 16) == stored[:8] + stored[12:]
