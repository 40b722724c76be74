"""The data engineer: a topic's events into HDFS by Airflow, over its REST API; records that cannot be read.

The hours are sealed, and a DAG runs on them. tests/dags kills drivers and the scheduler; the newcomer's day
has a loss, which leaves its hour unsealed.
"""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from typing import Final

import pyarrow.parquet
import pytest

from fix_airflow import CALM, LOAD_WAIT_S, SEAL_WAIT_S, AirflowSite
from fix_days import ROOT, Day, DemoSite
from fix_site import wait_for
from headrace.cli.errors import ExitCode
from headrace.warehouse.hdfs.client import HdfsClient
from headrace.warehouse.layout import HOUR_MS

pytestmark = [pytest.mark.slow, pytest.mark.hdfs, pytest.mark.spark, pytest.mark.timeout(900)]

SCORES: Final = "scores"
VIEW: Final = {"remote_host": "192.0.2.7", "method": "GET", "path": "/own", "status": 200}


def test_a_backfill_loads_then_hours_are_sealed_then_the_dag_on_them_runs(
    day: Day, airflow_site: AirflowSite
) -> None:
    load_name = f"load-{CALM}"
    with day.step("publish 300 events of three hours"):
        names = airflow_site.publish(CALM)
    client = airflow_site.client
    with day.step(f"{load_name}, dry run"):
        dry = client.wait(client.trigger(load_name, {"dry_run": True}), timeout_s=LOAD_WAIT_S)
    assert [task.state for task in client.tasks(dry)] == ["skipped"]
    assert airflow_site.asset_events(dry) == []
    with day.step(f"{load_name}, until a time before all events"):
        client.wait(client.trigger(load_name, {"until": "2015-05-17T08:00:00Z"}), timeout_s=LOAD_WAIT_S)
    assert airflow_site.running.rows(CALM) == {}
    with day.step(f"backfill of {load_name}"):
        # The schedule has one slot in this span, and its time is after all events.
        span = datetime(2016, 1, 1, tzinfo=UTC), datetime(2017, 1, 1, tzinfo=UTC)
        (load,) = airflow_site.backfill(load_name, *span)
        client.wait(load, timeout_s=LOAD_WAIT_S)
    airflow_site.check_every_event_once(CALM, names)
    with day.step("the hours are sealed"):
        seal = client.wait(airflow_site.seal_after(load, CALM), timeout_s=SEAL_WAIT_S)
    airflow_site.check_sealed(CALM)
    events = airflow_site.asset_events(seal)
    hours = {datetime.fromtimestamp((airflow_site.FIRST_MS + n * HOUR_MS) / 1000, UTC) for n in range(3)}
    assert {event["partition_key"] for event in events} == {f"{hour:%Y-%m-%dT%H:%M:%S}" for hour in hours}
    seal_of_hour = events[0]["extra"]["hours"][events[0]["partition_key"]]
    counts = seal_of_hour["counts"][airflow_site.site.sources[0].name]
    assert seal_of_hour["rows"] == counts["producer"] == airflow_site.COUNT // 3
    with day.step("the DAG on sealed hours"):
        check_daily_active_users(airflow_site)


def check_daily_active_users(airflow_site: AirflowSite) -> None:
    """Checks the example DAG on sealed hours, in which Spark counts the day's users."""

    def problem() -> str | None:
        runs = airflow_site.client.runs("daily-active-users")
        return None if any(run.has_ended for run in runs) else f"{[run.state for run in runs]}"

    wait_for(problem, LOAD_WAIT_S, "the day's users are counted")
    (run,) = airflow_site.client.runs("daily-active-users")
    assert run.state == "success", airflow_site.client.problems(run)
    (event,) = airflow_site.asset_events(run)
    assert (event["name"], event["partition_key"]) == ("daily active users", "2015-05-17")
    with HdfsClient(airflow_site.site.webhdfs_url) as hdfs:
        written = [path for path, _ in hdfs.walk("/derived/daily-active-users/day=2015-05-17")]
        (path,) = [path for path in written if path.endswith(".parquet")]
        table = pyarrow.parquet.read_table(io.BytesIO(hdfs.read(path)))
    source = airflow_site.site.sources[0].name
    # Every event comes from the same address.
    assert table.to_pylist() == [{"datacenter": source, "users": 1, "views": airflow_site.COUNT, "hours": 3}]


def test_a_record_that_cannot_be_read_costs_itself_alone(
    day: Day, demo_site: DemoSite, airflow_site: AirflowSite
) -> None:
    headrace = demo_site.headrace
    with day.step("a topic with a schema, two events, and a record that is none"):
        assert headrace("topics", "create", SCORES, "--producers", "any").returncode == 0
        schema = ROOT / "schemas" / "page-view.avsc"
        assert headrace("schemas", "register", f"{SCORES}-value", schema).returncode == 0
        lines = f"{json.dumps(VIEW)}\n" * 2
        wrong = headrace("produce", SCORES, "--avro", stdin=f'{lines}{{"path": 1}}\n')
        assert wrong.returncode == ExitCode.USAGE
        assert "line 3" in wrong.stderr, wrong.stderr
        assert headrace("produce", SCORES, stdin="not an event\n").returncode == 0
        airflow_site.wait_mirrored(SCORES)
    with day.step("headrace warehouse load"):
        done = headrace("warehouse", "load", SCORES, "--json")
    (loaded,) = json.loads(done.stdout)
    assert (loaded["rows"], loaded["dead_lettered"]) == (2, 1), done
    with day.step("headrace warehouse plan, ls"):
        assert "nothing new" in headrace("warehouse", "plan", SCORES).stdout
        assert "2 rows in hdfs://" in headrace("warehouse", "ls", SCORES).stdout
    assert airflow_site.running.rows(SCORES) == {VIEW["path"]: 2}
