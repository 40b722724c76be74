"""The DAGs as Airflow reads them: their tasks, schedules and assets, and the error for a bad topics.yaml."""

import json
import shutil
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.partition_mappers.temporal import StartOfDayMapper as CoreStartOfDayMapper
from airflow.sdk import DAG, StartOfDayMapper
from jinja2 import Template

from headrace.airflow.hours import hour_key, parse_hour
from headrace.airflow.sealing import is_result
from headrace.airflow.topic_dags import dags_of
from headrace.warehouse.schedule import parse_schedule
from headrace.warehouse.seal import NotSealedError

REPOSITORY = Path(__file__).parents[2]
TWO_TOPICS = """
defaults: {owner: platform, retries: 1}
topics:
  page-view: {owner: web-analytics, completeness: 0.99, audit_wait: 1m, audit_delay: 2m}
  orders: {schedule: null, output: /finance, retention: 90d, grace: 90m}
"""


def bag(folder: Path, home: Path | None = None) -> DagBag:
    """Returns the DAGs of a folder, with the loads in an agent's home; without one, with no loads at all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADRACE_HOME", str(home or "/nowhere"))
        return DagBag(folder)


@pytest.fixture(scope="module")
def dags(tmp_path_factory: pytest.TempPathFactory) -> dict[str, DAG]:
    """The DAGs of `dags/`, with two topics of the tests' own."""
    folder = tmp_path_factory.mktemp("dags")
    shutil.copytree(REPOSITORY / "dags", folder, dirs_exist_ok=True)
    (folder / "topics.yaml").write_text(TWO_TOPICS)
    found = bag(folder)
    assert not found.import_errors
    return dict(found.dags)


def test_the_shipped_dags_import_without_errors() -> None:
    found = bag(REPOSITORY / "dags")
    assert not found.import_errors
    assert set(found.dags) == {
        "load-page-view",
        "seal-page-view",
        "compact",
        "reconcile",
        "verify",
        "repair",
        "retain",
        "drill",
        "daily-active-users",
    }


def test_a_load_put_to_the_agent_has_unpaused_dags(tmp_path: Path) -> None:
    (tmp_path / "loads").mkdir()
    for topic, schedule in (("clicks", None), ("page-view", "*/5 * * * *")):
        load = {"owner": "web", "schedule": schedule}
        (tmp_path / "loads" / f"{topic}.json").write_text(json.dumps(load))
    found = bag(REPOSITORY / "dags", tmp_path)
    assert not found.import_errors
    assert found.dags["load-page-view"].timetable.expression == "*/5 * * * *"
    for dag_id in ("load-clicks", "seal-clicks", "load-page-view", "seal-page-view"):
        assert found.dags[dag_id].is_paused_upon_creation is False
    assert bag(REPOSITORY / "dags").dags["load-page-view"].is_paused_upon_creation is True


@pytest.mark.parametrize(
    ("run_type", "given", "until"),
    [
        ("scheduled", None, ""),
        ("manual", None, ""),
        ("manual", "2015-05-17T08:00:00Z", "2015-05-17T08:00:00Z"),
        ("backfill", None, "2015-05-17T10:00:00+00:00"),
    ],
)
def test_a_client_whose_clock_is_ahead_bounds_no_scheduled_load(
    dags: dict[str, DAG], run_type: str, given: str | None, until: str
) -> None:
    context = {
        "params": {"until": given},
        "dag_run": SimpleNamespace(run_type=run_type),
        "data_interval_end": parse_hour("2015-05-17T10:00"),
    }
    assert Template(dags["load-page-view"].get_task("load").until).render(context) == until


@pytest.mark.parametrize("topic", ["x" * 200, "context", "self"])
def test_a_topic_of_any_name_has_its_dags(topic: str) -> None:
    """One that Airflow refuses would take the DAGs of all topics along: they are made in one file."""
    found = dags_of([parse_schedule(topic, {"owner": "a"})])
    assert set(found) == {f"load-{topic}", f"seal-{topic}"}


@pytest.mark.parametrize(
    ("sealed", "problems", "tries", "is_it"),
    [
        ([1], [2], 1, True),
        ([1], [], 1, False),
        ([1], [], 4, True),
        ([], [1, 2], 4, False),
        ([], [], 4, False),
    ],
)
def test_seals_beside_an_error_are_the_result_if_all_is_judged_or_at_the_last_try(
    sealed: list[int], problems: list[int], tries: int, is_it: bool
) -> None:
    found: Any = dict.fromkeys(sealed)
    error = NotSealedError("", dict.fromkeys(problems, "a file is missing"), found)
    ti = SimpleNamespace(try_number=tries, max_tries=3)
    assert is_result(error, [1, 2], ti) is is_it


def test_each_topic_has_its_two_dags(dags: dict[str, DAG]) -> None:
    assert {"load-page-view", "seal-page-view", "load-orders", "seal-orders"} <= set(dags)
    assert len(dags) == 11


def test_every_dag_has_a_description_and_one_active_run(dags: dict[str, DAG]) -> None:
    for dag in dags.values():
        assert dag.description
        assert dag.max_active_runs == 1
        assert not dag.catchup
        assert "headrace" in dag.tags
        assert all(task.owner in ("web-analytics", "platform") for task in dag.tasks)


def test_loads_of_a_topic_wait_for_each_other_and_for_spark(dags: dict[str, DAG]) -> None:
    load = dags["load-page-view"].get_task("load")
    assert load.max_active_tis_per_dag == 1
    assert load.pool == "spark"
    assert load.retries == 1
    assert [asset.name for asset in load.outlets] == ["page-view loaded"]
    assert dags["load-page-view"].params["dry_run"] is False
    assert dags["load-page-view"].params["made_again"] is None
    assert dags["load-page-view"].timetable.expression == "*/10 * * * *"
    assert not dags["load-orders"].timetable.can_be_scheduled
    assert dags["load-orders"].get_task("load").root == "/finance"


def test_a_seal_follows_a_load_and_maps_over_days(dags: dict[str, DAG]) -> None:
    seal = dags["seal-page-view"]
    assert [asset.name for asset in seal.timetable.asset_condition.objects] == ["page-view loaded"]
    assert {task.task_id: task.downstream_task_ids for task in seal.tasks} == {
        "hours_due": {"audit", "seal"},
        "audit": {"seal"},
        "seal": {"every_hour_sealed"},
        "every_hour_sealed": set(),
    }
    audit, sealing = (seal.get_task(name) for name in ("audit", "seal"))
    assert audit.until == "decided"
    assert audit.timeout == 60
    assert sealing.completeness == 0.99
    assert audit.delay == sealing.delay == timedelta(minutes=2)
    assert [asset.name for asset in sealing.outlets] == ["page-view"]
    assert seal.get_task("every_hour_sealed").trigger_rule == "all_done"


def test_housekeeping_uses_each_topics_schedule(dags: dict[str, DAG]) -> None:
    compact, retain, verify = (dags[name].get_task("orders") for name in ("compact", "retain", "reconcile"))
    assert (compact.command, list(compact.arguments)) == ("compact", ["--grace-hours", "1.5"])
    assert (retain.command, list(retain.arguments)) == ("retain", ["--keep-hours", "2160.0"])
    assert (verify.command, verify.root) == ("verify", "/finance")
    assert dags["retain"].get_task("page-view").arguments == []
    hourly = dags["verify"].get_task("orders")
    assert (hourly.command, list(hourly.arguments)) == ("verify", ["--checked", "recent"])
    repair = dags["repair"].get_task("orders")
    assert (repair.command, repair.root, list(repair.arguments)) == ("refill", "/finance", [])


def test_the_drill_runs_every_hour_and_is_not_repeated(dags: dict[str, DAG]) -> None:
    dag = dags["drill"]
    (task,) = dag.tasks
    assert (dag.timetable.expression, dag.catchup, dag.max_active_runs) == ("35 * * * *", False, 1)
    assert (task.task_type, task.timeout, task.retries) == ("DrillOperator", "10m", 0)
    assert dag.params["datacenter"] is None
    assert task.execution_timeout == timedelta(minutes=30)


def test_dags_on_sealed_hours_run_by_day(dags: dict[str, DAG]) -> None:
    timetable = dags["daily-active-users"].timetable
    assert timetable.asset_condition.name == "page-view"
    assert isinstance(timetable.default_partition_mapper, StartOfDayMapper)
    # Airflow's own mapper reads the keys that seals write.
    assert CoreStartOfDayMapper().to_downstream(hour_key(parse_hour("2015-05-17T10"))) == "2015-05-17"
    program = dags["daily-active-users"].get_task("count").program
    assert program.name == "daily_active_users.py"
    assert program.is_file()


def test_a_load_that_cannot_be_read_is_an_import_error_beside_all_other_dags(tmp_path: Path) -> None:
    (tmp_path / "loads").mkdir()
    (tmp_path / "loads" / "orders.json").write_text('{"owner": "b", "retention": "6m"}')
    (tmp_path / "loads" / "views.json").write_text('{"owner": "b"}')
    found = bag(REPOSITORY / "dags", tmp_path)
    assert {Path(path).name for path in found.import_errors} == {"headrace_loads.py"}
    assert "load-views" in found.dags and "load-orders" not in found.dags


def test_an_invalid_topics_file_leaves_the_loads_at_the_agent_their_dags(tmp_path: Path) -> None:
    """A letter wrong in topics.yaml stopped the loads that Terraform put, too."""
    shutil.copytree(REPOSITORY / "dags", tmp_path / "dags")
    (tmp_path / "dags" / "topics.yaml").write_text("topics: {page-view: {ownr: a}}")
    (tmp_path / "loads").mkdir()
    (tmp_path / "loads" / "orders.json").write_text('{"owner": "b"}')
    found = bag(tmp_path / "dags", tmp_path)
    assert {Path(path).name for path in found.import_errors} == {"headrace_topics.py", "housekeeping.py"}
    assert {"load-orders", "seal-orders"} <= set(found.dags)


def test_an_invalid_topics_file_is_an_import_error_that_names_the_field(tmp_path: Path) -> None:
    shutil.copytree(REPOSITORY / "dags", tmp_path, dirs_exist_ok=True)
    (tmp_path / "topics.yaml").write_text("topics: {page-view: {owner: a, completeness: 2}}")
    errors = bag(tmp_path).import_errors
    assert {Path(path).name for path in errors} == {"headrace_topics.py", "housekeeping.py"}
    assert all(
        "topics.yaml: line 1: topic page-view: completeness 2 is not a share" in text
        for text in errors.values()
    )
