"""A drill on a site, with kinds and an audit that tests play: its truth, score, end and exit codes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fix_audit_world import Batch
from fix_cli import command_runner
from headrace.audit.evidence import Evidence
from headrace.audit.findings import PRODUCER_HOP, Counts, Finding, Status, Verdict
from headrace.audit.repair.repairing import Judged
from headrace.audit.topic.drills import CANARY_TOPIC, DrillPlant, Outcome
from headrace.cli import audit_drill
from headrace.client.faults import BatchFate
from headrace.client.observer import BatchIdentity
from headrace.drill.batches import Altering, Dropping
from headrace.drill.errors import DrillError
from headrace.drill.kinds import Hands, Kind
from headrace.drill.result import DrillResult
from headrace.drill.run import DrillRun
from headrace.drill.truth import RUNS_KEPT, Truth, drills_folder
from headrace.wire.batch import read_header, verify
from headrace.wire.content import content_of

BEGAN_MS = 1_800_000_000_000
LONG_S = 60.0


class NoPlace:
    """Stands for a datacenter."""

    def __init__(self, datacenter: str = "east") -> None:
        self.datacenter = datacenter

    def ensure_canary(self) -> None:
        pass


def lost(hands: Hands, plant: DrillPlant) -> None:
    hands.tell(replace(plant, statuses=(Status.LOST,), record_count=3))


def control(hands: Hands, plant: DrillPlant) -> None:
    hands.tell(plant)


def seeing(truth: Truth) -> list[Verdict]:
    """What an audit says that sees everything."""
    return verdicts(truth, [plant for plant in truth.plants if plant.statuses])


def verdicts(truth: Truth, named: list[DrillPlant]) -> list[Verdict]:
    found = tuple(
        Finding(Status.LOST, PRODUCER_HOP, "lost", plant.record_count, service=plant.service)
        for plant in named
    )
    hours = {(plant.datacenter, plant.hour_ms) for plant in truth.plants}
    status = Status.LOST if found else Status.COMPLETE
    return [Verdict(CANARY_TOPIC, *hour, status, Counts(), {}, found) for hour in hours]


def held(
    truth: Truth, kinds: dict[str, Kind], judge: Callable[[Truth], list[Verdict]], timeout_s: float = LONG_S
) -> DrillResult:
    places: Any = [NoPlace()]
    run = DrillRun(truth, places, kinds, lambda _hours_ms: said(judge(truth)), settle_s=0)
    return run.run(timeout_s, "ops@host")


def said(found: list[Verdict]) -> list[Judged]:
    """These verdicts, each with evidence of its hour."""
    return [Judged(Evidence(each.topic, each.datacenter, each.hour_ms), each) for each in found]


@pytest.fixture
def truth(tmp_path: Path) -> Truth:
    return Truth(tmp_path, "x", BEGAN_MS)


def test_an_audit_that_names_all_is_good_and_the_drill_ends_at_once(truth: Truth) -> None:
    began_s = time.monotonic()
    result = held(truth, {"lost": lost, "control": control}, seeing)
    assert time.monotonic() - began_s < LONG_S
    assert not result.is_wrong and not result.is_open
    data = result.to_json()
    assert (data["plants"], data["named"], data["missed"], data["false"]) == (2, 2, 0, 0)
    assert data["kinds"]["lost"]["slowest_s"] > 0 and data["kinds"]["control"]["slowest_s"] is None
    written = json.loads(truth.path.read_text())
    assert [each["outcome"] for each in written["plants"]] == ["named", "named"]


def test_a_blinded_audit_has_missed_what_was_planted(truth: Truth) -> None:
    """The negative control: all is called complete, so the drill must fail."""
    result = held(truth, {"lost": lost}, lambda told: verdicts(told, []), timeout_s=1.0)
    assert result.is_wrong and result.count(Outcome.MISSED) == 1
    assert result.record.plants[0].named_after_ms == -1


def test_an_audit_that_says_nothing_leaves_all_unknown(truth: Truth) -> None:
    result = held(truth, {"lost": lost}, lambda told: [], timeout_s=1.0)
    assert result.is_open and not result.is_wrong


def test_a_false_alarm_about_a_control_is_counted(truth: Truth) -> None:
    def alarmed(told: Truth) -> list[Verdict]:
        named = [replace(plant, record_count=5) if not plant.statuses else plant for plant in told.plants]
        return verdicts(told, named)

    result = held(truth, {"lost": lost, "control": control}, alarmed, timeout_s=1.0)
    assert result.is_wrong and result.record.false_count == 5
    assert result.count(Outcome.NAMED) == 1


def test_the_truth_is_on_disk_before_the_harm(truth: Truth) -> None:
    seen: list[str] = []

    def careful(hands: Hands, plant: DrillPlant) -> None:
        lost(hands, plant)
        seen.extend(each["service"] for each in json.loads(truth.path.read_text())["plants"])

    held(truth, {"careful": careful}, seeing)
    assert seen == ["drill-x-east-0"]


def test_what_cannot_be_planted_is_said_and_scored_as_nothing(truth: Truth) -> None:
    def failing(hands: Hands, plant: DrillPlant) -> None:
        raise OSError("no route to host")

    with pytest.raises(DrillError, match="east: no route to host"):
        held(truth, {"lost": lost, "failing": failing}, seeing)


def test_the_audits_time_begins_once_all_is_planted(truth: Truth) -> None:
    planted: list[str] = []

    def slow(hands: Hands, plant: DrillPlant) -> None:
        lost(hands, plant)
        time.sleep(1.5)
        planted.append(plant.service)

    def sees_what_is_planted(told: Truth) -> list[Verdict]:
        return verdicts(told, [plant for plant in told.plants if plant.service in planted])

    result = held(truth, {"slow": slow}, sees_what_is_planted, timeout_s=0.1)
    assert result.count(Outcome.NAMED) == 1


# --- its files ---


def test_one_drill_at_a_time_and_what_a_killed_one_left_is_removed(tmp_path: Path) -> None:
    with drills_folder(tmp_path) as folder:
        left = Truth(folder, "killed", BEGAN_MS)
        (left.state_dir / "publishers").mkdir()
        left.tell(DrillPlant("lost", "east", "drill-killed-east-0", BEGAN_MS, PRODUCER_HOP))
        with pytest.raises(DrillError, match="another drill runs here"), drills_folder(tmp_path):
            pass
        assert left.state_dir.exists()
    assert not left.state_dir.exists() and left.path.exists()
    with drills_folder(tmp_path) as folder:
        for number in range(RUNS_KEPT + 5):
            Truth(folder, f"run-{number}", BEGAN_MS)
    assert len([each for each in folder.iterdir() if each.is_dir()]) == RUNS_KEPT


# --- what its producers do ---


def identity(data: bytes) -> BatchIdentity:
    header = read_header(data)
    numbers = (header.producer_id, header.producer_epoch, header.base_sequence, header.record_count)
    return BatchIdentity(CANARY_TOPIC, 0, *numbers, BEGAN_MS, BEGAN_MS)


def test_an_altered_batch_has_other_bytes_under_a_right_checksum() -> None:
    told: list[BatchIdentity] = []
    plan = Altering(1, told.append)
    first, second = (Batch(0, 12, 0, sequence, 3, BEGAN_MS).encode() for sequence in (0, 3))
    assert plan.decide(identity(first), None) is BatchFate.SEND and not told
    assert plan.decide(identity(second), None) is BatchFate.ALTER
    assert told == [identity(second)]  # before it is altered
    data = bytearray(second)
    plan.alter(data)
    verify(data, 0, read_header(data))
    assert identity(bytes(data)) == identity(second) and content_of(data) != content_of(second)
    assert plan.decide(identity(first), None) is BatchFate.SEND


def test_a_dropped_batch_is_told_first() -> None:
    told: list[BatchIdentity] = []
    plan = Dropping(CANARY_TOPIC, 3, 3, told.append)
    batch = identity(Batch(0, 12, 0, 3, 3, BEGAN_MS).encode())
    assert plan.record_limit(CANARY_TOPIC, 0, 0) is None and plan.decide(batch, None) is BatchFate.SEND
    assert plan.record_limit(CANARY_TOPIC, 0, 3) == 3
    assert plan.decide(batch, 3) is BatchFate.DROP and told == [batch] and plan.is_done


# --- the command's exit codes ---


@pytest.mark.parametrize(
    ("judge", "exit_code"),
    [(seeing, 0), (lambda told: verdicts(told, []), 1), (lambda told: [], 3)],
    ids=["all named", "blinded", "silent"],
)
def test_the_exit_code_says_whether_the_audit_can_be_believed(
    truth: Truth,
    judge: Callable[[Truth], list[Verdict]],
    exit_code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = held(truth, {"lost": lost}, judge, timeout_s=1.0)
    monkeypatch.setattr(audit_drill, "reading", lambda _url: nullcontext())
    monkeypatch.setattr(audit_drill, "_drill", lambda *_arguments, **_options: result)
    monkeypatch.setattr(audit_drill, "_say", lambda *_arguments: True)
    headrace = command_runner(monkeypatch, capsys)
    ended = headrace("audit", "drill")
    assert (ended.exit_code, f"found {int(exit_code == 0)} of 1 plants" in ended.out) == (exit_code, True)
    assert headrace("audit", "drill", "--json").json["named"] == int(exit_code == 0)
