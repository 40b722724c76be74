"""What the DAGs write into Airflow's database fits its columns.

PostgreSQL refuses a longer text, SQLite does not. Airflow writes the DAGs of a file together, so one that is
refused took all others along, and only the DAG processor's log said so.
"""

from airflow.models.asset import AssetModel
from airflow.models.dag import DagModel
from airflow.sdk import DAG
from airflow.serialization.serialized_objects import DagSerialization

from headrace.airflow.topic_dags import dags_of
from headrace.warehouse.schedule import (
    CRON_MAX_CHARS,
    OUTPUT_MAX_CHARS,
    OWNER_MAX_CHARS,
    parse_schedule,
)


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
