"""The audit report and the proof of an hour, as values: for people, loads and sensors.

`audit.report.view` prints a report.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final

from sqlalchemy import Connection

from headrace.audit import phrases
from headrace.audit.evidence import Evidence
from headrace.audit.findings import Accepted, Counts, Policy, Status, Verdict, worst
from headrace.audit.gathering import gather, reported
from headrace.audit.gathering.drills import ended_drills
from headrace.audit.gathering.publishers import KnownPublishers
from headrace.audit.gathering.repairs import AskedRecount, asked_recounts
from headrace.audit.gathering.tests import VerifiedTable, verified_tables
from headrace.audit.report.drill_scores import DrillScore, drill_score
from headrace.audit.report.naming import DetectionTime, detection_times
from headrace.audit.report.remedies import command_of
from headrace.audit.report.settled import NOTHING_KEPT, POLICY, KeptHours, kept_hours
from headrace.audit.report.totals import totals_of
from headrace.audit.store.fold_set_aside import read_set_aside
from headrace.audit.store.kept import last_load, last_warehouse
from headrace.audit.store.store import AuditStore
from headrace.audit.times import HOUR_MS
from headrace.audit.topic.drills import CANARY_TOPIC
from headrace.audit.topic.set_aside import SetAside
from headrace.audit.verdicts.verdicts import judge
from headrace.process.clock import now_ms as wall_ms

FORMAT: Final = 1
"""Of `Report.to_json`: fields may be added to it; none changes its meaning."""
QUIET_DEFAULT_MS: Final = 30_000
DAY_MS: Final = 24 * HOUR_MS
"""How far back a report counts the times that findings took."""
WAIT_STEP_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Report:
    """Verdicts by topic, hour and datacenter, as of `judged_ms`.

    `set_aside`: records of the audit topics that were not believed. They change no verdict. `recounts`: the
    newest counts that people had made again. `verified`: what the newest verification of each table found.
    `detection`: how long findings of the last day took to be named, by hop. `drill`: how many plants of the
    last day's drills the audit found; None if there never was a drill.
    """

    judged_ms: int
    verdicts: tuple[Verdict, ...]
    set_aside: tuple[SetAside, ...] = ()
    recounts: tuple[AskedRecount, ...] = ()
    verified: tuple[VerifiedTable, ...] = ()
    detection: tuple[DetectionTime, ...] = ()
    drill: DrillScore | None = None

    @property
    def status(self) -> Status:
        """The worst verdict; unknown without any, because silence is not success. Corrupt, at least, if a
        table has problems that are of no single hour.
        """
        if not self.verdicts:
            return Status.UNKNOWN
        of_tables = (Status.CORRUPT for each in self.verified if each.of_no_hour)
        return worst((*(verdict.status for verdict in self.verdicts), *of_tables))

    def to_json(self) -> dict[str, Any]:
        """Returns plain data for `json.dumps`; docs/audit.md describes it."""
        return {
            "format": FORMAT,
            "judged_ms": self.judged_ms,
            "status": str(self.status),
            "totals": [totals.to_json() for totals in totals_of(self.verdicts)],
            "verdicts": [
                {
                    "topic": verdict.topic,
                    "datacenter": verdict.datacenter,
                    "hour_ms": verdict.hour_ms,
                    "hour": phrases.hour(verdict.hour_ms),
                    "status": str(verdict.status),
                    "counted_from": verdict.counted_from,
                    "counts": verdict.counts._asdict(),
                    "hops": {hop: str(status) for hop, status in verdict.hops.items()},
                    "accepted": [_accepted(each) for each in verdict.accepted],
                    "notes": list(verdict.notes),
                    "findings": [
                        {
                            **asdict(finding),
                            "status": str(finding.status),
                            "command": command_of(verdict, finding) or None,
                        }
                        for finding in verdict.findings
                    ],
                }
                for verdict in self.verdicts
            ],
            "set_aside": [each._asdict() for each in self.set_aside],
            "recounts": [each._asdict() for each in self.recounts],
            "verified": [each.to_json() for each in self.verified],
            "detection": [each._asdict() for each in self.detection],
            "drill": None if self.drill is None else self.drill.to_json(),
        }


@dataclass(frozen=True, slots=True)
class HourProof:
    """Whether an hour of a topic is proven complete in every datacenter that has the topic.

    `problems` say why not. `counts` are per datacenter, as is `counted_from` (see `Verdict`).
    `address_ranges` are per datacenter and source partition: where the hour's records lie in the log, as
    (analysis partition or -1, first address, end address). `accepted`: findings that people have accepted.
    `load_sequence`: the newest change of the table of which the audit had heard; None without any.
    `forgotten`: the audit has forgotten what the hour had before; `complete` is then about the late events
    alone, and an earlier seal alone vouches for the others.
    """

    topic: str
    hour_ms: int
    complete: bool
    problems: tuple[str, ...]
    counts: dict[str, Counts]
    address_ranges: dict[str, dict[int, tuple[int, int, int]]]
    judged_ms: int
    counted_from: dict[str, str]
    accepted: tuple[Accepted, ...] = ()
    load_sequence: int | None = None
    forgotten: bool = False

    def to_json(self) -> dict[str, Any]:
        """Returns plain data for `json.dumps`."""
        return {
            "topic": self.topic,
            "hour_ms": self.hour_ms,
            "complete": self.complete,
            "counted_from": self.counted_from,
            "reasons": self.problems,
            "counts": {datacenter: counts._asdict() for datacenter, counts in self.counts.items()},
            "address_ranges": self.address_ranges,
            "judged_ms": self.judged_ms,
            "accepted": [_accepted(each) for each in self.accepted],
            "load_sequence": self.load_sequence,
            "forgotten": self.forgotten,
        }


def report(
    store: AuditStore,
    topic: str | None = None,
    from_ms: int | None = None,
    to_ms: int | None = None,
    *,
    policy: Policy | None = None,
    now_ms: int | None = None,
    use_kept: bool = True,
) -> Report:
    """Judges every hour of event time that overlaps [from_ms, to_ms), of one topic or of all.

    `use_kept`: whether those on settled hours may be the ones that the auditor keeps (`report.settled`).

    All topics are those of the site: the canary topic, in which drills plant failures, must be asked for.
    """
    policy = policy or Policy()
    now_ms = wall_ms() if now_ms is None else now_ms
    verdicts: list[Verdict] = []
    window = (from_ms, to_ms)
    with store.reading() as connection:
        known = KnownPublishers(connection)
        for name in _topics(connection) if topic is None else [topic]:
            found = kept_hours(connection, name, *window) if use_kept and policy == POLICY else NOTHING_KEPT
            judged = _verdicts(connection, name, found, window, policy, now_ms, known)
            verdicts += (each for each in judged if any(each.counts) or each.findings)
        aside = tuple(read_set_aside(connection))
        recounts = tuple(asked_recounts(connection, topic))
        verified = _verified(connection, topic)
        detection = tuple(detection_times(connection, now_ms - DAY_MS))
        drill = drill_score(connection, ended_drills(connection), now_ms, policy)
    return Report(now_ms, tuple(verdicts), aside, recounts, verified, detection, drill)


def _verified(connection: Connection, topic: str | None) -> tuple[VerifiedTable, ...]:
    """Returns the verified tables of a topic or of the site; of the canary only the present one."""
    found = verified_tables(connection, topic)
    present = last_warehouse(connection, CANARY_TOPIC) if topic == CANARY_TOPIC else None
    return tuple(each for each in found if each.topic != CANARY_TOPIC or each.warehouse == present)


def _topics(connection: Connection) -> list[str]:
    return [name for name in reported.topics(connection) if name != CANARY_TOPIC]


def _verdicts(
    connection: Connection,
    topic: str,
    found: KeptHours,
    window: tuple[int | None, int | None],
    policy: Policy,
    now_ms: int,
    known: KnownPublishers,
) -> list[Verdict]:
    """Returns the verdicts on a topic's hours, kept or fresh, by hour, then datacenter."""
    verdicts: list[Verdict] = []
    fresh: list[int] = []
    for hour_ms in reported.hours(connection, topic, *window):
        settled = found.of_hour(hour_ms)
        if settled is None:
            fresh.append(hour_ms)
        else:
            verdicts += settled
    verdicts += (judge(each, policy, now_ms) for each in gather.evidence(connection, topic, fresh, known))
    return sorted(verdicts, key=lambda verdict: (verdict.hour_ms, verdict.datacenter))


def is_complete(
    store: AuditStore,
    topic: str,
    hour_ms: int,
    *,
    policy: Policy | None = None,
    now_ms: int | None = None,
    quiet_ms: int = QUIET_DEFAULT_MS,
) -> HourProof:
    """Judges whether the hour that starts at `hour_ms` may be sealed.

    It may if it is over, every datacenter that has the topic is judged complete on every hop, every auditor
    has reported since the hour's end, and nothing new was reported about it for `quiet_ms`. Raises
    `ValueError` if `hour_ms` is not the start of an hour.
    """
    if hour_ms % HOUR_MS:
        raise ValueError(f"{hour_ms} ms is not the start of an hour")
    policy = policy or Policy()
    now_ms = wall_ms() if now_ms is None else now_ms
    problems: list[str] = []
    if now_ms < hour_ms + HOUR_MS:
        problems.append(f"{topic}, {phrases.hour(hour_ms)}: the hour is not over")
    counts: dict[str, Counts] = {}
    accepted: list[Accepted] = []
    ranges: dict[str, dict[int, tuple[int, int, int]]] = {}
    with store.reading() as connection:
        found = list(gather.evidence(connection, topic, [hour_ms]))
        heard = last_load(connection, topic)
    if not found:
        problems.append(f"{topic}: no tier has ever reported anything about this topic")
    for evidence in found:
        verdict = judge(evidence, policy, now_ms)
        counts[evidence.datacenter] = verdict.counts
        ranges[evidence.datacenter] = _address_ranges(evidence)
        accepted += verdict.accepted
        problems += [finding.text for finding in verdict.findings]
        problems += _unstable(evidence, now_ms, quiet_ms)
    if not any(evidence.touched_ms for evidence in found):
        problems += (_forgotten(evidence) for evidence in found if evidence.is_forgotten)
    origins = {evidence.datacenter: evidence.counted_from for evidence in found}
    return HourProof(
        topic,
        hour_ms,
        not problems,
        tuple(problems),
        counts,
        ranges,
        now_ms,
        origins,
        tuple(accepted),
        heard,
        any(evidence.is_forgotten for evidence in found),
    )


def wait_until_resolved(
    judge_now: Callable[[], Report],
    timeout_s: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    progress: Callable[[Report], None] = lambda _report: None,
) -> Report:
    """Calls `judge_now` until nothing is pending or unknown, or `timeout_s` has passed.

    Returns the last report. `progress` receives every report.
    """
    deadline = clock() + timeout_s
    while True:
        current = judge_now()
        progress(current)
        hops = {hop for verdict in current.verdicts for hop in verdict.hops.values()}
        is_resolved = not hops & {Status.PENDING, Status.UNKNOWN}
        if (current.verdicts and is_resolved) or clock() >= deadline:
            return current
        sleep(min(WAIT_STEP_S, max(0.0, deadline - clock())))


def _accepted(each: Accepted) -> dict[str, Any]:
    return {
        "status": str(each.finding.status),
        "record_count": each.finding.record_count,
        "text": each.finding.text,
        **each.acceptance._asdict(),
    }


def _forgotten(evidence: Evidence) -> str:
    hour = f"{evidence.topic}, {evidence.datacenter}, {phrases.hour(evidence.hour_ms)}"
    return f"{hour}: the audit has forgotten this hour: {phrases.FORGOTTEN}"


def _unstable(evidence: Evidence, now_ms: int, quiet_ms: int) -> list[str]:
    """Returns the problems of an hour that may still change, although nothing is missing."""
    datacenter = evidence.datacenter
    hour = f"{evidence.topic}, {datacenter}, {phrases.hour(evidence.hour_ms)}"
    heartbeats = (place.datacenter.heartbeat for place in evidence.partitions.values())
    oldest_ms = min((each.at_ms - evidence.ahead_ms for each in heartbeats if each), default=None)
    if oldest_ms is None:
        return [f"{hour}: {datacenter}'s auditor has never reported on this topic"]
    if oldest_ms < evidence.end_ms and evidence.deleted_ms is None:  # else `audit.verdicts.silence` judges it
        since = phrases.instant(oldest_ms)
        return [f"{hour}: {datacenter}'s auditor has not reported since {since}, before the hour's end"]
    is_future = evidence.touched_ms > now_ms + quiet_ms  # said by a clock that is ahead: it says nothing
    if now_ms - evidence.touched_ms < quiet_ms and not is_future:
        return [f"{hour}: still changing, last at {phrases.instant(evidence.touched_ms)}"]
    return []


def _address_ranges(evidence: Evidence) -> dict[int, tuple[int, int, int]]:
    ranges: dict[int, tuple[int, int, int]] = {}
    for counted in evidence.datacenter_spans:
        span, log_partition = counted.span, evidence.partition(counted.partition).log_partition
        _, low, high = ranges.get(counted.partition, (0, span.first_address, span.end_address))
        ranges[counted.partition] = (
            -1 if log_partition is None else log_partition,
            min(low, span.first_address),
            max(high, span.end_address),
        )
    return ranges
