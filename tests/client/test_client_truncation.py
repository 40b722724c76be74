"""The consumer and logs that have lost what it read: it notices, and skips nothing of what they hold now."""

from __future__ import annotations

import uuid

import pytest

from fix_client import FakeCluster
from fix_consumers import MakeConsumer, as_stored, fill, read
from headrace.client.errors import LogTruncationError
from headrace.wire.apis import ApiKey
from headrace.wire.batch import LENGTH_END_BYTES, read_header


def test_what_a_new_leader_has_instead_is_read(cluster: FakeCluster, consumer: MakeConsumer) -> None:
    """The new log is longer than what was read, so that each position of the old one is in the new one."""
    fill(cluster)
    reader = consumer(cluster, auto_offset_reset="latest")
    reader.seek_to_beginning("t", 0)
    assert len(read(reader, 20)) == 20
    with cluster.lock:
        cluster.log().elect(3, leader_epoch=2)
        fill(cluster, batches=5, size_bytes=33)
    assert read(reader, 20) == as_stored(cluster)[12:]
    assert reader.poll(0.05) == []


def test_without_a_reset_a_truncation_is_an_error(cluster: FakeCluster, consumer: MakeConsumer) -> None:
    fill(cluster)
    reader = consumer(cluster, auto_offset_reset="error")
    reader.seek("t", 0, 0)
    assert len(read(reader, 20)) == 20
    position = reader.position("t", 0)
    with cluster.lock:
        cluster.log().elect(3, leader_epoch=2)
        parting = cluster.log().end
        fill(cluster, batches=5, size_bytes=33)
    for _ in range(2):
        with pytest.raises(LogTruncationError, match=f"from offset {parting} on it holds others") as caught:
            read(reader, 1)
        assert (caught.value.offset, caught.value.divergence_offset) == (position, parting)
    reader.seek("t", 0, parting)
    assert read(reader, 20) == as_stored(cluster)[12:]


def test_a_leader_that_has_written_nothing_yet(cluster: FakeCluster, consumer: MakeConsumer) -> None:
    fill(cluster)
    reader = consumer(cluster)
    assert len(read(reader, 20)) == 20
    with cluster.lock:
        cluster.log().elect(3, leader_epoch=1)
    assert reader.poll(0.3) == []
    assert reader.position("t", 0) == cluster.log().end
    fill(cluster, batches=1)
    assert read(reader, 4) == as_stored(cluster)[12:]


def test_several_elections_at_once(cluster: FakeCluster, consumer: MakeConsumer) -> None:
    """The new leader has an earlier epoch at offsets that were read in a later one."""
    fill(cluster, batches=2)
    with cluster.lock:
        for epoch in (4, 6):
            cluster.log().elect(len(cluster.log().batches), epoch)
            fill(cluster, batches=2)
    reader = consumer(cluster)
    assert len(read(reader, 24)) == 24
    with cluster.lock:
        log = cluster.log()
        log.elect(1, leader_epoch=1)
        fill(cluster, batches=3, size_bytes=33)
        log.elect(4, leader_epoch=3)
        fill(cluster, batches=8, size_bytes=33)
        log.elect(12, leader_epoch=7)
        fill(cluster, batches=1)
    assert read(reader, 48) == as_stored(cluster)[4:]


def test_a_damaged_epoch_is_no_truncation(cluster: FakeCluster, consumer: MakeConsumer) -> None:
    """Leader epochs are under no checksum. A leader does not know what rotted on its disk since."""
    fill(cluster)
    with cluster.lock:
        log = cluster.log()
        for number, epoch in ((1, 77), (3, 5)):
            batch = bytearray(log.batches[number])
            batch[LENGTH_END_BYTES : LENGTH_END_BYTES + 4] = epoch.to_bytes(4, "big")
            log.batches[number] = bytes(batch)
        size_bytes = len(log.batches[0])
    reader = consumer(cluster, auto_offset_reset="error", max_partition_fetch_bytes=size_bytes)
    reader.seek("t", 0, 0)
    assert read(reader, 20) == as_stored(cluster)
    assert read_header(cluster.log().batches[1]).partition_leader_epoch == 77
    fill(cluster, batches=1)
    assert read(reader, 4) == as_stored(cluster)[20:]


def made_again(cluster: FakeCluster) -> None:
    with cluster.lock:
        cluster.create("t", 1)
        cluster.topic_ids["t"] = uuid.uuid4()
        fill(cluster, batches=7, size_bytes=33)


@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_a_topic_that_is_made_again_is_read_from_its_start(
    cluster: FakeCluster, consumer: MakeConsumer, reset: str
) -> None:
    """Its leader epochs begin at 0 again, and its log is longer than the position in the one before."""
    cluster.topic_ids["t"] = uuid.uuid4()
    fill(cluster)
    reader = consumer(cluster, auto_offset_reset=reset)
    reader.seek("t", 0, 0)
    assert len(read(reader, 20)) == 20
    made_again(cluster)
    assert read(reader, 28) == as_stored(cluster)


@pytest.mark.parametrize("reset", ["earliest", "error"])
def test_a_broker_that_tells_another_topic_id_is_not_believed(
    cluster: FakeCluster, consumer: MakeConsumer, reset: str
) -> None:
    """It was cut off before the topic was made again. The leader still answers for the id that was read."""
    cluster.topic_ids["t"] = uuid.uuid4()
    fill(cluster)
    reader = consumer(cluster, auto_offset_reset=reset)
    reader.seek("t", 0, 0)
    assert len(read(reader, 20)) == 20
    with cluster.lock:
        cluster.told_ids["t"] = uuid.uuid4()
    reader._network.request_update()
    assert reader.poll(0.3) == []
    assert reader._network.cluster.topic_id("t") == cluster.told_ids["t"]
    fill(cluster, batches=1)
    assert read(reader, 4) == as_stored(cluster)[20:]
    made_again(cluster)
    with cluster.lock:
        cluster.told_ids.clear()
    if reset == "earliest":
        assert read(reader, 28) == as_stored(cluster)


def test_without_a_reset_a_topic_that_is_made_again_is_an_error(
    cluster: FakeCluster, consumer: MakeConsumer
) -> None:
    cluster.topic_ids["t"] = uuid.uuid4()
    fill(cluster)
    reader = consumer(cluster, auto_offset_reset="error")
    reader.seek("t", 0, 0)
    assert len(read(reader, 20)) == 20
    made_again(cluster)
    with pytest.raises(LogTruncationError, match="its topic was deleted and made again") as caught:
        read(reader, 1)
    assert caught.value.divergence_offset is None
    reader.seek("t", 0, 0)
    assert read(reader, 28) == as_stored(cluster)


def test_brokers_that_know_no_topic_ids(cluster: FakeCluster, consumer: MakeConsumer) -> None:
    """They name them in Metadata v10, before Fetch v13 takes them."""
    cluster.versions[ApiKey.FETCH] = (4, 12)
    cluster.topic_ids["t"] = uuid.uuid4()
    fill(cluster)
    assert read(consumer(cluster), 20) == as_stored(cluster)


@pytest.mark.parametrize("reset", ["earliest", "error"])
def test_an_offset_of_a_topic_that_was_made_again_meanwhile_is_not_one_of_the_present_topic(
    cluster: FakeCluster, consumer: MakeConsumer, reset: str
) -> None:
    """The topic's id was stored with it: a client that starts has read nothing that it could compare."""
    earlier = cluster.topic_ids["t"] = uuid.uuid4()
    fill(cluster)
    offset = cluster.log().end
    reader = consumer(cluster, auto_offset_reset=reset)
    reader.seek("t", 0, offset, topic_id=earlier)
    assert reader.poll(0.3) == []
    assert reader.topic_id("t", 0) == earlier
    made_again(cluster)
    reader = consumer(cluster, auto_offset_reset=reset)
    reader.seek("t", 0, offset, topic_id=earlier)
    if reset == "error":
        with pytest.raises(LogTruncationError, match="its topic was deleted and made again"):
            read(reader, 1)
        reader.seek_to_beginning("t", 0)
    assert read(reader, 28) == as_stored(cluster)
    assert reader.topic_id("t", 0) == cluster.topic_ids["t"]


def test_an_offset_whose_topic_is_not_known_is_taken_for_one_of_the_present_topic(
    cluster: FakeCluster, consumer: MakeConsumer
) -> None:
    cluster.topic_ids["t"] = uuid.uuid4()
    fill(cluster)
    reader = consumer(cluster, auto_offset_reset="error")
    reader.seek("t", 0, 0)
    assert reader.topic_id("t", 0) == uuid.UUID(int=0)
    assert len(read(reader, 20)) == 20
    assert reader.topic_id("t", 0) == cluster.topic_ids["t"]
