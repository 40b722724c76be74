"""Whether an audit record can be true: what is checked before anything of it is believed. Pure.

Anybody who reaches a broker may write to the audit topics. A record with impossible numbers, names or times
is set aside with its problem; so is one that speaks for a datacenter whose log it did not come from. A forged
record that is possible in every field cannot be distinguished from a true one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
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
from headrace.events.header import NAME_MAX_CHARS as NAME_MAX_CHARS
from headrace.wire.topic_names import is_topic_name

TEXT_MAX_CHARS: Final = 10_000
KEY_MAX_CHARS: Final = 512
"""Of a text by which the store finds a row: PostgreSQL's indexes take no more than 2,700 bytes of all."""
SEQUENCE_MAX: Final = 2**31 - 1
ADDRESS_MAX: Final = 2**62
COUNT_MAX: Final = 2**40  # more records than this in one report are not credible; sums stay below 64 bits
SPANS_MAX: Final = 20_000  # of one tally
RANGES_MAX: Final = 20_000  # sequence ranges of one tally of a producer's report
HOURS_MAX: Final = 20_000  # different hours that one record may speak about
HEARTBEAT_AHEAD_MAX_MS: Final = 24 * HOUR_MS  # a later heartbeat would hide all true ones until then

_DIGEST: Final = re.compile(rf"[0-9a-f]{{{DIGEST_CHARS}}}")
_TIERS: Final = (DATACENTER_TIER, ANALYSIS_TIER)


class ImpossibleRecordError(ValueError):
    """The record cannot be true; the message says why."""


def check(received: ReceivedRecord, now_ms: int, source: str | None = None) -> None:
    """Raises `ImpossibleRecordError` for a record that is not to be believed.

    `source`: the datacenter from whose log the record was mirrored; None if that is not known.
    """
    for name in ("datacenter", "service", "server"):
        _check_name(name, getattr(received, name))
    _require(is_named(received.time_ms), f"its time is {received.time_ms} ms")
    _CHECKS[type(received.record)](received.record, received, now_ms)
    if source is not None:
        _check_source(received, source)


def _check_source(received: ReceivedRecord, source: str) -> None:
    record, speaker = received.record, received.datacenter
    _require(speaker == source, f"it speaks for datacenter {speaker!r} in the log of {source!r}")
    of_analysis = isinstance(
        record,
        LoadReport | ResentRecord | AcceptanceRecord | VerifiedRecord | DoubledRecord | DrillRecord,
    )
    _require(not of_analysis, f"it reports a load, a repair or a test in the log of {source!r}")
    tier = getattr(record, "tier", DATACENTER_TIER)
    _require(tier == DATACENTER_TIER, f"it speaks for tier {tier} in the log of {source!r}")


# --- one check for each kind of record ---


def _check_tally(tally: RangeTally, received: ReceivedRecord, _now_ms: int) -> None:
    _check_place(tally, received)
    _check_range(tally.from_address, tally.to_address)
    is_divisor = 0 < tally.bucket_ms <= HOUR_MS and HOUR_MS % tally.bucket_ms == 0
    _require(is_divisor, f"its buckets are {tally.bucket_ms} ms wide")
    _require(len(tally.spans) <= SPANS_MAX, f"it has {len(tally.spans)} spans")
    for span in tally.spans:
        _check_span(span, tally)
    _check_hours(span.bucket_start_ms for span in tally.spans)


def _check_span(span: Span, tally: RangeTally) -> None:
    is_inside = tally.from_address <= span.first_address < span.end_address <= tally.to_address
    _require(is_inside, f"a span at {span.first_address} to {span.end_address} lies outside of its range")
    # Each record has a byte of its own.
    size = span.end_address - span.first_address
    _require(0 < span.record_count <= size, f"a span of {size} bytes claims {span.record_count} records")
    if span.producer_id == -1:
        numbers = (span.producer_epoch, span.first_sequence, span.last_sequence)
        _require(numbers == (-1, -1, -1), f"a span without a producer has numbers {numbers}")
        return
    _check_sequences(span.producer_id, span.producer_epoch, span.first_sequence, span.last_sequence)
    count = span.last_sequence - span.first_sequence + 1
    _require(count == span.record_count, f"a span of {span.record_count} records has {count} sequences")


def _check_heartbeat(heartbeat: HeartbeatRecord, received: ReceivedRecord, now_ms: int) -> None:
    _require(0 <= heartbeat.part < heartbeat.parts, f"part {heartbeat.part} of {heartbeat.parts}")
    for ms in (heartbeat.beat, received.time_ms):
        is_past = is_named(ms) and ms <= now_ms + HEARTBEAT_AHEAD_MAX_MS
        _require(is_past, f"a heartbeat of {ms} ms is more than a day ahead of {now_ms} ms, the time here")
    _require(heartbeat.tier in _TIERS, f"tier {heartbeat.tier!r}")
    count = len(heartbeat.positions)
    _require(count <= POSITIONS_PER_RECORD_MAX, f"it has {count} positions")
    for position in heartbeat.positions:
        _check_name("datacenter", position.datacenter)
        _check_topic(position.topic)
        _check_partition(position.partition)
        _check_partition(position.log_partition)
        _check_range(position.counted_to_address, position.end_address)
        _check_id("topic id", position.topic_id)
        _check_id("source's topic id", position.source_topic_id)
        _check_speaker(heartbeat.tier, position.datacenter, received)


def _check_gap(gap: GapRecord, received: ReceivedRecord, _now_ms: int) -> None:
    _check_place(gap, received)
    _check_range(gap.from_address, gap.to_address)
    _check_key("reason", gap.reason)


def _check_corrupt(corrupt: CorruptRecord, received: ReceivedRecord, _now_ms: int) -> None:
    _check_place(corrupt, received)
    _check_partition(corrupt.log_partition)
    start, end, count = corrupt.from_address, corrupt.to_address, corrupt.record_count
    _check_range(start, end)
    _require(start < end, "it names no address")
    _check_text("cause", corrupt.cause)
    _require(count is None or 0 <= count <= end - start, f"{count} records in {end - start} bytes")
    if corrupt.producer_id != -1:
        numbers = (corrupt.producer_epoch, corrupt.first_sequence, corrupt.last_sequence)
        _check_sequences(corrupt.producer_id, *numbers)


def _check_recount(recount: RecountRecord, received: ReceivedRecord, _now_ms: int) -> None:
    _check_place(recount, received)
    _check_partition(recount.log_partition)
    _check_range(recount.from_address, recount.counted_to_address)
    _check_text("cause", recount.cause)


def _check_report(report: ProducerReport, _received: ReceivedRecord, _now_ms: int) -> None:
    _check_name("publisher", report.publisher)
    _check_count("report_number", report.report_number)
    arrived, made_ms = report.arrived_number, report.arrived_made_ms
    _check_count("arrived_number", arrived)
    _require(not arrived or arrived < report.report_number, f"report {arrived} arrived before it")
    _require(made_ms is None or is_named(made_ms), f"the report that arrived was made at {made_ms} ms")
    for tally in report.tallies:
        _check_topic(tally.topic)
        _check_count("part", tally.part)
        _check_count("handed_over_count", tally.handed_over_count)
        _require(len(tally.ranges) <= RANGES_MAX, f"a tally has {len(tally.ranges)} ranges")
        _require(not (report.counts_only and tally.ranges), "it counts only, but has ranges")
        for partition, *numbers in tally.ranges:
            _check_partition(partition)
            _check_sequences(*numbers)
    _check_hours(tally.bucket_start_ms for tally in report.tallies)


def _check_load(load: LoadReport, _received: ReceivedRecord, _now_ms: int) -> None:
    _check_key("warehouse", load.warehouse)
    _check_topic(load.topic)
    _check_id("topic id", load.topic_id)
    _check_count("load_sequence", load.load_sequence)
    _require(is_named(load.committed_ms), f"it was committed at {load.committed_ms} ms")
    for partition in load.partitions:
        _check_partition(partition.partition)
        _check_range(partition.from_address, partition.to_address)
        _require(partition.begins_at >= NOT_BEGUN, f"a log begins at {partition.begins_at}")
        _check_count("address", max(0, partition.begins_at))
        for hour in partition.hours:
            _check_count("rows", hour.rows)
            _check_count("distinct_offsets", hour.distinct_offsets)
            # Negative if a later load wrote them as rows.
            _check_count("dead_lettered", abs(hour.dead_lettered))
    for gap in load.accepted_gaps:
        _check_partition(gap.partition)
        _check_range(gap.from_address, gap.to_address)
        _check_text("reason", gap.reason)
    _check_hours(hour.hour_ms for partition in load.partitions for hour in partition.hours)


def _check_declaration(declaration: TopicDeclaration, _received: ReceivedRecord, _now_ms: int) -> None:
    _check_topic(declaration.topic)
    _check_name("topic id", declaration.topic_id)
    changes = declaration.changes
    _require(0 < len(changes) <= CHANGES_MAX, f"it has {len(changes)} changes")
    starts = [change.from_ms for change in changes]
    _require(starts[0] is None, f"its first declaration applies from {starts[0]} ms on")
    for change in changes:
        _require(change.producers in DECLARATIONS, f"producers {shown(change.producers)}")
    hours = [start for start in starts[1:] if start is not None and start % HOUR_MS == 0 and is_named(start)]
    is_ordered = len(hours) == len(starts) - 1 and hours == sorted(set(hours))
    _require(is_ordered, f"its changes are not in the order of the hours: {starts[:4]}")


def _check_resent(resent: ResentRecord, _received: ReceivedRecord, _now_ms: int) -> None:
    _check_topic(resent.topic)
    for name, value in (("datacenter", resent.datacenter), ("publisher", resent.publisher)):
        _check_name(name, value)
    _check_name("author", resent.said_by)
    _require(is_named(resent.bucket_start_ms), f"its bucket is {resent.bucket_start_ms} ms")
    _check_partition(resent.partition)
    new = (resent.producer_id, resent.producer_epoch, resent.first_sequence, resent.last_sequence)
    _check_sequences(*new)
    old = (resent.old_producer_id, resent.old_producer_epoch, resent.old_first_sequence)
    if resent.had_numbers:
        _check_sequences(*old, old[2] + resent.record_count - 1)
        _require(old[0] != new[0], f"producer {old[0]} would have sent the same events twice")
    else:
        _require(old == (NO_NUMBER,) * 3, f"events without numbers have numbers {old}")


def _check_acceptance(acceptance: AcceptanceRecord, _received: ReceivedRecord, _now_ms: int) -> None:
    _check_topic(acceptance.topic)
    _check_name("author", acceptance.said_by)
    _check_text("reason", acceptance.reason)
    _require(bool(acceptance.reason.strip()), "it gives no reason")
    _check_hours((acceptance.hour_ms,))
    _require(acceptance.hour_ms % HOUR_MS == 0, f"{acceptance.hour_ms} ms is not the start of an hour")
    digests, texts = acceptance.digests, acceptance.texts
    _require(0 < len(digests) <= FINDINGS_MAX, f"it accepts {len(digests)} findings")
    _require(len(digests) == len(texts), f"it has {len(digests)} digests and {len(texts)} sentences")
    for digest, text in zip(digests, texts, strict=True):
        _require(_DIGEST.fullmatch(digest) is not None, f"no digest can be {shown(digest)}")
        _check_text("sentence", text)


def _check_verified(verified: VerifiedRecord, _received: ReceivedRecord, _now_ms: int) -> None:
    _check_key("warehouse", verified.warehouse)
    _check_topic(verified.topic)
    _require(verified.checked in CHECKED, f"it checked {shown(verified.checked)}")
    for name in ("files", "rows", "problem_count"):
        _check_count(name, getattr(verified, name))
    found = len(verified.problems)
    _require(found <= min(verified.problem_count, PROBLEMS_PER_RECORD_MAX), f"it lists {found} problems")
    for each in verified.problems:
        is_hour = each.hour_ms == NO_HOUR_MS or (is_named(each.hour_ms) and each.hour_ms % HOUR_MS == 0)
        _require(is_hour, f"{each.hour_ms} ms is not the start of an hour")
        _check_text("path", each.path)
        _check_text("problem", each.text)
        _check_count("rows", each.rows)


def _check_doubled(doubled: DoubledRecord, _received: ReceivedRecord, _now_ms: int) -> None:
    _check_key("warehouse", doubled.warehouse)
    _check_topic(doubled.topic)
    is_hour = is_named(doubled.hour_ms) and doubled.hour_ms % HOUR_MS == 0
    _require(is_hour, f"{doubled.hour_ms} ms is not the start of an hour")
    _check_count("removed", doubled.removed)
    _require(len(doubled.runs) <= RUNS_PER_RECORD_MAX, f"it has {len(doubled.runs)} runs of rows")
    for run in doubled.runs:
        _check_partition(run.log_partition)
        _check_range(run.first_offset, run.last_offset)


def _check_drill(drill: DrillRecord, received: ReceivedRecord, _now_ms: int) -> None:
    _check_name("name", drill.run)
    _check_name("author", drill.said_by)
    is_past = is_named(drill.began_ms) and drill.began_ms <= received.time_ms
    _require(is_past, f"it began at {drill.began_ms} ms, and ended at {received.time_ms} ms")
    _check_count("false_count", drill.false_count)
    _require(len(drill.plants) <= PLANTS_PER_RECORD_MAX, f"it has {len(drill.plants)} plants")
    for plant in drill.plants:
        for name in ("kind", "datacenter", "service"):
            _check_name(name, getattr(plant, name))
        is_hour = is_named(plant.hour_ms) and plant.hour_ms % HOUR_MS == 0
        _require(is_hour, f"{plant.hour_ms} ms is not the start of an hour")
        _require(len(plant.statuses) <= STATUSES_MAX, f"a plant has {len(plant.statuses)} verdicts")
        for text in (plant.hop, plant.note, plant.path, *plant.statuses):
            _check_text("text", text)
        _check_count("record_count", plant.record_count)
        _check_count("sent_count", plant.sent_count)
        is_time = NOT_COPIED_MS <= plant.copied_after_ms <= COUNT_MAX
        _require(is_time, f"its events were copied after {plant.copied_after_ms} ms")
        if plant.producer_id != NO_NUMBER:
            numbers = (plant.producer_epoch, plant.first_sequence, plant.last_sequence)
            _check_sequences(plant.producer_id, *numbers)
        _require(plant.outcome in set(Outcome), f"its outcome is {shown(plant.outcome)}")
        took_ms, is_named_ = plant.named_after_ms, plant.outcome == Outcome.NAMED
        is_possible = 0 <= took_ms <= COUNT_MAX if is_named_ else took_ms == NOT_NAMED_MS
        _require(is_possible, f"a plant that is {plant.outcome} was named after {took_ms} ms")


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
    _require(record.tier in _TIERS, f"tier {record.tier!r}")
    _check_name("datacenter", record.datacenter)
    _check_topic(record.topic)
    _check_id("topic id", record.topic_id)
    _check_partition(record.partition)
    if isinstance(record, RangeTally):
        _check_partition(record.log_partition)
    _check_speaker(record.tier, record.datacenter, received)


def _check_speaker(tier: str, datacenter: str, received: ReceivedRecord) -> None:
    is_own = tier == ANALYSIS_TIER or datacenter == received.datacenter
    _require(is_own, f"datacenter {received.datacenter!r} reports on the log of {datacenter!r}")


def _check_range(start: int, end: int) -> None:
    _require(0 <= start <= end <= ADDRESS_MAX, f"addresses {start} to {end}")


def _check_sequences(producer_id: int, epoch: int, first: int, last: int) -> None:
    is_possible = producer_id >= 0 and 0 <= epoch < 2**15 and 0 <= first <= last <= SEQUENCE_MAX
    _require(is_possible, f"sequences {first} to {last} of producer {producer_id}, epoch {epoch}")


def _check_partition(partition: int) -> None:
    _require(partition >= 0, f"partition {partition}")


def _check_count(name: str, count: int) -> None:
    _require(0 <= count <= COUNT_MAX, f"{name} is {count}")


def _check_hours(starts_ms: Iterable[int]) -> None:
    hours = {start_ms // HOUR_MS for start_ms in starts_ms}
    _require(len(hours) <= HOURS_MAX, f"it speaks about {len(hours)} hours")


def _check_topic(topic: str) -> None:
    _require(is_topic_name(topic), f"no topic can have the name {shown(topic)}")


def _check_name(what: str, name: str) -> None:
    is_possible = 0 < len(name) <= NAME_MAX_CHARS and name.isprintable()
    _require(is_possible, f"no {what} can be called {shown(name)}")


def _check_id(what: str, text: str) -> None:
    _require(len(text) <= NAME_MAX_CHARS and "\0" not in text, f"its {what} is {shown(text)}")


def _check_key(what: str, text: str) -> None:
    _require(len(text) <= KEY_MAX_CHARS and "\0" not in text, f"its {what} is {shown(text)}")


def _check_text(what: str, text: str) -> None:
    _require(len(text) <= TEXT_MAX_CHARS and "\0" not in text, f"its {what} is {shown(text)}")


def _require(is_possible: bool, problem: str) -> None:
    if not is_possible:
        raise ImpossibleRecordError(problem)


def shown(text: str) -> str:
    """Returns text of a stranger for a message: escaped, and not long."""
    return ascii(text[:60]) + (f" … ({len(text)} characters)" if len(text) > 60 else "")
