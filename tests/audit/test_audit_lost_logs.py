"""An audit topic that is deleted and made again: the present log is folded from its start, and hours of which
the deleted one may have had more reports are unknown.
"""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from fix_audit import wait_for
from fix_audit_world import (
    DC,
    HOUR_A,
    NOW_MS,
    Batch,
    PartitionBytes,
    everything_reported,
    received,
    report_of,
)
from fix_broker import BrokerCluster, StartCluster
from fix_registry import RegistryProcess, StartRegistry
from headrace.audit.findings import PRODUCER_HOP, Status
from headrace.audit.gathering.publishers import lost_logs
from headrace.audit.report.report import is_complete, report
from headrace.audit.report.settled import Keeper
from headrace.audit.store import fold_logs
from headrace.audit.store.store import AuditStore
from headrace.audit.store.upkeep import forget
from headrace.audit.times import HOUR_MS
from headrace.audit.topic.logs_read import LastRead, LogsRead, LogWatch, Mark, digest_of
from headrace.audit.topic.publish import AuditPublisher
from headrace.audit.topic.reader import AuditReader
from headrace.audit.topic.records import DATACENTER_TIER, HeartbeatRecord, ReceivedRecord
from headrace.client import Admin
from headrace.client.errors import ClientError

BATCH = Batch(0, 7, 0, 0, 5, HOUR_A)
LOG, OTHER_LOG = ("_audit", 0), ("_audit", 1)
OLD, NEW = "00000000-0000-0000-0000-000000000001", "00000000-0000-0000-0000-000000000002"
MINUTE_MS = 60_000
HEARD_MS, SEEN_MS = HOUR_A + 10 * MINUTE_MS, HOUR_A + 20 * MINUTE_MS
HOURS_MS = (HOUR_A - HOUR_MS, HOUR_A, HOUR_A + HOUR_MS, HOUR_A + 2 * HOUR_MS)


def beat(time_ms: int, log: tuple[str, int] = LOG, datacenter: str = DC) -> ReceivedRecord:
    """A heartbeat in a log of the audit's topic."""
    record = HeartbeatRecord(DATACENTER_TIER, time_ms, 0, 1, ())
    return received(record, time_ms=time_ms, datacenter=datacenter)._replace(log=log)


def at(offset: int, topic_id: str = OLD, log: tuple[str, int] = LOG) -> LogsRead:
    return LogsRead({log: LastRead(topic_id, offset, digest_of(b"%d" % offset))})


def world() -> list[ReceivedRecord]:
    """A complete hour of each of `HOURS_MS`."""
    batches = [Batch(0, 7, 0, 5 * number, 5, hour_ms) for number, hour_ms in enumerate(HOURS_MS)]
    log = PartitionBytes()
    for batch in batches:
        log.append(batch.encode())
    return everything_reported(batches, {0: log})


def folded(url: str = "sqlite://") -> AuditStore:
    """A store in which all hours are complete, and whose position is in the deleted log."""
    store = AuditStore(url)
    store.fold(world())
    store.fold([beat(HEARD_MS)], {LOG: 900}, logs=at(880), seen_ms=HEARD_MS)
    return store


def unknown_hours(store: AuditStore) -> list[int]:
    verdicts = report(store, now_ms=NOW_MS).verdicts
    assert {each.status for each in verdicts} <= {Status.COMPLETE, Status.UNKNOWN}
    assert [each.hour_ms for each in verdicts] == list(HOURS_MS)
    return [HOURS_MS.index(each.hour_ms) for each in verdicts if each.status is Status.UNKNOWN]


def test_hours_of_which_the_deleted_log_may_have_had_reports_are_unknown() -> None:
    store = folded()
    assert unknown_hours(store) == []
    store.fold([], {LOG: 10}, logs=at(8, NEW), seen_ms=SEEN_MS)
    assert unknown_hours(store) == [1]
    verdict = report(store, now_ms=NOW_MS).verdicts[1]
    (finding,) = verdict.findings
    assert (finding.status, finding.hop) == (Status.UNKNOWN, PRODUCER_HOP)
    assert finding.text == (
        "_audit-0, in which west's publishers report, was deleted and made again: what they said from "
        "2015-05-17 11:10:00 to 2015-05-17 11:20:00 is lost, so it is not known how many more events "
        "of page-view, 2015-05-17 11:00, they accepted"
    )
    assert not is_complete(store, "page-view", HOUR_A, now_ms=NOW_MS).complete
    store.fold([beat(SEEN_MS)], {LOG: 20}, logs=at(18, NEW), seen_ms=SEEN_MS)
    assert unknown_hours(store) == [1]
    store.close()


def test_reports_before_the_last_heartbeat_may_have_been_on_their_way() -> None:
    store = AuditStore("sqlite://")
    store.fold(world())
    store.fold([beat(HOUR_A + 1_000)], {LOG: 900}, logs=at(880), seen_ms=HEARD_MS)
    store.fold([], {LOG: 10}, logs=at(8, NEW), seen_ms=HOUR_A + 2_000)
    assert unknown_hours(store) == [0, 1]
    store.close()


def test_no_report_of_the_deleted_log_is_later_than_the_first_heartbeat_in_the_present_one() -> None:
    """The auditor that folds was down for long."""
    for beats, expected in (([], [1, 2, 3]), ([beat(HOURS_MS[2] + 1), beat(HOURS_MS[3])], [1, 2])):
        store = folded()
        store.fold(beats, {LOG: 10}, logs=at(8, NEW), seen_ms=HOURS_MS[3])
        assert unknown_hours(store) == expected
        store.close()
    store = folded()
    store.fold([], {LOG: 10}, logs=at(8, NEW), seen_ms=HOURS_MS[3])
    store.fold([beat(HOURS_MS[2])], {LOG: 20}, logs=at(18, NEW), seen_ms=HOURS_MS[3])
    store.fold([beat(HEARD_MS)], {LOG: 30}, logs=at(28, NEW), seen_ms=HOURS_MS[3])
    assert unknown_hours(store) == [1, 2], "that clock was set back"
    store.close()


def test_a_copy_that_has_the_record_that_was_read_last_lacks_nothing() -> None:
    store = folded()
    marks = LogWatch(*store.logs_read())
    for offset in (100, 500, 880, 900):
        found = marks.note(LOG, NEW, [(offset, b"%d" % offset)])
        logs = LogsRead({LOG: marks.last[LOG]}, tuple(found))
        store.fold([beat(HOUR_A - 9 * HOUR_MS + offset)], {LOG: offset + 8}, logs=logs, seen_ms=SEEN_MS)
        assert unknown_hours(store) == ([1] if offset < 880 else []), offset
    store.close()


def test_it_is_met_after_a_restart_too_and_another_record_there_proves_nothing(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/audit.db"
    store = folded(url)
    watch = LogWatch(*store.logs_read())
    assert watch.note(LOG, NEW, [(8, b"8")]) == []
    store.fold([], {LOG: 10}, logs=at(8, NEW), seen_ms=SEEN_MS)
    store.close()
    store = AuditStore(url)
    assert unknown_hours(store) == [1]
    watch = LogWatch(*store.logs_read())
    assert watch.note(LOG, NEW, [(880, b"another one")]) == []
    (mark,) = watch.note(LOG, NEW, [(870, b"870"), (880, b"880")])
    assert watch.note(LOG, NEW, [(880, b"880")]) == []
    store.fold([], {LOG: 890}, logs=at(880, NEW)._replace(again=(mark,)), seen_ms=SEEN_MS)
    assert (unknown_hours(store), store.logs_read()[1]) == ([], [])
    store.close()


def test_a_second_deletion_is_another_one() -> None:
    store = folded()
    third = OLD[:-1] + "3"
    store.fold([beat(SEEN_MS)], {LOG: 10}, logs=at(8, NEW), seen_ms=SEEN_MS)
    store.fold([], {LOG: 10}, logs=at(8, third), seen_ms=HOURS_MS[2] + 1)
    assert unknown_hours(store) == [1, 2]
    assert sorted(mark.offset for mark in store.logs_read()[1]) == [8, 880]
    store.close()


@pytest.mark.parametrize(("before", "after"), [("", NEW), (OLD, ""), (OLD, OLD), ("", "")])
def test_an_id_that_is_not_known_is_no_other_one(before: str, after: str) -> None:
    store = AuditStore("sqlite://")
    store.fold(world())
    store.fold([beat(HEARD_MS)], {LOG: 900}, logs=at(880, before))
    watch = LogWatch(*store.logs_read())
    watch.note(LOG, after, [(8, b"8")])
    assert watch.last[LOG].topic_id == (after or before)
    store.fold([], {LOG: 10}, logs=LogsRead(watch.last))
    assert unknown_hours(store) == []
    store.fold([], {LOG: 10}, logs=at(8, OLD[:-1] + "9"), seen_ms=SEEN_MS)
    assert unknown_hours(store) == ([] if before == after == "" else [1]), "it was adopted"
    store.close()


def test_a_store_of_an_earlier_version_knows_no_log(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/audit.db"
    store = AuditStore(url)
    store.fold([*world(), beat(HEARD_MS)], {LOG: 900})
    store.close()
    with sqlite3.connect(tmp_path / "audit.db") as earlier:
        for table in ("read_logs", "speakers", "lost_logs"):
            earlier.execute(f"DROP TABLE {table}")
    earlier.close()
    store = AuditStore(url, must_exist=True)
    assert unknown_hours(store) == []
    store.close()
    store = AuditStore(url)
    assert (store.positions(), store.logs_read()) == ({LOG: 900}, ({}, []))
    store.fold([beat(HEARD_MS)], {LOG: 950}, logs=at(940))
    store.fold([], {LOG: 10}, logs=at(8, NEW), seen_ms=SEEN_MS)
    assert unknown_hours(store) == [1]
    store.close()


def test_all_logs_of_the_deleted_topic_are_lost_also_where_the_present_one_has_fewer() -> None:
    store = folded()
    store.fold([beat(HEARD_MS, OTHER_LOG, "east")], {OTHER_LOG: 7}, logs=at(5, OLD, OTHER_LOG))
    store.fold([], {LOG: 10}, logs=at(8, NEW), seen_ms=SEEN_MS)
    with store.reading() as connection:
        assert [each.partition for each in lost_logs(connection, DC)] == [0]
        assert [each.partition for each in lost_logs(connection, "east")] == [1]
    store.fold([], {OTHER_LOG: 7}, logs=at(5, NEW, OTHER_LOG), seen_ms=SEEN_MS + 9)
    with store.reading() as connection:
        assert [each.until_ms for each in lost_logs(connection, "east")] == [SEEN_MS]
    store.close()


def test_hours_on_which_others_reported_at_that_time_are_unknown_too() -> None:
    """Events that are published anew have the times that they had."""
    store = folded()
    late = replace(report_of("late", [Batch(0, 9, 0, 0, 5, HOURS_MS[3])]), closed=True)
    store.fold([received(late, time_ms=HEARD_MS)])
    store.fold([], {LOG: 10}, logs=at(8, NEW), seen_ms=SEEN_MS)
    findings = report(store, now_ms=NOW_MS).verdicts[3].findings
    assert any("was deleted and made again" in each.text for each in findings)
    store.close()


def test_a_transaction_that_fails_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    store = folded()
    fold = fold_logs.LogFolder.fold

    def fails(*arguments: object) -> None:
        fold(*arguments)  # type: ignore[arg-type]
        raise ValueError("the disk is full")

    for records in ([], [beat(SEEN_MS)]):
        monkeypatch.setattr(fold_logs.LogFolder, "fold", fails)
        with pytest.raises(ValueError, match="the disk is full"):
            store.fold(records, {LOG: 10}, logs=at(8, NEW), seen_ms=HOURS_MS[3])
        assert (unknown_hours(store), store.positions()) == ([], {LOG: 900})
        monkeypatch.undo()
    store.fold([beat(SEEN_MS)], {LOG: 10}, logs=at(8, NEW), seen_ms=HOURS_MS[3])
    assert unknown_hours(store) == [1]
    store.close()


def test_a_kept_verdict_is_forgotten_and_what_is_lost_with_its_hours() -> None:
    store = folded()
    assert Keeper().keep_some(store, NOW_MS) == len(HOURS_MS)
    store.fold([], {LOG: 10}, logs=at(8, NEW), seen_ms=SEEN_MS)
    assert unknown_hours(store) == [1]
    forget(store, HOUR_A + HOUR_MS)
    with store.reading() as connection:
        assert lost_logs(connection, DC) == ()
    store.close()


def test_heartbeats_of_a_copy_that_is_read_again_are_no_clock_that_was_set_back() -> None:
    store = folded()
    with store.reading() as connection:
        before = connection.exec_driver_sql("select beat, at_ms from beats").all()
    store.fold([beat(HOUR_A - 99 * HOUR_MS)], {LOG: 10}, logs=at(8, NEW), seen_ms=SEEN_MS)
    with store.reading() as connection:
        assert connection.exec_driver_sql("select beat, at_ms from beats").all() == before
    store.close()


def test_the_datacenters_of_one_log_are_bounded() -> None:
    store = folded()
    many = [beat(HEARD_MS, datacenter=f"dc-{number}") for number in range(2 * fold_logs.SPEAKERS_MAX)]
    for some in (many[:100], many):
        store.fold(some, {LOG: 900}, logs=at(880))
    with store.reading() as connection:
        count = connection.exec_driver_sql("select count(*) from speakers").scalar()
    assert count == fold_logs.SPEAKERS_MAX
    store.close()


def test_marks_are_told_by_their_record() -> None:
    watch = LogWatch({LOG: LastRead(OLD, 5, digest_of(b"five"))}, [Mark(*LOG, 3, digest_of(b"three"))])
    assert watch.note(LOG, OLD, [(3, b"3"), (5, b"five"), (6, b"six")]) == []
    assert watch.last[LOG] == LastRead(OLD, 6, digest_of(b"six"))
    assert watch.note(LOG, OLD, []) == []
    assert watch.last[LOG].offset == 6
    found = watch.note(LOG, NEW, [(3, b"three"), (6, b"six")])
    assert [mark.offset for mark in found] == [3, 6]


# --- real brokers ---


class Site:
    """A datacenter whose audit topic is written by hand, and a store that is folded from it."""

    def __init__(self, cluster: BrokerCluster, registry: RegistryProcess) -> None:
        self.bootstrap, self.registry_url = cluster.bootstrap, registry.url
        self.store = AuditStore("sqlite://")
        self.publisher = self.make_publisher()
        self.reader = self.make_reader()

    def make_publisher(self) -> AuditPublisher:
        return AuditPublisher(
            bootstrap=self.bootstrap, registry_url=self.registry_url, datacenter=DC, service="auditor"
        )

    def make_reader(self) -> AuditReader:
        reader = AuditReader(
            bootstrap=self.bootstrap,
            registry_url=self.registry_url,
            topics=["_audit"],
            start_at=self.store.positions(),
        )
        reader.know(*self.store.logs_read())
        return reader

    def say(self, beats: range) -> None:
        for number in beats:
            self.publisher.publish(HeartbeatRecord(DATACENTER_TIER, number, 0, 1, ()))
            self.publisher.flush()  # each in a batch of its own

    def fold_to(self, beat_number: int) -> list[int]:
        """Folds until this heartbeat; returns those that were read."""
        found: list[int] = []

        def is_there() -> bool:
            self.reader.discover()
            try:
                polled = self.reader.poll(0.1)
            except ClientError:
                return False  # the topic is being made again
            self.store.fold(polled.records, polled.positions, polled.set_aside, polled.logs)
            found.extend(
                each.record.beat for each in polled.records if isinstance(each.record, HeartbeatRecord)
            )
            return beat_number in found

        wait_for(is_there)
        return found

    def make_again(self, beats: range) -> None:
        self.publisher.close()
        with Admin(self.bootstrap) as admin:
            admin.delete_topic("_audit")
            wait_for(lambda: "_audit" not in admin.topics())
        self.publisher = self.make_publisher()
        self.say(beats)


@pytest.mark.parametrize("restarts", [True, False], ids=["while the auditor was down", "while it read"])
def test_nothing_of_the_present_topic_is_passed_over(
    broker_cluster: StartCluster, start_registry: StartRegistry, restarts: bool
) -> None:
    """Its log is longer than the position in the deleted one when it is read first."""
    cluster = broker_cluster(datacenter=DC)
    site = Site(cluster, start_registry(hosts=cluster.zookeeper.hosts))
    site.say(range(1, 4))
    assert site.fold_to(3) == [1, 2, 3]
    if restarts:
        site.reader.close()
    site.make_again(range(10, 30))
    (before,) = site.store.positions().values()
    with Admin(site.bootstrap) as admin:
        assert admin.list_offsets("_audit")[0].offset > 2 * before
    if restarts:
        site.reader = site.make_reader()
    assert site.fold_to(29) == list(range(10, 30))
    with site.store.reading() as connection:
        (lost,) = lost_logs(connection, DC)
    assert (lost.topic, lost.partition) == LOG and 0 < lost.from_ms <= lost.until_ms
    site.reader.close()
    site.reader = site.make_reader()
    site.say(range(30, 31))
    assert site.fold_to(30) == [30], "the positions are those of the present topic"
    for each in (site.reader, site.publisher, site.store):
        each.close()
