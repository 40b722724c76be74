"""One drill: plants in all datacenters, asks the audit until it has named all, and scores its answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from headrace.audit.evidence import Verdict
from headrace.audit.report.drill_scores import false_events, outcome_of
from headrace.audit.times import HOUR_MS
from headrace.audit.topic.drills import NOT_NAMED_MS, DrillPlant, DrillRecord, Outcome
from headrace.drill.errors import DrillError
from headrace.drill.kinds import Hands, Kind, new_plant
from headrace.drill.place import Place
from headrace.drill.truth import Truth

POLL_S: Final = 1.0
SETTLE_S: Final = 10.0
"""What is false must show within this time after the last plant."""
BUCKET_MS: Final = 600_000
PLANTING_MAX_S: Final = 600.0
PLANTERS_WAIT_MAX_S: Final = 300.0
"""How long an interrupted drill waits for the plants that it has begun."""


@dataclass(frozen=True, slots=True)
class DrillResult:
    """How a drill ended; `record` goes to the audit."""

    record: DrillRecord
    truth: str

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
            **_sums(plants),
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


class DrillRun:
    """Plants `kinds` at `places`. `judge_now` returns the audit's verdicts on an hour of the canary topic."""

    def __init__(
        self,
        truth: Truth,
        places: Sequence[Place],
        kinds: Mapping[str, Kind],
        judge_now: Callable[[int], Iterable[Verdict]],
        *,
        settle_s: float = SETTLE_S,
    ) -> None:
        self._truth = truth
        self._places = places
        self._kinds = kinds
        self._judge_now = judge_now
        self._settle_s = settle_s
        self._base_ms = truth.began_ms - truth.began_ms % BUCKET_MS
        self._hour_ms = self._base_ms - self._base_ms % HOUR_MS
        self._planted_s: dict[str, float] = {}
        self._named_ms: dict[str, int] = {}
        self._problems: list[str] = []
        self._stopping = threading.Event()

    def run(self, timeout_s: float, said_by: str) -> DrillResult:
        """Plants all, and waits until the audit has named all, `timeout_s` at most after the last plant.

        Raises `DrillError` if something could not be planted.
        """
        planters = [threading.Thread(target=self._plant_all, args=(place,)) for place in self._places]
        try:
            for planter in planters:
                planter.start()
            verdicts = self._watch(planters, timeout_s)
        finally:
            self._stopping.set()
            for planter in planters:
                planter.join(PLANTERS_WAIT_MAX_S)
        if self._problems:
            raise DrillError("; ".join(sorted(set(self._problems))))
        plants = [self._judged(plant, verdicts) for plant in self._truth.plants]
        self._truth.tell_outcomes(plants)
        false = false_events(plants, verdicts)
        record = DrillRecord(self._truth.run, said_by, self._truth.began_ms, false, tuple(plants))
        return DrillResult(record, str(self._truth.path))

    def _plant_all(self, place: Place) -> None:
        try:
            place.ensure_canary()
            hands = Hands(place, self._truth.state_dir, self._base_ms, self._truth.tell)
            for number, (name, kind) in enumerate(self._kinds.items()):
                if self._stopping.is_set():
                    return
                service = f"drill-{self._truth.run}-{place.datacenter}-{number}"
                kind(hands, new_plant(name, place.datacenter, service, self._hour_ms))
                self._planted_s[service] = time.monotonic()
        except Exception as error:  # of the client, the registry or the disk: the drill cannot be held
            self._problems.append(f"{place.datacenter}: {str(error) or type(error).__name__}")
            self._stopping.set()

    def _watch(self, planters: Sequence[threading.Thread], timeout_s: float) -> list[Verdict]:
        """Asks until all is named and has settled; returns the last verdicts."""
        planting_until_s = time.monotonic() + PLANTING_MAX_S
        while True:
            # Looked at first: what is planted during the judging is in the next verdicts.
            is_planted = not any(planter.is_alive() for planter in planters)
            now_s = time.monotonic()
            verdicts = list(self._judge_now(self._hour_ms))
            open_ = [plant for plant in self._truth.plants if not self._is_named(plant, verdicts)]
            last_s = max(self._planted_s.values(), default=now_s)
            if is_planted and (self._problems or now_s >= last_s + timeout_s):
                return verdicts
            if is_planted and not open_ and now_s >= last_s + self._settle_s:
                return verdicts
            if now_s >= planting_until_s and not is_planted:
                self._problems.append(f"not all was planted within {PLANTING_MAX_S:g} s")
                return verdicts
            time.sleep(POLL_S)

    def _is_named(self, plant: DrillPlant, verdicts: Sequence[Verdict]) -> bool:
        """Whether the audit names a plant; notes when it did first."""
        planted_s = self._planted_s.get(plant.service)
        if planted_s is None or outcome_of(plant, verdicts) is not Outcome.NAMED:
            return False
        took_ms = 0 if plant.is_control else max(1, int((time.monotonic() - planted_s) * 1_000))
        self._named_ms.setdefault(plant.service, took_ms)
        return True

    def _judged(self, plant: DrillPlant, verdicts: Sequence[Verdict]) -> DrillPlant:
        outcome = outcome_of(plant, verdicts)
        took_ms = self._named_ms.get(plant.service, 0) if outcome is Outcome.NAMED else NOT_NAMED_MS
        return replace(plant, outcome=outcome, named_after_ms=took_ms)
