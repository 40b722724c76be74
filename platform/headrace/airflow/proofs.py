"""The audit's verdicts on hours, in a form that Airflow can pass from task to task.

Owns `Proof`, and which proofs are undecided, or let an hour be sealed. `headrace.audit.report.report` judges.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple

from headrace.airflow.hours import HOUR, hour_key, parse_hour
from headrace.audit.findings import DELAY_DEFAULT_MS, Finding, Policy, Status, Verdict, worst
from headrace.audit.report.report import HourProof, Report, is_complete, report
from headrace.audit.store.store import AuditStore
from headrace.audit.topic.declarations import FROM_LOG

DELAY_DEFAULT: Final = timedelta(milliseconds=DELAY_DEFAULT_MS)
HOURS_MAX: Final = 10_000
HOURS_SHOWN_MAX: Final = 10
PROBLEMS_SHOWN_MAX: Final = 5
PROBLEMS_KEPT_MAX: Final = 100
"""Of an hour, in its document: an XCom has the documents of a day, and an outage may have thousands."""
FORGOTTEN: Final = "forgotten"
"""The status of an hour whose late events are complete, and of which the audit has forgotten the others: an
earlier seal alone vouches for them, so the seal decides."""
# Statuses that may still change.
_UNDECIDED: Final = frozenset({Status.PENDING, Status.UNKNOWN})
_FORGOTTEN_TEXT: Final = "the audit has forgotten what it had before these late events, which are complete"
# The fields of `Proof` in XComs and trigger events.
_JSON_KEYS: Final = ("topic", "hour", "status", "handed_over", "arrived", "words", "full", "missing")
# Corrupt events are a loss, too.
_LOSSES: Final = frozenset({Status.LOST, Status.CORRUPT})


class Proof(NamedTuple):
    """The audit's verdict on one hour of a topic, over all datacenters.

    `status` is the audit's status, or `FORGOTTEN`, `problem_text` its problems in one line. `handed_over`
    events were handed to producers, or are in the log where the topic is counted from the log on; `arrived`
    rows are in the warehouse, duplicates included. `proof_document` is what the seal stores. `missing` events
    are known to be lost or corrupt; None if that is not all that keeps the hour from being complete.
    """

    topic: str
    hour: str
    status: str
    handed_over: int
    arrived: int
    problem_text: str
    proof_document: Mapping[str, Any]
    missing: int | None = 0

    def to_json(self) -> dict[str, Any]:
        return dict(zip(_JSON_KEYS, self, strict=True))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Proof:
        # An event that an older headrace wrote does not say what is missing.
        known = {"missing": None, **data}
        return cls(*(known[key] for key in _JSON_KEYS))

    def may_be_sealed(self, completeness: float) -> bool:
        """Whether the hour may be sealed if it requires the share `completeness` of its events.

        It may lack events of which the audit knows that they are lost, and nothing else: rows that are there
        twice make up for none, and of what is unknown, or still to come, nobody knows how much it is.
        """
        if self.status == Status.COMPLETE:
            return True
        if self.status not in _LOSSES or completeness >= 1 or self.handed_over <= 0 or self.missing is None:
            return False
        return min(self.arrived, self.handed_over - self.missing) >= completeness * self.handed_over


def undecided(proofs: Iterable[Proof]) -> list[Proof]:
    """Returns the proofs whose status may still change."""
    return [proof for proof in proofs if proof.status in _UNDECIDED]


def refused(proofs: Iterable[Proof], completeness: float) -> list[Proof]:
    """Returns the proofs of hours that are not complete."""
    return [proof for proof in proofs if not proof.may_be_sealed(completeness)]


def summary(proofs: Sequence[Proof], count: int | None = None) -> str:
    """Returns hours and their problems in one line. `count`: the number of hours, if more than `proofs`."""
    shown = [f"{proof.hour} is {proof.status}: {proof.problem_text}" for proof in proofs[:HOURS_SHOWN_MAX]]
    more = (len(proofs) if count is None else count) - len(shown)
    return "; ".join(shown) + (f"; and {more} more hours" if more else "")


def proofs_of(
    store_url: str,
    topic: str,
    hours: Sequence[str],
    *,
    delay: timedelta = DELAY_DEFAULT,
    now_ms: int | None = None,
) -> list[Proof]:
    """Returns the proof of each hour, in order, from the audit store.

    Missing events count as late, not lost, until `delay` has passed. Raises the store's own errors, and
    `HourFormatError`.
    """
    if len(hours) > HOURS_MAX:
        raise ValueError(f"{len(hours)} hours of {topic} at once, more than {HOURS_MAX}")
    policy = Policy(delay_ms=delay // timedelta(milliseconds=1))
    store = AuditStore(store_url, must_exist=True)
    proofs = []
    try:
        for hour in hours:
            start_ms = round(parse_hour(hour).timestamp() * 1000)
            end_ms = start_ms + HOUR // timedelta(milliseconds=1)
            proof = is_complete(store, topic, start_ms, policy=policy, now_ms=now_ms)
            # Judged alike, so that both say the same of each finding.
            verdicts = report(
                *(store, topic, start_ms, end_ms),
                policy=policy,
                now_ms=proof.judged_ms,
                use_kept=proof.complete,
            )
            proofs.append(_proof(hour_key(parse_hour(hour)), proof, verdicts))
    finally:
        store.close()
    return proofs


def _proof(hour: str, proof: HourProof, verdicts: Report) -> Proof:
    status = Status.COMPLETE if proof.complete else worst(verdict.status for verdict in verdicts.verdicts)
    if not proof.complete and status == Status.COMPLETE:
        # No event is missing, but the audit has no proof: the hour may still change.
        status = Status.PENDING if verdicts.verdicts else Status.UNKNOWN
    is_forgotten = proof.complete and proof.forgotten
    losses = [
        finding
        for verdict in verdicts.verdicts
        for finding in verdict.findings
        if finding.status in _LOSSES and _is_measured(finding, verdict)
    ]
    is_loss_alone = {finding.text for finding in losses}.issuperset(proof.problems)
    return Proof(
        topic=proof.topic,
        hour=hour,
        status=FORGOTTEN if is_forgotten else str(status),
        handed_over=sum(_handed_over(proof, datacenter) for datacenter in proof.counts),
        arrived=sum(counts.warehouse for counts in proof.counts.values()),
        problem_text=_FORGOTTEN_TEXT
        if is_forgotten
        else "; ".join(_first(proof.problems, PROBLEMS_SHOWN_MAX)),
        proof_document={**proof.to_json(), "reasons": _first(proof.problems, PROBLEMS_KEPT_MAX)},
        missing=sum(finding.record_count or 0 for finding in losses) if is_loss_alone else None,
    )


def _is_measured(loss: Finding, verdict: Verdict) -> bool:
    """Whether it is known how many events a loss takes from the hour. Of damage that does not say it,
    producers' numbers do; where only the log counts, nothing does.
    """
    return loss.record_count is not None or verdict.counted_from != FROM_LOG


def _first(problems: Sequence[str], most: int) -> list[str]:
    """Returns the first problems, and how many there are besides."""
    more = len(problems) - most
    return [*problems[:most], *([f"and {more} more problems"] if more > 0 else [])]


def _handed_over(proof: HourProof, datacenter: str) -> int:
    counts = proof.counts[datacenter]
    if proof.counted_from[datacenter] == FROM_LOG:
        return max(counts.producer, counts.datacenter)
    return counts.producer
