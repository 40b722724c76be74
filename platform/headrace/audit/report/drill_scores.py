"""What the audit makes of a drill's plants: of one plant, and of all of the last day. Pure, but for the hours
that it has judged.

A record says what was planted and how it was found. That it was found is believed only if the audit's own
verdicts name it now: a forged or mistaken record can make a score worse, and not better.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from sqlalchemy import Connection

from headrace.audit import phrases
from headrace.audit.findings import LOAD_HOP, Finding, Policy, Status, Verdict
from headrace.audit.gathering import gather
from headrace.audit.gathering.drills import EndedDrill
from headrace.audit.intervals import covers, union
from headrace.audit.store.kept import last_warehouse
from headrace.audit.times import HOUR_MS
from headrace.audit.topic.drills import CANARY_TOPIC, NO_NUMBER, NOT_COPIED_MS, DrillPlant, Outcome
from headrace.audit.verdicts.verdicts import judge

DAY_MS: Final = 24 * HOUR_MS
HOURS_MAX: Final = 36
"""Of the canary topic's hours that one score judges, the newest ones: a drill has files in five."""
PROVEN: Final = frozenset({Status.LOST, Status.DUPLICATED, Status.ALTERED, Status.CORRUPT})


@dataclass(frozen=True, slots=True)
class DrillScore:
    """What became of the plants of the last day's drills; times in Unix ms, or ms from the plant to its name.

    `found`, `missed`, `wrong_place` and `unknown` are `plants` together. `doubted`: of those missed, how many
    a drill called named, and the audit does not name now. `false_count`: events that were called lost,
    altered, corrupt or duplicated by mistake. `last_ms`, `last_by`: the newest drill, of whatever day.
    `file_plants`, `files_found`: how many of `plants` were files of the canary's table, and of `found`.
    `copied_ms`: the longest that events of these drills took into the copy, as the drills say; None without.
    """

    drills: int
    plants: int
    found: int
    missed: int
    wrong_place: int
    unknown: int
    doubted: int
    false_count: int
    p50_ms: int | None
    slowest_ms: int | None
    last_ms: int
    last_by: str
    file_plants: int = 0
    files_found: int = 0
    copied_ms: int | None = None

    @property
    def is_good(self) -> bool:
        """Whether all was found, and nothing else."""
        return bool(self.plants) and self.found == self.plants and not self.false_count

    def to_json(self) -> dict[str, Any]:
        """Returns plain data for `json.dumps`."""
        return {**asdict(self), "is_good": self.is_good}

    def sentence(self) -> str:
        """Returns the score in words."""
        last = f"{phrases.instant(self.last_ms)}, by {self.last_by}"
        if not self.drills:
            return f"there was none in the last 24 hours; the last one was at {last}"
        text = f"the audit found {self.found:,} of {self.plants:,} planted failures in the last 24 hours"
        if self.slowest_ms is not None:
            text += f", slowest {self.slowest_ms / 1_000:.0f} s"
        for count, what in (
            (self.missed, "missed"),
            (self.wrong_place, "named at a wrong place"),
            (self.unknown, "not named in time"),
            (self.false_count, "events called lost or doubled by mistake"),
        ):
            text += f", {count:,} {what}" if count else ""
        if self.doubted:
            text += f" ({self.doubted:,} that a drill called found, the audit does not name now)"
        if self.file_plants:
            text += f"; {self.files_found:,} of {self.file_plants:,} of the warehouse's files"
        if self.copied_ms is not None:
            text += f"; the copy had the drills' events within {self.copied_ms / 1_000:.0f} s"
        return f"{text}; the last drill was at {last}"


def drill_score(
    connection: Connection, drills: Iterable[EndedDrill], now_ms: int, policy: Policy
) -> DrillScore | None:
    """Returns the score of the last 24 hours; None if there never was a drill."""
    ended = list(drills)
    if not ended:
        return None
    table = last_warehouse(connection, CANARY_TOPIC)
    recent = [without_other_tables(each, table) for each in ended if now_ms - DAY_MS <= each.said_ms]
    hours_ms = sorted({plant.hour_ms for each in recent for plant in each.plants})[-HOURS_MAX:]
    verdicts = [
        judge(evidence, policy, now_ms) for evidence in gather.evidence(connection, CANARY_TOPIC, hours_ms)
    ]
    return score_of(ended, recent, verdicts)


def without_other_tables(drill: EndedDrill, warehouse: str | None) -> EndedDrill:
    """Returns a drill without the plants in files of a table that another one has replaced: of these files
    nobody looks after any more. `warehouse`: the URL of the canary's present one; None without any.
    """
    base = None if warehouse is None else f"{urlsplit(warehouse).path.rstrip('/')}/{CANARY_TOPIC}/"
    kept = (each for each in drill.plants if not each.path or (base and each.path.startswith(base)))
    return drill._replace(plants=tuple(kept))


def score_of(
    ended: Sequence[EndedDrill], recent: Sequence[EndedDrill], verdicts: Sequence[Verdict]
) -> DrillScore:
    """Scores the recent ones of the ended drills (the newest first; at least one) by these verdicts."""
    found, doubted, took_ms = dict.fromkeys(Outcome, 0), 0, []
    files_found, copied_ms = 0, []
    for plant in (plant for each in recent for plant in each.plants):
        outcome = Outcome(plant.outcome)
        if outcome is Outcome.NAMED and outcome_of(plant, verdicts) is not Outcome.NAMED:
            outcome, doubted = Outcome.MISSED, doubted + 1
        elif outcome is Outcome.NAMED and not plant.is_control:
            took_ms.append(plant.named_after_ms)
        found[outcome] += 1
        files_found += bool(plant.path) and outcome is Outcome.NAMED
        if plant.copied_after_ms != NOT_COPIED_MS:
            copied_ms.append(plant.copied_after_ms)
    took_ms.sort()
    return DrillScore(
        drills=len(recent),
        plants=sum(found.values()),
        found=found[Outcome.NAMED],
        missed=found[Outcome.MISSED],
        wrong_place=found[Outcome.WRONG_PLACE],
        unknown=found[Outcome.UNKNOWN],
        doubted=doubted,
        false_count=sum(each.false_count for each in recent),
        p50_ms=took_ms[len(took_ms) // 2] if took_ms else None,
        slowest_ms=took_ms[-1] if took_ms else None,
        last_ms=ended[0].said_ms,
        last_by=ended[0].said_by,
        file_plants=sum(bool(plant.path) for each in recent for plant in each.plants),
        files_found=files_found,
        copied_ms=max(copied_ms, default=None),
    )


def outcome_of(plant: DrillPlant, verdicts: Iterable[Verdict]) -> Outcome:
    """Returns what these verdicts on the canary topic make of a plant.

    It is missed if nothing is said of it although the tiers that must know have spoken.
    """
    mine = [v for v in verdicts if (v.datacenter, v.hour_ms) == (plant.datacenter, plant.hour_ms)]
    if not mine:
        return Outcome.UNKNOWN
    findings = [each for verdict in mine for each in _all_of(verdict)]
    about = [each for each in findings if is_about(plant, each)]
    is_proven = any(each.status in PROVEN for each in about)
    if plant.is_control:
        if about:
            return Outcome.WRONG_PLACE if is_proven else Outcome.UNKNOWN
        return Outcome.UNKNOWN if _is_silent(plant, findings) and not plant.path else Outcome.NAMED
    if plant.note:
        is_noted = any(plant.note in note for verdict in mine for note in verdict.notes)
        if is_noted and not is_proven:
            return Outcome.NAMED
    elif _is_named(plant, about):
        return Outcome.NAMED
    if is_proven:
        return Outcome.WRONG_PLACE
    return Outcome.UNKNOWN if about or _is_silent(plant, findings) else Outcome.MISSED


def false_events(plants: Sequence[DrillPlant], verdicts: Iterable[Verdict]) -> int:
    """Returns how many events of these plants' publishers are proven lost, altered or doubled by mistake."""
    count = 0
    for verdict in verdicts:
        here = [p for p in plants if (p.datacenter, p.hour_ms) == (verdict.datacenter, verdict.hour_ms)]
        for finding in _all_of(verdict):
            about = [plant for plant in here if is_about(plant, finding)]
            is_false = about and not any(_allows(plant, finding) for plant in about)
            # What is planted in files is named by file: loads must have lost or doubled nothing.
            is_of_loads = finding.hop == LOAD_HOP and finding.path is None and any(p.path for p in here)
            if finding.status in PROVEN and (is_false or is_of_loads):
                count += finding.record_count or 1
    return count


def is_about(plant: DrillPlant, finding: Finding) -> bool:
    """Whether a finding names the plant's publisher, or its producer id; of a file, whether it names that."""
    if plant.path:
        return finding.path == plant.path
    has_id = plant.producer_id != NO_NUMBER and finding.producer_id == plant.producer_id
    return has_id or finding.service == plant.service


def _allows(plant: DrillPlant, finding: Finding) -> bool:
    """Whether the truth allows a proven finding: what was altered is named with its neighbours."""
    if finding.status not in plant.statuses or finding.hop != plant.hop:
        return False
    if plant.path or finding.status is Status.ALTERED or finding.sequences is None:
        return True
    first, last = finding.sequences
    is_within = plant.first_sequence <= first and last <= plant.last_sequence
    return is_within and _is_same_producer(plant, finding)


def _is_same_producer(plant: DrillPlant, finding: Finding) -> bool:
    numbers = (finding.producer_id, finding.producer_epoch)
    return numbers == (plant.producer_id, plant.producer_epoch)


def _all_of(verdict: Verdict) -> tuple[Finding, ...]:
    return (*verdict.findings, *(each.finding for each in verdict.accepted))


def _is_named(plant: DrillPlant, about: Iterable[Finding]) -> bool:
    right = [each for each in about if each.status in plant.statuses and each.hop == plant.hop]
    if plant.path:
        return any(each.record_count == plant.record_count for each in right)
    if plant.producer_id != NO_NUMBER:
        mine = [each.sequences for each in right if _is_same_producer(plant, each)]
        named = union((each[0], each[1] + 1) for each in mine if each)
        return covers(named, plant.first_sequence, plant.last_sequence + 1)
    if plant.record_count:
        return sum(each.record_count or 0 for each in right) == plant.record_count
    return any(each.record_count is None for each in right)


def _is_silent(plant: DrillPlant, findings: Iterable[Finding]) -> bool:
    """Whether somebody who must know does not say, so that nobody can expect the plant's name."""
    return any(
        each.hop == plant.hop
        and each.status not in PROVEN
        and each.service is None
        and each.producer_id is None
        for each in findings
    )
