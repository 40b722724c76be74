"""One drill: plants at producers and in files, asks the audit until it has named all, scores its answers.

The order: the producers' plants, and events for the files; once the audit has counted them in the copy, a
load; once the audit knows of the load, the files are harmed and verified. It is asked all the while.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from headrace.drill.file_planting import FilePlanter

from headrace.audit.evidence import Evidence
from headrace.audit.findings import Verdict
from headrace.audit.repair.repairing import Judged
from headrace.audit.report.drill_scores import false_events, outcome_of
from headrace.audit.times import HOUR_MS
from headrace.audit.topic.drills import NOT_COPIED_MS, NOT_NAMED_MS, DrillPlant, DrillRecord, Outcome
from headrace.drill.crossing import copied_count, is_loaded
from headrace.drill.errors import DrillError
from headrace.drill.kinds import Hands, Kind, new_plant, nothing
from headrace.drill.place import Place
from headrace.drill.result import DrillResult
from headrace.drill.truth import Truth

POLL_S: Final = 1.0
SETTLE_S: Final = 10.0
"""What is false must show within this time after the last plant."""
BUCKET_MS: Final = 600_000
PLANTING_MAX_S: Final = 600.0
PLANTERS_WAIT_MAX_S: Final = 300.0
"""How long an interrupted drill waits for the plants that it has begun."""
COPY_WAIT_MAX_S: Final = 180.0
"""How long the mirrors, and the auditors' counting, may take until the load begins."""
REPORT_WAIT_MAX_S: Final = 60.0
"""How long the audit may take to know of a load. A verification that comes earlier has more to say."""


class DrillRun:
    """Plants `kinds` at `places`, and those of `files` in the warehouse. `judge_now` returns what the audit
    says of these hours of the canary topic.
    """

    def __init__(
        self,
        truth: Truth,
        places: Sequence[Place],
        kinds: Mapping[str, Kind],
        judge_now: Callable[[Collection[int]], Iterable[Judged]],
        *,
        files: FilePlanter | None = None,
        settle_s: float = SETTLE_S,
    ) -> None:
        self._truth = truth
        self._places = places
        self._kinds = kinds
        self._judge_now = judge_now
        self._files = files
        self._settle_s = settle_s
        self._base_ms = truth.began_ms - truth.began_ms % BUCKET_MS
        self._hour_ms = self._base_ms - self._base_ms % HOUR_MS
        self._sent_s: dict[str, float] = {}
        self._planted_s: dict[str, float] = {}
        self._counted: dict[str, int] = {}
        self._copied_ms: dict[str, int] = {}
        self._named_ms: dict[str, int] = {}
        self._problems: list[str] = []
        self._stopping = threading.Event()
        self._all_copied = threading.Event()
        self._all_loaded = threading.Event()

    def run(self, timeout_s: float, said_by: str) -> DrillResult:
        """Plants all, and waits until the audit has named all, `timeout_s` at most after the last plant.

        Raises `DrillError` if something could not be planted.
        """
        planters = [threading.Thread(target=self._plant_all, args=(place,)) for place in self._places]
        others: list[threading.Thread] = []
        if self._files is not None:
            others = [threading.Thread(target=self._plant_in_files, args=(self._files, planters))]
        begun: list[threading.Thread] = []
        try:
            for planter in (*planters, *others):
                planter.start()
                begun.append(planter)
            verdicts = self._watch(planters, others, timeout_s)
        finally:
            self._stopping.set()
            for planter in begun:
                planter.join(PLANTERS_WAIT_MAX_S)
        if self._problems:
            raise DrillError("; ".join(sorted(set(self._problems))))
        plants = [self._judged(plant, verdicts) for plant in self._truth.plants]
        self._truth.tell_outcomes(plants)
        false = false_events(plants, verdicts)
        record = DrillRecord(self._truth.run, said_by, self._truth.began_ms, false, tuple(plants))
        return DrillResult(record, str(self._truth.path))

    # --- planting ---

    def _plant_all(self, place: Place) -> None:
        """Plants the producers' kinds; in the first datacenter it also publishes events for the files."""
        try:
            place.ensure_canary()
            is_loaded = self._files is not None
            hands = Hands(place, self._truth.state_dir, self._base_ms, self._truth.tell, is_loaded)
            number = -1
            for number, (name, kind) in enumerate(self._kinds.items()):
                if self._stopping.is_set():
                    return
                service = self._service(place, number)
                kind(hands, new_plant(name, place.datacenter, service, self._hour_ms))
                self._sent_s[service] = self._planted_s[service] = time.monotonic()
            if self._files is not None and place is self._places[0]:
                self._publish_for_files(self._files, hands, number + 1)
        except Exception as error:  # of the client, the registry or the disk: the drill cannot be held
            self._fail(f"{place.datacenter}: {str(error) or type(error).__name__}")

    def _publish_for_files(self, files: FilePlanter, hands: Hands, first_number: int) -> None:
        for number, (name, kind) in enumerate(files.kinds.items(), first_number):
            if self._stopping.is_set():
                return
            service, back_ms = self._service(hands.place, number), kind.hours_back * HOUR_MS
            plant = new_plant(name, hands.place.datacenter, service, self._hour_ms - back_ms)
            nothing(hands._replace(base_ms=self._base_ms - back_ms), files.due(plant))
            self._sent_s[service] = time.monotonic()

    def _plant_in_files(self, files: FilePlanter, planters: Sequence[threading.Thread]) -> None:
        """Loads the canary topic and harms the files, once all that is published is in the copy."""
        try:
            files.prepare()
            for planter in planters:
                planter.join(PLANTING_MAX_S)
            if not self._is_set(self._all_copied, COPY_WAIT_MAX_S):
                missing = ", ".join(
                    f"{each.service} ({self._counted.get(each.service, 0)} of {each.sent_count})"
                    for each in self._uncopied()
                )
                raise DrillError(
                    f"the audit did not count all events in the copy within {COPY_WAIT_MAX_S:g} s, those of "
                    f"{missing}; `headrace mirror status` and `headrace status` say why"
                )
            files.load(self._stopping)
            self._is_set(self._all_loaded, REPORT_WAIT_MAX_S)
            for plant in self._for_files():
                if self._stopping.is_set():
                    return
                files.harm(plant, self._truth.tell)
                self._planted_s[plant.service] = time.monotonic()
            if files.kinds:
                files.verify()
        except Exception as error:  # of HDFS, Spark, the analysis cluster or the disk
            if not self._stopping.is_set():
                self._fail(f"the warehouse: {files.explain(error)}")

    def _is_set(self, event: threading.Event, wait_s: float) -> bool:
        """Waits for an event; returns False after `wait_s`. Raises `DrillError` if the drill ends."""
        deadline_s = time.monotonic() + wait_s
        while not event.wait(POLL_S / 4):
            if self._stopping.is_set():
                raise DrillError("the drill ends")
            if time.monotonic() > deadline_s:
                return False
        return True

    def _fail(self, problem: str) -> None:
        self._problems.append(problem)
        self._stopping.set()

    def _service(self, place: Place, number: int) -> str:
        return f"drill-{self._truth.run}-{place.datacenter}-{number}"

    # --- asking ---

    def _watch(
        self, planters: Sequence[threading.Thread], others: Sequence[threading.Thread], timeout_s: float
    ) -> list[Verdict]:
        """Asks until all is named and has settled; returns the last verdicts."""
        planting_until_s = time.monotonic() + PLANTING_MAX_S
        while True:
            # Looked at first: what is planted during the judging is in the next verdicts.
            is_published = not any(planter.is_alive() for planter in planters)
            is_planted = is_published and not any(other.is_alive() for other in others)
            now_s = time.monotonic()
            judged = list(self._judge_now(self._hours()))
            self._note_progress([each.evidence for each in judged], is_published=is_published)
            verdicts = [each.verdict for each in judged]
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

    def _hours(self) -> set[int]:
        return {self._hour_ms, *(plant.hour_ms for plant in self._truth.plants)}

    def _for_files(self) -> list[DrillPlant]:
        kinds = () if self._files is None else self._files.kinds
        return [plant for plant in self._truth.plants if plant.kind in kinds]

    def _uncopied(self) -> list[DrillPlant]:
        return [p for p in self._truth.plants if p.sent_count and p.service not in self._copied_ms]

    def _note_progress(self, evidence: Sequence[Evidence], *, is_published: bool) -> None:
        """Notes which events the audit has counted in the copy, and whether it knows of their load."""
        for plant in self._uncopied():
            sent_s = self._sent_s.get(plant.service)
            self._counted[plant.service] = copied_count(plant, evidence)
            if sent_s is not None and self._counted[plant.service] >= plant.sent_count:
                self._copied_ms[plant.service] = max(1, int((time.monotonic() - sent_s) * 1_000))
        if is_published and not self._uncopied():
            self._all_copied.set()
        if self._all_copied.is_set() and all(is_loaded(plant, evidence) for plant in self._for_files()):
            self._all_loaded.set()

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
        copied_ms = self._copied_ms.get(plant.service, NOT_COPIED_MS)
        return replace(plant, outcome=outcome, named_after_ms=took_ms, copied_after_ms=copied_ms)
