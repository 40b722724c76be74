"""Airflow in the running site of `fix_site`, with DAGs for the tests' topics. Fixture: `airflow_site`."""

import shutil
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from fix_site import MIRROR_WAIT_MAX_S, RunningSite, wait_for
from headrace.agent.airflow_environment import airflow_python
from headrace.fleet import operate
from headrace.fleet.airflow_client import AirflowClient, Run
from headrace.fleet.airflow_units import airflow_password, airflow_url
from headrace.site.site import Site
from headrace.warehouse.hdfs.client import HdfsClient
from headrace.warehouse.layout import TopicPaths
from headrace.warehouse.seal import seals

CALM: Final = "af-calm"
KILLS: Final = "af-kills"
# A schedule with no slot during the tests: only a backfill starts a run.
LEAP_DAY: Final = "0 0 29 2 *"
# `page-view` is the demo's topic.
TOPICS: Final = f"""
defaults: {{owner: tests, schedule: null, audit_delay: 5s, audit_wait: 2m, retries: 2, retry_delay: 1s}}
topics: {{{CALM}: {{schedule: "{LEAP_DAY}"}}, {KILLS}: {{}}, page-view: {{}}}}
"""


class AirflowSite:
    """A site with Airflow among its units, and a client of that Airflow."""

    def __init__(self, running: RunningSite) -> None:
        self.running = running
        self.site: Site = running.site.model_copy(update={"airflow": True})
        self.client: AirflowClient

    def start(self) -> None:
        operate.up(self.site)
        password = airflow_password(self.site)
        assert password is not None
        self.client = AirflowClient(airflow_url(self.site), user="admin", password=password)

    def stop(self) -> None:
        self.client.close()
        # `up` without Airflow stops its units.
        operate.up(self.running.site, may_change=lambda _: True)  # the demo's are Terraform's

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
def airflow_site(
    running_site: RunningSite, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AirflowSite]:
    if not airflow_python().exists():
        pytest.skip(f"Airflow is not set up ({airflow_python()} is missing): run `make airflow`")
    dags = tmp_path_factory.mktemp("airflow") / "dags"
    shutil.copytree(Path(__file__).parents[1] / "dags", dags)
    (dags / "topics.yaml").write_text(TOPICS)
    example = dags / "daily_active_users.py"
    example.write_text(example.read_text().replace("page-view", CALM))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADRACE_DAGS", str(dags))
        made = AirflowSite(running_site)
        made.start()
        # An asset triggers a DAG only if it is not paused.
        for dag_id in (f"seal-{CALM}", f"seal-{KILLS}", "daily-active-users"):
            made.client.unpause(dag_id)
        yield made
        made.stop()
