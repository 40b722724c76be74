"""Auditors whose own clock is ahead: what they seem to have read, and what they have."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from fix_audit_world import (
    DC,
    REPORTED_MS,
    TOPIC,
    Batch,
    PartitionBytes,
    counted,
    heartbeat,
    received,
)
from headrace.audit.findings import PRODUCER_HOP, Policy, Status, Verdict
from headrace.audit.report.report import is_complete, report
from headrace.audit.report.settled import Keeper
from headrace.audit.store.store import AuditStore
from headrace.audit.times import HOUR_MS
from headrace.audit.topic.declarations import TopicDeclaration
from headrace.audit.topic.records import DATACENTER_TIER, ReceivedRecord
from headrace.coordination.declared import ANY, Change

MINUTE_MS = 60_000
HOUR = REPORTED_MS - REPORTED_MS % HOUR_MS
DIED_MS = HOUR + 10 * MINUTE_MS
NOW_MS = HOUR + HOUR_MS + 10 * MINUTE_MS
LOGS = {0: PartitionBytes(), 1: PartitionBytes()}
for number, each_log in LOGS.items():
    each_log.append(Batch(number, 7, 0, 0, 5, HOUR).encode())
POLICY = Policy(hops=(PRODUCER_HOP,))


def beat(time_ms: int, partitions: tuple[int, ...] = (0, 1)) -> ReceivedRecord:
    made = heartbeat(DATACENTER_TIER, {each: LOGS[each] for each in partitions})
    return received(replace(made, beat=time_ms), time_ms=time_ms)._replace(log=("_audit", 0))


def store_of(*told: tuple[int, ReceivedRecord], url: str = "sqlite://") -> AuditStore:
    """A store that was told of a topic that is counted from the log on, then these at these moments."""
    store = AuditStore(url)
    first = [*counted(DATACENTER_TIER, LOGS), TopicDeclaration(TOPIC, "", (Change(ANY),))]
    store.fold([received(each, time_ms=HOUR) for each in first])
    for seen_ms, record in told:
        store.fold([record], seen_ms=seen_ms)
    return store


def judged(store: AuditStore, now_ms: int = NOW_MS) -> Verdict:
    (verdict,) = report(store, TOPIC, policy=POLICY, now_ms=now_ms).verdicts
    proof = is_complete(store, TOPIC, HOUR, policy=POLICY, now_ms=now_ms)
    assert proof.complete is (verdict.status is Status.COMPLETE)
    return verdict


@pytest.mark.parametrize(("ahead_min", "shown"), [(60, "55 min"), (605, "10 h")])
def test_an_auditor_that_died_has_not_read_what_its_clock_seemed_to_say(ahead_min: int, shown: str) -> None:
    store = store_of((DIED_MS, beat(DIED_MS + ahead_min * MINUTE_MS)))
    verdict = judged(store)
    (finding,) = verdict.findings
    assert verdict.status is Status.UNKNOWN
    assert f"{DC}'s auditor has not reported since" in finding.text
    assert f"its clock, ahead of the folding auditor's by {shown}, said later" in finding.text
    store.close()


def test_one_that_lives_or_whose_clock_is_a_little_ahead_vouches_for_the_hour() -> None:
    for seen_ms, said_ms in (
        (NOW_MS - 1, NOW_MS + HOUR_MS),
        (HOUR + HOUR_MS, HOUR + HOUR_MS + 4 * MINUTE_MS),
    ):
        store = store_of((DIED_MS, beat(DIED_MS + HOUR_MS)), (seen_ms, beat(said_ms)))
        assert judged(store).status is Status.COMPLETE
        store.close()


def test_what_is_kept_of_an_hour_is_what_a_fresh_judgement_says() -> None:
    store = store_of((DIED_MS, beat(DIED_MS + HOUR_MS)))
    assert Keeper().keep_some(store, NOW_MS) == 0
    store.close()


def test_as_long_as_it_was_ahead_is_not_what_counts_once_its_clock_was_set_back() -> None:
    back_ms = HOUR + HOUR_MS + MINUTE_MS
    for at_once in (False, True):
        told = [(back_ms - MINUTE_MS, beat(back_ms + HOUR_MS)), (back_ms, beat(back_ms))]
        store = store_of(*([] if at_once else told))
        if at_once:
            store.fold([each for _, each in told], seen_ms=back_ms)
        assert judged(store).status is Status.COMPLETE
        store.close()


def test_a_store_of_an_earlier_version_knows_of_none(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/audit.db"
    store_of((DIED_MS, beat(DIED_MS + HOUR_MS)), url=url).close()
    with sqlite3.connect(tmp_path / "audit.db") as earlier:
        earlier.execute("DROP TABLE ahead")
    earlier.close()
    store = AuditStore(url, must_exist=True)
    assert judged(store).status is Status.COMPLETE
    store.close()


def test_a_log_that_is_left_out_since_the_clock_was_set_back_was_not_read_ahead_of_time() -> None:
    """The leader of partition 1 was gone when the clock was put right: its last heartbeat seems to come."""
    ahead_ms, back_ms = DIED_MS + HOUR_MS, DIED_MS + MINUTE_MS
    later = ((at_ms, beat(at_ms, (0,))) for at_ms in (back_ms, NOW_MS))
    store = store_of((DIED_MS, beat(ahead_ms)), *later)
    verdict = judged(store)
    assert (verdict.status, len(verdict.findings)) == (Status.UNKNOWN, 1)
    assert "has not read partition 1" in verdict.findings[0].text
    store.close()


def test_one_that_died_after_its_clock_was_set_back_is_missed() -> None:
    ahead_ms, back_ms = DIED_MS + HOUR_MS, DIED_MS + MINUTE_MS
    store = store_of((DIED_MS, beat(ahead_ms)), (back_ms, beat(back_ms, (0,))))
    verdict = judged(store)
    assert verdict.status is Status.UNKNOWN
    assert f"{DC}'s auditor has not reported since" in verdict.findings[0].text
    store.close()
