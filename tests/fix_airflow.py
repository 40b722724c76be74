"""Airflow of the demo's site (`fix_days`), with DAGs for the tests' topics. Fixture: `airflow_site`."""

import os
import subprocess
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

import httpx
import pytest

from fix_days import DAYS, DemoSite
from fix_site import MIRROR_WAIT_MAX_S, RunningSite, Service, wait_for
from headrace.agent.airflow_environment import airflow_python
from headrace.fleet.airflow_client import AirflowClient, Run
from headrace.fleet.airflow_units import airflow_home, airflow_password, airflow_url
from headrace.site.site import Site
from headrace.warehouse.hdfs.client import HdfsClient
from headrace.warehouse.layout import HOUR_MS, TopicPaths
from headrace.warehouse.seal import seals

CALM: Final = "af-calm"
KILLS: Final = "af-kills"
LOAD_WAIT_S: Final = 240.0
SEAL_WAIT_S: Final = 240.0
BACKFILL_COMMAND_MAX_S: Final = 240.0
BACKFILL_WAIT_S: Final = 240.0


class AirflowSite:
    """A running site with Airflow among its units, and a client of that Airflow."""

    # 2015-05-17T08:00Z
    FIRST_MS: Final = 1_431_849_600_000
    COUNT: Final = 300
    # All in three hours.
    STEP_MS: Final = 3 * HOUR_MS // COUNT

    def __init__(self, running: RunningSite, client: AirflowClient) -> None:
        self.running = running
        self.site: Site = running.site
        self.client = client

    def publish(self, topic: str) -> set[str]:
        """Publishes `COUNT` events in the first datacenter; returns their names once they are mirrored."""
        service = Service(
            self.site.sources[0],
            topic,
            label=topic,
            count_max=self.COUNT,
            from_ms=self.FIRST_MS,
            step_ms=self.STEP_MS,
        )
        service.start()
        service.finish(at_once=False)
        self.wait_mirrored(topic)
        return service.acknowledged

    def check_every_event_once(self, topic: str, names: set[str]) -> None:
        rows = self.running.rows(topic)
        assert set(rows) == names
        assert max(rows.values()) == 1

    def check_sealed(self, topic: str) -> None:
        hours = {self.FIRST_MS + number * HOUR_MS: self.COUNT // 3 for number in range(3)}
        assert self.sealed(topic) == hours

    def load(self, topic: str) -> Run:
        return self.client.trigger(f"load-{topic}")

    def seal_after(self, load: Run, topic: str) -> Run:
        return self.client.run_caused_by(f"seal-{topic}", load, timeout_s=150)

    def backfill(self, dag_id: str, since: datetime, until: datetime) -> list[Run]:
        """Starts Airflow's own backfill: a run for each slot of the schedule, in their order."""
        span = {"from_date": since.isoformat(), "to_date": until.isoformat()}
        self.client.unpause(dag_id)
        self.client.request_json("POST", "/backfills", json={"dag_id": dag_id, "max_active_runs": 1, **span})
        params = {
            "run_type": "backfill",
            "logical_date_gte": span["from_date"],
            "logical_date_lte": span["to_date"],
            "order_by": "logical_date",
        }
        found = self.client.request_json("GET", f"/dags/{dag_id}/dagRuns", params=params)
        return [Run.from_json(row) for row in found["dag_runs"]]

    def backfill_by_command(self, dag_id: str, since: str, until: str) -> str:
        """Runs the command that docs/airflow.md shows; returns its output."""
        command = [str(airflow_python().parent / "airflow"), "backfill", "create", "--dag-id", dag_id]
        done = subprocess.run(
            [*command, "--from-date", since, "--to-date", until],
            env={**os.environ, "AIRFLOW_HOME": str(airflow_home(self.site))},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=BACKFILL_COMMAND_MAX_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    def asset_events(self, run: Run) -> list[dict[str, Any]]:
        """The assets that a run has updated: events in Airflow's form (`name`, `partition_key`, `extra`)."""
        params = {"source_dag_id": run.dag_id, "source_run_id": run.run_id}
        events: list[dict[str, Any]] = self.client.request_json("GET", "/assets/events", params=params)[
            "asset_events"
        ]
        return events

    def sealed(self, topic: str) -> dict[int, int]:
        """Returns the rows of each sealed hour (Unix ms)."""
        with HdfsClient(self.site.webhdfs_url) as hdfs:
            found = seals(hdfs, TopicPaths("/data", topic))
        return {hour_ms: seal.rows for hour_ms, seal in found.items()}

    def tries(self, run: Run, task_id: str) -> int:
        return max(task.try_number for task in self.client.tasks(run) if task.task_id == task_id)

    def wait_mirrored(self, topic: str) -> None:
        """Waits until the mirror of the first datacenter has copied the topic."""
        mirror = self.site.mirrors[0]
        url = f"http://{self.site.mirror_status(mirror)}/status"

        def problem() -> str | None:
            rows = httpx.get(url, timeout=10, trust_env=False, verify=False).json()["partitions"]
            mine = [row for row in rows if row["topic"] == topic]
            behind = [row for row in mine if row["lag_bytes"] or row["source_end"] is None]
            return None if mine and not behind else f"{behind or 'not found yet'}"

        wait_for(problem, MIRROR_WAIT_MAX_S, f"{topic} is mirrored")


@pytest.fixture(scope="session")
def airflow_site(demo_site: DemoSite) -> Iterator[AirflowSite]:
    site = demo_site.site
    password = airflow_password(site)
    assert password is not None
    with AirflowClient(airflow_url(site), user="admin", password=password) as client:
        # An asset triggers a DAG only if it is not paused.
        for dag_id in (f"seal-{CALM}", f"seal-{KILLS}", "daily-active-users", *DAYS):
            client.unpause(dag_id)
        yield AirflowSite(RunningSite(site), client)
