"""Analysis against warehouse: the mirrored log against what the loads say they wrote, partition by partition.
Pure.

A load says which addresses it consumed and how many rows of which hour it wrote; the tally says how many
records of that hour lie at which addresses. Rows and distinct offsets are both compared, so a row missing
and a row twice do not cancel.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from headrace.audit import wording
from headrace.audit.evidence import (
    LOAD_HOP,
    Counted,
    Evidence,
    Finding,
    PartitionEvidence,
    Policy,
    Rows,
    Status,
)
from headrace.audit.intervals import covers, overlaps, subtract

_NOWHERE = PartitionEvidence()


class _Case(NamedTuple):
    """One partition's hour: records surely consumed by loads, perhaps consumed (a load ended within the
    span), spans not wholly consumed; and what was written."""

    partition: int
    place: PartitionEvidence
    sure: int
    perhaps: int
    waiting: list[Counted]
    rows: Rows

    @property
    def handled(self) -> int:
        """Records that a load accounted for, each once."""
        return self.rows.distinct_offsets + self.rows.dead_lettered

    @property
    def words(self) -> str:
        return f"partition {self.partition} (partition {self.place.log_partition} of the analysis cluster)"


def judge_load_hop(evidence: Evidence, policy: Policy, now_ms: int) -> Iterator[Finding]:
    """What is wrong between the analysis cluster's log and the warehouse."""
    counted: dict[int, list[Counted]] = {}
    for each in evidence.analysis_spans:
        counted.setdefault(each.partition, []).append(each)
    for partition in sorted(counted.keys() | evidence.rows.keys()):
        case = _case(partition, counted.get(partition, []), evidence)
        yield from _loaded(case, evidence, policy, now_ms)
        if case.waiting:
            yield _waiting(case, evidence, policy, now_ms)


def _case(partition: int, spans: list[Counted], evidence: Evidence) -> _Case:
    place = evidence.partitions.get(partition, _NOWHERE)
    sure = perhaps = 0
    waiting: list[Counted] = []
    for each in spans:
        first, end = each.span.first_address, each.span.end_address
        if covers(place.warehouse_cover, first, end):
            sure += each.span.record_count
            continue
        waiting.append(each)
        if overlaps(place.warehouse_cover, first, end):
            perhaps += each.span.record_count
    return _Case(partition, place, sure, perhaps, waiting, evidence.rows.get(partition, Rows()))


def _loaded(case: _Case, evidence: Evidence, policy: Policy, now_ms: int) -> Iterator[Finding]:
    rows, cover = case.rows, case.place.warehouse_cover
    extent = (cover[0][0], cover[-1][1]) if cover else (None, None)
    if case.handled < case.sure:
        count = case.sure - case.handled
        text = (
            f"{wording.events(count, evidence)}, {case.words}, were not written by the loads that consumed "
            "their "
            f"addresses: {case.sure} counted in the log, {rows.distinct_offsets} distinct rows, "
            f"{rows.dead_lettered} dead-lettered"
        )
        yield _finding(Status.LOST, text, count, case, extent)
    if rows.rows > rows.distinct_offsets:
        count = rows.rows - rows.distinct_offsets
        text = (
            f"{wording.events(count, evidence)}, {case.words}, are in the warehouse more than once: "
            f"{rows.rows} rows of {rows.distinct_offsets} distinct offsets"
        )
        yield _finding(Status.DUPLICATED, text, count, case, extent)
    if case.handled > case.sure + case.perhaps:
        count = case.handled - case.sure - case.perhaps
        status, why = _why_more(case.place, policy, now_ms)
        text = f"{wording.events(count, evidence)}, {case.words}, {why}"
        yield _finding(status, text, count, case, extent)


def _why_more(place: PartitionEvidence, policy: Policy, now_ms: int) -> tuple[Status, str]:
    uncounted = subtract(place.warehouse_cover, place.analysis_cover)
    if not uncounted:
        return Status.DUPLICATED, "were written by loads beyond what the log holds"
    beat = place.analysis_beat
    late = beat is None or now_ms - beat.at_ms >= policy.delay_ms
    return (
        Status.UNKNOWN if late else Status.PENDING,
        (
            f"are loaded, but addresses {uncounted[0][0]} to {uncounted[-1][1]} are not counted by the "
            "auditor "
            "yet"
        ),
    )


def _waiting(case: _Case, evidence: Evidence, policy: Policy, now_ms: int) -> Finding:
    waiting = sum(each.span.record_count for each in case.waiting)
    count = max(0, waiting - max(0, case.handled - case.sure))
    low = min(each.span.first_address for each in case.waiting)
    high = max(each.span.end_address for each in case.waiting)
    status, why = _why_waiting(case, low, high, policy, now_ms)
    text = f"{wording.events(count, evidence)}, {case.words}, {why} ({wording.addresses(low, high)})"
    return _finding(status, text, count, case, (low, high))


def _why_waiting(case: _Case, low: int, high: int, policy: Policy, now_ms: int) -> tuple[Status, str]:
    age_ms = now_ms - max(each.counted_ms for each in case.waiting)
    for gap in case.place.warehouse_gaps:
        if gap.start < high and low < gap.end:
            where = f"addresses {gap.start} to {gap.end}"
            return (
                Status.LOST,
                f"will not be loaded: the load was told to go on behind {where}: {gap.reason}",
            )
    if age_ms < policy.load_delay_ms:
        return Status.PENDING, "have not been loaded yet"
    if not case.place.warehouse_cover:
        return Status.UNKNOWN, "have not been loaded: no load of that partition was ever reported"
    overdue, end = wording.lasting(age_ms - policy.load_delay_ms), case.place.warehouse_cover[-1][1]
    return Status.UNKNOWN, f"are overdue by {overdue}: loads have consumed up to address {end}"


def _finding(
    status: Status, text: str, count: int, case: _Case, extent: tuple[int | None, int | None]
) -> Finding:
    return Finding(
        status,
        LOAD_HOP,
        text,
        record_count=count,
        partition=case.partition,
        after_address=extent[0],
        before_address=extent[1],
    )
