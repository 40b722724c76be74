"""What the DAGs write into Airflow's database fits its columns.

PostgreSQL refuses a longer text, SQLite does not. Airflow writes the DAGs of a file together, so one that is
refused took all others along, and only the DAG processor's log said so.
"""

import shutil
from pathlib import Path

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.models.asset import AssetModel
from airflow.models.dag import DagModel
from airflow.sdk import DAG
from airflow.serialization.serialized_objects import DagSerialization

from headrace.airflow.topic_dags import OTHER_OWNERS, dags_of
from headrace.warehouse.schedule import (
    CRON_MAX_CHARS,
    OUTPUT_MAX_CHARS,
    OWNER_MAX_CHARS,
    parse_schedule,
)

REPOSITORY = Path(__file__).parents[2]
OWNER_COUNT = 300


def assert_columns_hold(dag: DAG) -> None:
    stored = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    assert len(stored.owner) <= DagModel.owners.type.length
    assert len(stored.timetable.description) <= DagModel.timetable_description.type.length
    for task in dag.tasks:
        for asset in task.outlets:
            assert asset.uri.isascii() and len(asset.uri) <= AssetModel.uri.type.length


def test_the_longest_load_fits() -> None:
    months = "12," * ((CRON_MAX_CHARS - len("* * * 12 *")) // 3) + "12"
    fields = {
        "owner": "o" * OWNER_MAX_CHARS,
        "output": "/" + "d" * (OUTPUT_MAX_CHARS - 1),
        "schedule": f"* * * {months} *",
    }
    for dag in dags_of([parse_schedule("x" * 200, fields)]).values():
        assert_columns_hold(dag)


def test_housekeeping_of_topics_with_many_owners_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """compact, reconcile, verify, repair and retain were gone with the hundredth owner of twenty letters."""
    monkeypatch.setenv("HEADRACE_HOME", "/nowhere")
    shutil.copy(REPOSITORY / "dags" / "housekeeping.py", tmp_path)
    topics = [f"  t{n}: {{owner: team-{n:03}@example.test}}\n" for n in range(OWNER_COUNT)]
    (tmp_path / "topics.yaml").write_text(f"topics:\n{''.join(topics)}")
    found = DagBag(tmp_path)
    assert not found.import_errors and "retain" in found.dags
    for dag in found.dags.values():
        assert_columns_hold(dag)
        assert len(dag.tasks) == OWNER_COUNT
        assert dag.get_task("t0").owner == "team-000@example.test"
        assert dag.get_task(f"t{OWNER_COUNT - 1}").owner == OTHER_OWNERS
