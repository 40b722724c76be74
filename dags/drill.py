"""The audit is tried every hour: failures are planted into the canary topic, and it must name them."""

from datetime import timedelta

from airflow.sdk import DAG, CronTriggerTimetable

from headrace.airflow.drilling import DrillOperator

with DAG(
    "drill",
    description="Plants failures into the topic headrace-drill; fails unless the audit names each of them.",
    schedule=CronTriggerTimetable("35 * * * *", timezone="UTC", run_immediately=timedelta()),
    catchup=False,
    max_active_runs=1,
    tags=["headrace"],
):
    DrillOperator(task_id="drill", timeout="10m", owner="platform", execution_timeout=timedelta(minutes=30))
