"""What the tiers counted in all hours of a report together, by topic and datacenter. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from headrace.audit.findings import Counts, Status, Verdict, worst
from headrace.audit.topic.declarations import FROM_LOG


class Totals(NamedTuple):
    """The sums of one topic from one datacenter: `complete` of its `hours` are complete.

    `is_from_log`: at least one of the hours is counted from the log on. `accepted`: findings that people have
    accepted.
    """

    topic: str
    datacenter: str
    hours: int
    complete: int
    counts: Counts
    status: Status
    is_from_log: bool
    accepted: int = 0

    def to_json(self) -> dict[str, Any]:
        """Returns plain data for `json.dumps`."""
        return {
            "topic": self.topic,
            "datacenter": self.datacenter,
            "hours": self.hours,
            "complete_hours": self.complete,
            "status": str(self.status),
            "accepted_findings": self.accepted,
            "counts": self.counts._asdict(),
        }


def totals_of(verdicts: Iterable[Verdict]) -> list[Totals]:
    """Returns the totals, by topic and datacenter."""
    groups: dict[tuple[str, str], list[Verdict]] = {}
    for verdict in verdicts:
        groups.setdefault((verdict.topic, verdict.datacenter), []).append(verdict)
    return [
        Totals(
            topic,
            datacenter,
            len(group),
            sum(verdict.status is Status.COMPLETE for verdict in group),
            Counts(*(sum(column) for column in zip(*(verdict.counts for verdict in group), strict=True))),
            worst(verdict.status for verdict in group),
            any(verdict.counted_from == FROM_LOG for verdict in group),
            sum(len(verdict.accepted) for verdict in group),
        )
        for (topic, datacenter), group in sorted(groups.items())
    ]
