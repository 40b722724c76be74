"""A topic at the target that is no mirror's any more takes nothing of the source."""

from __future__ import annotations

import time

import pytest

from fix_audit import StartMirror, wait_for
from fix_broker import StartCluster
from fix_copies import assert_same, files_of, send
from headrace.client import Admin
from headrace.client.errors import BrokerError
from headrace.mirror.discovery import MIRROR_SETTING

SETTLE_S = 5.0  # two rounds of discovery


@pytest.mark.parametrize("event_count", [0, 20])
def test_a_topic_that_a_client_of_the_target_made_again_takes_nothing_of_the_source(
    broker_cluster: StartCluster, start_mirror: StartMirror, event_count: int
) -> None:
    """A consumer there that makes topics, as Apache Kafka's do by default, may be faster than the mirror."""
    east, analysis = broker_cluster(datacenter="east"), broker_cluster(datacenter="analysis")
    with Admin(east.bootstrap) as admin, Admin(analysis.bootstrap) as target:
        admin.create_topic("t", 1)
        send(east, "t", event_count, partitions=1)
        mirror = start_mirror(east, analysis)
        wait_for(lambda: len(mirror.partitions()) == 1, mirror.output)
        while target.describe_configs("t")[MIRROR_SETTING].value == "true":
            target.delete_topic("t")
            wait_for(lambda: "t" not in target.topics())
            try:
                target.create_topic("t", 1)
            except BrokerError:
                wait_for(lambda: "t" in target.topics())  # the mirror was faster
        time.sleep(SETTLE_S)
        send(east, "t", 1, partitions=1)
        time.sleep(SETTLE_S)
        assert files_of(analysis, "t", 0) == b""
        found = mirror.partitions()["t", 0]
        assert found["state"] == "halted", found
        assert "the target has a topic t of its own" in found["reason"]
        target.delete_topic("t")
        wait_for(lambda: files_of(analysis, "t", 0), mirror.status)
    assert_same(mirror, "t", 0)
