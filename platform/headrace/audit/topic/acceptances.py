"""Acceptances: somebody's word, by name and with a reason, that findings of an hour stay as they are. Pure.

An acceptance names the digest of each finding that it covers. A finding that changes, because more is lost or
at another place, has another digest, and is covered by no earlier acceptance.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

from headrace.audit.evidence import Acceptance
from headrace.audit.findings import LOAD_HOP, Accepted, Finding, Status, Verdict
from headrace.audit.phrases import FORGOTTEN
from headrace.audit.topic.avro_times import to_datetime, to_ms

ACCEPTABLE: Final = (Status.LOST, Status.DUPLICATED, Status.ALTERED, Status.CORRUPT)
_BY_NUMBERS: Final = (Status.LOST, Status.DUPLICATED, Status.UNKNOWN)
DIGEST_CHARS: Final = 64
FINDINGS_MAX: Final = 1_000
"""That are believed of one record."""
FINDINGS_PER_RECORD_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class AcceptanceRecord:
    """`audit-acceptance.avsc` describes the fields."""

    schema_file: ClassVar[str] = "audit-acceptance.avsc"

    topic: str
    hour_ms: int
    digests: tuple[str, ...]
    texts: tuple[str, ...]
    said_by: str
    reason: str
    withdrawn: bool = False

    def key(self) -> str:
        return f"acceptance/{self.topic}"

    def to_avro(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "hour": to_datetime(self.hour_ms),
            "digests": list(self.digests),
            "texts": list(self.texts),
            "said_by": self.said_by,
            "reason": self.reason,
            "withdrawn": self.withdrawn,
        }

    @classmethod
    def from_avro(cls, data: Mapping[str, Any]) -> AcceptanceRecord:
        return cls(
            data["topic"],
            to_ms(data["hour"]),
            tuple(data["digests"]),
            tuple(data["texts"]),
            data["said_by"],
            data["reason"],
            data["withdrawn"],
        )


def digest_of(topic: str, datacenter: str, hour_ms: int, finding: Finding) -> str:
    """Returns the digest of what a finding says, whose sentence may change with time and version.

    Events that are named by their numbers need no addresses, which get wider when the store merges old
    tallies.
    """
    return _digest(topic, datacenter, hour_ms, finding, has_addresses=not _is_by_numbers(finding))


def digests_of(topic: str, datacenter: str, hour_ms: int, finding: Finding) -> tuple[str, ...]:
    """Returns the digest of a finding, and the one by which earlier versions accepted it."""
    found = digest_of(topic, datacenter, hour_ms, finding)
    if finding.status is Status.UNKNOWN or not (_is_by_numbers(finding) or finding.about):
        return (found,)
    earlier = replace(finding, about="")
    return found, _digest(topic, datacenter, hour_ms, earlier, has_addresses=True)


def _is_by_numbers(finding: Finding) -> bool:
    return finding.sequences is not None and finding.status in _BY_NUMBERS


def _digest(topic: str, datacenter: str, hour_ms: int, finding: Finding, *, has_addresses: bool) -> str:
    said = (
        topic,
        datacenter,
        hour_ms,
        str(finding.status),
        finding.hop,
        finding.record_count,
        finding.partition,
        finding.producer_id,
        finding.producer_epoch,
        finding.service,
        finding.server,
        finding.sequences,
        *((finding.after_address, finding.before_address) if has_addresses else ()),
        *(() if finding.path is None else (finding.path,)),
        *(("about", finding.about) if finding.about else ()),
    )
    return hashlib.sha256(json.dumps(said, ensure_ascii=True).encode()).hexdigest()


def sort_out(
    findings: list[Finding], acceptances: Mapping[str, Acceptance], topic: str, datacenter: str, hour_ms: int
) -> tuple[list[Finding], list[Accepted]]:
    """Returns the findings that stand, and those that are accepted."""
    standing: list[Finding] = []
    accepted: list[Accepted] = []
    for finding in findings:
        digests = digests_of(topic, datacenter, hour_ms, finding) if acceptances else ()
        found = next((acceptances[each] for each in digests if each in acceptances), None)
        if found is not None and may_be_accepted(finding):
            accepted.append(Accepted(finding, found))
        else:
            standing.append(finding)
    return standing, accepted


def may_be_accepted(finding: Finding) -> bool:
    """Whether people may accept a finding: a proven one, or one of something that is unknown and may stay so.

    What a load, or an auditor that runs again, tells by itself is waited for instead.
    """
    if finding.status is not Status.UNKNOWN:
        return finding.status in ACCEPTABLE
    if finding.hop == LOAD_HOP:
        return FORGOTTEN in finding.text
    return finding.record_count is not None or bool(finding.about)


def acceptable(verdict: Verdict, *, unknown: bool = False) -> dict[str, Finding]:
    """Returns the findings of a verdict that can be accepted, by digest: the proven ones, and with `unknown`
    those of what is unknown, too.
    """
    return {
        digest_of(verdict.topic, verdict.datacenter, verdict.hour_ms, finding): finding
        for finding in verdict.findings
        if may_be_accepted(finding) and (unknown or finding.status in ACCEPTABLE)
    }
