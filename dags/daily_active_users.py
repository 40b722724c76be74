"""An example of work that follows sealed hours: how many different users each day saw.

It is scheduled on the asset `page-view`, which changes only when an hour is sealed. Each sealed hour stands
for its day, so that a day is computed again when one more of its hours is sealed, or sealed anew with late
events.
"""

from pathlib import Path

from airflow.sdk import DAG, Asset, PartitionedAssetTimetable, StartOfDayMapper

from headrace.airflow.assets import sealed_asset
from headrace.airflow.factory import SPARK_POOL
from headrace.airflow.operators import SparkProgramOperator

OUTPUT = "/derived/daily-active-users"

with DAG(
    "daily-active-users",
    description="Counts the different users of each day, of the hours that are sealed.",
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
