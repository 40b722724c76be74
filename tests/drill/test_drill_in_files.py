"""What a drill plants in the warehouse's files: harmed, verified, told, judged and scored, all in memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from fix_audit_world import HOUR_A, received
from fix_canary import TOLD_MS, WAREHOUSE, CanaryWorld, hours_before
from headrace.audit.findings import LOAD_HOP, Counts, Finding, Policy, Status, Verdict
from headrace.audit.gathering import gather
from headrace.audit.gathering.drills import EndedDrill
from headrace.audit.report.drill_scores import (
    drill_score,
    false_events,
    outcome_of,
    score_of,
    without_other_tables,
)
from headrace.audit.report.remedies import command_of
from headrace.audit.report.report import report
from headrace.audit.store.store import AuditStore
from headrace.audit.times import HOUR_MS
from headrace.audit.topic.drills import CANARY_TOPIC, DrillPlant, Outcome
from headrace.audit.verdicts.verdicts import judge
from headrace.drill.canary_table import has_events_of
from headrace.drill.file_kinds import FILE_KINDS, harm_file, of_file
from headrace.drill.kinds import new_plant
from headrace.warehouse.doubles import find_doubles
from headrace.warehouse.report import verified_record


def due(run: str, hour_ms: int = HOUR_A) -> list[DrillPlant]:
    """The plants of a drill before they have files."""
    return [
        of_file(
            new_plant(
                name, "east", f"drill-{run}-east-{number}", hours_before(hour_ms, FILE_KINDS[name].hours_back)
            ),
            FILE_KINDS[name],
        )
        for number, name in enumerate(FILE_KINDS)
    ]


def planted(world: CanaryWorld, plants: Iterable[DrillPlant]) -> list[DrillPlant]:
    """Loads events for these plants, and harms their files; returns what was told of each last."""
    plants = list(plants)
    world.load({plant.service: plant.hour_ms for plant in plants})
    told: dict[str, DrillPlant] = {}
    for plant in plants:
        files = world.table.log.state().hours()[plant.hour_ms]
        (file,) = [each for each in files if has_events_of(world.hdfs, each, plant.service)]
        harm_file(
            world.hdfs, FILE_KINDS[plant.kind], plant, file, lambda each: told.update({each.service: each})
        )
    return list(told.values())


def verdicts_of(store: AuditStore, plants: Iterable[DrillPlant]) -> list[Verdict]:
    hours_ms = sorted({plant.hour_ms for plant in plants})
    with store.reading() as connection:
        return [
            judge(each, Policy(), TOLD_MS) for each in gather.evidence(connection, CANARY_TOPIC, hours_ms)
        ]


def test_a_verification_names_each_harmed_file_and_no_other() -> None:
    world = CanaryWorld()
    plants = planted(world, due("x"))
    store = world.told(world.verify())
    verdicts = verdicts_of(store, plants)
    store.close()
    assert {plant.kind: outcome_of(plant, verdicts) for plant in plants} == dict.fromkeys(
        FILE_KINDS, Outcome.NAMED
    )
    assert false_events(plants, verdicts) == 0
    # A blinded audit, which knows of no verification, has missed all but the control.
    store = world.told()
    blind = verdicts_of(store, plants)
    store.close()
    missed = [plant for plant in plants if outcome_of(plant, blind) is not Outcome.NAMED]
    assert len(missed) == len(FILE_KINDS) - 1 and all(plant.statuses for plant in missed)


def test_the_next_drill_in_the_same_hour_is_not_disturbed() -> None:
    """Also by one that was killed after its harm, of which no score was ever told."""
    world = CanaryWorld()
    first = planted(world, due("killed"))
    second = planted(world, due("next"))
    later = planted(world, due("later", HOUR_A + HOUR_MS))
    store = world.told(world.verify())
    for plants in (first, second, later):
        verdicts = verdicts_of(store, plants)
        assert {outcome_of(plant, verdicts) for plant in plants} == {Outcome.NAMED}
        assert false_events(plants, verdicts) == 0
    store.close()


def test_an_hours_harmed_files_hide_no_event_that_was_sent_again() -> None:
    world = CanaryWorld()
    planted(world, due("x"))
    for hours_back in range(5):
        hour_ms = hours_before(HOUR_A, hours_back)
        world.load_events({hour_ms: [("y", "a"), ("y", "b")]})
        world.load_events({hour_ms: [("z", "a")]})
        state = world.table.log.state()
        assert find_doubles(world.table, state, hour_ms, skips_unsound=True).extra == 1, hours_back


def test_the_control_is_false_if_its_file_is_named_and_so_is_any_loss_of_loads() -> None:
    world = CanaryWorld()
    (control,) = [plant for plant in planted(world, due("x")) if plant.is_control]
    named = Finding(Status.CORRUPT, LOAD_HOP, "other bytes", 12, path=control.path)
    lost = Finding(Status.LOST, LOAD_HOP, "were not written by the loads", 3, partition=0)
    elsewhere = replace(named, path=f"{control.path}.another")
    waiting = replace(lost, status=Status.PENDING)

    def verdict(*findings: Finding) -> list[Verdict]:
        return [Verdict(CANARY_TOPIC, "east", control.hour_ms, Status.LOST, Counts(), {}, findings)]

    assert outcome_of(control, verdict(named)) is Outcome.WRONG_PLACE
    assert false_events([control], verdict(named)) == 12
    assert false_events([control], verdict(lost)) == 3
    # Another drill's file in the same hour is that drill's; what the next load brings is no matter of files.
    assert outcome_of(control, verdict(elsewhere, waiting)) is Outcome.NAMED
    assert false_events([control], verdict(elsewhere, waiting)) == 0


def test_a_file_is_named_by_its_path_and_rows_at_the_warehouses_hop() -> None:
    world = CanaryWorld()
    plant = next(each for each in planted(world, due("x")) if Status.LOST in each.statuses)
    right = Finding(Status.LOST, LOAD_HOP, "is missing", plant.record_count, path=plant.path)

    def outcome(found: Finding) -> Outcome:
        here = (CANARY_TOPIC, "east", plant.hour_ms)
        return outcome_of(plant, [Verdict(*here, Status.LOST, Counts(), {}, (found,))])

    assert outcome(right) is Outcome.NAMED
    assert outcome(replace(right, record_count=7)) is Outcome.WRONG_PLACE
    assert outcome(replace(right, status=Status.CORRUPT)) is Outcome.WRONG_PLACE
    assert outcome(replace(right, path=f"{plant.path}x", service=plant.service)) is Outcome.MISSED


# --- a day's score ---


def ended(plants: Iterable[DrillPlant]) -> EndedDrill:
    said = (replace(each, outcome="named", named_after_ms=9_000, copied_after_ms=4_000) for each in plants)
    return EndedDrill("x", "ops@host", TOLD_MS, 0, tuple(said))


def test_the_score_has_the_files_and_the_time_into_the_copy() -> None:
    world = CanaryWorld()
    drill = ended(planted(world, due("x")))
    store = world.told(world.verify())
    with store.reading() as connection:
        score = drill_score(connection, [drill], TOLD_MS, Policy())
    assert score is not None and score.is_good
    assert (score.file_plants, score.files_found, score.copied_ms) == (5, 5, 4_000)
    assert "; 5 of 5 of the warehouse's files; the copy had the drills' events within 4 s" in score.sentence()
    store.close()
    # A drill's word alone is not believed of files either.
    store = world.told()
    with store.reading() as connection:
        doubted = drill_score(connection, [drill], TOLD_MS, Policy())
    assert doubted is not None and (doubted.files_found, doubted.doubted) == (1, 4)
    store.close()


def test_files_of_a_table_that_was_replaced_are_in_no_score() -> None:
    world = CanaryWorld()
    drill = ended([*planted(world, due("x")), DrillPlant("lost", "east", "s", HOUR_A, LOAD_HOP)])
    assert len(without_other_tables(drill, WAREHOUSE.name).plants) == 6
    for other in ("hdfs://namenode:8020/data/_drills/11", "hdfs://namenode:8020/data", None):
        assert [plant.kind for plant in without_other_tables(drill, other).plants] == ["lost"]
    score = score_of([drill], [without_other_tables(drill, None)], [])
    assert (score.file_plants, score.plants) == (0, 1)


def test_tables_that_were_replaced_are_in_no_report() -> None:
    world = CanaryWorld()
    planted(world, due("x"))
    store = world.told(world.verify())
    older = replace(WAREHOUSE, root="/data/_drills/0")
    store.fold([received(verified_record(world.verify(), older), time_ms=TOLD_MS - 1)])
    made = report(store, CANARY_TOPIC, now_ms=TOLD_MS)
    assert [each.warehouse for each in made.verified] == [WAREHOUSE.name]
    assert report(store, now_ms=TOLD_MS).verified == ()
    store.close()


# --- what helps all tables ---


@pytest.mark.parametrize("is_known_hour", [True, False])
def test_a_file_that_is_in_no_manifest_is_a_problem_of_the_hour_whose_folder_it_lies_in(
    is_known_hour: bool,
) -> None:
    world = CanaryWorld()
    world.load({"s": HOUR_A})
    (data,) = (data for path, data in world.hdfs.files.items() if "/hourly/" in path)
    hour_ms = HOUR_A if is_known_hour else HOUR_A + HOUR_MS
    beside = f"{world.table.paths.hour_dir(hour_ms)}/copy.parquet"
    world.hdfs.write(beside, data)
    (problem,) = world.verify().placed
    assert problem.text == f"{beside} is in no manifest" and not problem.is_gone
    place = (problem.hour_ms, problem.path, problem.rows)
    assert place == ((HOUR_A, beside, 12) if is_known_hour else (-1, "", 0))
    if is_known_hour:
        store = world.told(world.verify())
        (verdict,) = verdicts_of(store, [DrillPlant("k", "east", "s", HOUR_A, LOAD_HOP)])
        store.close()
        (finding,) = [each for each in verdict.findings if each.path]
        assert (finding.status, finding.hop, finding.record_count) == (Status.CORRUPT, LOAD_HOP, 12)
        # No repair can know whose it is: somebody moves it away, and has the table verified again.
        assert command_of(verdict, finding) == f"headrace warehouse verify {CANARY_TOPIC}"


def test_an_older_folder_of_an_hour_is_known_too() -> None:
    paths = CanaryWorld().table.paths
    assert paths.hour_of(f"{paths.hour_dir(HOUR_A)}/x.parquet") == HOUR_A
    assert paths.hour_of(f"{paths.older_hour_dir(HOUR_A)}/x.parquet") == HOUR_A
    assert paths.hour_of(f"{paths.hourly}/x.parquet") is None
    assert paths.hour_of(f"{paths.hourly}/dt=2026-99-99/hour=77/x.parquet") is None
    assert paths.hour_of("/elsewhere/dt=2026-11-20/hour=18/x.parquet") is None
