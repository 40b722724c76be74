"""Whether an audit record can be true: what is checked before anything of it is believed. Pure.

Anybody who reaches a broker may write to the audit topics. A record with impossible numbers, names or times
is set aside with its problem; so is one that speaks for a datacenter whose log it did not come from. A forged
record that is possible in every field cannot be distinguished from a true one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from headrace.audit.batches.tally import Span
from headrace.audit.times import HOUR_MS, is_named
from headrace.audit.topic.acceptances import DIGEST_CHARS, FINDINGS_MAX, AcceptanceRecord
from headrace.audit.topic.declarations import TopicDeclaration
from headrace.audit.topic.doubled import RUNS_PER_RECORD_MAX, DoubledRecord
from headrace.audit.topic.drills import (
    NOT_COPIED_MS,
    NOT_NAMED_MS,
    PLANTS_PER_RECORD_MAX,
    STATUSES_MAX,
    DrillRecord,
    Outcome,
)
from headrace.audit.topic.load_report import NOT_BEGUN, LoadReport
from headrace.audit.topic.possible import (
    COUNT_MAX,
    check_count,
    check_hours,
    check_id,
    check_key,
    check_name,
    check_partition,
    check_range,
    check_sequences,
    check_text,
    check_topic,
    require,
    shown,
)
from headrace.audit.topic.records import (
    ANALYSIS_TIER,
    DATACENTER_TIER,
    POSITIONS_PER_RECORD_MAX,
    CorruptRecord,
    GapRecord,
    HeartbeatRecord,
    ProducerReport,
    RangeTally,
    ReceivedRecord,
)
from headrace.audit.topic.recounts import RecountRecord
from headrace.audit.topic.resent import NO_NUMBER, ResentRecord
from headrace.audit.topic.said_of_tables import (
    CHECKED,
    NO_HOUR_MS,
    PROBLEMS_PER_RECORD_MAX,
    VerifiedRecord,
)
from headrace.coordination.declared import CHANGES_MAX, DECLARATIONS

SPANS_MAX: Final = 20_000  # of one tally
RANGES_MAX: Final = 20_000  # sequence ranges of one tally of a producer's report
HEARTBEAT_AHEAD_MAX_MS: Final = 24 * HOUR_MS  # a later heartbeat would hide all true ones until then

_DIGEST: Final = re.compile(rf"[0-9a-f]{{{DIGEST_CHARS}}}")
_TIERS: Final = (DATACENTER_TIER, ANALYSIS_TIER)


def check(received: ReceivedRecord, now_ms: int, source: str | None = None) -> None:
    """Raises `ImpossibleRecordError` for a record that is not to be believed.

    `source`: the datacenter from whose log the record was mirrored; None if that is not known.
    """
    for name in ("datacenter", "service", "server"):
        check_name(name, getattr(received, name))
    require(is_named(received.time_ms), f"its time is {received.time_ms} ms")
    _CHECKS[type(received.record)](received.record, received, now_ms)
    if source is not None:
        _check_source(received, source)


def _check_source(received: ReceivedRecord, source: str) -> None:
    record, speaker = received.record, received.datacenter
    require(speaker == source, f"it speaks for datacenter {speaker!r} in the log of {source!r}")
    of_analysis = isinstance(
        record,
        LoadReport | ResentRecord | AcceptanceRecord | VerifiedRecord | DoubledRecord | DrillRecord,
    )
    require(not of_analysis, f"it reports a load, a repair or a test in the log of {source!r}")
    tier = getattr(record, "tier", DATACENTER_TIER)
    require(tier == DATACENTER_TIER, f"it speaks for tier {tier} in the log of {source!r}")


# --- one check for each kind of record ---


def _check_tally(tally: RangeTally, received: ReceivedRecord, _now_ms: int) -> None:
    _check_place(tally, received)
    check_range(tally.from_address, tally.to_address)
    is_divisor = 0 < tally.bucket_ms <= HOUR_MS and HOUR_MS % tally.bucket_ms == 0
    require(is_divisor, f"its buckets are {tally.bucket_ms} ms wide")
    require(len(tally.spans) <= SPANS_MAX, f"it has {len(tally.spans)} spans")
    for span in tally.spans:
        _check_span(span, tally)
    check_hours(span.bucket_start_ms for span in tally.spans)


def _check_span(span: Span, tally: RangeTally) -> None:
    is_inside = tally.from_address <= span.first_address < span.end_address <= tally.to_address
    require(is_inside, f"a span at {span.first_address} to {span.end_address} lies outside of its range")
    # Each record has a byte of its own.
    size = span.end_address - span.first_address
    require(0 < span.record_count <= size, f"a span of {size} bytes claims {span.record_count} records")
    if span.producer_id == -1:
        numbers = (span.producer_epoch, span.first_sequence, span.last_sequence)
        require(numbers == (-1, -1, -1), f"a span without a producer has numbers {numbers}")
        return
    check_sequences(span.producer_id, span.producer_epoch, span.first_sequence, span.last_sequence)
    count = span.last_sequence - span.first_sequence + 1
    require(count == span.record_count, f"a span of {span.record_count} records has {count} sequences")


def _check_heartbeat(heartbeat: HeartbeatRecord, received: ReceivedRecord, now_ms: int) -> None:
    require(0 <= heartbeat.part < heartbeat.parts, f"part {heartbeat.part} of {heartbeat.parts}")
    for ms in (heartbeat.beat, received.time_ms):
        is_past = is_named(ms) and ms <= now_ms + HEARTBEAT_AHEAD_MAX_MS
        require(is_past, f"a heartbeat of {ms} ms is more than a day ahead of {now_ms} ms, the time here")
    require(heartbeat.tier in _TIERS, f"tier {heartbeat.tier!r}")
    count = len(heartbeat.positions)
    require(count <= POSITIONS_PER_RECORD_MAX, f"it has {count} positions")
    for position in heartbeat.positions:
        check_name("datacenter", position.datacenter)
        check_topic(position.topic)
        check_partition(position.partition)
        check_partition(position.log_partition)
        check_range(position.counted_to_address, position.end_address)
        check_id("topic id", position.topic_id)
        check_id("source's topic id", position.source_topic_id)
        _check_speaker(heartbeat.tier, position.datacenter, received)


def _check_gap(gap: GapRecord, received: ReceivedRecord, _now_ms: int) -> None:
    _check_place(gap, received)
    check_range(gap.from_address, gap.to_address)
    check_key("reason", gap.reason)


def _check_corrupt(corrupt: CorruptRecord, received: ReceivedRecord, _now_ms: int) -> None:
    _check_place(corrupt, received)
    check_partition(corrupt.log_partition)
    start, end, count = corrupt.from_address, corrupt.to_address, corrupt.record_count
    check_range(start, end)
    require(start < end, "it names no address")
    check_text("cause", corrupt.cause)
    require(count is None or 0 <= count <= end - start, f"{count} records in {end - start} bytes")
    if corrupt.producer_id != -1:
        numbers = (corrupt.producer_epoch, corrupt.first_sequence, corrupt.last_sequence)
        check_sequences(corrupt.producer_id, *numbers)


def _check_recount(recount: RecountRecord, received: ReceivedRecord, _now_ms: int) -> None:
    _check_place(recount, received)
    check_partition(recount.log_partition)
    check_range(recount.from_address, recount.counted_to_address)
    check_text("cause", recount.cause)


def _check_report(report: ProducerReport, _received: ReceivedRecord, _now_ms: int) -> None:
    check_name("publisher", report.publisher)
    check_count("report_number", report.report_number)
    arrived, made_ms = report.arrived_number, report.arrived_made_ms
    check_count("arrived_number", arrived)
    require(not arrived or arrived < report.report_number, f"report {arrived} arrived before it")
    require(made_ms is None or is_named(made_ms), f"the report that arrived was made at {made_ms} ms")
    for tally in report.tallies:
        check_topic(tally.topic)
        check_count("part", tally.part)
        check_count("handed_over_count", tally.handed_over_count)
        require(len(tally.ranges) <= RANGES_MAX, f"a tally has {len(tally.ranges)} ranges")
        require(not (report.counts_only and tally.ranges), "it counts only, but has ranges")
        for partition, *numbers in tally.ranges:
            check_partition(partition)
            check_sequences(*numbers)
    check_hours(tally.bucket_start_ms for tally in report.tallies)


def _check_load(load: LoadReport, _received: ReceivedRecord, _now_ms: int) -> None:
    check_key("warehouse", load.warehouse)
    check_topic(load.topic)
    check_id("topic id", load.topic_id)
    check_count("load_sequence", load.load_sequence)
    require(is_named(load.committed_ms), f"it was committed at {load.committed_ms} ms")
    for partition in load.partitions:
        check_partition(partition.partition)
        check_range(partition.from_address, partition.to_address)
        require(partition.begins_at >= NOT_BEGUN, f"a log begins at {partition.begins_at}")
        check_count("address", max(0, partition.begins_at))
        for hour in partition.hours:
            check_count("rows", hour.rows)
            check_count("distinct_offsets", hour.distinct_offsets)
            # Negative if a later load wrote them as rows.
            check_count("dead_lettered", abs(hour.dead_lettered))
    for gap in load.accepted_gaps:
        check_partition(gap.partition)
        check_range(gap.from_address, gap.to_address)
        check_text("reason", gap.reason)
    check_hours(hour.hour_ms for partition in load.partitions for hour in partition.hours)


PARTITIONS_MAX: Final = 100_000
"""Of a topic: far more than a cluster's brokers take."""


def _check_declaration(declaration: TopicDeclaration, _received: ReceivedRecord, _now_ms: int) -> None:
    check_topic(declaration.topic)
    check_name("topic id", declaration.topic_id)
    changes, count = declaration.changes, declaration.partitions
    require(0 <= count <= PARTITIONS_MAX, f"its topic has {count} partitions")
    if declaration.deleted:
        require(not changes, f"a deleted topic declares {len(changes)} changes")
        return
    require(0 < len(changes) <= CHANGES_MAX, f"it has {len(changes)} changes")
    starts = [change.from_ms for change in changes]
    require(starts[0] is None, f"its first declaration applies from {starts[0]} ms on")
    for change in changes:
        require(change.producers in DECLARATIONS, f"producers {shown(change.producers)}")
    hours = [start for start in starts[1:] if start is not None and start % HOUR_MS == 0 and is_named(start)]
    is_ordered = len(hours) == len(starts) - 1 and hours == sorted(set(hours))
    require(is_ordered, f"its changes are not in the order of the hours: {starts[:4]}")


def _check_resent(resent: ResentRecord, _received: ReceivedRecord, _now_ms: int) -> None:
    check_topic(resent.topic)
    for name, value in (("datacenter", resent.datacenter), ("publisher", resent.publisher)):
        check_name(name, value)
    check_name("author", resent.said_by)
    require(is_named(resent.bucket_start_ms), f"its bucket is {resent.bucket_start_ms} ms")
    check_partition(resent.partition)
    check_sequences(resent.producer_id, resent.producer_epoch, resent.first_sequence, resent.last_sequence)
    old_id, old_epoch, old_first = (
        resent.old_producer_id,
        resent.old_producer_epoch,
        resent.old_first_sequence,
    )
    if resent.had_numbers:
        check_sequences(old_id, old_epoch, old_first, old_first + resent.record_count - 1)
        require(old_id != resent.producer_id, f"producer {old_id} would have sent the same events twice")
    else:
        old = (old_id, old_epoch, old_first)
        require(old == (NO_NUMBER,) * 3, f"events without numbers have numbers {old}")


def _check_acceptance(acceptance: AcceptanceRecord, _received: ReceivedRecord, _now_ms: int) -> None:
    check_topic(acceptance.topic)
    check_name("author", acceptance.said_by)
    check_text("reason", acceptance.reason)
    require(bool(acceptance.reason.strip()), "it gives no reason")
    check_hours((acceptance.hour_ms,))
    require(acceptance.hour_ms % HOUR_MS == 0, f"{acceptance.hour_ms} ms is not the start of an hour")
    digests, texts = acceptance.digests, acceptance.texts
    require(0 < len(digests) <= FINDINGS_MAX, f"it accepts {len(digests)} findings")
    require(len(digests) == len(texts), f"it has {len(digests)} digests and {len(texts)} sentences")
    for digest, text in zip(digests, texts, strict=True):
        require(_DIGEST.fullmatch(digest) is not None, f"no digest can be {shown(digest)}")
        check_text("sentence", text)


def _check_verified(verified: VerifiedRecord, _received: ReceivedRecord, _now_ms: int) -> None:
    check_key("warehouse", verified.warehouse)
    check_topic(verified.topic)
    require(verified.checked in CHECKED, f"it checked {shown(verified.checked)}")
    for name in ("files", "rows", "problem_count"):
        check_count(name, getattr(verified, name))
    found = len(verified.problems)
    require(found <= min(verified.problem_count, PROBLEMS_PER_RECORD_MAX), f"it lists {found} problems")
    for each in verified.problems:
        is_hour = each.hour_ms == NO_HOUR_MS or (is_named(each.hour_ms) and each.hour_ms % HOUR_MS == 0)
        require(is_hour, f"{each.hour_ms} ms is not the start of an hour")
        check_text("path", each.path)
        check_text("problem", each.text)
        check_count("rows", each.rows)


def _check_doubled(doubled: DoubledRecord, _received: ReceivedRecord, _now_ms: int) -> None:
    check_key("warehouse", doubled.warehouse)
    check_topic(doubled.topic)
    is_hour = is_named(doubled.hour_ms) and doubled.hour_ms % HOUR_MS == 0
    require(is_hour, f"{doubled.hour_ms} ms is not the start of an hour")
    check_count("removed", doubled.removed)
    require(len(doubled.runs) <= RUNS_PER_RECORD_MAX, f"it has {len(doubled.runs)} runs of rows")
    for run in doubled.runs:
        check_partition(run.log_partition)
        check_range(run.first_offset, run.last_offset)


def _check_drill(drill: DrillRecord, received: ReceivedRecord, _now_ms: int) -> None:
    check_name("name", drill.run)
    check_name("author", drill.said_by)
    is_past = is_named(drill.began_ms) and drill.began_ms <= received.time_ms
    require(is_past, f"it began at {drill.began_ms} ms, and ended at {received.time_ms} ms")
    check_count("false_count", drill.false_count)
    require(len(drill.plants) <= PLANTS_PER_RECORD_MAX, f"it has {len(drill.plants)} plants")
    for plant in drill.plants:
        for name in ("kind", "datacenter", "service"):
            check_name(name, getattr(plant, name))
        is_hour = is_named(plant.hour_ms) and plant.hour_ms % HOUR_MS == 0
        require(is_hour, f"{plant.hour_ms} ms is not the start of an hour")
        require(len(plant.statuses) <= STATUSES_MAX, f"a plant has {len(plant.statuses)} verdicts")
        for text in (plant.hop, plant.note, plant.path, *plant.statuses):
            check_text("text", text)
        check_count("record_count", plant.record_count)
        check_count("sent_count", plant.sent_count)
        is_time = NOT_COPIED_MS <= plant.copied_after_ms <= COUNT_MAX
        require(is_time, f"its events were copied after {plant.copied_after_ms} ms")
        if plant.producer_id != NO_NUMBER:
            numbers = (plant.producer_epoch, plant.first_sequence, plant.last_sequence)
            check_sequences(plant.producer_id, *numbers)
        require(plant.outcome in set(Outcome), f"its outcome is {shown(plant.outcome)}")
        took_ms, is_named_ = plant.named_after_ms, plant.outcome == Outcome.NAMED
        is_possible = 0 <= took_ms <= COUNT_MAX if is_named_ else took_ms == NOT_NAMED_MS
        require(is_possible, f"a plant that is {plant.outcome} was named after {took_ms} ms")


_CHECKS: Final[dict[type, Callable[[Any, ReceivedRecord, int], None]]] = {
    RangeTally: _check_tally,
    HeartbeatRecord: _check_heartbeat,
    GapRecord: _check_gap,
    CorruptRecord: _check_corrupt,
    RecountRecord: _check_recount,
    ProducerReport: _check_report,
    LoadReport: _check_load,
    TopicDeclaration: _check_declaration,
    ResentRecord: _check_resent,
    AcceptanceRecord: _check_acceptance,
    VerifiedRecord: _check_verified,
    DoubledRecord: _check_doubled,
    DrillRecord: _check_drill,
}

# --- parts of records ---


def _check_place(
    record: RangeTally | GapRecord | CorruptRecord | RecountRecord, received: ReceivedRecord
) -> None:
    require(record.tier in _TIERS, f"tier {record.tier!r}")
    check_name("datacenter", record.datacenter)
    check_topic(record.topic)
    check_id("topic id", record.topic_id)
    check_partition(record.partition)
    if isinstance(record, RangeTally):
        check_partition(record.log_partition)
    _check_speaker(record.tier, record.datacenter, received)


def _check_speaker(tier: str, datacenter: str, received: ReceivedRecord) -> None:
    is_own = tier == ANALYSIS_TIER or datacenter == received.datacenter
    require(is_own, f"datacenter {received.datacenter!r} reports on the log of {datacenter!r}")
