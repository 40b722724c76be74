"""A topic's retention that cannot be read deletes nothing: perhaps its events were to be kept for ever."""

from __future__ import annotations

import json

import pytest

from fix_audit import wait_for
from fix_broker import RawClient, StartCluster
from fix_replicas import batch
from headrace.broker.settings.config import BrokerConfig
from headrace.broker.settings.usable import usable
from headrace.coordination import znodes

TOPIC = "kept"
SETTINGS = {"log.retention.ms": "1", "log.retention.check.interval.ms": "50", "log.segment.bytes": "1024"}


@pytest.mark.parametrize("name", ["retention.ms", "retention.bytes"])
def test_of_a_value_that_cannot_be_used_nothing_is_deleted(name: str) -> None:
    found, problems = usable({name: "-1x", "segment.bytes": "soon", "min.insync.replicas": "2"})
    assert found == {name: "-1", "min.insync.replicas": "2"}
    assert [str(problem).partition("=")[0] for problem in problems] == [name, "segment.bytes"]
    log = BrokerConfig({"log.retention.ms": "1", "log.retention.bytes": "1"}).topic_config(found).log
    assert -1 in (log.retention_ms, log.retention_bytes)


def test_of_a_policy_that_cannot_be_used_nothing_is_deleted_and_all_is_taken() -> None:
    """It may be a later version's: by default retention deletes, and `compact` refuses what has no key."""
    found, problems = usable({"retention.ms": "1", "cleanup.policy": "tier", "segment.bytes": "2048"})
    assert found == {"retention.ms": "-1", "retention.bytes": "-1", "segment.bytes": "2048"}
    assert len(problems) == 1
    config = BrokerConfig().topic_config(found)
    assert not config.cleanup.compacts


def test_a_broker_keeps_what_was_to_be_kept_for_ever(broker_cluster: StartCluster) -> None:
    """Of a value that had rotted the broker's default was used, and its events were deleted."""
    cluster = broker_cluster(1, SETTINGS)
    broker = cluster[1]
    with RawClient(broker.address) as client:
        client.create_topic(TOPIC, config={"retention.ms": "-1"})
        client.create_topic("short")
        for number in range(20):
            for topic in (TOPIC, "short"):
                assert client.produce(topic, 0, batch(f"{number}" * 100), acks=-1).error_code == 0
    path = znodes.topic_config(TOPIC)
    with cluster.zookeeper.session() as session:
        fields = json.loads(session.get(path).data)
        fields["config"]["retention.ms"] = "-1x"
        session.set(path, json.dumps(fields).encode())
    broker.restart()
    with RawClient(broker.address) as client:
        wait_for(lambda: client.list_offset("short", 0, -2)[0] > 0, broker.output)
        assert client.list_offset(TOPIC, 0, -2)[0] == 0
    assert "topic kept: retention.ms" in broker.output() and "nothing is deleted by it" in broker.output()
