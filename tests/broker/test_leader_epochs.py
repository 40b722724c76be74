"""Leader epochs as clients see them: OffsetForLeaderEpoch, and a Fetch that names the epoch it read last."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from kio.schema.offset_for_leader_epoch.v4.request import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i32

from fix_broker import BrokerCluster, RawClient, StartCluster
from headrace.coordination.topics import TopicRegistry
from headrace.wire import fetch
from headrace.wire.batch import hop, readdress
from headrace.wire.errors import ErrorCode
from headrace.wire.primitives import NO_UUID
from headrace.wire.records import Record, encode_batch

WAIT_MAX_S = 30.0
BATCH = encode_batch([Record(i, 1_000 + i, b"k", b"value %d" % i) for i in range(3)])
EPOCHS = (0, 5, 6)  # of the log that `led` makes: two batches of each


@pytest.fixture
def cluster(broker_cluster: StartCluster) -> BrokerCluster:
    return broker_cluster()


@pytest.fixture
def led(cluster: BrokerCluster) -> Iterator[tuple[RawClient, list[int]]]:
    """A client, and where the epochs of topic t begin, and its end."""
    with RawClient(cluster.bootstrap) as client:
        client.create_topic("t")
        for epoch in EPOCHS:
            if epoch:
                lead(cluster, client, epoch)
            for _ in range(2):
                assert client.produce("t", 0, BATCH).error_code == 0
        yield client, starts_of(client)


def lead(cluster: BrokerCluster, client: RawClient, epoch: int) -> None:
    """Elects the same broker again, in a later epoch, and waits until it leads in it."""
    with cluster.zookeeper.session() as session:
        registry = TopicRegistry(session)
        state = registry.get("t").partitions[0]
        registry.set_partition_state("t", 0, replace(state, leader_epoch=epoch), expected=state)
    deadline = time.monotonic() + WAIT_MAX_S
    while ask(client, epoch, current=epoch)[0] != "none":
        assert time.monotonic() < deadline
        time.sleep(0.02)


def starts_of(client: RawClient) -> list[int]:
    data = client.read_all("t", 0)
    first: dict[int, int] = {}
    for at, header in hop(data):
        first.setdefault(header.partition_leader_epoch, at)
    assert tuple(first) == EPOCHS
    return [*first.values(), len(data)]


def ask(
    client: RawClient, epoch: int, *, current: int = -1, topic: str = "t", partition: int = 0
) -> tuple[str, int, int]:
    """The error, the epoch and its end."""
    part = OffsetForLeaderPartition(
        partition=i32(partition), current_leader_epoch=i32(current), leader_epoch=i32(epoch)
    )
    asked = OffsetForLeaderTopic(topic=TopicName(topic), partitions=(part,))
    response: Any = client.call(OffsetForLeaderEpochRequest(replica_id=BrokerId(-1), topics=(asked,)))
    (found,) = response.topics[0].partitions
    return found.error_code.name, found.leader_epoch, found.end_offset


def fetch_behind(
    client: RawClient, offset: int, last_fetched_epoch: int, *, max_wait_ms: int = 0
) -> fetch.FetchPartitionResult:
    part = fetch.FetchPartition(0, offset, 1 << 20, last_fetched_epoch=last_fetched_epoch)
    request = fetch.FetchRequest(max_wait_ms, 1, 1 << 20, [fetch.FetchTopic("t", NO_UUID, [part])])
    client.send(fetch.encode_request(request, version=12, correlation_id=client.next_id(), client_id="raw"))
    _, response = fetch.decode_response(client.receive(), version=12)
    return response.topics[0].partitions[0]


def test_where_epochs_end(led: tuple[RawClient, list[int]], cluster: BrokerCluster) -> None:
    client, (_, fifth, sixth, end) = led
    expected = {-1: (-1, -1), 0: (0, fifth), 3: (0, fifth), 5: (5, sixth), 6: (6, end), 7: (-1, -1)}
    assert {epoch: ask(client, epoch)[1:] for epoch in expected} == expected
    assert ask(client, 6, current=5) == ("fenced_leader_epoch", -1, -1)
    assert ask(client, 6, current=7) == ("unknown_leader_epoch", -1, -1)
    assert ask(client, 6, partition=9) == ("unknown_topic_or_partition", -1, -1)
    assert ask(client, 6, topic="none") == ("unknown_topic_or_partition", -1, -1)
    lead(cluster, client, 9)
    assert ask(client, 9) == ("none", 9, end), "it leads, and has written nothing"
    assert ask(client, 8) == ("none", 6, end)


def test_epochs_are_known_again_after_a_crash(
    led: tuple[RawClient, list[int]], cluster: BrokerCluster
) -> None:
    _, (_, fifth, sixth, end) = led
    for stop in (cluster[1].kill, cluster[1].stop):
        stop()
        cluster[1].start()
        with RawClient(cluster.bootstrap) as client:
            assert [ask(client, epoch)[1:] for epoch in EPOCHS] == [(0, fifth), (5, sixth), (6, end)]


def test_a_fetch_behind_what_was_read_is_answered_where_the_logs_part(
    led: tuple[RawClient, list[int]],
) -> None:
    client, (_, fifth, sixth, end) = led
    for offset, epoch in ((sixth, 5), (end, 6), (0, -1), (fifth - 1, 0)):
        found = fetch_behind(client, offset, epoch)
        assert (found.error_code, found.diverging_epoch) == (0, None)
    for offset, epoch, expected in (
        (sixth, 0, (0, fifth)),  # epoch 0 ends before: what was read behind that is not here
        (end, 5, (5, sixth)),
        (fifth, 3, (0, fifth)),  # this log never had an epoch 3
    ):
        began = time.monotonic()
        found = fetch_behind(client, offset, epoch, max_wait_ms=60_000)
        assert time.monotonic() - began < WAIT_MAX_S, "answered at once"
        assert (found.error_code, found.diverging_epoch) == (0, expected)
        assert not found.records
    assert fetch_behind(client, end, 7, max_wait_ms=60_000).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_the_same_fetch_again_sees_a_new_epoch(
    led: tuple[RawClient, list[int]], cluster: BrokerCluster
) -> None:
    """The fast path: the request differs in its offset alone."""
    client, (_, _, sixth, end) = led
    assert fetch_behind(client, sixth, 6).records
    lead(cluster, client, 9)
    assert client.produce("t", 0, BATCH).error_code == 0
    assert fetch_behind(client, sixth, 6).records
    assert fetch_behind(client, end + len(BATCH), 6).diverging_epoch == (6, end)


def test_a_mirror_s_copy_has_the_source_s_epochs(cluster: BrokerCluster) -> None:
    with RawClient(cluster.bootstrap) as client:
        client.create_topic("t", config={"headrace.mirror": "true"})
        address = 700
        for epoch in (3, 3, 8):
            stored = bytearray(BATCH)
            readdress(stored, 0, address, leader_epoch=epoch)
            assert client.produce("t", 0, bytes(stored)).error_code == 0
            address += len(stored)
        assert ask(client, 3) == ("none", 3, 700 + 2 * len(BATCH))
        assert ask(client, 8) == ("none", 8, address)
        assert ask(client, 0) == ("none", 0, 700), "its source's, which may have had it before"


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_reader_of_a_copy_whose_batches_have_all_expired_reads_on_after_a_restart(
    broker_cluster: StartCluster, how: str
) -> None:
    """Its broker knew no epoch any more: the offset at which the reader stood was "out of range"."""
    cluster = broker_cluster(config={"log.retention.ms": "1", "log.retention.check.interval.ms": "50"})
    with RawClient(cluster.bootstrap) as client:
        client.create_topic("t", config={"headrace.mirror": "true"})
        stored = bytearray(BATCH)
        readdress(stored, 0, 700, leader_epoch=8)
        assert client.produce("t", 0, bytes(stored)).error_code == 0
        end = 700 + len(stored)
        deadline = time.monotonic() + WAIT_MAX_S
        while fetch_behind(client, end, 8).log_start_offset != end:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert ask(client, 8) == ("none", 8, end)
    getattr(cluster[1], how)()
    cluster[1].start()
    with RawClient(cluster.bootstrap) as client:
        assert fetch_behind(client, end, 8).error_code == 0
        assert ask(client, 8) == ("none", 8, end)
