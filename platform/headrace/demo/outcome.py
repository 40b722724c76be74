"""What a run came to: latencies of the hops, rows against lines, and which findings are this run's.

Owns the comparisons. Pure.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from headrace.audit.evidence import Finding, Status
from headrace.audit.report import Report
from headrace.demo.latency import Latencies
from headrace.demo.watcher import Arrival


class Load(NamedTuple):
    """A committed load: the addresses [start, end) it made readable, by partition; when; how many files."""

    readable_ms: int
    ranges: dict[int, tuple[int, int]]
    file_count: int = 0


def latency_to_hdfs(arrivals: Iterable[Arrival], loads: Iterable[Load]) -> Latencies:
    """From `published-ms` to the end of the load that holds the record; records of no load are left out."""
    starts: dict[int, list[tuple[int, int, int]]] = {}
    for load in loads:
        for partition, (start, end) in load.ranges.items():
            starts.setdefault(partition, []).append((start, end, load.readable_ms))
    for ranges in starts.values():
        ranges.sort()
    latencies = Latencies()
    for arrival in arrivals:
        ranges = starts.get(arrival.partition, [])
        at = bisect_right(ranges, arrival.offset, key=lambda each: each[0]) - 1
        if at >= 0 and arrival.offset < ranges[at][1]:
            latencies.add(ranges[at][2] - arrival.published_ms)
    return latencies


class HourDifference(NamedTuple):
    """An hour in which HDFS does not hold what was published. `hour_ms` is Unix time."""

    hour_ms: int
    published: int
    rows: int
    distinct_rows: int


def differences(published: Mapping[int, int], in_hdfs: Mapping[int, tuple[int, int]]) -> list[HourDifference]:
    """The hours whose rows, or distinct rows, are not as many as were published."""
    found = []
    for hour_ms in sorted(published.keys() | in_hdfs.keys()):
        rows, distinct = in_hdfs.get(hour_ms, (0, 0))
        if not rows == distinct == published.get(hour_ms, 0):
            found.append(HourDifference(hour_ms, published.get(hour_ms, 0), rows, distinct))
    return found


def identity(finding: Finding) -> tuple[object, ...]:
    """What makes two findings of two reports the same one: all but the words, which tell the time."""
    return (
        finding.hop,
        finding.partition,
        finding.producer_id,
        finding.producer_epoch,
        finding.sequences,
        finding.after_address,
    )


def new_findings(before: Report, after: Report) -> list[Finding]:
    """The findings of `after` that are not in `before`: those of this run."""
    old = Counter(
        (verdict.datacenter, verdict.hour_ms, identity(finding))
        for verdict in before.verdicts
        for finding in verdict.findings
        if finding.status in (Status.LOST, Status.DUPLICATED)
    )
    return [
        finding
        for verdict in after.verdicts
        for finding in verdict.findings
        if (verdict.datacenter, verdict.hour_ms, identity(finding)) not in old
    ]
