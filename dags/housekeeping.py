"""Daily maintenance of all topics' tables: compacts small files, verifies counts, deletes old hours."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, CronTriggerTimetable

from headrace.airflow.factory import SPARK_POOL
from headrace.airflow.operators import WarehouseJobOperator
from headrace.airflow.topics import read_all
from headrace.warehouse.schedule import LoadSchedule

PLANS = read_all(Path(__file__).with_name("topics.yaml"))
HOUR = timedelta(hours=1)


def daily(
    dag_id: str,
    at: str,
    description: str,
    command: str,
    arguments: Callable[[LoadSchedule], list[str]] = lambda plan: [],
    **task_options: Any,
) -> DAG:
    """Returns a DAG that runs a command of the warehouse job once a day, one task for each topic."""
    with DAG(
        dag_id,
        description=description,
        schedule=CronTriggerTimetable(at, timezone="UTC", run_immediately=timedelta()),
        catchup=False,
        max_active_runs=1,
        tags=["headrace"],
    ) as dag:
        for plan in PLANS:
            WarehouseJobOperator(
                task_id=plan.topic,
                command=command,
                topics=[plan.topic],
                root=plan.output,
                arguments=arguments(plan),
                owner=plan.owner,
                retries=plan.retries,
                retry_delay=plan.retry_delay,
                **task_options,
            )
    return dag


compact = daily(
    "compact",
    "15 3 * * *",
    "Merges the small files of closed hours.",
    "compact",
    lambda plan: ["--grace-hours", str(plan.grace / HOUR)],
    pool=SPARK_POOL,
)
reconcile = daily(
    "reconcile",
    "15 4 * * *",
    "Compares files with manifests, and manifests with the audit; fails if they differ.",
    "verify",
)
retain = daily(
    "retain",
    "15 5 * * *",
    "Deletes hours older than their topic's retention, and files that interrupted runs left behind.",
    "retain",
    lambda plan: ["--keep-hours", str(plan.retention / HOUR)] if plan.retention else [],
)
