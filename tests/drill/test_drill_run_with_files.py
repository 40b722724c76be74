"""A drill with a warehouse that tests play: the order of its steps, what it waits for, and how it fails."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fix_cli import command_runner
from headrace.audit.batches.tally import Span
from headrace.audit.evidence import CountedSpan, Evidence, PartitionEvidence, PublisherState, TierEvidence
from headrace.audit.findings import LOAD_HOP, Counts, Finding, Status, Verdict
from headrace.audit.repair.repairing import Judged
from headrace.audit.times import HOUR_MS
from headrace.audit.topic.drills import CANARY_TOPIC, NOT_COPIED_MS, DrillPlant, DrillRecord, Outcome
from headrace.cli import audit_drill
from headrace.drill import run as drill_run
from headrace.drill.crossing import copied_count, is_loaded
from headrace.drill.errors import DrillError
from headrace.drill.file_kinds import FILE_KINDS, FileKind, of_file
from headrace.drill.file_planting import FilePlanter
from headrace.drill.kinds import EVENTS, KINDS, Hands
from headrace.drill.result import DrillResult
from headrace.drill.run import DrillRun
from headrace.drill.truth import Truth

BEGAN_MS = 1_800_000_000_000
LONG_S = 60.0
PRODUCER_ID = 12


class NoPlace:
    """Stands for a datacenter."""

    datacenter = "east"

    def ensure_canary(self) -> None:
        pass


class PlayedFiles:
    """Stands for the warehouse's part. `steps` has what was done; `harmed` which plants, with their truth."""

    def __init__(self, truth: Truth, fails_at: str = "") -> None:
        self.kinds = dict(FILE_KINDS)
        self.steps: list[str] = []
        self.harmed: list[str] = []
        self._truth = truth
        self._fails_at = fails_at

    def prepare(self) -> None:
        self._step("prepare")

    def due(self, plant: DrillPlant) -> DrillPlant:
        return of_file(plant, self.kinds[plant.kind])

    def load(self, _stopping: threading.Event) -> None:
        self._step("load")

    def harm(self, plant: DrillPlant, tell: Callable[[DrillPlant], None]) -> None:
        tell(replace(plant, path=f"/x/{plant.service}", record_count=EVENTS))
        written = json.loads(self._truth.path.read_text())["plants"]
        assert f"/x/{plant.service}" in {each["path"] for each in written}, "the truth is on disk first"
        self._step("harm")
        self.harmed.append(plant.service)

    def verify(self) -> None:
        self._step("verify")

    def explain(self, error: Exception) -> str:
        return FilePlanter.explain(self, error)  # type: ignore[arg-type]  # it asks for nothing else

    def _step(self, name: str) -> None:
        if name == self._fails_at:
            raise DrillError(f"{name} was refused")
        self.steps.append(name)


class PlayedAudit:
    """What an audit says that sees all: events once the copy has them, files once they are verified."""

    def __init__(self, truth: Truth, files: PlayedFiles, *, has_copy: bool = True) -> None:
        self._truth = truth
        self._files = files
        self._has_copy = has_copy

    def __call__(self, hours_ms: Collection[int]) -> list[Judged]:
        return [self._judged(hour_ms) for hour_ms in sorted(hours_ms)]

    def _judged(self, hour_ms: int) -> Judged:
        plants = [plant for plant in self._truth.plants if plant.hour_ms == hour_ms]
        is_loaded_ = "load" in self._files.steps
        evidence = evidence_of(plants, hour_ms, is_loaded_) if self._has_copy else nothing_of(hour_ms)
        is_verified = "verify" in self._files.steps
        findings = tuple(
            Finding(Status(plant.statuses[0]), LOAD_HOP, "x", plant.record_count, path=plant.path)
            for plant in plants
            if plant.path and plant.statuses and is_verified
        )
        status = findings[0].status if findings else Status.COMPLETE
        return Judged(evidence, Verdict(CANARY_TOPIC, "east", hour_ms, status, Counts(), {}, findings))


def nothing_of(hour_ms: int) -> Evidence:
    return Evidence(CANARY_TOPIC, "east", hour_ms)


def evidence_of(plants: list[DrillPlant], hour_ms: int, is_loaded_: bool) -> Evidence:
    """The copy has all events of these plants, each at addresses of its own; loads have them, too, or not."""
    spans, names, publishers = [], {}, {}
    for number, plant in enumerate(plants):
        producer_id = PRODUCER_ID + number
        span = Span(hour_ms, producer_id, 0, 0, EVENTS - 1, EVENTS, number * 100, number * 100 + 100, 1)
        spans.append(CountedSpan(0, span, hour_ms))
        names[producer_id] = plant.service
        publishers[plant.service] = PublisherState(plant.service, "host", 0, 0, True)
    cover = ((0, len(plants) * 100),) if is_loaded_ else ()
    return Evidence(
        CANARY_TOPIC,
        "east",
        hour_ms,
        analysis_spans=tuple(spans),
        publishers=publishers,
        publisher_names=names,
        partitions={0: PartitionEvidence(warehouse=TierEvidence(cover=cover))},
    )


@pytest.fixture
def truth(tmp_path: Path) -> Truth:
    return Truth(tmp_path, "x", BEGAN_MS)


@pytest.fixture(autouse=True)
def publishing_is_played(monkeypatch: pytest.MonkeyPatch) -> None:
    def published(hands: Hands, plant: DrillPlant) -> None:
        hands.tell(replace(plant, sent_count=EVENTS))

    monkeypatch.setattr(drill_run, "nothing", published)


def held(truth: Truth, files: PlayedFiles, audit: PlayedAudit, timeout_s: float = LONG_S) -> DrillResult:
    places: Any = [NoPlace()]
    planter: Any = files
    run = DrillRun(truth, places, {}, audit, files=planter, settle_s=0)
    return run.run(timeout_s, "ops@host")


def test_files_are_harmed_once_the_load_is_known_and_verified_once_they_are_harmed(truth: Truth) -> None:
    files = PlayedFiles(truth)
    result = held(truth, files, PlayedAudit(truth, files))
    assert files.steps == ["prepare", "load", *["harm"] * len(FILE_KINDS), "verify"]
    assert not result.is_wrong and not result.is_open and result.count(Outcome.NAMED) == len(FILE_KINDS)
    data = result.to_json()
    assert data["copied_s"]["east"] > 0
    assert all(plant["copied_after_ms"] > 0 and plant["path"] for plant in data["each"])
    hours = {plant["kind"]: (BEGAN_MS - plant["hour_ms"]) // HOUR_MS for plant in data["each"]}
    assert hours == {name: kind.hours_back for name, kind in FILE_KINDS.items()}
    slowest = {kind: each["slowest_s"] for kind, each in data["kinds"].items()}
    assert [kind for kind, took_s in slowest.items() if took_s is None] == ["file left alone in HDFS"]


def test_an_audit_that_no_verification_reaches_has_missed_the_files(truth: Truth) -> None:
    """The negative control."""
    files = PlayedFiles(truth)

    def blind(hours_ms: Collection[int]) -> list[Judged]:
        found = PlayedAudit(truth, files)(hours_ms)
        return [Judged(evidence, replace(verdict, findings=())) for evidence, verdict in found]

    result = held(truth, files, blind, timeout_s=1.0)  # type: ignore[arg-type]  # it is one that sees less
    assert result.is_wrong and result.count(Outcome.MISSED) == len(FILE_KINDS) - 1


@pytest.mark.parametrize("step", ["prepare", "load", "harm", "verify"])
def test_a_step_that_fails_ends_the_drill_without_a_score(truth: Truth, step: str) -> None:
    files = PlayedFiles(truth, fails_at=step)
    with pytest.raises(DrillError, match=f"^the warehouse: {step} was refused$"):
        held(truth, files, PlayedAudit(truth, files))
    assert step not in files.steps
    # What was harmed by then is in the truth, so nobody wonders about it.
    written = json.loads(truth.path.read_text())["plants"]
    assert set(files.harmed) <= {plant["service"] for plant in written if plant["path"]}


def test_without_the_copy_nothing_is_loaded_and_the_problem_names_the_mirror(
    truth: Truth, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drill_run, "COPY_WAIT_MAX_S", 0.5)
    files = PlayedFiles(truth)
    counts = rf"drill-\S+-0 \(0 of {EVENTS}\)"
    problem = rf"did not count all events in the copy .*, those of {counts}.*headrace mirror status"
    with pytest.raises(DrillError, match=problem):
        held(truth, files, PlayedAudit(truth, files, has_copy=False))
    assert files.steps == ["prepare"]


def test_an_interrupted_drill_ends_its_load_and_harms_nothing(
    truth: Truth, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, loading = PlayedFiles(truth), threading.Event()
    ended: list[bool] = []

    def load(stopping: threading.Event) -> None:
        loading.set()
        ended.append(stopping.wait(LONG_S))
        raise DrillError("the load was interrupted")

    def interrupted(hours_ms: Collection[int]) -> list[Judged]:
        if loading.is_set():
            raise KeyboardInterrupt
        return PlayedAudit(truth, files)(hours_ms)

    monkeypatch.setattr(files, "load", load)
    with pytest.raises(KeyboardInterrupt):
        held(truth, files, interrupted)  # type: ignore[arg-type]  # it is one that is interrupted
    assert ended == [True] and not files.harmed


# --- how far events have come ---


def test_what_the_copy_has_of_a_plant_is_counted_by_its_service_and_by_the_id_that_sent_again() -> None:
    plant = DrillPlant("k", "east", "s", BEGAN_MS, LOAD_HOP, sent_count=EVENTS)
    evidence = [evidence_of([plant], BEGAN_MS, is_loaded_=False)]
    assert copied_count(plant, evidence) == EVENTS
    assert copied_count(replace(plant, datacenter="west"), evidence) == 0
    assert copied_count(replace(plant, service="t"), evidence) == 0
    # What was sent again under an id of its own is found by that id.
    assert copied_count(replace(plant, service="t", producer_id=PRODUCER_ID), evidence) == EVENTS
    assert not is_loaded(plant, evidence)
    assert is_loaded(plant, [evidence_of([plant], BEGAN_MS, is_loaded_=True)])


# --- the command ---


def chosen(names: list[str], *, warehouse: bool = True) -> audit_drill._Chosen:
    return audit_drill._chosen(names, warehouse=warehouse)


def test_what_is_chosen_decides_whether_the_warehouse_is_drilled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_drill, "_why_no_warehouse", lambda: "")
    everything = chosen([])
    assert (set(everything.kinds), set(everything.files)) == (set(KINDS), set(FILE_KINDS))
    assert everything.without_warehouse == ""
    assert chosen(["nothing planted"]).without_warehouse == "no chosen kind needs it"
    assert chosen(["sent again as another producer"]).without_warehouse == ""
    off = chosen([], warehouse=False)
    assert (off.files, off.without_warehouse) == ({}, "--no-warehouse")
    monkeypatch.setattr(audit_drill, "_why_no_warehouse", lambda: "this context has none")
    assert chosen([]).without_warehouse == "this context has none"


def test_a_kind_of_files_needs_a_warehouse(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    headrace = command_runner(monkeypatch, capsys)
    ended = headrace("audit", "drill", "--no-warehouse", "--kind", "file cut in HDFS")
    assert ended.exit_code == 2 and "'file cut in HDFS' needs a warehouse: --no-warehouse" in ended.err


def test_a_score_without_the_warehouse_says_so() -> None:
    kinds: dict[str, FileKind] = FILE_KINDS
    assert {kind.hours_back for kind in kinds.values()} == set(range(len(kinds)))
    record = DrillRecord("x", "ops@host", BEGAN_MS, 0, ())
    assert DrillResult(record, "t", "this context has none").to_json()["without_warehouse"] == (
        "this context has none"
    )
    assert DrillResult(record, "t").to_json()["without_warehouse"] is None
    assert DrillPlant("k", "east", "s", 0, LOAD_HOP).copied_after_ms == NOT_COPIED_MS
