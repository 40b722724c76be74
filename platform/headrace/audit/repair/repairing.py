"""What the audit's evidence says of some hours of a topic, for repairs and acceptances; waiting for it."""

from __future__ import annotations

import getpass
import socket
import time
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from headrace.audit.evidence import Evidence
from headrace.audit.findings import LOAD_HOP, MIRROR_HOP, PRODUCER_HOP, Finding, Policy, Status, Verdict
from headrace.audit.gathering import gather
from headrace.audit.store.store import AuditStore
from headrace.audit.verdicts.verdicts import judge
from headrace.process.clock import now_ms as wall_ms

WAIT_STEP_S: Final = 0.5
NAME_MAX_CHARS: Final = 120


class Judged(NamedTuple):
    """One hour of a topic from one datacenter: what is known, and what follows."""

    evidence: Evidence
    verdict: Verdict


def judged(
    store: AuditStore,
    topic: str,
    hours_ms: Iterable[int],
    *,
    policy: Policy | None = None,
    now_ms: int | None = None,
) -> list[Judged]:
    """Judges these hours from every datacenter, those without any events left out."""
    policy, now_ms = policy or Policy(), wall_ms() if now_ms is None else now_ms
    found: list[Judged] = []
    with store.reading() as connection:
        for evidence in gather.evidence(connection, topic, sorted(set(hours_ms))):
            verdict = judge(evidence, policy, now_ms)
            if any(verdict.counts) or verdict.findings or verdict.accepted:
                found.append(Judged(evidence, verdict))
    return found


def wait_until(
    judge_now: Callable[[], list[Judged]],
    is_done: Callable[[list[Judged]], bool],
    timeout_s: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> list[Judged]:
    """Judges again and again until `is_done`, or `timeout_s` has passed; returns the last judgement."""
    deadline_s = clock() + timeout_s
    while True:
        current = judge_now()
        if is_done(current) or clock() >= deadline_s:
            return current
        sleep(min(WAIT_STEP_S, max(0.0, deadline_s - clock())))


def have_arrived(found: Iterable[Judged]) -> bool:
    """Whether events that were brought again are in the datacenter's log, and in its copy.

    What else the copy lacks, such as a gap that is taken from the source later, is not waited for: by itself
    it never arrives.
    """
    waiting = (Status.PENDING, Status.UNKNOWN)
    return not any(
        finding.status in waiting or (finding.status is Status.LOST and finding.hop == PRODUCER_HOP)
        for each in found
        for finding in each.verdict.findings
        if finding.hop in (PRODUCER_HOP, MIRROR_HOP)
    )


def is_unwritten(finding: Finding) -> bool:
    """Whether loads consumed what this finding calls lost, and did not write it: it has no addresses.

    What a load was allowed to skip has some, and nothing can be read of it where loads read.
    """
    is_lost = finding.hop == LOAD_HOP and finding.status is Status.LOST
    return is_lost and finding.partition is not None and finding.after_address is None


def author() -> str:
    """Returns who runs this process, user@host, as repairs and acceptances name it."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}"[:NAME_MAX_CHARS]
