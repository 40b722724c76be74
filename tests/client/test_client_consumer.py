"""The consumer against scripted brokers: positions, both kinds of offsets, prefetching, its life."""

from __future__ import annotations

import itertools
import os
import threading
import time
from typing import Any

import pytest

from fix_client import FakeCluster, StartCluster
from fix_consumers import WAIT_S, MakeConsumer, as_stored, fill, read
from headrace.client import Consumer, ConsumerRecord, FetchedBatches
from headrace.client.errors import (
    ClosedError,
    ForkedError,
    OffsetOutOfRangeError,
)
from headrace.wire.apis import ApiKey
from headrace.wire.batch import CONTROL_BIT, hop, read_header
from headrace.wire.compression import Codec
from headrace.wire.records import Record, encode_batch


@pytest.mark.parametrize("codec", list(Codec))
def test_every_record_once_and_in_order(cluster: FakeCluster, consumer: MakeConsumer, codec: Codec) -> None:
    fill(cluster, codec=codec)
    reader = consumer(cluster)
    assert read(reader, 20) == as_stored(cluster)
    assert reader.poll(0.1) == []
    assert reader.position("t", 0) == cluster.log().end
    assert reader.high_watermark("t", 0) == cluster.log().end
    fill(cluster, batches=1)
    assert read(reader, 4) == as_stored(cluster)[20:]


def test_reading_starts_at_any_offset(cluster: FakeCluster, consumer: MakeConsumer) -> None:
    fill(cluster)
    reader = consumer(cluster)
    stored = as_stored(cluster)
    for i, record in enumerate(stored):
        reader.seek("t", 0, record[2])
        assert read(reader, len(stored) - i) == stored[i:]
    reader.seek("t", 0, cluster.log().end)
    assert reader.poll(0.1) == []


def test_an_offset_between_two_records_gives_the_next_one(
    fake_cluster: StartCluster, consumer: MakeConsumer
) -> None:
    """With byte addresses, most offsets belong to no record."""
    cluster = fake_cluster()
    fill(cluster, batches=2)
    reader = consumer(cluster)
    for offset in (10, as_stored(cluster)[0][2]):
        reader.seek("t", 0, offset)
        assert read(reader, 8) == as_stored(cluster)
    reader.seek("t", 0, as_stored(cluster)[3][2] + 1)
    assert read(reader, 4) == as_stored(cluster)[4:]


def test_polls_are_bounded_and_positions_follow_the_records(
    cluster: FakeCluster, consumer: MakeConsumer
) -> None:
    fill(cluster)
    reader = consumer(cluster, max_poll_records=3)
    seen: list[ConsumerRecord] = []
    while len(seen) < 20:
        got = reader.poll(1.0)
        assert 1 <= len(got) <= 3
        seen += got
        assert reader.position("t", 0) > seen[-1].offset
    assert seen == as_stored(cluster)
    assert len(reader.poll(0.0, max_records=1)) == 0


def test_polling_one_record_at_a_time_does_not_fetch_each_time(
    cluster: FakeCluster, consumer: MakeConsumer
) -> None:
    fill(cluster)
    reader = consumer(cluster)
    for expected in as_stored(cluster):
        assert reader.poll(1.0, max_records=1) == [expected]
    assert len(cluster.requests_of(ApiKey.FETCH)) < 10


def test_starting_points(cluster: FakeCluster, consumer: MakeConsumer) -> None:
    fill(cluster)
    reader = consumer(cluster, auto_offset_reset="latest")
    assert reader.position("t", 0) == cluster.log().end
    reader.seek_to_beginning("t", 0)
    assert reader.position("t", 0) == 0
    reader.seek_to_timestamp("t", 0, 1_002_000)
    assert read(reader, 12) == as_stored(cluster)[8:]
    reader.seek_to_timestamp("t", 0, 1_002_002)
    assert read(reader, 10)[0].timestamp_ms == 1_002_002
    reader.seek_to_timestamp("t", 0, 9_999_999)
    assert reader.position("t", 0) == cluster.log().end
    reader.seek_to_end("t", 0)
    assert reader.position("t", 0) == cluster.log().end


def test_what_comes_while_its_time_is_looked_up_is_read(cluster: FakeCluster, consumer: MakeConsumer) -> None:
    """However far the lookup is: no record of the time is there yet, and the end is looked up next."""
    fill(cluster)
    for polls in range(12):
        at_ms = 2_000_000 + polls
        reader = consumer(cluster)
        reader.seek_to_timestamp("t", 0, at_ms)
        for _ in range(polls):
            assert reader.poll(0.0) == []
            time.sleep(0.01)
        with cluster.lock:
            cluster.log().append(encode_batch([Record(0, at_ms, None, b"new")]))
        assert [record.timestamp_ms for record in read(reader, 1, within_s=3)] == [at_ms], polls


def test_out_of_range_resets_per_auto_offset_reset(cluster: FakeCluster, consumer: MakeConsumer) -> None:
    fill(cluster)
    reader = consumer(cluster)
    reader.seek("t", 0, 10**9)
    assert read(reader, 20) == as_stored(cluster)
    reader = consumer(cluster, auto_offset_reset="latest")
    reader.seek("t", 0, 10**9)
    assert reader.poll(0.3) == []
    assert reader.position("t", 0) == cluster.log().end


def test_out_of_range_is_an_error_if_auto_offset_reset_is_error(
    cluster: FakeCluster, consumer: MakeConsumer
) -> None:
    fill(cluster)
    reader = consumer(cluster, auto_offset_reset="error")
    with pytest.raises(OffsetOutOfRangeError, match="no position was given"):
        read(reader, 1)
    reader.seek("t", 0, 10**9)
    with pytest.raises(OffsetOutOfRangeError, match="1000000000") as caught:
        read(reader, 1)
    assert (caught.value.topic, caught.value.partition, caught.value.offset) == ("t", 0, 10**9)
    reader.seek("t", 0, 0)
    assert len(read(reader, 20)) == 20


def test_what_was_cut_off_at_the_start_is_skipped_to_the_earliest(
    cluster: FakeCluster, consumer: MakeConsumer
) -> None:
    fill(cluster)
    with cluster.lock:
        cluster.log().start = read_header(cluster.log().batches[1]).next_offset
    reader = consumer(cluster)
    reader.seek("t", 0, 1)
    assert read(reader, 12) == as_stored(cluster)[8:]


def test_raw_batches_are_verbatim(cluster: FakeCluster, consumer: MakeConsumer) -> None:
    fill(cluster, codec=Codec.ZSTD)
    reader = consumer(cluster)
    taken: list[FetchedBatches] = []
    while sum(len(each.buffer) for each in taken) < sum(map(len, cluster.log().batches)):
        taken += reader.poll_batches(1.0)
    assert b"".join(bytes(each.buffer) for each in taken) == b"".join(cluster.log().batches)
    assert taken[0].base_offset == read_header(cluster.log().batches[0]).base_offset
    assert taken[-1].end_address == reader.position("t", 0) == cluster.log().end
    if cluster.log().by_address:
        assert taken[0].address == 0
        assert all(a.end_address == b.address for a, b in itertools.pairwise(taken))
    else:
        assert all(a.end_address == b.base_offset for a, b in itertools.pairwise(taken))
    assert taken[-1].high_watermark == cluster.log().end


def test_raw_batches_after_some_records_begin_with_the_batch_they_were_in(
    cluster: FakeCluster, consumer: MakeConsumer
) -> None:
    fill(cluster)
    reader = consumer(cluster)
    assert len(reader.poll(WAIT_S, max_records=6)) == 6
    first = reader.poll_batches(1.0)[0]
    assert first.base_offset == read_header(cluster.log().batches[1]).base_offset
    assert next(at for at, _ in hop(first.buffer)) == 0
    fill(cluster, batches=1)
    assert len(read(reader, 4)) == 4


def test_control_batches_are_stepped_over(cluster: FakeCluster, consumer: MakeConsumer) -> None:
    fill(cluster, batches=1)
    with cluster.lock:
        marker = Record(0, 1, b"\x00\x00\x00\x01", b"\x00\x00\x00\x00\x00\x00")
        cluster.log().append(encode_batch([marker], attributes=CONTROL_BIT))
    fill(cluster, batches=1)
    reader = consumer(cluster)
    assert [record.key for record in read(reader, 8)] == [b"k"] * 8
    assert reader.position("t", 0) == cluster.log().end


def test_several_partitions_of_several_brokers_are_read_fairly(
    fake_cluster: StartCluster, consumer: MakeConsumer
) -> None:
    cluster = fake_cluster(brokers=2, partitions=5)
    for partition in range(5):
        fill(cluster, batches=20, partition=partition)
    reader = consumer(cluster, range(5), max_poll_records=40)
    assert reader.assignment == [("t", partition) for partition in range(5)]
    got = read(reader, 400)
    for partition in range(5):
        assert [record for record in got if record.partition == partition] == as_stored(cluster, partition)
    assert len({record.partition for record in got[:200]}) >= 3


def test_reassigning_keeps_the_positions_of_partitions_that_stay(
    fake_cluster: StartCluster, consumer: MakeConsumer
) -> None:
    cluster = fake_cluster(partitions=2)
    fill(cluster)
    fill(cluster, partition=1)
    reader = consumer(cluster, [0])
    head = reader.poll(WAIT_S, max_records=3)
    reader.assign([("t", 0), ("t", 1)])
    got = head + read(reader, 37)
    assert [record for record in got if record.partition == 0] == as_stored(cluster, 0)
    assert [record for record in got if record.partition == 1] == as_stored(cluster, 1)
    reader.assign([("t", 1)])
    with pytest.raises(ValueError, match="t-0 is not assigned"):
        reader.position("t", 0)


def test_paused_partitions_give_nothing_but_their_position(
    fake_cluster: StartCluster, consumer: MakeConsumer
) -> None:
    cluster = fake_cluster(partitions=2)
    fill(cluster)
    fill(cluster, partition=1)
    reader = consumer(cluster, [0, 1])
    reader.pause("t", 0)
    assert reader.position("t", 0, timeout_s=5.0) == 0
    assert {record.partition for record in read(reader, 20)} == {1}
    assert reader.poll(0.1) == []
    reader.resume("t", 0)
    assert {record.partition for record in read(reader, 20)} == {0}


def test_what_cannot_be_a_topic_is_not_assigned(cluster: FakeCluster, consumer: MakeConsumer) -> None:
    fill(cluster)
    reader = consumer(cluster)
    with pytest.raises(ValueError, match="surrogates"):
        reader.assign([("t", 0), ("\ud800", 0)])
    assert len(read(reader, 20)) == 20


def test_batches_larger_than_a_fetch_come_through(cluster: FakeCluster, consumer: MakeConsumer) -> None:
    fill(cluster, batches=3, size_bytes=5000)
    reader = consumer(cluster, max_partition_fetch_bytes=1000, fetch_max_bytes=1000)
    assert len(read(reader, 12)) == 12


def test_prefetching_is_bounded(cluster: FakeCluster, consumer: MakeConsumer) -> None:
    fill(cluster, batches=200, size_bytes=1000)
    reader = consumer(
        cluster, max_partition_fetch_bytes=20_000, buffer_memory_bytes=50_000, max_poll_records=1
    )
    most_bytes = 0
    for _ in range(100):
        reader.poll(1.0)
        most_bytes = max(most_bytes, reader._fetcher.buffered_bytes)
        # Prefetched bytes arrive during this; the next poll reads them.
        time.sleep(0.005)
    assert 20_000 < most_bytes <= 50_000


def test_the_next_fetch_is_in_flight_while_records_are_returned(
    cluster: FakeCluster, consumer: MakeConsumer
) -> None:
    fill(cluster, batches=10)
    reader = consumer(cluster, max_partition_fetch_bytes=300)
    reader.poll(WAIT_S, max_records=1)
    before = len(cluster.requests_of(ApiKey.FETCH))
    deadline = time.monotonic() + WAIT_S
    while len(cluster.requests_of(ApiKey.FETCH)) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(cluster.requests_of(ApiKey.FETCH)) >= max(2, before)


def test_wakeup_ends_a_poll(cluster: FakeCluster, consumer: MakeConsumer) -> None:
    reader = consumer(cluster)
    threading.Timer(0.1, reader.wakeup).start()
    began = time.monotonic()
    assert reader.poll(WAIT_S) == []
    assert time.monotonic() - began < 30


def test_one_thread_at_a_time(cluster: FakeCluster, consumer: MakeConsumer) -> None:
    reader = consumer(cluster)
    thread = threading.Thread(target=reader.poll, args=(WAIT_S,))
    thread.start()
    time.sleep(0.1)
    for call in (lambda: reader.poll(0), reader.close):
        with pytest.raises(RuntimeError, match="thread"):
            call()
    reader.wakeup()
    thread.join(WAIT_S)
    reader.close()


def test_closing(cluster: FakeCluster) -> None:
    with Consumer(cluster.bootstrap) as reader:
        pass
    reader.close()
    for call in (lambda: reader.poll(0), lambda: reader.assign([]), lambda: reader.partitions_for("t")):
        with pytest.raises(ClosedError):
            call()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_must_create_its_own_client(cluster: FakeCluster, consumer: MakeConsumer) -> None:
    fill(cluster)
    reader = consumer(cluster)
    read(reader, 1)
    child = os.fork()
    if child == 0:
        try:
            reader.poll(0)
        except ForkedError:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


@pytest.mark.parametrize(
    "options",
    [
        {"auto_offset_reset": "newest"},
        {"on_corrupt": "stop"},
        {"max_poll_records": 0},
        {"buffer_memory_bytes": 0},
        {"fetch_max_bytes": 0},
        {"max_partition_fetch_bytes": 1 << 31},
        {"fetch_min_bytes": 1 << 31},
        {"fetch_max_wait_ms": 1 << 31},
        {"fetch_max_wait_ms": -1},
        {"request_timeout_ms": 0},
        {"retry_backoff_ms": -1},
    ],
    ids=str,
)
def test_invalid_settings(options: Any) -> None:
    """A consumer of `fetch_max_bytes=0` read nothing for ever, without a word; and what a request cannot say
    was a `struct.error` of each poll.
    """
    with pytest.raises(ValueError, match=next(iter(options))):
        Consumer("127.0.0.1:1", **options)


def test_negative_offsets_are_no_positions(cluster: FakeCluster, consumer: MakeConsumer) -> None:
    with pytest.raises(ValueError, match="seek_to_end"):
        consumer(cluster).seek("t", 0, -1)


@pytest.mark.parametrize("value", [1.5, 1e12, 1 << 63, "7", None], ids=repr)
def test_what_is_no_place_in_a_log_is_refused_at_once(
    cluster: FakeCluster, consumer: MakeConsumer, value: Any
) -> None:
    """`time.time() * 1000` is a float, for example. A request cannot name it, and all fetches would end."""
    reader = consumer(cluster)
    reader.assign([("t", 0)])
    says = "in 64 bits" if isinstance(value, int) else f"must be an int, not {value!r}"
    with pytest.raises((TypeError, ValueError), match=says):
        reader.seek("t", 0, value)
    with pytest.raises((TypeError, ValueError), match=says):
        reader.seek_to_timestamp("t", 0, value)


def test_a_time_before_1970_is_before_all_records(cluster: FakeCluster, consumer: MakeConsumer) -> None:
    """A broker takes -1 for the log's end, and -2 for its start."""
    fill(cluster)
    reader = consumer(cluster)
    for timestamp_ms in (-1, -2, -(1 << 80)):
        reader.seek_to_timestamp("t", 0, timestamp_ms)
        assert read(reader, 20) == as_stored(cluster)
