"""A broker dies with partitions that only it has: the load goes on with the others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fix_broker import BrokerCluster, StartCluster
from fix_warehouse import BASE_TIME_MS, TestTopic, World, click, create_topic
from headrace.warehouse import planning
from headrace.warehouse.source.metadata import MetadataClient

pytestmark = [pytest.mark.spark, pytest.mark.hdfs]


@pytest.fixture
def two_brokers(broker_cluster: StartCluster) -> BrokerCluster:
    return broker_cluster(2)


def test_a_load_goes_on_without_the_partitions_of_a_dead_broker(
    world: World, two_brokers: BrokerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each load failed until the broker was back, and retention deleted what the others held meanwhile."""
    here = replace(world, bootstrap=two_brokers.bootstrap)
    topic = TestTopic(here, "unread", 2)
    create_topic(here.bootstrap, topic.name, 2)
    topic.publish([click(number, BASE_TIME_MS) for number in range(10)])
    assert topic.load().rows == 10
    topic.publish([click(number, BASE_TIME_MS) for number in range(10, 20)])
    with MetadataClient(here.bootstrap.split(","), 30) as metadata:
        leaders = metadata.leaders([topic.name])
    dead = next(
        number for number in (1, 2) if two_brokers[number].address.endswith(f":{leaders[topic.name, 1][1]}")
    )
    assert leaders[topic.name, 0] != leaders[topic.name, 1]
    two_brokers[dead].kill()
    monkeypatch.setattr(planning, "BROKER_TIMEOUT_S", 3.0)
    first = topic.load()
    assert (first.rows, [each.partition for each in first.ranges]) == (5, [0])
    assert first.unread.keys() == {1} and not first.is_sound
    assert "were not loaded: 1 (" in first.problem
    again = topic.load()
    assert (again.sequence, again.is_sound) == (None, False)
    two_brokers[dead].start()
    monkeypatch.undo()
    last = topic.load()
    assert (last.rows, last.is_sound, [each.partition for each in last.ranges]) == (5, True, [1])
    assert sorted(row.number for row in topic.table().select("number").collect()) == list(range(20))
