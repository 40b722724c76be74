"""Which command repairs a finding, or brings what it waits for. Pure; `audit.repair` does the repairs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable
from typing import Final

from headrace.audit.batches.damage import OTHER_BYTES
from headrace.audit.findings import LOAD_HOP, MIRROR_HOP, PRODUCER_HOP, Finding, Status, Verdict
from headrace.audit.phrases import FORGOTTEN, TALLY_MISSING, hour
from headrace.audit.times import HOUR_MS, is_named
from headrace.audit.topic.said_of_tables import IN_NO_MANIFEST

_BROKER: Final = re.compile(rf"{OTHER_BYTES} broker (\d+)")
_WAITING: Final = (Status.PENDING, Status.UNKNOWN)


def command_of(verdict: Verdict, finding: Finding) -> str:
    """Returns the command to try first; "" if there is none but to wait, or to start what is silent, or if
    nothing is left to be done.
    """
    topic = shlex.quote(verdict.topic)
    if FORGOTTEN in finding.text:
        return ""
    if finding.status is Status.CORRUPT and finding.hop != LOAD_HOP:
        return "headrace log check"
    if finding.status is Status.ALTERED and OTHER_BYTES in finding.text:
        broker = _BROKER.search(finding.text)
        if broker is None or finding.hop != PRODUCER_HOP:
            return "headrace brokers list"  # the copy's partition has another number there
        place = f"{topic} {finding.partition} -d {shlex.quote(verdict.datacenter)}"
        return f"headrace brokers refetch {broker[1]} {place}"
    if finding.status in _WAITING and finding.hop == LOAD_HOP:
        return f"headrace warehouse load {topic}"
    if finding.status is Status.UNKNOWN and TALLY_MISSING in finding.text and is_named(verdict.hour_ms):
        first, behind = (hour(at).replace(" ", "T") for at in (verdict.hour_ms, verdict.hour_ms + HOUR_MS))
        return f"headrace audit recount {topic} --from {first} --to {behind}"
    if finding.status in _WAITING and finding.hop == MIRROR_HOP:
        return "headrace mirror status"
    if finding.status in _WAITING:
        return "headrace status" if finding.status is Status.UNKNOWN else ""
    if finding.path is not None and IN_NO_MANIFEST in finding.text:
        return f"headrace warehouse verify {topic}"  # once somebody has moved it away
    if not is_named(verdict.hour_ms):
        return ""
    if finding.status is Status.DUPLICATED:
        return f"headrace audit dedupe {topic} --hour {hour(verdict.hour_ms).replace(' ', 'T')}"
    return f"headrace audit repair {topic} --hour {hour(verdict.hour_ms).replace(' ', 'T')}"


def commands_of(verdicts: Iterable[Verdict], findings: Collection[Finding]) -> list[str]:
    """Returns the commands for these findings of the verdicts, each once, in the order of the verdicts."""
    commands: dict[str, None] = {}
    for verdict in verdicts:
        for finding in verdict.findings:
            if finding in findings and (command := command_of(verdict, finding)):
                commands[command] = None
    return list(commands)
