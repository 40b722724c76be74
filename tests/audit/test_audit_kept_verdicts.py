"""Verdicts that are kept are those that a fresh judgement gives, whatever records come, in any order."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import func, select

from fix_audit_world import (
    BEAT_MS,
    BUCKET_MS,
    DC,
    HOUR_A,
    NOW_MS,
    REPORTED_MS,
    TOPIC,
    WAREHOUSE,
    Batch,
    PartitionBytes,
    damaged,
    everything_reported,
    heartbeat,
    load_of,
    received,
    report_of,
)
from headrace.audit.findings import Policy, Status
from headrace.audit.report.report import report
from headrace.audit.report.settled import Keeper
from headrace.audit.store import upkeep
from headrace.audit.store.measured_tables import kept
from headrace.audit.store.store import AuditStore
from headrace.audit.times import HOUR_MS
from headrace.audit.topic.acceptances import AcceptanceRecord, acceptable
from headrace.audit.topic.declarations import TopicDeclaration
from headrace.audit.topic.doubled import DoubledRecord, DoubledRun
from headrace.audit.topic.load_report import AcceptedGapRecord, LoadedHour, LoadedPartition, LoadReport
from headrace.audit.topic.records import (
    ANALYSIS_TIER,
    DATACENTER_TIER,
    CorruptRecord,
    GapRecord,
    HeartbeatRecord,
    PartitionPosition,
    ReceivedRecord,
)
from headrace.audit.topic.recounts import AUDITOR_ENDED, RecountRecord, asked_by
from headrace.audit.topic.resent import ResentRecord
from headrace.audit.topic.said_of_tables import TableProblem, VerifiedRecord
from headrace.coordination.declared import ANY, REPORTING, Change

EXAMPLES = 25  # sequences of records; more find nothing else, and take longer
HOURS = 3
PRODUCERS = (7, 8)
BATCHES = [
    Batch(partition, producer, 0, index * 10, 10, HOUR_A + index * 2 * BUCKET_MS)
    for partition, producer in enumerate(PRODUCERS)
    for index in range(3 * HOURS)
]
LOGS = {0: PartitionBytes(), 1: PartitionBytes()}
for each_batch in BATCHES:
    LOGS[each_batch.partition].append(each_batch.encode())
CUTS = len(LOGS[0].cuts) - 1
LOADED = load_of(LOGS)
TIERS = (DATACENTER_TIER, ANALYSIS_TIER)
HOUR_STARTS = tuple(HOUR_A + hour * HOUR_MS for hour in range(-1, HOURS + 1))


def complete_store() -> AuditStore:
    store = AuditStore("sqlite://")
    store.fold(everything_reported(BATCHES, LOGS))
    return store


def count_kept(store: AuditStore) -> int:
    with store.reading() as connection:
        return int(connection.execute(select(func.count()).select_from(kept)).scalar_one())


def keep(store: AuditStore, now_ms: int = NOW_MS) -> int:
    return Keeper().keep_some(store, now_ms)


def assert_fresh(store: AuditStore, now_ms: int = NOW_MS) -> None:
    """Kept verdicts are those that are judged now."""
    assert report(store, now_ms=now_ms) == report(store, now_ms=now_ms, use_kept=False)


# --- any records ---

numbers = st.sampled_from((0, 1))
times_ms = st.sampled_from(
    (
        HOUR_A + HOUR_MS // 2,
        REPORTED_MS - 1,
        REPORTED_MS,
        REPORTED_MS + 60_000,
        BEAT_MS,
        BEAT_MS + HOUR_MS,
        NOW_MS,
    )
)
tiers = st.sampled_from(TIERS)
ids = st.sampled_from(("", "", "", "id-1", "id-2"))
datacenters = st.sampled_from((DC, DC, DC, "east"))
hours_ms = st.sampled_from(HOUR_STARTS)
cuts = st.integers(0, CUTS)


@st.composite
def tallies(draw: st.DrawFn) -> object:
    partition, (low, high) = draw(numbers), sorted((draw(cuts), draw(cuts)))
    log = LOGS[partition]
    if draw(st.booleans()):
        log = damaged(log, draw(st.integers(0, CUTS - 1)))
    told = log.tally(draw(tiers), partition, low, high, log_partition=draw(numbers))
    return replace(told, topic_id=draw(ids), datacenter=draw(datacenters))


@st.composite
def beats(draw: st.DrawFn) -> object:
    partition = draw(numbers)
    end = LOGS[partition].end
    counted_to = draw(st.sampled_from((0, LOGS[partition].cuts[3], end, end + 500)))
    place = (draw(datacenters), TOPIC, partition, draw(numbers), counted_to, max(end, counted_to))
    position = PartitionPosition(*place, topic_id=draw(ids), source_topic_id=draw(ids))
    return HeartbeatRecord(draw(tiers), draw(st.integers(0, 4)), 0, 1, (position,))


@st.composite
def reports(draw: st.DrawFn) -> object:
    producer = draw(st.sampled_from((*PRODUCERS, 9)))
    of = [each for each in BATCHES if each.producer_id == producer]
    some = of[draw(st.integers(0, len(of))) :] if draw(st.booleans()) else of
    told = report_of(
        f"publisher-{draw(st.sampled_from((*PRODUCERS, 9)))}",
        some,
        number=draw(st.integers(0, 4)),
        closed=draw(st.booleans()),
        extra=draw(st.sampled_from((0, 0, 5))),
    )
    moved = told.tallies[draw(st.integers(0, 2)) :]
    if draw(st.booleans()):
        moved = tuple(each._replace(bucket_start_ms=each.bucket_start_ms + HOUR_MS) for each in moved)
    return replace(told, tallies=moved, counts_only=draw(st.sampled_from((False, False, True))))


@st.composite
def loads(draw: st.DrawFn) -> object:
    partition = draw(numbers)
    written = LoadedHour(draw(hours_ms), 30, draw(st.sampled_from((29, 30))), draw(numbers))
    low, high = sorted((draw(cuts), draw(cuts)))
    consumed = (LOGS[partition].cuts[low], LOGS[partition].cuts[high])
    rows = (written,) if draw(st.booleans()) else ()
    from_source = draw(st.sampled_from((False, False, True)))
    parts = (LoadedPartition(partition, *consumed, rows, from_source),)
    gaps = (AcceptedGapRecord(partition, *consumed, "skipped"),) if draw(st.booleans()) else ()
    where = draw(st.sampled_from((WAREHOUSE, WAREHOUSE, "hdfs://other")))
    committed_ms = REPORTED_MS + draw(st.integers(-1, 2))
    return LoadReport(where, TOPIC, draw(st.integers(0, 5)), committed_ms, parts, gaps, topic_id=draw(ids))


@st.composite
def places(draw: st.DrawFn) -> tuple[str, str, int, int, int]:
    """Tier, datacenter, partition, and addresses."""
    partition, (low, high) = draw(numbers), sorted((draw(cuts), draw(cuts)))
    return draw(tiers), draw(datacenters), partition, LOGS[partition].cuts[low], LOGS[partition].cuts[high]


@st.composite
def damages(draw: st.DrawFn) -> object:
    tier, datacenter, partition, low, high = draw(places())
    cause = draw(st.sampled_from(("", "wrong checksum")))
    hour_ms = draw(st.one_of(st.none(), hours_ms))
    numbers_there = (7, 0, 0, 9) if draw(st.booleans()) else (-1, -1, -1, -1)
    count = draw(st.sampled_from((None, 10)))
    place = (tier, datacenter, TOPIC, partition, partition, low, high)
    return CorruptRecord(
        *place, cause, count, hour_ms, hour_ms, *numbers_there, draw(st.booleans()), draw(ids)
    )


@st.composite
def others(draw: st.DrawFn) -> object:
    tier, datacenter, partition, low, high = draw(places())
    hour_ms, topic_id = draw(hours_ms), draw(ids)
    run = DoubledRun(partition, low, high, draw(st.booleans()))
    problem = TableProblem(hour_ms, "f.parquet", 30, draw(st.booleans()), "is gone")
    changes, count = (Change(draw(st.sampled_from((ANY, REPORTING)))),), draw(st.integers(0, 4))
    cause = draw(st.sampled_from(("it was cut", AUDITOR_ENDED, asked_by("me@host"))))
    resent = (partition, 9, 0, 0, 9, draw(st.sampled_from((7, -1))), 0, 0, "me@host")
    return draw(
        st.sampled_from(
            (
                GapRecord(tier, datacenter, TOPIC, partition, low, high, "deleted", False, topic_id),
                RecountRecord(tier, datacenter, TOPIC, partition, partition, low, high, cause, topic_id),
                TopicDeclaration(TOPIC, topic_id, changes, partitions=count),
                TopicDeclaration(TOPIC, topic_id, (), deleted=True),
                VerifiedRecord(WAREHOUSE, TOPIC, "all", 3, 90, 0, ()),
                VerifiedRecord(WAREHOUSE, TOPIC, "all", 3, 90, 1, (problem,)),
                DoubledRecord(WAREHOUSE, TOPIC, hour_ms, 0, (run,)),
                DoubledRecord(WAREHOUSE, TOPIC, hour_ms, 5, ()),
                ResentRecord(datacenter, TOPIC, hour_ms, "publisher-7", *resent),
            )
        )
    )


records = st.one_of(tallies(), beats(), reports(), loads(), damages(), others())
told = st.builds(
    lambda record, time_ms, log: received(record, time_ms=time_ms)._replace(log=log),
    records,
    times_ms,
    st.sampled_from((None, ("_audit", 0))),
)
steps = st.one_of(
    told,
    told,
    st.lists(told, min_size=2, max_size=4),
    st.sampled_from(("keep", "merge", "forget", "accept", "accept unknown")),
)


def accept_all(store: AuditStore, *, unknown: bool = False) -> None:
    for verdict in report(store, now_ms=NOW_MS).verdicts:
        if found := acceptable(verdict, unknown=unknown):
            texts = tuple(each.text for each in found.values())
            said = AcceptanceRecord(verdict.topic, verdict.hour_ms, tuple(found), texts, "me@host", "gone")
            store.fold([received(said, time_ms=NOW_MS)])


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(steps, min_size=1, max_size=6), st.booleans())
def test_what_is_kept_is_what_a_fresh_judgement_says_after_any_records(
    sequence: list[ReceivedRecord | list[ReceivedRecord] | str], forgets: bool
) -> None:
    store = complete_store()
    try:
        assert keep(store) == HOURS
        for step in sequence:
            if step == "keep":
                keep(store)
            elif step == "merge":
                upkeep.merge(store, NOW_MS)
            elif step == "forget":
                upkeep.forget(store, REPORTED_MS + 30_000)
            elif step in ("accept", "accept unknown"):
                accept_all(store, unknown=step != "accept")
            else:
                store.fold(step if isinstance(step, list) else [step])  # type: ignore[list-item]
            assert_fresh(store)
        keep(store)
        assert_fresh(store, NOW_MS + 40 * 24 * HOUR_MS)
        if forgets:
            upkeep.forget(store, REPORTED_MS + 30_000)
            assert_fresh(store)
    finally:
        store.close()


# --- that they are kept at all, and why not ---


def later(**changes: object) -> list[ReceivedRecord]:
    """Heartbeats, an hour later, that say that all is counted."""
    beats = [replace(heartbeat(tier, LOGS), beat=2, **changes) for tier in TIERS]  # type: ignore[arg-type]
    return [received(beat, time_ms=BEAT_MS + HOUR_MS) for beat in beats]


def test_heartbeats_later_reports_and_later_events_forget_nothing() -> None:
    store = complete_store()
    assert keep(store) == HOURS
    store.fold(later())
    store.fold([received(replace(LOADED, load_sequence=2, partitions=()), time_ms=NOW_MS)])
    store.fold([received(report_of("publisher-9", [Batch(0, 9, 0, 0, 5, NOW_MS - NOW_MS % HOUR_MS)]))])
    assert count_kept(store) == HOURS
    assert_fresh(store)
    store.close()


def test_copies_of_heartbeats_that_come_after_newer_ones_forget_nothing() -> None:
    """Each partition of an audit topic has a copy of each heartbeat, and the partitions are read in turn."""
    store = complete_store()
    first = [received(heartbeat(tier, LOGS), time_ms=BEAT_MS) for tier in TIERS]
    store.fold(later())
    assert keep(store) == HOURS
    for each in (*first, *later()):
        store.fold([each])
    assert count_kept(store) == HOURS
    assert_fresh(store)
    store.close()


def test_a_heartbeat_that_names_a_topic_earlier_than_any_record_forgets_it() -> None:
    store = complete_store()
    assert keep(store) == HOURS
    old = replace(heartbeat(DATACENTER_TIER, LOGS), beat=0)
    store.fold([received(old, time_ms=REPORTED_MS - 1)])
    assert count_kept(store) == 0
    assert_fresh(store)
    store.close()


def test_a_tally_that_is_missing_behind_an_hour_makes_it_pending_although_it_is_kept() -> None:
    store = complete_store()
    assert keep(store) == HOURS
    ends = tuple(PartitionPosition(DC, TOPIC, n, n, log.end + 500, log.end + 500) for n, log in LOGS.items())
    store.fold(later(positions=ends))
    assert count_kept(store) == HOURS
    verdicts = report(store, now_ms=BEAT_MS + HOUR_MS).verdicts
    assert {verdict.status for verdict in verdicts} == {Status.PENDING}
    assert_fresh(store)
    store.close()


def test_a_verdict_is_kept_only_of_an_hour_that_nothing_can_make_incomplete_by_itself() -> None:
    store = AuditStore("sqlite://")
    publishers = [
        report_of(f"publisher-{n}", [b for b in BATCHES if b.producer_id == n], closed=False) for n in (7, 8)
    ]
    everything = everything_reported(BATCHES, LOGS)
    store.fold([*(received(each) for each in publishers), *everything[2:]])
    keeper = Keeper()
    assert keeper.keep_some(store, NOW_MS, 0.0) == 0, (
        "the publishers may have died with events of these hours"
    )
    # They report again, a minute later.
    store.fold([received(replace(each, report_number=2, tallies=()), time_ms=BEAT_MS) for each in publishers])
    assert keeper.keep_some(store, NOW_MS, 1.0) == 0, "the topic rests"
    assert keeper.keep_some(store, NOW_MS, 700.0) == HOURS
    assert_fresh(store)
    # One of them is killed at last, which says nothing about hours before its last report.
    assert_fresh(store, NOW_MS + HOUR_MS)
    store.close()


def test_a_report_with_another_policy_judges_all() -> None:
    store = complete_store()
    assert keep(store) == HOURS
    with store.writing() as connection:  # a lie that only a report that reads it repeats
        connection.execute(kept.update().values(producer=1_000_000))
    assert report(store, now_ms=NOW_MS).verdicts[0].counts.producer == 1_000_000
    strict = report(store, now_ms=NOW_MS, policy=Policy(delay_ms=1))
    assert strict.verdicts[0].counts.producer == 60
    store.close()


CORRUPT = CorruptRecord(
    DATACENTER_TIER,
    DC,
    TOPIC,
    0,
    0,
    0,
    LOGS[0].cuts[1],
    "wrong checksum",
    10,
    HOUR_A,
    HOUR_A,
    7,
    0,
    0,
    9,
    True,
)
GONE = VerifiedRecord(
    WAREHOUSE, TOPIC, "all", 3, 90, 1, (TableProblem(HOUR_A, "f.parquet", 30, True, "is gone"),)
)
OF_7 = [each for each in BATCHES if each.producer_id == 7]
NEWS = {
    "a report": received(report_of("publisher-7", OF_7, number=2, extra=5)),
    "a tally": received(damaged(LOGS[0], 1).tally(DATACENTER_TIER, 0, 0, CUTS)),
    "damage": received(CORRUPT),
    "a recount": received(RecountRecord(DATACENTER_TIER, DC, TOPIC, 0, 0, 0, LOGS[0].end, "it was cut")),
    "a load": received(
        LoadReport(WAREHOUSE, TOPIC, 2, 0, (LoadedPartition(0, 0, 0, (LoadedHour(HOUR_A, 5, 5),)),))
    ),
    "a verification": received(GONE),
    "a heartbeat": received(replace(heartbeat(DATACENTER_TIER, LOGS), beat=2), time_ms=HOUR_A - 1),
    "numbers": received(ResentRecord(DC, TOPIC, HOUR_A, "publisher-7", 0, 9, 0, 0, 9, 7, 0, 0, "me@host")),
    "a declaration": received(TopicDeclaration(TOPIC, "", (Change(ANY),))),
}


@pytest.mark.parametrize("kind", NEWS)
def test_news_about_a_settled_hour_is_in_the_next_report(kind: str) -> None:
    store = complete_store()
    before = report(store, now_ms=NOW_MS)
    assert keep(store) == HOURS and before.status is Status.COMPLETE
    store.fold([NEWS[kind]])
    assert count_kept(store) < HOURS
    assert report(store, now_ms=NOW_MS).verdicts != before.verdicts
    assert_fresh(store)
    store.close()
