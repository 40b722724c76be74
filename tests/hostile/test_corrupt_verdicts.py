"""What is corrupt is not lost or unknown: one finding with its addresses. All else is judged as usual."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.console import Console

from fix_audit_world import (
    BEAT_MS,
    BUCKET_MS,
    HOUR_A,
    NOW_MS,
    REPORTED_MS,
    TOPIC,
    Batch,
    PartitionBytes,
    everything_reported,
    load_of,
    received,
)
from headrace.airflow.proofs import Proof
from headrace.audit.findings import LOAD_HOP, MIRROR_HOP, PRODUCER_HOP, Finding, Status, Verdict
from headrace.audit.report.report import Report, is_complete, report
from headrace.audit.report.view import print_report, printable
from headrace.audit.store.store import AuditStore
from headrace.audit.times import HOUR_MS
from headrace.audit.topic.records import (
    ANALYSIS_TIER,
    DATACENTER_TIER,
    CorruptRecord,
    RangeTally,
    ReceivedRecord,
)
from headrace.audit.topic.set_aside import SetAside

BATCHES = [
    Batch(0, 7, 0, index * 10, 10, HOUR_A + index * BUCKET_MS * 4) for index in range(4)
]  # hours A, A, A + 1, A + 2
VICTIM = 1


def log_of(batches: list[Batch]) -> PartitionBytes:
    log = PartitionBytes()
    for batch in batches:
        log.append(batch.encode())
    return log


LOG = log_of(BATCHES)
START, END = LOG.cuts[VICTIM], LOG.cuts[VICTIM + 1]
SERVICE_CORRUPT = CorruptRecord(
    DATACENTER_TIER, "west", TOPIC, 0, 0, START, END, "wrong checksum", 10,
    BATCHES[VICTIM].bucket_ms, BATCHES[VICTIM].bucket_ms + 9, 7, 0, 10, 19, False,
)  # fmt: skip
NAMELESS = replace(
    SERVICE_CORRUPT,
    cause="a batch of 700 bytes whose header cannot be believed",
    record_count=None,
    first_ms=None,
    last_ms=None,
    producer_id=-1,
    producer_epoch=-1,
    first_sequence=-1,
    last_sequence=-1,
)


def reported(tiers: tuple[str, ...], corrupt: CorruptRecord, *, loaded: bool = True) -> list[ReceivedRecord]:
    """Everything is reported, but in `tiers` the victim was set aside as `corrupt`."""
    out: list[ReceivedRecord] = []
    load = None
    if loaded and ANALYSIS_TIER in tiers:
        load = load_of({0: log_of([batch for batch in BATCHES if batch is not BATCHES[VICTIM]])})
        (partition,) = load.partitions
        load = replace(load, partitions=(partition._replace(to_address=LOG.end),))
    for each in everything_reported(BATCHES, {0: LOG}, load=load):
        record = each.record
        if isinstance(record, RangeTally) and record.tier in tiers:
            last = len(BATCHES)
            out.append(received(LOG.tally(record.tier, 0, 0, VICTIM)))
            out.append(received(LOG.tally(record.tier, 0, VICTIM + 1, last)))
            out.append(received(replace(corrupt, tier=record.tier)))
        else:
            out.append(each)
    return out


def judged(records: list[ReceivedRecord], *, now_ms: int = NOW_MS) -> tuple[Verdict, ...]:
    store = AuditStore("sqlite://")
    try:
        store.fold(records)
        return report(store, TOPIC, now_ms=now_ms).verdicts
    finally:
        store.close()


def findings(verdicts: tuple[Verdict, ...]) -> list[Finding]:
    return [finding for verdict in verdicts for finding in verdict.findings]


BOTH = (DATACENTER_TIER, ANALYSIS_TIER)


@pytest.mark.parametrize(
    ("tiers", "hop"), [(BOTH, PRODUCER_HOP), (BOTH[:1], PRODUCER_HOP), (BOTH[1:], MIRROR_HOP)]
)
def test_a_batch_with_a_wrong_checksum_is_one_corrupt_finding(tiers: tuple[str, ...], hop: str) -> None:
    verdicts = judged(reported(tiers, SERVICE_CORRUPT))
    (finding,) = findings(verdicts)
    assert (finding.status, finding.hop, finding.record_count) == (Status.CORRUPT, hop, 10)
    assert (finding.after_address, finding.before_address) == (START, END)
    assert finding.text.startswith(f"corrupt: 10 events of {TOPIC}, west, 2015-05-17 11:00")
    assert f"between addresses {START} and {END}" in finding.text
    # Only its own hour: the next ones are complete.
    assert [verdict.status for verdict in verdicts] == [Status.CORRUPT, Status.COMPLETE, Status.COMPLETE]


def test_a_header_that_cannot_be_believed_names_its_place() -> None:
    verdicts = judged(reported(BOTH, NAMELESS))
    statuses = {finding.status for finding in findings(verdicts)}
    assert statuses == {Status.CORRUPT}
    own = [finding for finding in findings(verdicts) if finding.record_count is None]
    assert {(each.after_address, each.before_address) for each in own} == {(START, END)}
    assert "an unknown number of events" in own[0].text and "cannot be believed" in own[0].text
    claimed = [finding for finding in findings(verdicts) if finding.sequences is not None]
    assert [(each.sequences, each.record_count) for each in claimed] == [((10, 19), 10)]
    # The neighbours' hours are marked; the last one is not.
    assert verdicts[-1].status is Status.COMPLETE


def test_a_loss_beside_corrupt_records_stays_a_loss() -> None:
    lost = [*BATCHES, Batch(0, 7, 0, 40, 5, HOUR_A + 9 * BUCKET_MS)]
    records = reported(BOTH, SERVICE_CORRUPT)
    reports = everything_reported(lost, {0: LOG})[:1]
    verdicts = judged([*reports, *records[1:]])
    named = {(each.status, each.sequences) for each in findings(verdicts)}
    assert named == {(Status.CORRUPT, (10, 19)), (Status.LOST, (40, 44))}


def test_records_under_a_right_checksum_count_as_their_header_says() -> None:
    corrupt = replace(SERVICE_CORRUPT, in_tally=True, cause="varint of more than 10 bytes")
    records = [
        *everything_reported(BATCHES, {0: LOG}),
        received(corrupt),
        received(replace(corrupt, tier=ANALYSIS_TIER)),
    ]
    (finding,) = findings(judged(records))
    assert (finding.status, finding.record_count) == (Status.CORRUPT, 10)


@pytest.mark.parametrize("dead_lettered", [0, 1, 10])
def test_however_a_load_keeps_the_batch_aside_it_is_neither_lost_nor_duplicated(dead_lettered: int) -> None:
    for in_tally in (True, False):
        corrupt = replace(SERVICE_CORRUPT, in_tally=in_tally)
        records = reported(BOTH, corrupt)
        if in_tally:
            records = [
                *everything_reported(BATCHES, {0: LOG}, load=records[-1].record),  # type: ignore[arg-type]
                received(corrupt),
                received(replace(corrupt, tier=ANALYSIS_TIER)),
            ]
        load = load_of({0: log_of([batch for batch in BATCHES if batch is not BATCHES[VICTIM]])})
        (partition,) = load.partitions
        hours = tuple(
            hour._replace(dead_lettered=dead_lettered) if hour.hour_ms == HOUR_A else hour
            for hour in partition.hours
        )
        load = replace(load, partitions=(partition._replace(to_address=LOG.end, hours=hours),))
        records = [received(load) if type(each.record) is type(load) else each for each in records]
        assert {finding.status for finding in findings(judged(records))} == {Status.CORRUPT}
        assert all(verdict.hops[LOAD_HOP] is Status.COMPLETE for verdict in judged(records))


def test_a_repaired_batch_that_is_counted_later_is_complete_again() -> None:
    records = reported(BOTH, SERVICE_CORRUPT)
    again = [received(LOG.tally(tier, 0, VICTIM, VICTIM + 1), time_ms=BEAT_MS) for tier in BOTH]
    loads = [received(load_of({0: LOG}))]
    records = [each for each in records if type(each.record).__name__ != "LoadReport"]
    assert findings(judged([*records, *again, *loads])) == []


def test_an_hour_with_corrupt_events_is_not_sealed_silently() -> None:
    store = AuditStore("sqlite://")
    store.fold(reported(BOTH, SERVICE_CORRUPT))
    proof = is_complete(store, TOPIC, HOUR_A, now_ms=NOW_MS)
    assert not proof.complete and proof.problems[0].startswith("corrupt: 10 events")
    assert is_complete(store, TOPIC, HOUR_A + 2 * HOUR_MS, now_ms=NOW_MS).complete
    store.close()
    for completeness, is_sealed in ((1.0, False), (0.99, False), (0.5, True)):
        document = Proof(TOPIC, "11", str(Status.CORRUPT), 20, 10, proof.problems[0], proof.to_json())
        assert document.may_be_sealed(completeness) is is_sealed
    assert not Proof(TOPIC, "11", str(Status.CORRUPT), 0, 0, "", {}).may_be_sealed(0.5)


def test_people_see_the_finding_what_was_set_aside_and_no_control_characters() -> None:
    evil = replace(SERVICE_CORRUPT, cause="\x1b[2J[red]rot\nlost: 9 events")
    verdicts = judged(reported(BOTH, evil))
    console = Console(record=True, width=400, force_terminal=False)
    aside = SetAside("_audit", 0, 12, 100, 900, "no topic can have the name 'a\\x07'")
    print_report(Report(REPORTED_MS, verdicts, (aside,)), console, empty="nothing")
    text = console.export_text()
    assert f"corrupt  producer → datacenter: corrupt: 10 events of {TOPIC}" in text
    assert "\x1b" not in text and "\\x1b[2J[red]rot\\nlost" in text
    assert "set aside  12 records of _audit-0, offsets 100 to 900" in text
    assert printable("a\x07b") == "a\\x07b"


def test_the_json_keeps_its_keys() -> None:
    verdicts = judged(reported(BOTH, SERVICE_CORRUPT))
    data = Report(REPORTED_MS, verdicts).to_json()
    keys = "format judged_ms status totals verdicts set_aside recounts verified detection drill"
    assert data.keys() == set(keys.split())
    assert data["status"] == "corrupt" and data["verdicts"][0]["findings"][0]["status"] == "corrupt"
    keys = "topic datacenter hour_ms hour status counts hops findings accepted notes counted_from"
    assert data["verdicts"][0].keys() == set(keys.split())
    assert data["verdicts"][0]["counted_from"] == "producers"
