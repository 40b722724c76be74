"""Maintenance of all tables: compacts small files, verifies counts, repairs, deletes old hours."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, CronTriggerTimetable

from headrace.airflow.operators import WarehouseJobOperator
from headrace.airflow.topic_dags import SPARK_POOL, owners_of_tasks
from headrace.airflow.topics import read_all
from headrace.warehouse.schedule import LoadSchedule

SCHEDULES = read_all(Path(__file__).with_name("topics.yaml"))
OWNERS = owners_of_tasks(SCHEDULES)
HOUR = timedelta(hours=1)


def regularly(
    dag_id: str,
    at: str,
    description: str,
    command: str,
    arguments: Callable[[LoadSchedule], list[str]] = lambda schedule: [],
    **task_options: Any,
) -> DAG:
    """Returns a DAG that runs a command of the warehouse job at these times, one task for each topic."""
    with DAG(
        dag_id,
        description=description,
        schedule=CronTriggerTimetable(at, timezone="UTC", run_immediately=timedelta()),
        catchup=False,
        max_active_runs=1,
        tags=["headrace"],
    ) as dag:
        for schedule in SCHEDULES:
            WarehouseJobOperator(
                task_id=schedule.topic,
                command=command,
                topics=[schedule.topic],
                root=schedule.output,
                arguments=arguments(schedule),
                owner=OWNERS[schedule.topic],
                retries=schedule.retries,
                retry_delay=schedule.retry_delay,
                **task_options,
            )
    return dag


compact = regularly(
    "compact",
    "15 3 * * *",
    "Merges the small files of closed hours.",
    "compact",
    lambda schedule: ["--grace-hours", str(schedule.grace / HOUR)],
    pool=SPARK_POOL,
)
reconcile = regularly(
    "reconcile",
    "15 4 * * *",
    "Compares files with manifests, and manifests with the audit; fails if they differ.",
    "verify",
)
verify = regularly(
    "verify",
    "25 * * * *",
    "Reads again the hours with new files, and a share of the others; the audit's report has the result.",
    "verify",
    lambda schedule: ["--checked", "recent"],
)
repair = regularly(
    "repair",
    "45 4 * * *",
    "Reads from the log again what tables lost: files that are gone or cut, rows that the audit calls lost.",
    "refill",
    pool=SPARK_POOL,
)
retain = regularly(
    "retain",
    "15 5 * * *",
    "Deletes hours older than their topic's retention, and files that interrupted runs left behind.",
    "retain",
    lambda schedule: ["--keep-hours", str(schedule.retention / HOUR)] if schedule.retention else [],
)
