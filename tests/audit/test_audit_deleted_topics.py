"""A topic that is deleted in one datacenter holds up no later hour of the others."""

from __future__ import annotations

import itertools
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import cast
from uuid import UUID

import pytest

from fix_audit import StartAuditor, wait_for
from fix_audit_world import (
    DC,
    HOUR_A,
    NOW_MS,
    TOPIC,
    Batch,
    PartitionBytes,
    counted,
    everything_reported,
    received,
)
from fix_broker import StartCluster
from fix_registry import StartRegistry
from headrace.audit.counting.declaring import GONE_S, Declarations
from headrace.audit.findings import PRODUCER_HOP, Status
from headrace.audit.gathering.topics import deletions_of
from headrace.audit.report.report import is_complete, report
from headrace.audit.report.settled import Keeper
from headrace.audit.store.store import AuditStore
from headrace.audit.store.upkeep import present_ms
from headrace.audit.times import HOUR_MS
from headrace.audit.topic.declarations import TopicDeclaration
from headrace.audit.topic.possible import ImpossibleRecordError
from headrace.audit.topic.records import (
    DATACENTER_TIER,
    HeartbeatRecord,
    PartitionPosition,
    ReceivedRecord,
)
from headrace.audit.topic.validity import check
from headrace.client import Admin
from headrace.client.admin import ClusterDescription
from headrace.client.cluster import BrokerAddress
from headrace.client.errors import ClientError
from headrace.client.log_dirs import LogDirectory, StoredReplica
from headrace.coordination.declared import ANY, REPORTING, Change
from headrace.wire.errors import ErrorCode

EAST, MINUTE_MS = "east", 60_000
TOPIC_ID = str(UUID(int=1))
BEFORE_MS = HOUR_A - 40 * MINUTE_MS
HOURS = [HOUR_A - HOUR_MS, HOUR_A, HOUR_A + HOUR_MS]
"""East deletes the topic in the first of them; west has events in all."""


def in_west() -> list[ReceivedRecord]:
    batches = [Batch(0, 7, 0, 5 * number, 5, hour_ms) for number, hour_ms in enumerate(HOURS)]
    log = PartitionBytes()
    for batch in batches:
        log.append(batch.encode())
    return everything_reported(batches, {0: log})


def counted_in_east(at_ms: int = BEFORE_MS) -> ReceivedRecord:
    """East's auditor has counted an empty log of the topic to its end."""
    position = PartitionPosition(EAST, TOPIC, 0, 1, 0, 0, source_topic_id=TOPIC_ID)
    beat = HeartbeatRecord(DATACENTER_TIER, at_ms, 0, 1, (position,))
    return received(beat, time_ms=at_ms, datacenter=EAST)


def declared(*producers: str, at_ms: int, deleted: bool = False, topic_id: str = TOPIC_ID) -> ReceivedRecord:
    changes = tuple(map(Change, producers))
    return received(TopicDeclaration(TOPIC, topic_id, changes, deleted), time_ms=at_ms, datacenter=EAST)


def deleted(at_ms: int = BEFORE_MS + MINUTE_MS) -> ReceivedRecord:
    return declared(at_ms=at_ms, deleted=True)


def of_east(records: list[ReceivedRecord]) -> dict[int, list[str]]:
    """What is not known of east, by the number of the hour."""
    store = AuditStore("sqlite://")
    store.fold([*in_west(), *records])
    found: dict[int, list[str]] = {}
    for number, hour_ms in enumerate(HOURS):
        proof = is_complete(store, TOPIC, hour_ms, now_ms=NOW_MS)
        assert proof.complete is not bool(proof.problems)
        if proof.problems:
            found[number] = list(proof.problems)
    statuses = {each.status for each in report(store, TOPIC, now_ms=NOW_MS).verdicts}
    store.close()
    assert statuses == ({Status.COMPLETE, Status.UNKNOWN} if found else {Status.COMPLETE})
    return found


def test_hours_after_the_deletion_are_sealed() -> None:
    declaration = declared(REPORTING, at_ms=BEFORE_MS - HOUR_MS)
    silent = of_east([declaration, counted_in_east()])
    assert silent.keys() == {0, 1, 2}, "nobody says that it was deleted: its auditor is silent"
    assert "is it running" in silent[1][0]
    assert of_east([declaration, counted_in_east(), deleted()]) == {}


def test_the_store_goes_on_to_forget_once_the_only_other_datacenter_has_ended() -> None:
    """Its auditor's last heartbeat is no clock: by that, no hour was ever old again, and the store grew."""
    store = AuditStore("sqlite://")
    store.fold([declared(REPORTING, at_ms=BEFORE_MS - HOUR_MS), counted_in_east()])
    assert present_ms(store, NOW_MS, "analysis") == BEFORE_MS
    store.fold([deleted()])
    assert present_ms(store, NOW_MS, "analysis") == NOW_MS
    store.fold([counted_in_east(BEFORE_MS + 2 * MINUTE_MS)])
    assert present_ms(store, NOW_MS, "analysis") == BEFORE_MS + 2 * MINUTE_MS, "it speaks again"
    store.close()


def test_what_was_not_counted_of_a_topic_whose_producers_need_not_report_is_unknown() -> None:
    found = of_east([declared(ANY, at_ms=BEFORE_MS - HOUR_MS), counted_in_east(), deleted()])
    assert found.keys() == {0}
    assert found[0][0].startswith(f"{TOPIC} was deleted in {EAST} (seen at 2015-05-17 10:21:00)")


def test_an_auditor_that_was_silent_before_the_deletion_does_not_know_the_hours_between() -> None:
    assert of_east([counted_in_east(), deleted(BEFORE_MS + HOUR_MS)]).keys() == {0, 1}


def test_a_topic_that_is_there_all_the_same_is_waited_for() -> None:
    """A broker did not name it for a while; or another topic got its name."""
    back = declared(REPORTING, at_ms=BEFORE_MS + MINUTE_MS + 1)
    records = [declared(REPORTING, at_ms=BEFORE_MS - HOUR_MS), counted_in_east(), deleted(), back]
    for order in itertools.permutations(records):
        assert of_east(list(order)).keys() == {0, 1, 2}
    again = deleted(BEFORE_MS + 2 * MINUTE_MS)
    for order in itertools.permutations([*records[1:], again]):
        assert of_east(list(order)) == {}


def test_a_topic_that_its_auditor_counts_since_was_not_deleted() -> None:
    """Somebody else said so, say: no hour is sealed on that while the auditor lags."""
    since = counted_in_east(BEFORE_MS + MINUTE_MS + 1)
    for order in itertools.permutations([declared(REPORTING, at_ms=BEFORE_MS - HOUR_MS), deleted(), since]):
        assert of_east(list(order)).keys() == {0, 1, 2}


def test_events_after_the_deletion_say_that_a_clock_was_wrong() -> None:
    log = PartitionBytes()
    log.append(Batch(0, 9, 0, 0, 5, HOUR_A).encode())
    store = AuditStore("sqlite://")
    late = counted(DATACENTER_TIER, {0: log})[0]
    store.fold([*in_west(), declared(ANY, at_ms=BEFORE_MS - HOUR_MS), counted_in_east(), deleted()])
    store.fold([received(replace(late, datacenter=EAST, topic_id=TOPIC_ID), datacenter=EAST)])
    [verdict] = [
        each
        for each in report(store, TOPIC, now_ms=NOW_MS).verdicts
        if (each.datacenter, each.hour_ms) == (EAST, HOUR_A)
    ]
    store.close()
    assert verdict.hops[PRODUCER_HOP] is Status.UNKNOWN


def test_kept_verdicts_are_forgotten_when_it_is_there_again() -> None:
    store = AuditStore("sqlite://")
    store.fold([*in_west(), declared(REPORTING, at_ms=BEFORE_MS - HOUR_MS), counted_in_east(), deleted()])
    assert Keeper().keep_some(store, NOW_MS) == 5  # of east all but the hour of the deletion
    assert {each.status for each in report(store, TOPIC, now_ms=NOW_MS).verdicts} == {Status.COMPLETE}
    store.fold([declared(REPORTING, at_ms=BEFORE_MS + 2 * MINUTE_MS)])
    assert Status.UNKNOWN in {each.status for each in report(store, TOPIC, now_ms=NOW_MS).verdicts}
    store.close()


def test_a_deleted_topic_declares_nothing() -> None:
    check(deleted(), NOW_MS)
    with pytest.raises(ImpossibleRecordError, match="declares 1 changes"):
        check(declared(ANY, at_ms=BEFORE_MS, deleted=True), NOW_MS)


def test_a_store_of_an_earlier_version_is_read_and_gets_the_column(tmp_path: Path) -> None:
    path = tmp_path / "audit.db"
    store = AuditStore(f"sqlite:///{path}")
    store.fold([*in_west(), declared(REPORTING, at_ms=BEFORE_MS - HOUR_MS), counted_in_east()])
    store.close()
    with sqlite3.connect(path) as connection:
        connection.execute("ALTER TABLE declarations DROP COLUMN deleted_ms")
    store = AuditStore(f"sqlite:///{path}", must_exist=True)
    assert not is_complete(store, TOPIC, HOUR_A, now_ms=NOW_MS).complete
    store.close()
    store = AuditStore(f"sqlite:///{path}")
    store.fold([deleted()])
    assert is_complete(store, TOPIC, HOUR_A, now_ms=NOW_MS).complete
    store.close()


class Brokers:
    """Two brokers, and the topics of which the second one has replicas; None: it does not answer."""

    def __init__(self, *held: str) -> None:
        self.held: tuple[str, ...] | None = held

    def describe_cluster(self) -> ClusterDescription:
        address = BrokerAddress("127.0.0.1", 9092)
        return ClusterDescription("c", 1, {1: address, 2: address})

    def describe_log_dirs(self, broker_id: int) -> list[LogDirectory]:
        if self.held is None:
            raise ClientError("broker 2 does not answer")
        names = self.held if broker_id == 2 else ()
        replicas = {(name, 0): StoredReplica(0) for name in names}
        return [LogDirectory("/d", ErrorCode.NONE, "", replicas, -1, -1)]


def test_a_topic_that_another_broker_serves_is_not_deleted() -> None:
    """The broker that was asked left it out when it started: the topic's node in ZooKeeper is damaged. Hours
    would have been sealed without what the others had stored.
    """
    now_s, brokers = [0.0], Brokers(TOPIC)
    declarations = Declarations(cast(Admin, brokers), clock_s=lambda: now_s[0])
    declarations.learn(counted_in_east(), EAST)
    for held in ((TOPIC,), None, (TOPIC, "other")):
        brokers.held = held
        assert declarations.gone({}) == []
        now_s[0] += GONE_S
        assert declarations.gone({}) == []
    brokers.held = ("other",)
    assert declarations.gone({}) == [], "it asks again after a while"
    now_s[0] += GONE_S
    assert declarations.gone({}) == [TopicDeclaration(TOPIC, TOPIC_ID, (), deleted=True)]


def test_a_topic_is_said_to_be_deleted_once_no_broker_has_named_it_for_a_while() -> None:
    now_s, brokers = [0.0], cast(Admin, Brokers())
    declarations = Declarations(brokers, clock_s=lambda: now_s[0])
    one, other = UUID(int=1), UUID(int=2)
    declarations.learn(counted_in_east(), EAST)
    declarations.learn(counted_in_east()._replace(datacenter=DC), DC)
    assert declarations.gone({}) == []
    now_s[0] += GONE_S - 1
    assert declarations.gone({}) == []
    assert declarations.gone({TOPIC: one}) == [], "it is there again"
    now_s[0] += GONE_S
    assert declarations.gone({"another": other}) == []
    now_s[0] += GONE_S
    assert declarations.gone({"another": other}) == [TopicDeclaration(TOPIC, TOPIC_ID, (), deleted=True)]
    assert declarations.gone({}) == [], "once"

    again = Declarations(brokers, clock_s=lambda: now_s[0])
    for each in (counted_in_east(), deleted()):
        again.learn(each, EAST)
    assert again.gone({}) == []
    now_s[0] += GONE_S
    assert again.gone({}) == [], "the auditor said so before it started anew"


@pytest.mark.parametrize("is_auditor_up", [True, False], ids=["auditor runs", "auditor is down"])
def test_an_auditor_says_that_a_topic_of_its_cluster_was_deleted(
    broker_cluster: StartCluster,
    start_registry: StartRegistry,
    start_auditor: StartAuditor,
    is_auditor_up: bool,
    tmp_path: Path,
) -> None:
    cluster = broker_cluster(datacenter=EAST)
    registry = start_registry(hosts=cluster.zookeeper.hosts)
    url = f"sqlite:///{tmp_path}/audit.db"
    with Admin(cluster.bootstrap) as admin:
        admin.create_topic(TOPIC, 1)
        topic_id = str(admin.topic(TOPIC).topic_id)
        auditor = start_auditor(cluster, registry.url, "--store", url)
        wait_for(lambda: (TOPIC, 0) in auditor.partitions(), auditor.output)
        wait_for(lambda: auditor.status()["store"]["folded"] > 3, auditor.output)
        if not is_auditor_up:
            auditor.kill()
        admin.delete_topic(TOPIC)
        if not is_auditor_up:
            auditor.start()

    def known() -> dict[tuple[str, str], int]:
        store = AuditStore(url, must_exist=True)
        with store.reading() as connection:
            found = deletions_of(connection, TOPIC)
        store.close()
        return found

    wait_for(lambda: known().keys() == {(EAST, topic_id)}, lambda: (known(), auditor.output()))
