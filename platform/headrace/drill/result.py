"""How a drill ended, as values: for its record, for people and for programs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headrace.audit.topic.drills import NOT_COPIED_MS, DrillPlant, DrillRecord, Outcome


@dataclass(frozen=True, slots=True)
class DrillResult:
    """How a drill ended; `record` goes to the audit. `without_warehouse`: why no file was harmed, if so."""

    record: DrillRecord
    truth: str
    without_warehouse: str = ""

    def count(self, outcome: Outcome) -> int:
        return sum(plant.outcome == outcome for plant in self.record.plants)

    @property
    def is_wrong(self) -> bool:
        """Whether the audit missed something, or said something that is not so."""
        wrong = self.count(Outcome.MISSED) + self.count(Outcome.WRONG_PLACE)
        return bool(wrong or self.record.false_count)

    @property
    def is_open(self) -> bool:
        """Whether something was not named in time."""
        return bool(self.count(Outcome.UNKNOWN)) or not self.record.plants

    def to_json(self) -> dict[str, Any]:
        """Returns plain data for `json.dumps`: sums, then each kind."""
        plants = self.record.plants
        kinds = dict.fromkeys(plant.kind for plant in plants)
        return {
            "run": self.record.run,
            "began_ms": self.record.began_ms,
            "said_by": self.record.said_by,
            "truth": self.truth,
            "without_warehouse": self.without_warehouse or None,
            **_sums(plants),
            **_copied(plants),
            "false": self.record.false_count,
            "kinds": {kind: _sums([each for each in plants if each.kind == kind]) for kind in kinds},
            "each": [plant.to_json() for plant in plants],
        }


def _sums(plants: Sequence[DrillPlant]) -> dict[str, Any]:
    took_ms = sorted(each.named_after_ms for each in plants if each.named_after_ms > 0)
    return {
        "plants": len(plants),
        **{str(outcome): sum(each.outcome == outcome for each in plants) for outcome in Outcome},
        "p50_s": took_ms[len(took_ms) // 2] / 1_000 if took_ms else None,
        "slowest_s": took_ms[-1] / 1_000 if took_ms else None,
    }


def _copied(plants: Sequence[DrillPlant]) -> dict[str, Any]:
    """How long events took from their sending to their count in the copy, by datacenter: the mirror's hop."""
    took_ms: dict[str, int] = {}
    for plant in plants:
        if plant.copied_after_ms != NOT_COPIED_MS:
            took_ms[plant.datacenter] = max(took_ms.get(plant.datacenter, 0), plant.copied_after_ms)
    return {"copied_s": {datacenter: ms / 1_000 for datacenter, ms in sorted(took_ms.items())}}
