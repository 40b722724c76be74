"""What every table needs now and then: small files made few, old hours let go, everything recounted."""

from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG, CronTriggerTimetable

from headrace.airflow.factory import SPARK_POOL
from headrace.airflow.operators import WarehouseJobOperator
from headrace.airflow.topics import read_all

PLANS = read_all(Path(__file__).with_name("topics.yaml"))
HOUR = timedelta(hours=1)


def daily(at: str) -> CronTriggerTimetable:
    return CronTriggerTimetable(at, timezone="UTC", run_immediately=timedelta())


with DAG(
    "compact",
    description="Rewrites the small files of closed hours into few.",
    schedule=daily("15 3 * * *"),
    catchup=False,
    max_active_runs=1,
    tags=["headrace"],
):
    for plan in PLANS:
        WarehouseJobOperator(
            task_id=plan.topic,
            command="compact",
            topics=[plan.topic],
            root=plan.output,
            arguments=["--grace-hours", str(plan.grace / HOUR)],
            pool=SPARK_POOL,
            owner=plan.owner,
            retries=plan.retries,
            retry_delay=plan.retry_delay,
        )

with DAG(
    "reconcile",
    description="Recounts files against manifests, and manifests against the audit; fails for what differs.",
    schedule=daily("15 4 * * *"),
    catchup=False,
    max_active_runs=1,
    tags=["headrace"],
):
    for plan in PLANS:
        WarehouseJobOperator(
            task_id=plan.topic,
            command="verify",
            topics=[plan.topic],
            root=plan.output,
            owner=plan.owner,
            retries=plan.retries,
            retry_delay=plan.retry_delay,
        )

with DAG(
    "retain",
    description="Lets hours go that are older than their topic's retention; clears what dead runs left.",
    schedule=daily("15 5 * * *"),
    catchup=False,
    max_active_runs=1,
    tags=["headrace"],
):
    for plan in PLANS:
        WarehouseJobOperator(
            task_id=plan.topic,
            command="retain",
            topics=[plan.topic],
            root=plan.output,
            arguments=["--keep-hours", str(plan.retention / HOUR)] if plan.retention else [],
            owner=plan.owner,
            retries=plan.retries,
            retry_delay=plan.retry_delay,
        )
