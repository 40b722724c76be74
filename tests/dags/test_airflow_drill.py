"""The DAG `drill` in a real Airflow: it drills the demo's site, and the audit's report has its score."""

from __future__ import annotations

import json

import pytest

from fix_airflow import AirflowSite
from fix_days import DemoSite
from headrace.drill.file_kinds import FILE_KINDS
from headrace.drill.kinds import KINDS

pytestmark = [pytest.mark.slow, pytest.mark.hdfs, pytest.mark.spark, pytest.mark.timeout(600)]

DRILL_WAIT_S = 400.0


def hourly_runs(airflow_site: AirflowSite) -> int:
    """How many drills have ended that Airflow began by itself: one an hour, in all datacenters."""
    runs = airflow_site.client.request_json("GET", "/dags/drill/dagRuns", params={"state": "success"})
    return sum(row["run_type"] == "scheduled" for row in runs["dag_runs"])


def test_a_run_of_the_dag_leaves_its_score_in_the_report(
    airflow_site: AirflowSite, demo_site: DemoSite
) -> None:
    """In one datacenter: what the other one would add is its minute."""
    east = airflow_site.site.sources[0].name
    run = airflow_site.client.trigger("drill", {"datacenter": east})
    airflow_site.client.wait(run, timeout_s=DRILL_WAIT_S)
    while True:
        hourly = hourly_runs(airflow_site)
        score = json.loads(demo_site.headrace("audit", "report", "--json").stdout)["drill"]
        if hourly_runs(airflow_site) == hourly:
            break
    kinds = len(KINDS) * (1 + hourly * len(airflow_site.site.sources))
    count = kinds + len(FILE_KINDS) * (1 + hourly)
    assert score["is_good"], score
    assert (score["drills"], score["found"], score["plants"]) == (1 + hourly, count, count)
    assert score["files_found"] == len(FILE_KINDS) * (1 + hourly) and score["copied_ms"] > 0
