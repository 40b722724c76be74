"""The whole pipeline under a real scheduler: services, brokers, mirrors, Airflow, Spark, HDFS, audit.

Each test has a topic of its own, and so its own pair of DAGs. tests/demo covers a loss, which leaves its hour
unsealed and fails the run with the audit's finding.
"""

import io
import os
import signal
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pyarrow.parquet
import pytest

from fix_airflow import CALM, KILLS, AirflowSite
from fix_site import Service, wait_for
from headrace.warehouse.hdfs.client import HdfsClient
from headrace.warehouse.layout import HOUR_MS, TopicPaths

pytestmark = [pytest.mark.slow, pytest.mark.hdfs, pytest.mark.spark, pytest.mark.timeout(600)]

LOAD_WAIT_S: Final = 240.0
SEAL_WAIT_S: Final = 240.0
# 2015-05-17T08:00Z
FIRST_MS: Final = 1_431_849_600_000
COUNT: Final = 300
# All in three hours.
STEP_MS: Final = 3 * HOUR_MS // COUNT


def publish(airflow_site: AirflowSite, topic: str) -> set[str]:
    """Publishes `COUNT` events in the first datacenter; returns their names once they are mirrored."""
    service = Service(
        airflow_site.site.sources[0], topic, label=topic, count_max=COUNT, from_ms=FIRST_MS, step_ms=STEP_MS
    )
    service.start()
    service.finish(at_once=False)
    airflow_site.wait_mirrored(topic)
    return service.acknowledged


def check_every_event_once(airflow_site: AirflowSite, topic: str, names: set[str]) -> None:
    rows = airflow_site.running.rows(topic)
    assert set(rows) == names
    assert max(rows.values()) == 1


def check_sealed(airflow_site: AirflowSite, topic: str) -> None:
    assert airflow_site.sealed(topic) == {FIRST_MS + n * HOUR_MS: COUNT // 3 for n in range(3)}


def test_a_backfill_loads_then_hours_are_sealed_then_the_dag_on_them_runs(
    airflow_site: AirflowSite,
) -> None:
    names = publish(airflow_site, CALM)
    client = airflow_site.client
    dry = client.trigger(f"load-{CALM}", {"dry_run": True})
    client.wait(dry, timeout_s=LOAD_WAIT_S)
    assert [task.state for task in client.tasks(dry)] == ["skipped"]
    assert airflow_site.asset_events(dry) == []
    early = client.trigger(f"load-{CALM}", {"until": "2015-05-17T08:00:00Z"})
    client.wait(early, timeout_s=LOAD_WAIT_S)
    assert airflow_site.running.rows(CALM) == {}
    # The schedule has one slot in this span, and its time is after all events.
    (load,) = airflow_site.backfill(
        f"load-{CALM}", datetime(2016, 1, 1, tzinfo=UTC), datetime(2017, 1, 1, tzinfo=UTC)
    )
    client.wait(load, timeout_s=LOAD_WAIT_S)
    check_every_event_once(airflow_site, CALM, names)
    seal = airflow_site.client.wait(airflow_site.seal_after(load, CALM), timeout_s=SEAL_WAIT_S)
    check_sealed(airflow_site, CALM)
    events = airflow_site.asset_events(seal)
    assert {event["partition_key"] for event in events} == {
        f"2015-05-17T{hour:02d}:00:00" for hour in (8, 9, 10)
    }
    seal_of_hour = events[0]["extra"]["hours"]["2015-05-17T08:00:00"]
    counts = seal_of_hour["counts"][airflow_site.site.sources[0].name]
    assert seal_of_hour["rows"] == counts["producer"] == COUNT // 3
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
    assert table.to_pylist() == [{"datacenter": source, "users": 1, "views": COUNT, "hours": 3}]


def driver_of(airflow_site: AirflowSite, topic: str) -> int | None:
    """Returns the process id of the Spark driver (the JVM) that loads this topic."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                home = b"HEADRACE_HOME=" + os.fsencode(airflow_site.site.home)
                is_ours = home in (entry / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if is_ours and b"org.apache.spark.deploy.SparkSubmit" in words and topic.encode() in words:
                return int(entry.name)
    return None


def staging_driver(airflow_site: AirflowSite, topic: str, *, other_than: int = 0) -> int:
    """Waits until a load of the topic has staged files; returns the process id of its driver."""
    staging = TopicPaths("/data", topic).staging

    def problem() -> str | None:
        with HdfsClient(airflow_site.site.webhdfs_url) as hdfs:
            if not hdfs.entries(staging):
                return "nothing is staged yet"
        return "no driver is there" if driver_of(airflow_site, topic) in (None, other_than) else None

    wait_for(problem, LOAD_WAIT_S, f"the load of {topic} stages files")
    pid = driver_of(airflow_site, topic)
    assert pid is not None
    return pid


def test_a_killed_driver_or_scheduler_only_causes_retries(
    airflow_site: AirflowSite,
) -> None:
    names = publish(airflow_site, KILLS)
    load = airflow_site.load(KILLS)
    first = staging_driver(airflow_site, KILLS)
    os.kill(first, signal.SIGKILL)
    second = staging_driver(airflow_site, KILLS, other_than=first)
    assert airflow_site.tries(load, "load") == 2
    scheduler = f"{airflow_site.site.warehouse}-airflow-scheduler"
    os.kill(airflow_site.running.supervisor.states()[scheduler].pid, signal.SIGKILL)
    # The next scheduler ends the orphans of the last one before it starts: no two drivers load the topic.
    wait_for(lambda: None if not is_alive(second) else "it runs", 60, "the orphaned driver ends")
    load = airflow_site.client.wait(load, timeout_s=LOAD_WAIT_S)
    check_every_event_once(airflow_site, KILLS, names)
    airflow_site.client.wait(airflow_site.seal_after(load, KILLS), timeout_s=SEAL_WAIT_S)
    check_sealed(airflow_site, KILLS)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
