"""An example of a DAG that runs on sealed hours: counts the distinct users of each day.

It is scheduled on the asset `page-view`, which is updated only when an hour is sealed. Each sealed hour maps
to its day, so a day is computed again when another of its hours is sealed, or sealed again with late events.
"""

from pathlib import Path

from airflow.sdk import DAG, Asset, PartitionedAssetTimetable, StartOfDayMapper

from headrace.airflow.assets import sealed_asset
from headrace.airflow.operators import SparkProgramOperator
from headrace.airflow.topic_dags import SPARK_POOL

OUTPUT = "/derived/daily-active-users"

with DAG(
    "daily-active-users",
    description="Counts the distinct users of each day, from its sealed hours.",
    schedule=PartitionedAssetTimetable(
        assets=sealed_asset("page-view"), default_partition_mapper=StartOfDayMapper()
    ),
    catchup=False,
    max_active_runs=1,
    tags=["headrace", "example"],
):
    SparkProgramOperator(
        task_id="count",
        program=Path(__file__).parent / "programs" / "daily_active_users.py",
        arguments=["--topic", "page-view", "--day", "{{ dag_run.partition_key }}", "--output", OUTPUT],
        outlets=[Asset(name="daily active users", uri=f"headrace://warehouse{OUTPUT}", group="headrace")],
        pool=SPARK_POOL,
        owner="web-analytics",
        retries=2,
    )
