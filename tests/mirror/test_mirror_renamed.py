"""A datacenter that is renamed: its topics are not copied, and loaded, once more."""

from __future__ import annotations

from fix_audit import StartMirror, wait_for
from fix_broker import StartCluster
from fix_copies import assert_same, send
from headrace.client import Admin


def test_the_topics_of_a_datacenter_by_another_name_are_copied_once(
    broker_cluster: StartCluster, start_mirror: StartMirror
) -> None:
    east, analysis = broker_cluster(datacenter="east"), broker_cluster(datacenter="analysis")
    with Admin(east.bootstrap) as admin, Admin(analysis.bootstrap) as target:
        admin.create_topic("t", 1)
        send(east, "t", 20, partitions=1)
        first = start_mirror(east, analysis)
        wait_for(lambda: len(first.partitions()) == 1, first.output)
        assert_same(first, "t", 0)
        first.terminate()
        renamed = start_mirror(east, analysis, "--source-datacenter", "boston")
        wait_for(lambda: renamed.status()["topic_troubles"] or renamed.partitions(), renamed.output)
        trouble = renamed.status()["topic_troubles"].get("t", "")
        assert "is copied as east's already, into partition 0" in trouble, renamed.status()
        assert len(target.topic("t").partitions) == 1
        renamed.terminate()
        send(east, "t", 5, partitions=1)
        again = start_mirror(east, analysis)
        wait_for(lambda: len(again.partitions()) == 1, again.output)
        assert_same(again, "t", 0)
