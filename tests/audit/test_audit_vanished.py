"""Publishers that end without a last word: which hours may have events of them that nobody knows of."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from fix_audit_world import (
    BUCKET_MS,
    DC,
    REPORTED_MS,
    TOPIC,
    Batch,
    PartitionBytes,
    everything_reported,
    received,
    report_of,
)
from headrace.audit.findings import Status, Verdict
from headrace.audit.gathering.publishers import unclosed
from headrace.audit.report.report import is_complete, report
from headrace.audit.report.settled import Keeper
from headrace.audit.store.store import AuditStore
from headrace.audit.store.upkeep import forget
from headrace.audit.times import HOUR_MS
from headrace.audit.topic.records import HeartbeatRecord, ProducerReport, ReceivedRecord

HOUR = REPORTED_MS - REPORTED_MS % HOUR_MS
NOW_MS = HOUR + 24 * HOUR_MS
OF_DEAD = Batch(0, 7, 0, 0, 5, HOUR - BUCKET_MS)
OF_OTHER = Batch(1, 8, 0, 0, 5, HOUR)
LOGS = {0: PartitionBytes(), 1: PartitionBytes()}
for each_batch in (OF_DEAD, OF_OTHER):
    LOGS[each_batch.partition].append(each_batch.encode())


def records(last_ms: int, *, closed: bool = False, topic: str = TOPIC) -> list[ReceivedRecord]:
    """Publisher 7 had five events in the hour before, and reported last at `last_ms`; 8 closed properly."""
    of_dead = report_of("publisher-7", [OF_DEAD], closed=closed)
    if topic != TOPIC:
        of_dead = replace(of_dead, tallies=tuple(each._replace(topic=topic) for each in of_dead.tallies))
    others = [
        each._replace(time_ms=HOUR + 2 * HOUR_MS if isinstance(each.record, HeartbeatRecord) else HOUR + 9)
        for each in everything_reported([OF_OTHER], LOGS)
    ]
    empty = ProducerReport("publisher-7", HOUR - HOUR_MS, 2, closed, ())
    return [received(of_dead, time_ms=HOUR - BUCKET_MS), received(empty, time_ms=last_ms), *others]


def verdict_at(told: list[ReceivedRecord], now_ms: int = NOW_MS) -> Verdict:
    store = AuditStore("sqlite://")
    try:
        store.fold(told)
        (found,) = report(store, TOPIC, HOUR, HOUR + HOUR_MS, now_ms=now_ms).verdicts
        assert is_complete(store, TOPIC, HOUR, now_ms=now_ms).complete is (found.status is Status.COMPLETE)
        return found
    finally:
        store.close()


@pytest.mark.parametrize("last_ms", [HOUR - 5_000, HOUR, HOUR + HOUR_MS // 2, HOUR + HOUR_MS - 1])
def test_a_publisher_of_the_topic_that_was_killed_in_an_hour_may_have_had_its_first_events_there(
    last_ms: int,
) -> None:
    """It was handed them after its last report, a few seconds before it died."""
    verdict = verdict_at(records(last_ms))
    (finding,) = verdict.findings
    assert (verdict.status, finding.service) == (Status.UNKNOWN, "frontend-2")
    assert "never closed: it is not known how many more events" in finding.text


def test_at_first_it_is_pending_and_one_that_reports_on_is_neither() -> None:
    last_ms = HOUR + HOUR_MS // 2
    beat_ms = HOUR + 2 * HOUR_MS
    for silent_ms, status in ((29_999, Status.COMPLETE), (30_000, Status.PENDING), (300_000, Status.UNKNOWN)):
        told = records(last_ms)
        told = [each._replace(time_ms=min(each.time_ms, last_ms + silent_ms)) for each in told]
        store = AuditStore("sqlite://")
        store.fold(told)
        (found,) = report(store, TOPIC, HOUR, HOUR + 1, now_ms=last_ms + silent_ms).verdicts
        assert found.status is status
        store.close()
    assert verdict_at(records(beat_ms), beat_ms + HOUR_MS).status is Status.COMPLETE


def test_a_publisher_of_another_topic_or_hour_or_that_closed_says_nothing() -> None:
    for told in (
        records(HOUR, topic="other"),
        records(HOUR, closed=True),
        records(HOUR - 30_001),
        records(HOUR + HOUR_MS),
    ):
        assert verdict_at(told).status is Status.COMPLETE


@pytest.mark.parametrize("is_late", [False, True])
def test_what_is_kept_of_the_hour_is_forgotten(is_late: bool) -> None:
    """By a report from within the hour that comes late, and by an older one, which names the topic first."""
    told = records(HOUR + 9, topic=TOPIC if not is_late else "other")
    first, last, *others = told
    store = AuditStore("sqlite://")
    store.fold([first, *others] if not is_late else told)
    assert report(store, TOPIC, HOUR, HOUR + 1, now_ms=NOW_MS).status is Status.COMPLETE
    keeper = Keeper()
    assert sum(keeper.keep_some(store, NOW_MS, 0.0) for _ in range(2)) >= 1, "a topic a turn"
    store.fold([last] if not is_late else records(HOUR + 9)[:1])
    assert report(store, TOPIC, HOUR, HOUR + 1, now_ms=NOW_MS).status is Status.UNKNOWN
    store.close()


def test_a_kept_verdict_is_none_that_a_publisher_that_ended_there_contradicts() -> None:
    store = AuditStore("sqlite://")
    store.fold(records(HOUR + 9))
    Keeper().keep_some(store, NOW_MS)
    kept_or_not = report(store, TOPIC, HOUR, HOUR + 1, now_ms=NOW_MS)
    assert kept_or_not == report(store, TOPIC, HOUR, HOUR + 1, now_ms=NOW_MS, use_kept=False)
    store.close()


def test_it_is_known_as_long_as_the_hour_is_although_those_with_its_events_are_forgotten() -> None:
    store = AuditStore("sqlite://")
    told = records(HOUR - 5_000)
    store.fold([*told, received(report_of("publisher-8", [OF_OTHER], number=2), time_ms=HOUR + HOUR_MS)])
    assert forget(store, HOUR + HOUR_MS) == 1, "of the hour before"
    assert report(store, TOPIC, HOUR, HOUR + 1, now_ms=NOW_MS).status is Status.UNKNOWN
    assert forget(store, HOUR + 2 * HOUR_MS) == 1
    with store.reading() as connection:
        assert not unclosed(connection, TOPIC, DC)
        assert connection.exec_driver_sql("select count(*) from published").scalar() == 0
    store.close()


def test_a_store_of_an_earlier_version_learns_who_publishes_what(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/audit.db"
    store = AuditStore(url)
    store.fold(records(HOUR))
    store.close()
    with sqlite3.connect(tmp_path / "audit.db") as earlier:
        earlier.execute("DROP TABLE published")
    earlier.close()
    for must_exist, known in ((True, frozenset()), (False, {"publisher-7"}), (True, {"publisher-7"})):
        store = AuditStore(url, must_exist=must_exist)
        with store.reading() as connection:
            assert unclosed(connection, TOPIC, DC) == known
        store.close()


def test_what_an_earlier_version_folded_meanwhile_tells_who_publishes_what(tmp_path: Path) -> None:
    """An operator went back to it, and forward again: it does not know the table, and leaves it as it is. The
    hour was complete, although a publisher that was killed in it may have had events there.
    """
    url = f"sqlite:///{tmp_path}/audit.db"
    AuditStore(url).close()
    store = AuditStore(url)
    store.fold(records(HOUR + 9))
    store.close()
    with sqlite3.connect(tmp_path / "audit.db") as earlier:
        earlier.execute("DELETE FROM published")
    earlier.close()
    store = AuditStore(url)
    (found,) = report(store, TOPIC, HOUR, HOUR + HOUR_MS, now_ms=NOW_MS).verdicts
    store.close()
    assert found.status is Status.UNKNOWN
