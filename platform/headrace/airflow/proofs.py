"""What the audit says about hours, in a form that Airflow can carry from task to task.

Owns `Proof` and what counts as decided, refused or good enough. The verdict itself is
`headrace.audit.report`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple

from headrace.airflow.hours import HOUR, hour_key, parse_hour
from headrace.audit.evidence import DELAY_DEFAULT_MS, Policy, Status, worst
from headrace.audit.report import HourProof, Report, is_complete, report
from headrace.audit.store import AuditStore

DELAY_DEFAULT: Final = timedelta(milliseconds=DELAY_DEFAULT_MS)
HOURS_MAX: Final = 10_000
REASONS_MAX: Final = 5
# What may still change by waiting.
_UNDECIDED: Final = frozenset({Status.PENDING, Status.UNKNOWN})


class Proof(NamedTuple):
    """The audit's verdict on one hour of a topic, over all datacenters.

    `status` is the audit's word, `words` its reasons in a line. `handed_over` events were handed to
    producers, `arrived` rows are in the warehouse. `full` is the audit's whole proof, as it goes into the
    seal.
    """

    topic: str
    hour: str
    status: str
    handed_over: int
    arrived: int
    words: str
    full: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        return {**self._asdict(), "full": dict(self.full)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Proof:
        return cls(**data)

    def is_enough(self, completeness: float) -> bool:
        """Whether the hour may be sealed when the share `completeness` of its events is enough."""
        if self.status == Status.COMPLETE:
            return True
        is_known_loss = self.status == Status.LOST and completeness < 1 and self.handed_over > 0
        return is_known_loss and self.arrived >= completeness * self.handed_over


def undecided(proofs: Iterable[Proof]) -> list[Proof]:
    """Those for which waiting may help."""
    return [proof for proof in proofs if proof.status in _UNDECIDED]


def refused(proofs: Iterable[Proof], completeness: float) -> list[Proof]:
    """Those that must not be sealed as things stand."""
    return [proof for proof in proofs if not proof.is_enough(completeness)]


def proofs_of(
    store_url: str,
    topic: str,
    hours: Sequence[str],
    *,
    delay: timedelta = DELAY_DEFAULT,
    now_ms: int | None = None,
) -> list[Proof]:
    """Asks the audit store about each hour, in order.

    What is missing counts as still on its way until `delay` has passed. Raises the store's own errors, and
    `HourFormatError`.
    """
    if len(hours) > HOURS_MAX:
        raise ValueError(f"{len(hours)} hours of {topic} at once; ask about at most {HOURS_MAX}")
    policy = Policy(delay_ms=delay // timedelta(milliseconds=1))
    store = AuditStore(store_url)
    proofs = []
    try:
        for hour in hours:
            start_ms = round(parse_hour(hour).timestamp() * 1000)
            end_ms = start_ms + HOUR // timedelta(milliseconds=1)
            proof = is_complete(store, topic, start_ms, policy=policy, now_ms=now_ms)
            verdicts = report(store, topic, start_ms, end_ms, policy=policy, now_ms=proof.judged_ms)
            proofs.append(_proof(hour_key(parse_hour(hour)), proof, verdicts))
    finally:
        store.close()
    return proofs


def _proof(hour: str, proof: HourProof, verdicts: Report) -> Proof:
    status = Status.COMPLETE if proof.complete else worst(each.status for each in verdicts.verdicts)
    if not proof.complete and status == Status.COMPLETE:
        # Nothing is missing, and yet the audit does not vouch for it: the hour may still change.
        status = Status.PENDING if verdicts.verdicts else Status.UNKNOWN
    words = list(proof.problems[:REASONS_MAX])
    if len(proof.problems) > REASONS_MAX:
        words.append(f"and {len(proof.problems) - REASONS_MAX} more reasons")
    return Proof(
        topic=proof.topic,
        hour=hour,
        status=str(status),
        handed_over=sum(counts.producer for counts in proof.counts.values()),
        arrived=sum(counts.warehouse for counts in proof.counts.values()),
        words="; ".join(words),
        full=proof.to_json(),
    )
