"""Damaged batches before a consumer: one error names each, with a way past it; nothing else is lost."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fix_bad_batches import Spoil, flipped, poisoned, resealed, undecompressable
from fix_client import FakeCluster, StartCluster
from headrace.client import Consumer
from headrace.client.errors import CorruptRecordsError
from headrace.wire.apis import ApiKey
from headrace.wire.batch import BatchHeader, read_header
from headrace.wire.records import Record, encode_batch, pack_record

WAIT_S = 60
BATCHES, RECORDS = 6, 4


@pytest.fixture
def cluster(fake_cluster: StartCluster) -> FakeCluster:
    return filled(fake_cluster)


def filled(fake_cluster: StartCluster, *, by_address: bool = True) -> FakeCluster:
    cluster = fake_cluster(by_address=by_address)
    with cluster.lock:
        for i in range(BATCHES):
            batch = [Record(0, 1_000 + j, None, b"%d.%d" % (i, j) + b"x" * 20) for j in range(RECORDS)]
            cluster.log().append(encode_batch(batch))
    return cluster


def spoil(cluster: FakeCluster, spoils: dict[int, Spoil]) -> None:
    with cluster.lock:
        batches = cluster.log().batches
        for index, spoiled in spoils.items():
            batches[index] = spoiled(read_header(batches[index]), bytes(batches[index]))


def long(_: BatchHeader, batch: bytes) -> bytes:
    """It claims two gigabytes."""
    return batch[:8] + b"\x7f\xff\xff\xf0" + batch[12:]


def far(_: BatchHeader, batch: bytes) -> bytes:
    """Its base offset, which no checksum covers, lies far behind the log's end."""
    return b"\x10" + batch[1:]


def near(_: BatchHeader, batch: bytes) -> bytes:
    """Its base offset is one off."""
    return batch[:7] + bytes([batch[7] ^ 1]) + batch[8:]


def magic(_: BatchHeader, batch: bytes) -> bytes:
    return batch[:16] + b"\x07" + batch[17:]


def leaping(header: BatchHeader, batch: bytes) -> bytes:
    """Sound records, but for the offsets that they claim."""
    packed = b"".join(pack_record(1_000_000 + i, 0, None, b"v" * 20, ()) for i in range(RECORDS))
    room = len(batch) - 61
    return resealed(header, packed[:room].ljust(room, b"\0"))


def good(*bad: int) -> list[bytes]:
    return [b"%d.%d" % (i, j) + b"x" * 20 for i in range(BATCHES) if i not in bad for j in range(RECORDS)]


def read_all(cluster: FakeCluster, take: Callable[[Consumer], list[bytes]], **options: Any) -> list[bytes]:
    found: list[bytes] = []
    end = read_header(cluster.log().batches[-1]).next_offset
    deadline = time.monotonic() + WAIT_S
    with make(cluster, **options) as consumer:
        while consumer.position("t", 0) < end:
            assert time.monotonic() < deadline, (consumer.position("t", 0), end)
            found += take(consumer)
        assert consumer.position("t", 0) == end
    return found


def make(cluster: FakeCluster, **options: Any) -> Consumer:
    options = {"auto_offset_reset": "earliest", "retry_backoff_ms": 5, "fetch_max_wait_ms": 50, **options}
    consumer = Consumer(cluster.bootstrap, **options)
    consumer.assign([("t", 0)])
    return consumer


def values(consumer: Consumer) -> list[bytes]:
    return [record.value or b"" for record in consumer.poll(0.2)]


SPOILS: dict[str, Spoil] = {
    "flipped": flipped,
    "poisoned": poisoned,
    "undecompressable": undecompressable,
    "magic": magic,
    "leaping": leaping,
    "long": long,
    "far": far,
    "near": near,
}


@pytest.mark.parametrize("name", SPOILS)
@pytest.mark.parametrize("places", [(0,), (2, 3), (1, 4)])
def test_bad_batches_are_skipped_by_name_and_no_other(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture, name: str, places: tuple[int, ...]
) -> None:
    spoil(cluster, dict.fromkeys(places, SPOILS[name]))
    skipped: list[int] = []

    def take(consumer: Consumer) -> list[bytes]:
        found = values(consumer)
        skipped.append(consumer.corrupt_batches_skipped)
        return found

    with caplog.at_level(logging.WARNING, "headrace.client.consumer"):
        assert read_all(cluster, take, on_corrupt="skip") == good(*places)
    assert skipped[-1] == len(places)
    warnings = [each.getMessage() for each in caplog.records if "is left out" in each.getMessage()]
    assert len(warnings) == len(places)
    assert warnings[0].startswith("t-0: the batch at offsets ")
    # Each batch was fetched a second time before it was left out, and not over and over.
    assert len(cluster.requests_of(ApiKey.FETCH)) < 60


@pytest.mark.parametrize("name", SPOILS)
def test_an_error_names_the_batch_and_the_offset_behind_it(cluster: FakeCluster, name: str) -> None:
    spoil(cluster, {2: SPOILS[name]})
    errors: list[CorruptRecordsError] = []

    def take(consumer: Consumer) -> list[bytes]:
        try:
            return values(consumer)
        except CorruptRecordsError as error:
            errors.append(error)
            assert error.next_offset is not None
            consumer.seek("t", 0, error.next_offset)
            return []

    assert read_all(cluster, take) == good(2)
    [error] = errors
    assert (error.topic, error.partition) == ("t", 0)
    assert f"seek to {error.next_offset}" in str(error) and 'on_corrupt="skip"' in str(error)


def test_an_unbelievable_header_is_an_error_and_no_endless_fetch(fake_cluster: StartCluster) -> None:
    """Of a broker whose offsets count records: they do not say where a batch lies."""
    cluster = filled(fake_cluster, by_address=False)
    spoil(cluster, {BATCHES - 1: far})
    with make(cluster, on_corrupt="skip") as consumer:
        found: list[bytes] = []
        deadline = time.monotonic() + WAIT_S
        with pytest.raises(CorruptRecordsError, match="nothing says where the next batch begins"):
            while time.monotonic() < deadline:
                found += values(consumer)
        assert found == good(BATCHES - 1)
        assert consumer.position("t", 0) == read_header(cluster.log().batches[-2]).next_offset
    assert len(cluster.requests_of(ApiKey.FETCH)) < 60


def test_whole_batches_before_a_bad_one_are_returned_first(cluster: FakeCluster) -> None:
    spoil(cluster, {3: flipped})
    with make(cluster) as consumer:
        sizes: list[int] = []
        with pytest.raises(CorruptRecordsError):
            while True:
                sizes += [len(each.buffer) for each in consumer.poll_batches(0.5)]
        assert sum(sizes) == sum(map(len, cluster.log().batches[:3]))
        assert consumer.position("t", 0) == read_header(cluster.log().batches[2]).next_offset


@pytest.mark.parametrize("on_corrupt", ["skip", "raise"])
def test_a_bit_that_flips_on_the_way_costs_nothing(cluster: FakeCluster, on_corrupt: str) -> None:
    sound = bytes(cluster.log().batches[1])
    spoil(cluster, {1: flipped})

    def take(consumer: Consumer) -> list[bytes]:
        found = values(consumer)
        if found:
            with cluster.lock:
                cluster.log().batches[1] = sound
        return found

    assert read_all(cluster, take, on_corrupt=on_corrupt, max_poll_records=1) == good()


def test_an_error_is_raised_in_each_poll_until_the_batch_is_mended(cluster: FakeCluster) -> None:
    sound = bytes(cluster.log().batches[0])
    spoil(cluster, {0: flipped})
    with make(cluster) as consumer:
        for _ in range(3):
            with pytest.raises(CorruptRecordsError):
                consumer.poll(WAIT_S)
        with cluster.lock:
            cluster.log().batches[0] = sound
        assert consumer.poll(WAIT_S)[0].value == good()[0]


def test_a_bad_batch_is_named_though_another_partition_is_busy(fake_cluster: StartCluster) -> None:
    cluster = fake_cluster(partitions=2)
    batch = encode_batch([Record(0, 1_000, None, b"v" * 20)] * RECORDS)
    with cluster.lock:
        for partition, count in ((0, 200), (1, 1)):
            for _ in range(count):
                cluster.log(partition).append(batch)
        bad = cluster.log(1).batches
        bad[0] = flipped(read_header(bad[0]), bad[0])
    with make(cluster, max_partition_fetch_bytes=len(batch)) as consumer:
        consumer.assign([("t", 0), ("t", 1)])
        errors = records = 0
        deadline = time.monotonic() + WAIT_S
        while records < 200 * RECORDS:
            assert time.monotonic() < deadline, (records, errors)
            try:
                records += len(consumer.poll(0.2))
            except CorruptRecordsError as error:
                assert (error.partition, error.offset) == (1, 0)
                errors += 1
        assert records == 200 * RECORDS and errors > 1


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, BATCHES - 1), st.binary(min_size=1, max_size=200))
def test_any_bytes_as_records_end_in_records_or_an_error(
    fake_cluster: StartCluster, place: int, noise: bytes
) -> None:
    cluster = filled(fake_cluster)

    def noisy(header: BatchHeader, batch: bytes) -> bytes:
        return resealed(header, (noise * len(batch))[: len(batch) - 61])

    spoil(cluster, {place: noisy})
    found = read_all(cluster, values, on_corrupt="skip")
    assert [value for value in found if value in good()] == good(place)
