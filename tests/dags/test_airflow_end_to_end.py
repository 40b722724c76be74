"""A killed driver, and a killed scheduler, under a real load of Airflow's, with the whole pipeline around it.

tests/days has the loads, backfills and seals of a calm day, and a loss, which leaves its hour unsealed.
"""

import os
import signal
from pathlib import Path

import pytest

from fix_airflow import BACKFILL_WAIT_S, KILLS, LOAD_WAIT_S, SEAL_WAIT_S, AirflowSite
from fix_days import DAYS
from fix_site import wait_for
from headrace.warehouse.hdfs.client import HdfsClient
from headrace.warehouse.layout import TopicPaths

pytestmark = [pytest.mark.slow, pytest.mark.hdfs, pytest.mark.spark, pytest.mark.timeout(600)]


def test_a_backfill_of_several_days_succeeds_each_time(airflow_site: AirflowSite) -> None:
    """The documented command, three times; all days are made, and run, beside each other."""
    for dag_id in DAYS:
        output = airflow_site.backfill_by_command(dag_id, "2015-05-17", "2015-05-20")
        assert "database is locked" not in output

    def problem() -> str | None:
        runs = [run for dag_id in DAYS for run in airflow_site.client.runs(dag_id)]
        states = [run.state for run in runs if run.run_type == "backfill"]
        return None if states == ["success"] * 4 * len(DAYS) else f"{states}"

    wait_for(problem, BACKFILL_WAIT_S, "all days of all backfills succeed")


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
    names = airflow_site.publish(KILLS)
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
    airflow_site.check_every_event_once(KILLS, names)
    airflow_site.client.wait(airflow_site.seal_after(load, KILLS), timeout_s=SEAL_WAIT_S)
    airflow_site.check_sealed(KILLS)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
