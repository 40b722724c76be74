"""A recount that was in a deleted audit topic, and that nobody had read: the auditor takes back again."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

from fix_audit import StartAuditor, publish_singly, wait_for
from fix_broker import BrokerCluster, StartCluster
from fix_registry import StartRegistry
from headrace.audit.counting.taken_back import TakenBack
from headrace.audit.findings import PRODUCER_HOP, Policy, Status
from headrace.audit.report.report import report
from headrace.audit.store.store import AuditStore
from headrace.audit.topic.reader import AuditReader
from headrace.audit.topic.records import DATACENTER_TIER, ReceivedRecord
from headrace.audit.topic.recounts import SAID_AGAIN, RecountRecord
from headrace.client import Admin
from headrace.client.errors import ClientError

TOPIC, EAST = "again", "east"


class Elsewhere:
    """A store that is folded in the analysis cluster, as far and as late as a test wants it."""

    def __init__(self, cluster: BrokerCluster, registry_url: str) -> None:
        self.store = AuditStore("sqlite://")
        self._reader = AuditReader(bootstrap=cluster.bootstrap, registry_url=registry_url, topics=["_audit"])

    def fold_until(self, is_known: Callable[[], bool]) -> None:
        def is_there() -> bool:
            try:
                self._reader.discover()
                polled = self._reader.poll(0.1)
            except ClientError:
                return False  # the topic is being made again
            self.store.fold(polled.records, polled.positions, polled.set_aside, polled.logs)
            return is_known()

        wait_for(is_there, self.found)

    def found(self) -> tuple[int, list[tuple[Status, int | None]]]:
        """Returns how many events the log holds, and the findings about lost or unknown ones."""
        verdicts = report(self.store, TOPIC, policy=Policy(hops=(PRODUCER_HOP,))).verdicts
        findings = [(each.status, each.record_count) for verdict in verdicts for each in verdict.findings]
        return sum(each.counts.datacenter for each in verdicts), findings

    def close(self) -> None:
        self._reader.close()
        self.store.close()


def test_what_a_log_lost_is_named_although_the_recount_was_in_a_deleted_topic(
    broker_cluster: StartCluster, start_registry: StartRegistry, start_auditor: StartAuditor, tmp_path: Path
) -> None:
    cluster = broker_cluster(datacenter=EAST)
    registry = start_registry(hosts=cluster.zookeeper.hosts)
    with Admin(cluster.bootstrap) as admin:
        admin.create_topic(TOPIC, 1)
    auditor = start_auditor(cluster, registry.url)
    elsewhere = Elsewhere(cluster, registry.url)
    publish_singly(cluster, registry.url, TOPIC, 10)
    elsewhere.fold_until(lambda: elsewhere.found() == (10, []))
    folder = cluster[1].data_dir / f"{TOPIC}-0"
    cluster[1].stop()
    shutil.copytree(folder, tmp_path / "older")
    cluster[1].start()
    publish_singly(cluster, registry.url, TOPIC, 5)
    elsewhere.fold_until(lambda: elsewhere.found() == (15, []))
    cluster[1].stop()
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "older", folder)
    cluster[1].start()
    wait_for(lambda: "counting again from" in auditor.output(), auditor.output)
    wait_for(lambda: auditor.status()["trouble"] == "" and not auditor.status()["unsaid"], auditor.output)
    with Admin(cluster.bootstrap) as admin:
        before = admin.topic("_audit").topic_id
        admin.delete_topic("_audit")
        wait_for(lambda: "_audit" in (found := admin.topics()) and found["_audit"].topic_id != before)
    assert elsewhere.found() == (15, [])
    elsewhere.fold_until(lambda: (Status.LOST, 5) in elsewhere.found()[1])
    assert elsewhere.found()[0] == 10
    elsewhere.close()


def test_what_was_taken_back_is_said_again_in_another_topic_alone() -> None:
    known, one, other = TakenBack(), UUID(int=1), UUID(int=2)
    recount = RecountRecord(DATACENTER_TIER, EAST, TOPIC, 0, 3, 70, 90, SAID_AGAIN)
    for name, address in ((EAST, 70), (EAST, 80), ("west", 10)):
        changed = RecountRecord(DATACENTER_TIER, name, TOPIC, 0, 3, address, 90, SAID_AGAIN)
        known.learn(ReceivedRecord(changed, name, "auditor", "host-1", 1), EAST)
    assert known.addresses == {(TOPIC, 3): recount.from_address}
    assert not known.is_in_another_topic(one), "it is the first one that this process sees"
    known.said_in(one)
    assert [known.is_in_another_topic(each) for each in (one, None, other)] == [False, False, True]
    known.said_in(None)
    assert known.is_in_another_topic(other), "it was deleted, and another one is made later"
    known.said_in(other)
    assert not known.is_in_another_topic(other)
    known.forget((TOPIC, 3))
    assert not known.addresses
