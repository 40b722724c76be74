"""How long the audit takes to name what is wrong: from the report that shows it to the finding.

The auditor that folds the store judges the hours that are being reported on, again and again, and writes down
when it first had each finding. `since_ms` of a finding is when the tier before reported the events: a
publisher says what it was handed every ten seconds, so the event itself may be that much older.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, delete, select

from headrace.audit.findings import HOPS, Policy, Verdict
from headrace.audit.gathering import gather
from headrace.audit.gathering.publishers import KnownPublishers
from headrace.audit.store import measured_tables, tables
from headrace.audit.store.inserting import insert_new
from headrace.audit.store.store import AuditStore
from headrace.audit.topic.acceptances import acceptable
from headrace.audit.topic.drills import CANARY_TOPIC
from headrace.audit.verdicts.verdicts import judge

HOURS_MAX: Final = 200
"""Of one look: topics and hours, those that were reported on last first."""
SLACK_MS: Final = 60_000
NAMES_KEPT_MS: Final = 7 * 24 * 3_600_000
NOT_TIMED_MS: Final = -1
"""Of a finding that is older than the looking: nobody saw when it was named."""


class DetectionTime(NamedTuple):
    """How long findings of one hop took to be named, of those that are timed."""

    hop: str
    findings: int
    p50_ms: int
    p99_ms: int
    slowest_ms: int


def name_findings(store: AuditStore, now_ms: int, begun_ms: int, policy: Policy | None = None) -> int:
    """Judges the hours that were reported on lately, and keeps which findings are new; returns how many.
    What a drill plants does not count: a report has the times of drills by themselves.

    `begun_ms`: since when this is done without a break. What was reported before is kept without a time.
    """
    policy = policy or Policy()
    fresh: list[dict[str, Any]] = []
    with store.reading() as connection:
        known = KnownPublishers(connection)
        for topic, hours_ms in _touched(connection, now_ms - policy.delay_ms - SLACK_MS).items():
            if topic == CANARY_TOPIC:
                continue
            for evidence in gather.evidence(connection, topic, hours_ms, known):
                fresh += _rows_of(judge(evidence, policy, now_ms), now_ms, begun_ms)
    if not fresh:
        return 0
    with store.writing() as connection:
        return sum(bool(insert_new(connection, measured_tables.named, row)) for row in fresh)


def _rows_of(verdict: Verdict, now_ms: int, begun_ms: int) -> Iterator[dict[str, Any]]:
    """Yields the rows of what a verdict names."""
    for digest, finding in acceptable(verdict).items():
        is_timed = finding.since_ms is not None and begun_ms <= finding.since_ms <= now_ms
        took_ms = now_ms - (finding.since_ms or 0) if is_timed else NOT_TIMED_MS
        yield {"digest": digest, "hop": finding.hop, "took_ms": took_ms, "named_ms": now_ms}


def forget_names(store: AuditStore, now_ms: int) -> None:
    """Forgets what was named long ago."""
    with store.writing() as connection:
        connection.execute(
            delete(measured_tables.named).where(measured_tables.named.c.named_ms < now_ms - NAMES_KEPT_MS)
        )


def detection_times(connection: Connection, since_ms: int) -> list[DetectionTime]:
    """Returns how long findings took that were named since a moment, by hop, in the order of the hops."""
    table = measured_tables.named
    query = select(table.c.hop, table.c.took_ms).where(
        table.c.named_ms >= since_ms, table.c.took_ms > NOT_TIMED_MS
    )
    by_hop: defaultdict[str, list[int]] = defaultdict(list)
    for hop, took_ms in connection.execute(query):
        by_hop[hop].append(took_ms)
    return [_times(hop, sorted(by_hop[hop])) for hop in HOPS if by_hop[hop]]


def _times(hop: str, took_ms: Sequence[int]) -> DetectionTime:
    def at_least(share: float) -> int:
        return took_ms[min(len(took_ms) - 1, int(share * len(took_ms)))]

    return DetectionTime(hop, len(took_ms), at_least(0.5), at_least(0.99), took_ms[-1])


def _touched(connection: Connection, since_ms: int) -> dict[str, list[int]]:
    table = tables.hours
    query = select(table.c.topic, table.c.hour_ms).where(table.c.touched_ms >= since_ms).distinct()
    found: defaultdict[str, list[int]] = defaultdict(list)
    for topic, hour_ms in connection.execute(query.order_by(table.c.hour_ms.desc()).limit(HOURS_MAX)):
        found[topic].append(hour_ms)
    return {topic: sorted(hours_ms) for topic, hours_ms in found.items()}
