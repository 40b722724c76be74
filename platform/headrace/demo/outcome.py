"""The outcome of a run: latency to HDFS, rows in HDFS against events published, new findings. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from headrace.audit.findings import PRODUCER_HOP, Finding, Status
from headrace.audit.report.report import Report
from headrace.demo.latency import Latencies
from headrace.demo.watcher import Arrival

NOT_COMPLETE: Final = 1
MUCH_UNPARSABLE: Final = 4
UNPARSABLE_SHARE_MAX: Final = 0.01


class DemoLoad(NamedTuple):
    """A committed load: its time, its range [start, end) of each partition, and its number of files."""

    readable_ms: int
    ranges: dict[int, tuple[int, int]]
    file_count: int = 0


def latency_to_hdfs(arrivals: Iterable[Arrival], loads: Iterable[DemoLoad]) -> Latencies:
    """Returns the latencies from `published-ms` to the commit of the load that has the record.

    Leaves out records that no load has.
    """
    starts: dict[int, list[tuple[int, int, int]]] = {}
    for load in loads:
        for partition, (start, end) in load.ranges.items():
            starts.setdefault(partition, []).append((start, end, load.readable_ms))
    for ranges in starts.values():
        ranges.sort()
    latencies = Latencies()
    for arrival in arrivals:
        ranges = starts.get(arrival.partition, [])
        at = bisect_right(ranges, arrival.offset, key=lambda entry: entry[0]) - 1
        if at >= 0 and arrival.offset < ranges[at][1]:
            latencies.add(ranges[at][2] - arrival.published_ms)
    return latencies


class HourDifference(NamedTuple):
    """An hour (Unix ms) whose rows in HDFS differ from the events published."""

    hour_ms: int
    published: int
    rows: int
    distinct_rows: int


def differences(published: Mapping[int, int], in_hdfs: Mapping[int, tuple[int, int]]) -> list[HourDifference]:
    """Returns the hours whose rows, or distinct rows, are not as many as the events published.

    `in_hdfs`: hour (Unix ms) → rows, and distinct rows.
    """
    found = []
    for hour_ms in sorted(published.keys() | in_hdfs.keys()):
        rows, distinct = in_hdfs.get(hour_ms, (0, 0))
        if not rows == distinct == published.get(hour_ms, 0):
            found.append(HourDifference(hour_ms, published.get(hour_ms, 0), rows, distinct))
    return found


def exit_code(*, is_complete: bool, lines: int, unparsable: int) -> int:
    """Returns the demo's exit code: `MUCH_UNPARSABLE` if all events arrived, but more than
    `UNPARSABLE_SHARE_MAX` of the input's lines did not become events.
    """
    if not is_complete:
        return NOT_COMPLETE
    return MUCH_UNPARSABLE if unparsable > UNPARSABLE_SHARE_MAX * lines else 0


def identity(finding: Finding) -> tuple[object, ...]:
    """The fields that two findings of the same loss share: all but the text, which contains the time."""
    return (
        finding.hop,
        finding.partition,
        finding.producer_id,
        finding.producer_epoch,
        finding.sequences,
        finding.after_address,
    )


def new_findings(before: Report, after: Report) -> list[Finding]:
    """Returns the findings of `after` that are not in `before`."""
    old = Counter(
        (verdict.datacenter, verdict.hour_ms, identity(finding))
        for verdict in before.verdicts
        for finding in verdict.findings
        if finding.status in (Status.LOST, Status.CORRUPT, Status.ALTERED, Status.DUPLICATED)
    )
    return [
        finding
        for verdict in after.verdicts
        for finding in verdict.findings
        if (verdict.datacenter, verdict.hour_ms, identity(finding)) not in old
    ]


def brought_back(before: Report, after: Report, hours_ms: Collection[int]) -> Counter[int]:
    """Returns, by hour (Unix ms), how many events that were lost before a datacenter's log are not lost any
    more: a repair of an hour brings all that is lost there, of earlier runs, too.
    """
    left = {
        (verdict.datacenter, verdict.hour_ms, identity(finding))
        for verdict in after.verdicts
        for finding in verdict.findings
    }
    found: Counter[int] = Counter()
    for verdict in before.verdicts:
        for finding in verdict.findings if verdict.hour_ms in hours_ms else ():
            is_lost = finding.status is Status.LOST and finding.hop == PRODUCER_HOP
            if is_lost and (verdict.datacenter, verdict.hour_ms, identity(finding)) not in left:
                found[verdict.hour_ms] += finding.record_count or 0
    return found
