"""Loads of a topic that was deleted and made again: which log's addresses they consumed."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from fix_audit_incarnations import findings_of, judged_by, log_of, said
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
    received,
    report_of,
)
from headrace.audit.findings import LOAD_HOP, MIRROR_HOP, PRODUCER_HOP, Policy, Status
from headrace.audit.report.report import Report, report
from headrace.audit.store import load_tables
from headrace.audit.store.store import AuditStore
from headrace.audit.topic.load_report import AcceptedGapRecord, LoadedHour, LoadedPartition, LoadReport
from headrace.audit.topic.records import (
    ANALYSIS_TIER,
    HeartbeatRecord,
    PartitionPosition,
    ReceivedRecord,
)

LOADS = Policy(hops=(PRODUCER_HOP, MIRROR_HOP, LOAD_HOP))
judged = partial(judged_by, LOADS)
BEAT = BEAT_MS + 60_000


def batch(number: int, hour_ms: int = HOUR_A) -> Batch:
    return Batch(0, 7, 0, number * 5, 5, hour_ms + number % 3 * BUCKET_MS)


def reported(*batches: Batch) -> list[ReceivedRecord]:
    whole = replace(report_of("publisher-7", batches), started_ms=REPORTED_MS - 1)
    return [received(whole, time_ms=BEAT_MS)]


def loaded(
    log: PartitionBytes, sequence: int, topic_id: str, end: int | None = None, begins_at: int = -1
) -> ReceivedRecord:
    """What a load says of a whole log; with `end`, that it found nothing up to there."""
    hours = tuple(log.hours()) if end is None else ()
    part = LoadedPartition(0, 0, log.end if end is None else end, hours, begins_at=begins_at)
    return received(LoadReport(WAREHOUSE, TOPIC, sequence, REPORTED_MS, (part,), topic_id=topic_id))


@pytest.mark.parametrize("seed", range(4))
def test_loads_of_both_topics_are_told_apart(seed: int) -> None:
    """Their addresses overlap, and the second log is shorter than what is loaded of the first one."""
    first, second = log_of(batch(0), batch(1), batch(2)), log_of(batch(3), batch(4))
    records = [
        reported(*(batch(number) for number in range(5))),
        said(first, "first", REPORTED_MS),
        said(second, "second", BEAT),
        [loaded(first, 0, "first"), loaded(second, 1, "second")],
    ]
    found = judged(*records, seed=seed)
    assert found.status is Status.COMPLETE, findings_of(found)
    assert [verdict.counts.warehouse for verdict in found.verdicts] == [25]


def test_what_is_loaded_of_a_deleted_topic_hides_nothing_of_the_present_one() -> None:
    first, second = log_of(batch(0), batch(1), batch(2)), log_of(batch(3), batch(4))
    records = [
        reported(*(batch(number) for number in range(5))),
        said(first, "first", REPORTED_MS),
        said(second, "second", BEAT),
    ]
    [finding] = findings_of(judged(*records, [loaded(first, 0, "first")]))
    assert finding.hop == LOAD_HOP
    assert finding.record_count == 10, "all of the present topic waits for a load"
    assert finding.status in (Status.PENDING, Status.UNKNOWN)
    assert (
        "no load of that partition was ever reported" in finding.text or "not been loaded yet" in finding.text
    )


def test_loads_of_an_older_headrace_are_of_the_topic_that_later_ones_go_on_with() -> None:
    log = log_of(batch(0), batch(1))
    whole = LoadedPartition(0, 0, log.end, tuple(log.hours()))
    earlier = received(LoadReport(WAREHOUSE, TOPIC, 0, REPORTED_MS, (whole,)))
    more = LoadedPartition(0, log.end, log.end)
    later = received(LoadReport(WAREHOUSE, TOPIC, 1, REPORTED_MS, (more,), topic_id="first"))
    second = log_of(batch(2))
    records = [reported(batch(0), batch(1), batch(2)), said(log, "first", REPORTED_MS)]
    of_second = [said(second, "second", BEAT), [loaded(second, 2, "second")]]
    found = judged(*records, [earlier, later], *of_second)
    assert found.status is Status.COMPLETE, findings_of(found)


def test_a_gap_that_a_load_skipped_in_a_deleted_topic_is_none_in_the_present_one() -> None:
    first, second = log_of(batch(0), batch(1)), log_of(batch(2), batch(3))
    gap = AcceptedGapRecord(0, 0, first.cuts[1], "retention")
    rest = PartitionBytes()
    rest.append(batch(1).encode())
    part = LoadedPartition(0, first.cuts[1], first.end, tuple(rest.hours()))
    skipping = received(LoadReport(WAREHOUSE, TOPIC, 0, REPORTED_MS, (part,), (gap,), topic_id="first"))
    records = [
        reported(*map(batch, range(4))),
        said(first, "first", REPORTED_MS),
        said(second, "second", BEAT),
        [skipping, loaded(second, 1, "second")],
    ]
    found = findings_of(judged(*records))
    assert [(each.hop, each.record_count) for each in found] == [(LOAD_HOP, 5)], found


def test_a_kept_verdict_is_forgotten_by_the_first_load_of_another_topic() -> None:
    first, second = log_of(batch(0), batch(1)), log_of(batch(2))
    store = AuditStore("sqlite://")
    try:
        for records in (
            reported(batch(0), batch(1)),
            said(first, "first", REPORTED_MS),
            [loaded(first, 0, "first")],
        ):
            store.fold(records)
        assert report(store, TOPIC, policy=LOADS, now_ms=NOW_MS).status is Status.COMPLETE
        store.fold(said(second, "second", BEAT))
        store.fold([loaded(second, 1, "second")])
        assert report(store, TOPIC, policy=LOADS, now_ms=NOW_MS).verdicts[0].counts.warehouse == 15
    finally:
        store.close()


def test_what_was_brought_below_a_begun_log_counts_on() -> None:
    """A refill reports rows at the first of their addresses, and consumes none."""
    log = log_of(batch(0), batch(1), batch(2))
    cut = log.cuts[1]
    parts = [
        LoadedPartition(0, 0, cut, ()),
        LoadedPartition(0, cut, log.end, tuple(log_of(batch(1), batch(2)).hours())),
        LoadedPartition(0, 10, 10, tuple(log_of(batch(0)).hours())),
        LoadedPartition(0, cut, log.end, tuple(log_of(batch(1), batch(2)).hours()), begins_at=cut),
    ]
    loads = [
        received(LoadReport(WAREHOUSE, TOPIC, number, REPORTED_MS, (part,), topic_id="first"))
        for number, part in enumerate(parts)
    ]
    found = judged(reported(*map(batch, range(3))), said(log, "first", BEAT), loads)
    assert found.status is Status.COMPLETE, findings_of(found)


def test_a_store_of_before_loads_named_topics_is_read(tmp_path: Path) -> None:
    """A command may be newer than the auditor that keeps the store."""
    url = f"sqlite:///{tmp_path / 'audit.db'}"
    log = log_of(batch(0))
    store = AuditStore(url)
    store.fold([*reported(batch(0)), *said(log, "first", BEAT), loaded(log, 0, "")])
    with store.writing() as connection:
        for table in (load_tables.load_topics, load_tables.load_begins, load_tables.load_topic_gaps):
            table.drop(connection)
    store.close()
    store = AuditStore(url, must_exist=True)
    try:
        assert report(store, TOPIC, policy=LOADS, now_ms=NOW_MS).verdicts[0].counts.warehouse == 5
    finally:
        store.close()


@pytest.mark.parametrize("seed", range(3))
def test_what_an_older_headrace_loaded_hides_nothing_of_a_log_that_is_begun(seed: int) -> None:
    """It named no topic, and the first load that does begins another log, which holds nothing yet."""
    first, second = log_of(batch(0), batch(1), batch(2)), log_of(batch(3), batch(4))
    records = [
        reported(*map(batch, range(5))),
        said(first, "first", REPORTED_MS),
        said(second, "second", BEAT),
        [loaded(first, 0, ""), loaded(log_of(), 1, "second", end=0, begins_at=0)],
    ]
    found = judged(*records, seed=seed)
    assert [(each.hop, each.record_count) for each in findings_of(found)] == [(LOAD_HOP, 10)]
    assert found.verdicts[0].counts.warehouse == 15, "what was loaded of the first one counts"


def test_what_an_older_headrace_loaded_of_a_log_that_nobody_names_counts_for_none() -> None:
    second = log_of(batch(3), batch(4))
    first = log_of(batch(0), batch(1), batch(2))
    records = [reported(batch(3), batch(4)), said(second, "second", BEAT)]
    found = judged(*records, [loaded(first, 0, ""), loaded(second, 1, "second", begins_at=0)])
    assert found.status is Status.COMPLETE, findings_of(found)


def test_the_same_source_loaded_anew_takes_the_place_of_earlier_loads() -> None:
    """Its copy was made again, and differs from an address on. No row is counted twice, and none of the
    earlier ones fills what the later load lacks.
    """
    before = log_of(batch(0), batch(1), batch(2))
    after = log_of(batch(0), batch(3), batch(4))
    cut = before.cuts[1]
    of_start = LoadReport(
        WAREHOUSE,
        TOPIC,
        0,
        REPORTED_MS,
        (LoadedPartition(0, 0, cut, tuple(log_of(batch(0)).hours())),),
        topic_id="copy-1",
    )
    rest = tuple(log_of(batch(1), batch(2)).hours())
    of_rest = LoadReport(
        WAREHOUSE, TOPIC, 1, REPORTED_MS, (LoadedPartition(0, cut, before.end, rest),), topic_id="copy-1"
    )
    anew = tuple(log_of(batch(3), batch(4)).hours())

    def found(hours: tuple[LoadedHour, ...]) -> Report:
        part = LoadedPartition(0, cut, after.end, hours, begins_at=cut)
        third = LoadReport(WAREHOUSE, TOPIC, 2, REPORTED_MS, (part,), topic_id="copy-2")
        records = [received(each) for each in (of_start, of_rest, third)]
        publishers = reported(batch(0), batch(3), batch(4))
        return judged(publishers, said(after, "source", BEAT, copy_id="copy-2"), records, earlier)

    earlier = [
        received(HeartbeatRecord(ANALYSIS_TIER, BEAT - 1, 0, 1, (place,)), time_ms=BEAT - 1)
        for place in (
            PartitionPosition(DC, TOPIC, 0, 0, before.end, before.end, "copy-1", source_topic_id="source"),
        )
    ]
    assert found(anew).status is Status.COMPLETE, findings_of(found(anew))
    lost = [(each.status, each.hop, each.record_count) for each in findings_of(found(()))]
    assert (Status.LOST, LOAD_HOP, 10) in lost
