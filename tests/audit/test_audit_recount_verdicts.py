"""What the store and the verdict say of a log that went back after it was counted."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from fix_audit_world import (
    BEAT_MS,
    BUCKET_MS,
    DC,
    HOUR_A,
    NOW_MS,
    TOPIC,
    Batch,
    PartitionBytes,
    everything_reported,
    received,
)
from headrace.audit.batches.damage import OTHER_BYTES
from headrace.audit.batches.tally import Span
from headrace.audit.findings import Status
from headrace.audit.report.report import Report, report
from headrace.audit.store.fold_recount import undivided_end
from headrace.audit.store.store import AuditStore
from headrace.audit.store.upkeep import merge
from headrace.audit.topic.records import (
    ANALYSIS_TIER,
    DATACENTER_TIER,
    CorruptRecord,
    HeartbeatRecord,
    PartitionPosition,
)
from headrace.audit.topic.recounts import AUDITOR_ENDED, RecountRecord

BATCHES = [Batch(0, 7, 0, index * 10, 10, HOUR_A + index * BUCKET_MS) for index in range(6)]
LOG = PartitionBytes()
for each_batch in BATCHES:
    LOG.append(each_batch.encode())
CUT = PartitionBytes()
for each_batch in BATCHES[:4]:
    CUT.append(each_batch.encode())
RECOUNT = RecountRecord(
    DATACENTER_TIER, DC, TOPIC, 0, 0, LOG.cuts[3], LOG.end, "leader epoch 0 ends at 999 in the log"
)


def judged(*more: object, copies: PartitionBytes = LOG, merged: bool = False) -> Report:
    store = AuditStore("sqlite://")
    try:
        store.fold(everything_reported(BATCHES, {0: LOG}, {0: copies}))
        if merged:
            merge(store, NOW_MS)
        store.fold([received(record, time_ms=BEAT_MS + 1) for record in more])
        return report(store, TOPIC, now_ms=NOW_MS)
    finally:
        store.close()


def recounted(log: PartitionBytes, tier: str = DATACENTER_TIER) -> tuple[object, object]:
    """What an auditor says that has counted `log` again."""
    position = PartitionPosition(DC, TOPIC, 0, 0, log.end, log.end)
    return log.tally(tier, 0, 3, len(log.cuts) - 1), HeartbeatRecord(tier, 2, 0, 1, (position,))


def test_what_the_log_no_longer_holds_is_lost_and_the_copy_that_has_it_is_named() -> None:
    found = judged(RECOUNT, *recounted(CUT))
    [finding] = [each for verdict in found.verdicts for each in verdict.findings]
    assert (finding.status, finding.record_count, finding.sequences) == (Status.LOST, 20, (40, 59))
    assert f"went back to address {LOG.cuts[3]}: leader epoch 0 ends at 999" in finding.text
    assert "the copy in the analysis cluster has them" in finding.text


def test_what_was_lost_is_lost_also_where_a_replica_has_other_bytes_than_were_counted() -> None:
    cause = f"{OTHER_BYTES} broker 1, its leader"
    place = (DATACENTER_TIER, DC, TOPIC, 0, 0, LOG.cuts[2], LOG.end, cause, None, None, None)
    other = CorruptRecord(*place, -1, -1, -1, -1, in_tally=True)
    found = judged(RECOUNT, *recounted(CUT), other)
    statuses = {each.status for verdict in found.verdicts for each in verdict.findings}
    assert statuses == {Status.LOST, Status.ALTERED}


def test_without_a_copy_nobody_is_said_to_have_them() -> None:
    found = judged(RECOUNT, *recounted(CUT), copies=CUT)
    texts = [each.text for verdict in found.verdicts for each in verdict.findings]
    assert any("went back to address" in text for text in texts)
    assert not any("has them" in text for text in texts)


def test_what_is_still_there_is_complete_after_it_was_counted_again() -> None:
    found = judged(RECOUNT, *recounted(LOG))
    assert found.status is Status.COMPLETE, found.verdicts


def test_a_recount_says_nothing_before_it_was_counted_again() -> None:
    assert judged(RECOUNT).status in (Status.UNKNOWN, Status.PENDING)


def test_a_recount_that_arrives_twice_forgets_once() -> None:
    found = judged(RECOUNT, *recounted(LOG), RECOUNT)
    assert found.status is Status.COMPLETE, found.verdicts


def test_tallies_that_were_merged_across_the_recount_are_not_half_believed() -> None:
    """The part of a merged tally before the recount that cannot be told apart is missing, never lost."""
    statuses = {
        finding.status
        for verdict in judged(RECOUNT, *recounted(LOG), merged=True).verdicts
        for finding in verdict.findings
    }
    assert statuses <= {Status.UNKNOWN, Status.PENDING}


def test_a_recount_by_precaution_says_nothing_about_the_log() -> None:
    found = judged(replace(RECOUNT, cause=AUDITOR_ENDED), *recounted(CUT))
    findings = [each for verdict in found.verdicts for each in verdict.findings]
    lost = [each.sequences for each in findings if each.status is Status.LOST]
    assert lost == [(40, 59)]
    assert not any("went back" in each.text for each in findings)


def test_a_recount_of_the_copy_leaves_the_datacenters_counts() -> None:
    copy = replace(RECOUNT, tier=ANALYSIS_TIER)
    found = judged(copy, *recounted(LOG, ANALYSIS_TIER))
    assert found.status is Status.COMPLETE, found.verdicts


@given(st.lists(st.tuples(st.integers(0, 90), st.integers(1, 60)), max_size=12), st.integers(0, 150))
def test_no_span_lies_on_both_sides_of_an_undivided_end(extents: list[tuple[int, int]], address: int) -> None:
    spans = [Span(0, 1, 0, 0, 0, 1, start, start + size) for start, size in extents]
    end = undivided_end(spans, address)
    assert end <= address
    assert not any(span.first_address < end < span.end_address for span in spans)
