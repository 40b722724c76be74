"""The audit report and the proof of an hour: what people, loads and sensors ask the store.

Values only; the tables that people see are drawn by the command line.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final

from headrace.audit import gather, wording
from headrace.audit.evidence import Counts, Evidence, Finding, Policy, Status, Verdict, worst
from headrace.audit.store import AuditStore
from headrace.audit.tally import HOUR_MS
from headrace.audit.verdicts import judge
from headrace.process.clock import now_ms as wall_ms

QUIET_DEFAULT_MS: Final = 30_000
WAIT_STEP_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Report:
    """Verdicts by topic, hour and datacenter, as of `judged_ms`."""

    judged_ms: int
    verdicts: tuple[Verdict, ...]

    @property
    def status(self) -> Status:
        """The worst verdict; unknown if there is none, since silence is no success."""
        return worst(each.status for each in self.verdicts) if self.verdicts else Status.UNKNOWN

    def to_json(self) -> dict[str, Any]:
        """Plain data for `json.dumps`."""
        return {
            "judged_ms": self.judged_ms,
            "status": str(self.status),
            "verdicts": [
                {
                    "topic": each.topic,
                    "datacenter": each.datacenter,
                    "hour_ms": each.hour_ms,
                    "hour": wording.hour(each.hour_ms),
                    "status": str(each.status),
                    "counts": each.counts._asdict(),
                    "hops": {hop: str(status) for hop, status in each.hops.items()},
                    "findings": [finding_to_json(finding) for finding in each.findings],
                }
                for each in self.verdicts
            ],
        }


@dataclass(frozen=True, slots=True)
class HourProof:
    """Whether an hour of a topic is proven complete, in every datacenter that has the topic; if not, why.

    `counts` per datacenter; `address_ranges` per datacenter and source partition: where the hour's records
    lie in the log, as (analysis partition or -1, first address, end address).
    """

    topic: str
    hour_ms: int
    complete: bool
    reasons: tuple[str, ...]
    counts: dict[str, Counts]
    address_ranges: dict[str, dict[int, tuple[int, int, int]]]
    judged_ms: int

    def to_json(self) -> dict[str, Any]:
        """Plain data for `json.dumps`."""
        data = asdict(self)
        data["counts"] = {dc: counts._asdict() for dc, counts in self.counts.items()}
        return data


def finding_to_json(finding: Finding) -> dict[str, Any]:
    """A finding as plain data."""
    return {**asdict(finding), "status": str(finding.status)}


def report(
    store: AuditStore,
    topic: str | None = None,
    from_ms: int | None = None,
    to_ms: int | None = None,
    *,
    policy: Policy | None = None,
    now_ms: int | None = None,
) -> Report:
    """Verdicts on every hour of event time that overlaps [from_ms, to_ms), of one topic or of all."""
    policy = policy or Policy()
    now_ms = wall_ms() if now_ms is None else now_ms
    verdicts: list[Verdict] = []
    with store.reading() as connection:
        for name in gather.topics(connection) if topic is None else [topic]:
            hours = gather.hours(connection, name, from_ms, to_ms)
            for evidence in gather.evidence(connection, name, hours):
                verdict = judge(evidence, policy, now_ms)
                if any(verdict.counts) or verdict.findings:
                    verdicts.append(verdict)
    return Report(now_ms, tuple(verdicts))


def is_complete(
    store: AuditStore,
    topic: str,
    hour_ms: int,
    *,
    policy: Policy | None = None,
    now_ms: int | None = None,
    quiet_ms: int = QUIET_DEFAULT_MS,
) -> HourProof:
    """Whether the hour that starts at `hour_ms` may be sealed.

    It may if it is over, every datacenter that has the topic is judged complete on every hop, every auditor
    has spoken since its end, and nothing new was said about it for `quiet_ms`. `ValueError` if `hour_ms` is
    not the start of an hour.
    """
    if hour_ms % HOUR_MS:
        raise ValueError(f"{hour_ms} ms is not the start of an hour")
    policy = policy or Policy()
    now_ms = wall_ms() if now_ms is None else now_ms
    reasons: list[str] = []
    if now_ms < hour_ms + HOUR_MS:
        reasons.append(f"{topic}, {wording.hour(hour_ms)}: the hour is not over")
    counts: dict[str, Counts] = {}
    ranges: dict[str, dict[int, tuple[int, int, int]]] = {}
    with store.reading() as connection:
        pieces = list(gather.evidence(connection, topic, [hour_ms]))
    if not pieces:
        reasons.append(f"{topic}: no tier has ever reported anything about this topic")
    for evidence in pieces:
        verdict = judge(evidence, policy, now_ms)
        counts[evidence.datacenter] = verdict.counts
        ranges[evidence.datacenter] = _address_ranges(evidence)
        reasons += [finding.text for finding in verdict.findings]
        reasons += _unsettled(evidence, now_ms, quiet_ms)
    return HourProof(topic, hour_ms, not reasons, tuple(reasons), counts, ranges, now_ms)


def wait_until_settled(
    judge_now: Callable[[], Report],
    timeout_s: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    progress: Callable[[Report], None] = lambda _report: None,
) -> Report:
    """Ask again and again until nothing is pending or unknown any more, or `timeout_s` has passed; the last
    report.

    `judge_now` makes a report; `progress` sees each.
    """
    deadline = clock() + timeout_s
    while True:
        current = judge_now()
        progress(current)
        unsettled = any(
            hop in (Status.PENDING, Status.UNKNOWN) for each in current.verdicts for hop in each.hops.values()
        )
        if (current.verdicts and not unsettled) or clock() >= deadline:
            return current
        sleep(min(WAIT_STEP_S, max(0.0, deadline - clock())))


def _unsettled(evidence: Evidence, now_ms: int, quiet_ms: int) -> list[str]:
    """Reasons not to seal yet, although nothing is missing."""
    hour = f"{evidence.topic}, {evidence.datacenter}, {wording.hour(evidence.hour_ms)}"
    beats = [place.datacenter_beat for place in evidence.partitions.values()]
    heard_ms = min((beat.at_ms for beat in beats if beat is not None), default=None)
    if heard_ms is None:
        return [f"{hour}: {evidence.datacenter}'s auditor has never reported on this topic"]
    if heard_ms < evidence.end_ms:
        since = wording.instant(heard_ms)
        return [
            (f"{hour}: {evidence.datacenter}'s auditor has not reported since {since}, before the hour's end")
        ]
    if now_ms - evidence.touched_ms < quiet_ms:
        return [f"{hour}: still changing, last at {wording.instant(evidence.touched_ms)}"]
    return []


def _address_ranges(evidence: Evidence) -> dict[int, tuple[int, int, int]]:
    ranges: dict[int, tuple[int, int, int]] = {}
    for each in evidence.datacenter_spans:
        place = evidence.partitions.get(each.partition)
        log_partition = -1 if place is None or place.log_partition is None else place.log_partition
        _, low, high = ranges.get(each.partition, (0, each.span.first_address, each.span.end_address))
        low, high = min(low, each.span.first_address), max(high, each.span.end_address)
        ranges[each.partition] = (log_partition, low, high)
    return ranges
