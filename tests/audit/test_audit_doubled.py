"""Events that were sent again as other events: duplicated, by guid, as soon as the warehouse sees them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fix_audit_world import (
    DC,
    HOUR_A,
    NOW_MS,
    REPORTED_MS,
    TOPIC,
    WAREHOUSE,
    Batch,
    PartitionBytes,
    everything_reported,
    received,
)
from headrace.audit.findings import Status, Verdict
from headrace.audit.report.remedies import command_of
from headrace.audit.report.report import report
from headrace.audit.store.store import AuditStore
from headrace.audit.topic.doubled import DoubledRecord, DoubledRun
from headrace.audit.topic.records import HandoverTally, ProducerReport, ReceivedRecord

STRANGERS = ("publisher-99", "publisher--1")
SENT = [Batch(0, 12, 0, first, 5, HOUR_A) for first in (0, 5)]


def world(again: Batch) -> tuple[list[ReceivedRecord], PartitionBytes]:
    """Ten events of a publisher, and five of them once more, which no report mentions."""
    log = PartitionBytes()
    for batch in (*SENT, again):
        log.append(batch.encode())
    records = everything_reported([*SENT, again], {0: log})
    said = [
        each
        for each in records
        if not (isinstance(each.record, ProducerReport) and each.record.publisher in STRANGERS)
    ]
    found = []
    for each in said:
        if isinstance(each.record, ProducerReport):  # nor does the report know of the next numbers
            each = each._replace(record=replace(each.record, tallies=tuple(map(known, each.record.tallies))))
        found.append(each)
    return found, log


def known(tally: HandoverTally) -> HandoverTally:
    """The tally as far as the first ten events go."""
    ranges = tuple(range_ for range_ in tally.ranges if range_[3] < 10)
    return tally._replace(ranges=ranges, contents=tally.contents[: len(ranges)], handed_over_count=10)


def judged(records: list[ReceivedRecord]) -> Verdict:
    store = AuditStore("sqlite://")
    try:
        store.fold(records)
        (verdict,) = report(store, TOPIC, now_ms=NOW_MS).verdicts
        return verdict
    finally:
        store.close()


def said(
    log: PartitionBytes, *, removed: int = 0, count: int = 5, time_ms: int = REPORTED_MS
) -> ReceivedRecord:
    """What the warehouse says: the last `count` rows of the log have guids of the first batch."""
    extra = DoubledRun(0, log.end - count, log.end - 1, True)
    first = DoubledRun(0, log.cuts[1] - count, log.cuts[1] - 1, False)
    runs = (extra,) if removed else (first, extra)
    return received(DoubledRecord(WAREHOUSE, TOPIC, HOUR_A, removed, runs), time_ms=time_ms)


RESENT = {
    "another producer": Batch(0, 99, 0, 0, 5, HOUR_A),
    "no producer": Batch(0, -1, -1, -1, 5, HOUR_A),
    "the next numbers": Batch(0, 12, 0, 10, 5, HOUR_A),
}


@pytest.mark.parametrize("name", list(RESENT))
def test_events_that_were_sent_again_are_duplicated_by_guid(name: str) -> None:
    records, log = world(RESENT[name])
    verdict = judged(records)
    assert verdict.status is Status.UNKNOWN, "numbers alone do not tell"
    verdict = judged([*records, said(log)])
    assert (verdict.status, verdict.count(Status.DUPLICATED)) == (Status.DUPLICATED, 5)
    (finding,) = verdict.findings
    assert "have guids of events that are there, too" in finding.text and f"{DC}'s log" in finding.text
    assert (finding.after_address or 0) <= log.cuts[2] < (finding.before_address or 0)
    assert command_of(verdict, finding) == "headrace audit dedupe page-view --hour 2015-05-17T11:00"
    # A dedupe has removed them from the table.
    verdict = judged([*records, said(log), said(log, removed=5, time_ms=REPORTED_MS + 1)])
    assert (verdict.status, verdict.findings) == (Status.COMPLETE, ())
    assert any(
        "5 events of page-view" in note and "sent again as other events" in note for note in verdict.notes
    )


def test_what_has_no_guid_of_others_stays_unknown() -> None:
    records, log = world(RESENT["another producer"])
    verdict = judged([*records, said(log, count=2)])
    assert (verdict.count(Status.DUPLICATED), verdict.count(Status.UNKNOWN)) == (2, 3)


def test_doubles_after_a_dedupe_are_named_again() -> None:
    records, log = world(RESENT["another producer"])
    later = said(log, time_ms=REPORTED_MS + 2)
    verdict = judged([*records, said(log, removed=5, time_ms=REPORTED_MS + 1), later])
    assert (verdict.status, verdict.count(Status.DUPLICATED)) == (Status.DUPLICATED, 5)


def test_rows_of_reported_producers_between_the_same_addresses_are_not_taken_for_doubles() -> None:
    """The unreported span surrounds reported events, which are the ones with a double elsewhere."""
    log = PartitionBytes()
    stranger = [Batch(0, 99, 0, 0, 5, HOUR_A), Batch(0, 99, 0, 5, 5, HOUR_A)]
    for batch in (stranger[0], SENT[0], stranger[1]):
        log.append(batch.encode())
    records = [
        each
        for each in everything_reported([SENT[0], *stranger], {0: log})
        if not (isinstance(each.record, ProducerReport) and each.record.publisher in STRANGERS)
    ]
    runs = (DoubledRun(0, log.cuts[2] - 5, log.cuts[2] - 1, False),)
    record = received(DoubledRecord(WAREHOUSE, TOPIC, HOUR_A, 0, runs))
    verdict = judged([*records, record])
    assert (verdict.status, verdict.count(Status.DUPLICATED)) == (Status.UNKNOWN, 0)
