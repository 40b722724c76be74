"""What a client knows of leaders: a broker that was cut off tells of older ones, and is not believed."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest

from headrace.client.cluster import BrokerAddress, Cluster, PartitionInfo, TopicInfo

ID = uuid4()
BROKERS = {number: BrokerAddress("127.0.0.1", 9000 + number) for number in (1, 2, 3)}


def cluster(leader: int, epoch: int, *, topic_id: UUID = ID, partitions: int = 1) -> Cluster:
    infos = {index: PartitionInfo(index, leader, epoch) for index in range(partitions)}
    return Cluster(BROKERS, {"t": TopicInfo("t", infos, topic_id=topic_id)})


def test_a_leader_of_an_older_epoch_is_not_believed() -> None:
    """Broker 1 was cut off from ZooKeeper while broker 3 was elected, and still believes that it leads."""
    known = cluster(3, 5).updated(cluster(1, 4))
    assert known.leader("t", 0) == 3
    assert known.updated(cluster(2, 6)).leader("t", 0) == 2


def test_what_else_is_new_is_taken() -> None:
    known = cluster(3, 5).updated(cluster(1, 4, partitions=2))
    assert (known.leader("t", 0), known.leader("t", 1)) == (3, 1)
    assert known.partition_count("t") == 2


@pytest.mark.parametrize(
    "newer",
    [cluster(1, 0, topic_id=uuid4()), cluster(1, -1), cluster(1, 5)],
    ids=["made again", "unknown", "same"],
)
def test_another_topic_or_no_older_epoch_is_believed(newer: Cluster) -> None:
    assert cluster(3, 5).updated(newer).leader("t", 0) == 1
