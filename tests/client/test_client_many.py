"""More topics and partitions than one request may name: brokers count them, and end the connection."""

from __future__ import annotations

import pytest

from fix_client import MakeProducer, StartCluster, values
from fix_consumers import MakeConsumer, as_stored, fill, read
from headrace.client.calls import ITEMS_AT_ONCE_MAX, in_parts
from headrace.wire.apis import ApiKey
from headrace.wire.primitives import REQUEST_ITEMS_MAX


def test_a_consumer_names_only_so_many_partitions_at_once(
    fake_cluster: StartCluster, consumer: MakeConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.client.fetching.PARTITIONS_AT_ONCE_MAX", 2)
    monkeypatch.setattr("headrace.client.calls.ITEMS_AT_ONCE_MAX", 5)
    cluster = fake_cluster(partitions=9)
    for partition in range(9):
        fill(cluster, batches=2, partition=partition)
    reader = consumer(cluster, range(9))
    got = read(reader, 72)
    for partition in range(9):
        assert [record for record in got if record.partition == partition] == as_stored(cluster, partition)
    fetches = [request.body.topics[0].partitions for request in cluster.requests_of(ApiKey.FETCH)]
    lookups = [request.body.topics[0].partitions for request in cluster.requests_of(ApiKey.LIST_OFFSETS)]
    assert max(map(len, fetches)) == 2
    assert [len(each) for each in lookups] == [4, 4, 1]


def test_idle_partitions_keep_no_others_from_being_asked_for(
    fake_cluster: StartCluster, consumer: MakeConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.client.fetching.PARTITIONS_AT_ONCE_MAX", 2)
    cluster = fake_cluster(partitions=9)
    reader = consumer(cluster, range(9))
    for _ in range(12):
        reader.poll(0.03)
    named = {
        part.partition
        for request in cluster.requests_of(ApiKey.FETCH)[:8]
        for part in request.body.topics[0].partitions
    }
    assert named == set(range(9))


def test_a_producer_names_only_so_many_partitions_at_once(
    fake_cluster: StartCluster, fast_producer: MakeProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.client.sender.PARTITIONS_AT_ONCE_MAX", 2)
    cluster = fake_cluster(partitions=9)
    producer = fast_producer(cluster)
    for partition in range(9):
        producer.send("t", b"%d" % partition, partition=partition)
    producer.flush(30)
    assert [values(cluster.log(partition)) for partition in range(9)] == [[b"%d" % each] for each in range(9)]
    sent = [request.body.topics[0].partitions for request in cluster.requests_of(ApiKey.PRODUCE)]
    assert max(map(len, sent)) == 2


def test_what_is_wanted_of_partitions_is_split() -> None:
    wanted = {f"t{topic}": dict.fromkeys(range(1 + topic % 3), topic) for topic in range(3000)}
    parts = list(in_parts(wanted))
    merged: dict[str, dict[int, int]] = {}
    for part in parts:
        assert sum(1 + len(partitions) for partitions in part.values()) <= ITEMS_AT_ONCE_MAX
        for topic, partitions in part.items():
            merged.setdefault(topic, {}).update(partitions)
    assert merged == wanted
    assert ITEMS_AT_ONCE_MAX < REQUEST_ITEMS_MAX
    assert len(parts) == 2
    assert not list(in_parts({}))
