"""Analysis against warehouse: the mirrored log against the load reports, partition by partition. Pure.

A load reports which addresses it consumed and how many rows of each hour it wrote; a tally reports how many
records of the hour lie at which addresses. Rows and distinct offsets are both compared, so a missing row and
a duplicated row do not cancel.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from enum import IntEnum
from typing import NamedTuple

from headrace.audit import phrases
from headrace.audit.evidence import CountedSpan, Evidence, PartitionEvidence, WrittenRows
from headrace.audit.findings import LOAD_HOP, Finding, Policy, Status
from headrace.audit.intervals import Interval, covers, overlaps, subtract, union
from headrace.audit.topic.records import ANALYSIS_TIER
from headrace.audit.verdicts.corruption import total
from headrace.audit.verdicts.hop_mirror import taken_counts


class _Comparison(NamedTuple):
    """One partition's hour: what the log holds of it, and what the loads wrote.

    `consumed`: records in spans that loads consumed wholly, and what they took from the source's own log.
    `partly_consumed`: records in spans that loads consumed partly. `unloaded`: the spans that are not wholly
    consumed.
    """

    partition: int
    place: PartitionEvidence
    consumed: int
    partly_consumed: int
    unloaded: list[CountedSpan]
    rows: WrittenRows

    @property
    def accounted(self) -> int:
        """Records that a load wrote or dead-lettered, each counted once."""
        return self.rows.distinct_offsets + self.rows.dead_lettered

    @property
    def name(self) -> str:
        return f"partition {self.partition} (partition {self.place.log_partition} of the analysis cluster)"


def judge_load_hop(evidence: Evidence, policy: Policy, now_ms: int) -> Iterator[Finding]:
    """Yields the problems between the analysis cluster's log and the warehouse."""
    spans: dict[int, list[CountedSpan]] = {}
    for counted in evidence.analysis_spans:
        spans.setdefault(counted.partition, []).append(counted)
    taken = taken_counts(evidence)
    for partition in sorted(spans.keys() | evidence.rows.keys() | taken.keys()):
        compared = _compare(partition, spans.get(partition, []), taken.get(partition, 0), evidence)
        yield from _judge_loaded(compared, evidence, policy, now_ms)
        yield from _judge_unloaded(compared, evidence, policy, now_ms)


def _compare(partition: int, spans: list[CountedSpan], taken: int, evidence: Evidence) -> _Comparison:
    place = evidence.partition(partition)
    consumed, partly_consumed = taken, 0
    unloaded: list[CountedSpan] = []
    for counted in spans:
        first, end = counted.span.first_address, counted.span.end_address
        if covers(place.warehouse.cover, first, end):
            consumed += counted.span.record_count
            continue
        unloaded.append(counted)
        if overlaps(place.warehouse.cover, first, end):
            partly_consumed += counted.span.record_count
    rows = evidence.rows.get(partition, WrittenRows())
    return _Comparison(partition, place, consumed, partly_consumed, unloaded, rows)


def _judge_loaded(
    compared: _Comparison, evidence: Evidence, policy: Policy, now_ms: int
) -> Iterator[Finding]:
    """Yields lost and duplicated records among those that loads consumed: where, rows do not say."""
    rows, consumed = compared.rows, compared.consumed
    explained = _corrupt_count(compared, evidence)
    if count := _unexplained(consumed - compared.accounted, explained):
        text = (
            f"{phrases.events(count, evidence)}, {compared.name}, were not written by the loads that "
            f"consumed their addresses: {consumed} counted in the log, {rows.distinct_offsets} distinct "
            f"rows, {rows.dead_lettered} dead-lettered"
        )
        yield _finding(*phrases.unless_forgotten(evidence, Status.LOST, text), count, compared)
    if rows.rows > rows.distinct_offsets:
        count = rows.rows - rows.distinct_offsets
        text = (
            f"{phrases.events(count, evidence)}, {compared.name}, are in the warehouse more than once: "
            f"{rows.rows} rows of {rows.distinct_offsets} distinct offsets"
        )
        yield _finding(Status.DUPLICATED, text, count, compared)
    excess = compared.accounted - consumed - compared.partly_consumed
    if count := _unexplained(excess, explained):
        status, predicate = _status_of_excess(compared.place, policy, now_ms)
        if status is Status.DUPLICATED:
            status, predicate = phrases.unless_forgotten(evidence, status, predicate)
        text = f"{phrases.events(count, evidence)}, {compared.name}, {predicate}"
        yield replace(_finding(status, text, count, compared), about="beyond the log")


def _unexplained(difference: int, corrupt_count: int | None) -> int:
    """Returns how much of a difference corrupt batches of the hour do not explain."""
    return 0 if corrupt_count is None else max(0, difference - corrupt_count)


def _corrupt_count(compared: _Comparison, evidence: Evidence) -> int | None:
    """Returns how many records of the hour lie in corrupt batches that loads consumed; None if not known.

    Loads may dead-letter such a batch record by record, as a whole, or not at all: neither is a loss or a
    duplicate beside the finding that the batch is corrupt.
    """
    return total(
        each.range.record_count
        for each in evidence.corrupt
        if (each.tier, each.partition) == (ANALYSIS_TIER, compared.partition)
        and overlaps(compared.place.warehouse.cover, each.range.start, each.range.end)
    )


def _status_of_excess(place: PartitionEvidence, policy: Policy, now_ms: int) -> tuple[Status, str]:
    gaps = ((gap.start, gap.end) for gap in place.analysis.gaps)  # hold nothing, or what was taken
    uncounted = subtract(place.warehouse.cover, (*place.analysis.known(), *gaps))
    if not uncounted:
        return Status.DUPLICATED, "were written by loads although the log does not hold them"
    heartbeat = place.analysis.heartbeat
    is_late = heartbeat is None or now_ms - heartbeat.at_ms >= policy.delay_ms
    return (
        Status.UNKNOWN if is_late else Status.PENDING,
        f"are loaded, but the auditor has not counted addresses {uncounted[0][0]} to {uncounted[-1][1]} yet",
    )


def _judge_unloaded(
    compared: _Comparison, evidence: Evidence, policy: Policy, now_ms: int
) -> Iterator[Finding]:
    """Yields what loads have not consumed wholly: one finding for all that has the same fate."""
    cover, by_fate = compared.place.warehouse.cover, dict[_Fate, list[CountedSpan]]()
    for counted in compared.unloaded:
        by_fate.setdefault(_fate(counted, compared.place), []).append(counted)
    written = max(0, compared.accounted - compared.consumed)  # of spans that loads consumed partly
    for fate, spans in sorted(by_fate.items()):  # what may be lost first: no written row is called lost
        partly = sum(
            each.span.record_count
            for each in spans
            if overlaps(cover, each.span.first_address, each.span.end_address)
        )
        count = sum(each.span.record_count for each in spans) - min(written, partly)
        written -= min(written, partly)
        if not count:
            continue  # where loads did not read, there was nothing of this hour
        low = min(each.span.first_address for each in spans)
        high = max(each.span.end_address for each in spans)
        counted_ms = max(each.counted_ms for each in spans)
        status, predicate = _status_of_unloaded(
            fate, compared.place, (low, high), now_ms - counted_ms, policy
        )
        events, where = phrases.events(count, evidence), phrases.addresses(low, high)
        found = _finding(
            status, f"{events}, {compared.name}, {predicate} ({where})", count, compared, (low, high)
        )
        yield replace(found, since_ms=counted_ms)


class _Fate(IntEnum):
    """What is known of addresses that no reported load has consumed."""

    SKIPPED = 1
    PASSED = 2
    UNREPORTED = 3
    WAITING = 4


def _fate(counted: CountedSpan, place: PartitionEvidence) -> _Fate:
    first, end, cover = counted.span.first_address, counted.span.end_address, place.warehouse.cover
    skipped = [(gap.start, gap.end) for gap in place.warehouse.gaps]
    if covers(union((*cover, *skipped)), first, end):
        return _Fate.SKIPPED
    missing = subtract([(first, end)], (*cover, *skipped))
    if any(overlaps(place.unreported, *each) for each in missing):
        return _Fate.UNREPORTED
    return _Fate.PASSED if cover and missing[-1][1] <= cover[-1][0] else _Fate.WAITING


def _status_of_unloaded(
    fate: _Fate, place: PartitionEvidence, extent: Interval, age_ms: int, policy: Policy
) -> tuple[Status, str]:
    warehouse = place.warehouse
    if fate is _Fate.SKIPPED and (gap := warehouse.gap_in(*extent)):
        skipped = f"an operator let the load skip addresses {gap.start} to {gap.end}"
        return Status.LOST, f"will not be loaded: {skipped}: {gap.cause}"
    if fate is _Fate.PASSED and age_ms >= policy.delay_ms:
        return Status.LOST, "were not loaded, and loads have gone on behind them"
    if age_ms < policy.load_delay_ms:
        return Status.PENDING, "have not been loaded yet"
    if not warehouse.cover:
        return Status.UNKNOWN, "have not been loaded: no load of that partition was ever reported"
    if fate is _Fate.UNREPORTED:
        start, end = next(each for each in place.unreported if overlaps([each], *extent))
        changes = "the table was changed between the loads before and behind them"
        by_what = "by a load whose report is missing, or by something that loads nothing"
        where = f"{changes} (addresses {start} to {end})"
        return Status.UNKNOWN, f"are in no load that was reported: {where}, {by_what}"
    overdue, end = phrases.duration(age_ms - policy.load_delay_ms), warehouse.cover[-1][1]
    return Status.UNKNOWN, f"are overdue by {overdue}: loads have consumed up to address {end}"


def _finding(
    status: Status,
    text: str,
    count: int,
    compared: _Comparison,
    extent: tuple[int | None, int | None] = (None, None),
) -> Finding:
    return Finding(
        status,
        LOAD_HOP,
        text,
        record_count=count,
        partition=compared.partition,
        after_address=extent[0],
        before_address=extent[1],
    )
