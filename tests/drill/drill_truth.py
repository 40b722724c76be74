"""What a drill plants, what is true of it, and how the audit's answer is scored. Pure.

The truth of a plant is written down before anything is broken: its *harms*, one for each record that is lost,
doubled or corrupt, and the hours that must not be called complete because some tier was silenced.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from headrace.audit.findings import Finding, Status, Verdict
from headrace.audit.report.drill_scores import PROVEN
from headrace.audit.times import HOUR_MS
from headrace.audit.topic.drills import Outcome as Outcome

NO_ID: Final = -1
SHOWN_MAX: Final = 12
SAID_MAX: Final = 8  # sentences of the audit that are kept about one plant

FALSE: Final = "false"


class Identity(NamedTuple):
    """One record: the partition, producer, epoch and sequence number that it was published with."""

    topic: str
    datacenter: str
    partition: int
    producer_id: int
    producer_epoch: int
    sequence: int


class Harm(NamedTuple):
    """One record that is lost, doubled or corrupt. Records that are only counted have `NO_ID` in identity."""

    status: Status
    hop: str
    hour_ms: int
    identity: Identity


class Hour(NamedTuple):
    """An hour of a topic and datacenter, which gets one verdict."""

    topic: str
    datacenter: str
    hour_ms: int


@dataclass
class Plant:
    """One planted failure. `harms`: what must be named. `allowed`: what is true besides, and may be named.

    `silenced`: hours that must not be called complete. `touched`: records that the plant handled and that are
    there once. `planted_ms`, `named_ms`: the moments of the failure and of its name.
    """

    number: int
    kind: str
    seed: int
    harms: Counter[Harm] = field(default_factory=Counter)
    allowed: Counter[Harm] = field(default_factory=Counter)
    silenced: set[Hour] = field(default_factory=set)
    touched: set[Identity] = field(default_factory=set)
    planted_ms: int = 0
    named_ms: int | None = None

    @property
    def hours(self) -> set[Hour]:
        """The hours that the failure makes incomplete."""
        found = {Hour(harm.identity.topic, harm.identity.datacenter, harm.hour_ms) for harm in self.harms}
        return found | self.silenced

    @property
    def place(self) -> str:
        """Where it is, for people."""
        identities = sorted({harm.identity for harm in self.harms})
        ends = [str(tuple(each)) for each in (*identities[:1], *identities[-1:])]
        topics = sorted({f"{hour.topic} of {hour.datacenter}" for hour in self.hours})
        return f"seed {self.seed}, {', '.join(topics)} {' to '.join(ends)}"


class Answer(NamedTuple):
    """What the audit said instead of a plant's name, or falsely. `what`: the outcome, or `FALSE`."""

    what: str
    place: str
    said: tuple[str, ...]


@dataclass
class KindScore:
    """The score of all plants of one kind. `false`: records called lost or doubled that are there once."""

    outcomes: Counter[Outcome] = field(default_factory=Counter)
    false: int = 0
    seconds: list[float] = field(default_factory=list)
    seeds: dict[str, set[int]] = field(default_factory=dict)
    answers: list[Answer] = field(default_factory=list)

    def add(self, outcome: Outcome, false: int, seed: int, place: str, said: Iterable[str]) -> None:
        """Adds what came of one plant. `place`, `said`: where it is, and all that the audit says of it."""
        self.outcomes[outcome] += 1
        said = tuple(said)
        if outcome is not Outcome.NAMED:
            self._note(outcome, seed, place, said)
        if false:
            self.add_false(false, seed, place, said)

    def add_false(self, count: int, seed: int, place: str, said: Iterable[str]) -> None:
        self.false += count
        self._note(FALSE, seed, place, tuple(said))

    def _note(self, what: str, seed: int, place: str, said: tuple[str, ...]) -> None:
        self.seeds.setdefault(what, set()).add(seed)
        self._show(Answer(what, place, said[:SAID_MAX]))

    def _show(self, answer: Answer) -> None:
        if sum(each.what == answer.what for each in self.answers) < SHOWN_MAX:
            self.answers.append(answer)

    def merge(self, other: KindScore) -> None:
        """Adds the score of other plants of this kind."""
        self.outcomes += other.outcomes
        self.false += other.false
        self.seconds += other.seconds
        for what, seeds in other.seeds.items():
            self.seeds.setdefault(what, set()).update(seeds)
        for answer in other.answers:
            self._show(answer)

    @property
    def is_good(self) -> bool:
        return not (self.false or self.outcomes[Outcome.MISSED] or self.outcomes[Outcome.WRONG_PLACE])


class Score:
    """The score of a drill, by kind."""

    def __init__(self) -> None:
        self.kinds: dict[str, KindScore] = {}

    @property
    def is_good(self) -> bool:
        """Whether nothing was missed, nothing false, nothing named at a wrong place."""
        return all(kind.is_good for kind in self.kinds.values())

    @property
    def planted(self) -> int:
        return sum(sum(kind.outcomes.values()) for kind in self.kinds.values())

    def bad(self) -> set[str]:
        """Returns the kinds of which something was missed, false or named at a wrong place."""
        return {name for name, kind in self.kinds.items() if not kind.is_good}

    def of(self, kind: str) -> KindScore:
        return self.kinds.setdefault(kind, KindScore())

    def add(self, plants: Iterable[Plant], verdicts: Iterable[Verdict]) -> None:
        """Adds the plants of one world, and what its last report says."""
        plants, verdicts = list(plants), list(verdicts)
        found = harms_of(verdicts)
        expected: Counter[Harm] = Counter()
        for plant in plants:
            expected += plant.harms
        allowed = sum((plant.allowed for plant in plants), Counter[Harm]())
        surplus = found - expected - allowed
        for plant in plants:
            outcome, misplaced = _outcome(plant, verdicts, found, surplus)
            surplus -= misplaced
            kind = self.of(plant.kind)
            said = () if outcome is Outcome.NAMED else sentences(verdicts, plant.hours)
            kind.add(outcome, 0, plant.seed, plant.place, said)
            if plant.named_ms is not None and outcome is Outcome.NAMED and plant.harms:
                kind.seconds.append((plant.named_ms - plant.planted_ms) / 1000)
        for harm, count in surplus.items():
            plant = next((each for each in plants if harm.identity in each.touched), plants[0])
            self.of(plant.kind).add_false(count, plant.seed, plant.place, [f"{harm}, {count} times"])

    def merge(self, other: Score) -> None:
        """Adds the score of other worlds."""
        for name, kind in other.kinds.items():
            self.of(name).merge(kind)

    def to_json(self) -> dict[str, Any]:
        """Returns plain data for `json.dumps`: sums, then each kind."""
        return {
            "plants": self.planted,
            **{str(each): self._sum(each) for each in Outcome},
            "false": sum(kind.false for kind in self.kinds.values()),
            **_quantiles([second for kind in self.kinds.values() for second in kind.seconds]),
            "kinds": {
                name: {
                    "plants": sum(kind.outcomes.values()),
                    **{str(each): kind.outcomes[each] for each in Outcome},
                    "false": kind.false,
                    **_quantiles(kind.seconds),
                    "seeds": {what: sorted(seeds)[:SHOWN_MAX] for what, seeds in kind.seeds.items()},
                    "answers": [answer._asdict() for answer in kind.answers],
                }
                for name, kind in sorted(self.kinds.items())
            },
        }

    def _sum(self, outcome: Outcome) -> int:
        return sum(kind.outcomes[outcome] for kind in self.kinds.values())

    def table(self) -> str:
        """Returns the score for people."""
        data = self.to_json()
        head = ("plants", *(str(each) for each in Outcome), "false", "p50_s", "p99_s")
        rows = [(name, *(each[column] for column in head)) for name, each in data["kinds"].items()]
        rows.append(("all", *(data[column] for column in head)))
        lines = [f"{'kind':36}" + "".join(f"{column:>12}" for column in head)]
        for name, *values in rows:
            lines.append(f"{name:36}" + "".join(f"{_shown(value):>12}" for value in values))
        for name, each in data["kinds"].items():
            if each["seeds"]:
                lines.append(f"{name}: seeds {json.dumps(each['seeds'])}")
            for answer in each["answers"]:
                lines.append(f"  {answer['what']}: {answer['place']}; the audit said:")
                lines += [f"    {sentence}" for sentence in answer["said"]] or ["    nothing"]
        return "\n".join(lines)


def _shown(value: object) -> str:
    return f"{value:.1f}" if isinstance(value, float) else "" if value is None else str(value)


def _quantiles(seconds: list[float]) -> dict[str, float | None]:
    ordered = sorted(seconds)
    return {
        f"p{percent}_s": ordered[min(len(ordered) - 1, len(ordered) * percent // 100)] if ordered else None
        for percent in (50, 99)
    }


def _outcome(
    plant: Plant, verdicts: list[Verdict], found: Counter[Harm], surplus: Counter[Harm]
) -> tuple[Outcome, Counter[Harm]]:
    """Returns the outcome, and what of `surplus` was meant for this plant."""
    status = {Hour(each.topic, each.datacenter, each.hour_ms): each.status for each in verdicts}
    complete = {hour for hour in plant.hours if status.get(hour, Status.COMPLETE) is Status.COMPLETE}
    missing = plant.harms - found
    if not missing and not complete:
        return Outcome.NAMED, Counter()
    if complete:
        return Outcome.MISSED, Counter()
    statuses = {harm.status for harm in missing}
    misplaced = Counter(
        {
            harm: count
            for harm, count in surplus.items()
            if harm.status in statuses and harm.identity.topic in {each.identity.topic for each in missing}
        }
    )
    return (Outcome.WRONG_PLACE, misplaced) if misplaced else (Outcome.UNKNOWN, Counter())


def harms_of(verdicts: Iterable[Verdict]) -> Counter[Harm]:
    """Returns what a report's findings prove, record by record."""
    found: Counter[Harm] = Counter()
    for verdict in verdicts:
        for finding in verdict.findings:
            if finding.status in PROVEN:
                found += _harms_of(finding, verdict)
    return found


def _harms_of(finding: Finding, verdict: Verdict) -> Counter[Harm]:
    topic, datacenter, hour_ms = verdict.topic, verdict.datacenter, verdict.hour_ms
    partition = NO_ID if finding.partition is None else finding.partition
    count = finding.record_count or 0
    if finding.sequences is None or finding.producer_id is None or finding.producer_epoch is None:
        nobody = Identity(topic, datacenter, partition, NO_ID, NO_ID, NO_ID)
        return Counter({Harm(finding.status, finding.hop, hour_ms, nobody): count})
    first, last = finding.sequences
    times = count // (last - first + 1)
    return Counter(
        {
            Harm(
                finding.status,
                finding.hop,
                hour_ms,
                Identity(topic, datacenter, partition, finding.producer_id, finding.producer_epoch, sequence),
            ): times
            for sequence in range(first, last + 1)
        }
    )


def sentences(verdicts: Iterable[Verdict], hours: Collection[Hour]) -> Iterator[str]:
    """Yields what a report says of these hours."""
    for verdict in verdicts:
        hour = Hour(verdict.topic, verdict.datacenter, verdict.hour_ms)
        if hour in hours:
            yield f"{hour}: {verdict.status}, {verdict.counts}"
            yield from (f"{finding.hop}: {finding.text}" for finding in verdict.findings)


def note_named(plants: Iterable[Plant], verdicts: Iterable[Verdict], now_ms: int) -> None:
    """Notes the moment in which a report names all harms of a plant for the first time."""
    found = harms_of(verdicts)
    for plant in plants:
        if plant.named_ms is None and plant.harms and not plant.harms - found:
            plant.named_ms = now_ms


def hour_of(time_ms: int) -> int:
    return time_ms - time_ms % HOUR_MS
