"""The audit is tried every hour: failures are planted into the canary topic, and it must name them."""

from datetime import timedelta

from airflow.sdk import DAG, CronTriggerTimetable, Param

from headrace.airflow.drilling import DrillOperator

with DAG(
    "drill",
    description="Plants failures into the topic headrace-drill; fails unless the audit names each of them.",
    schedule=CronTriggerTimetable("35 * * * *", timezone="UTC", run_immediately=timedelta()),
    catchup=False,
    max_active_runs=1,
    params={
        "datacenter": Param(
            None,
            type=["null", "string"],
            title="Datacenter",
            description="Plant only there; empty: in all datacenters that have services.",
        )
    },
    tags=["headrace"],
):
    DrillOperator(
        task_id="drill",
        timeout="10m",
        datacenter="{{ params.datacenter or '' }}",
        owner="platform",
        # Not in the pool of Spark: its load takes seconds, and a slot held while it waits would delay others.
        execution_timeout=timedelta(minutes=30),
    )
