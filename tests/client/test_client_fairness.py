"""A consumer's partitions beside each other: no paused one, and no busy one, keeps anything from others."""

from __future__ import annotations

import time

import pytest

from fix_client import FakeCluster, StartCluster
from fix_consumers import WAIT_S, MakeConsumer, as_stored, fill, read
from headrace.client import ConsumerRecord
from headrace.client.errors import OffsetOutOfRangeError


def test_errors_are_raised_while_other_partitions_have_records(
    fake_cluster: StartCluster, consumer: MakeConsumer
) -> None:
    cluster = fake_cluster(brokers=2, partitions=2)
    fill(cluster, batches=2, records=200)
    reader = consumer(cluster, [0, 1], max_poll_records=1, auto_offset_reset="error")
    reader.seek("t", 0, 0)
    reader.seek("t", 1, 10**9)
    got: list[ConsumerRecord] = []
    with pytest.raises(OffsetOutOfRangeError, match="t-1"):
        for _ in range(300):
            got += reader.poll(WAIT_S)
            time.sleep(0.005)  # the other broker's answer needs its time
    assert got == as_stored(cluster)[: len(got)]
    reader.seek("t", 1, 0)
    assert got + read(reader, 400 - len(got)) == as_stored(cluster)


def test_records_are_returned_while_other_partitions_have_errors(
    fake_cluster: StartCluster, consumer: MakeConsumer
) -> None:
    cluster = fake_cluster(partitions=9)
    fill(cluster, batches=1)
    reader = consumer(cluster, range(9), auto_offset_reset="error", max_poll_records=1, retry_backoff_ms=0)
    reader.seek("t", 0, 0)
    got, errors = 0, 0
    until = time.monotonic() + 5
    while got < 4 and time.monotonic() < until:
        try:
            got += len(reader.poll(0.01))
        except OffsetOutOfRangeError:
            errors += 1
    assert got == 4
    assert errors


def test_errors_are_raised_without_a_timeout(cluster: FakeCluster, consumer: MakeConsumer) -> None:
    reader = consumer(cluster, auto_offset_reset="error")
    reader.seek("t", 0, 10**9)
    until = time.monotonic() + 2
    with pytest.raises(OffsetOutOfRangeError, match="t-0"):
        while time.monotonic() < until:
            reader.poll(0)


def test_paused_partitions_take_no_memory_from_the_others(
    fake_cluster: StartCluster, consumer: MakeConsumer
) -> None:
    """What was fetched of them ahead is fetched again later: from the record that comes next."""
    cluster = fake_cluster(partitions=2)
    for partition in (0, 1):
        fill(cluster, batches=40, partition=partition, size_bytes=1000)
    reader = consumer(
        cluster, [0], max_partition_fetch_bytes=100_000, buffer_memory_bytes=100_000, max_poll_records=3
    )
    head = read(reader, 3)  # a part of its first batch
    until = time.monotonic() + 5
    while reader._fetcher.buffered_bytes < 100_000 and time.monotonic() < until:
        assert reader.poll(0.01, max_records=0) == []
    reader.assign([("t", 0), ("t", 1)])
    reader.pause("t", 0)
    got: list[ConsumerRecord] = []
    until = time.monotonic() + 5
    while len(got) < 160 and time.monotonic() < until:
        got += reader.poll(0.1)
    assert got == as_stored(cluster, 1)
    reader.resume("t", 0)
    assert head + read(reader, 157) == as_stored(cluster, 0)
