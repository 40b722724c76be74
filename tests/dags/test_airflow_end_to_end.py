"""The whole way under a real scheduler: services, mirrors, brokers, Airflow over SQLite, Spark, HDFS, audit.

One site for all; each story has a topic of its own, so that each has its own pair of DAGs.
"""

import io
import os
import shutil
import signal
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import httpx
import pyarrow.parquet
import pytest

from fix_site import MIRROR_WAIT_MAX_S, PAGE_VIEW, RunningSite, Service, wait_for
from headrace.client.faults import DropPlan
from headrace.events import EventPublisher
from headrace.fleet import operate
from headrace.fleet.airflow_client import AirflowClient, Run, RunFailedError
from headrace.fleet.airflow_units import airflow_password, airflow_python, airflow_url
from headrace.fleet.site import Site
from headrace.fleet.units import Unit, units_of
from headrace.warehouse.hdfs.client import Hdfs
from headrace.warehouse.layout import HOUR_MS, TopicPaths
from headrace.warehouse.seal import seals

pytestmark = [
    pytest.mark.slow,
    pytest.mark.hdfs,
    pytest.mark.spark,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not airflow_python().exists(), reason="Airflow is not set up: run `make airflow`"),
]

CALM: Final = "af-calm"
KILLS: Final = "af-kills"
LOSS: Final = "af-loss"
LOAD_WAIT_S: Final = 240.0
SEAL_WAIT_S: Final = 240.0
# 2015-05-17T08:00Z
FIRST_MS: Final = 1_431_849_600_000
COUNT: Final = 300
# All in three hours.
STEP_MS: Final = 3 * HOUR_MS // COUNT
# A schedule that only a backfill meets.
LEAP_DAY: Final = "0 0 29 2 *"
TOPICS: Final = f"""
defaults: {{owner: tests, schedule: null, audit_delay: 5s, audit_wait: 2m, retries: 2, retry_delay: 1s}}
topics: {{{CALM}: {{schedule: "{LEAP_DAY}"}}, {KILLS}: {{}}, {LOSS}: {{}}}}
"""


class Airflow:
    """Airflow beside a running site, as the site's own units."""

    def __init__(self, running: RunningSite, dags: Path) -> None:
        self.running = running
        self.site: Site = running.site.model_copy(update={"airflow": True})
        self.dags = dags
        self.client: AirflowClient

    @property
    def units(self) -> tuple[Unit, ...]:
        return units_of(self.site)

    def start(self) -> None:
        operate.up(self.site)
        password = airflow_password(self.site)
        assert password is not None
        self.client = AirflowClient(airflow_url(self.site), user="admin", password=password)

    def stop(self) -> None:
        self.client.close()
        # The site goes on without it.
        operate.up(self.running.site)

    def load(self, topic: str) -> Run:
        return self.client.trigger(f"load-{topic}")

    def seal_after(self, load: Run, topic: str) -> Run:
        return self.client.run_caused_by(f"seal-{topic}", load, timeout_s=60)

    def sealed(self, topic: str) -> dict[int, int]:
        """Rows by sealed hour."""
        with Hdfs(self.site.webhdfs_url) as hdfs:
            found = seals(hdfs, TopicPaths("/data", topic))
        return {hour_ms: seal.rows for hour_ms, seal in found.items()}

    def tries(self, run: Run, task_id: str) -> int:
        return max(task.try_number for task in self.client.tasks(run) if task.task_id == task_id)


@pytest.fixture(scope="module")
def airflow(running_site: RunningSite, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    dags = tmp_path_factory.mktemp("airflow") / "dags"
    shutil.copytree(Path(__file__).parents[2] / "dags", dags)
    (dags / "topics.yaml").write_text(TOPICS)
    # `page-view` on this site belongs to the demo's test.
    example = dags / "daily_active_users.py"
    example.write_text(example.read_text().replace("page-view", CALM))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADRACE_DAGS", str(dags))
        made = Airflow(running_site, dags)
        made.start()
        # Assets wake a DAG only when it is not paused.
        for dag_id in (f"seal-{CALM}", f"seal-{KILLS}", f"seal-{LOSS}", "daily-active-users"):
            made.client.unpause(dag_id)
        yield made
        made.stop()


def publish(airflow: Airflow, topic: str) -> set[str]:
    """Publishes `COUNT` events of `topic` in the first datacenter, mirrored; their names."""
    service = Service(
        airflow.site.sources[0], topic, label=topic, count_max=COUNT, from_ms=FIRST_MS, step_ms=STEP_MS
    )
    service.start()
    service.finish(at_once=False)
    wait_mirrored(airflow, topic)
    return service.acknowledged


def wait_mirrored(airflow: Airflow, topic: str) -> None:
    """Until the mirror of the first datacenter has copied the topic."""
    mirror = airflow.site.mirrors[0]
    url = f"http://{airflow.site.mirror_status(mirror)}/status"

    def problem() -> str | None:
        rows = httpx.get(url, timeout=10, trust_env=False).json()["partitions"]
        mine = [row for row in rows if row["topic"] == topic]
        behind = [row for row in mine if row["lag_bytes"] or row["source_end"] is None]
        return None if mine and not behind else f"{behind or 'not found yet'}"

    wait_for(problem, MIRROR_WAIT_MAX_S, f"{topic} is mirrored")


def check_every_event_once(airflow: Airflow, topic: str, names: set[str]) -> None:
    rows = airflow.running.rows(topic)
    assert set(rows) == names
    assert max(rows.values()) == 1


def check_sealed(airflow: Airflow, topic: str) -> None:
    assert airflow.sealed(topic) == {FIRST_MS + n * HOUR_MS: COUNT // 3 for n in range(3)}


def test_a_backfill_loads_then_hours_are_sealed_then_what_follows_them_runs(airflow: Airflow) -> None:
    names = publish(airflow, CALM)
    client = airflow.client
    dry = client.trigger(f"load-{CALM}", {"dry_run": True})
    client.wait(dry, timeout_s=LOAD_WAIT_S)
    assert [task.state for task in client.tasks(dry)] == ["skipped"]
    assert client.asset_events(dry) == []
    early = client.trigger(f"load-{CALM}", {"until": "2015-05-17T08:00:00Z"})
    client.wait(early, timeout_s=LOAD_WAIT_S)
    assert airflow.running.rows(CALM) == {}
    # The one slot of these years loads up to its own time, when all events are over.
    (load,) = client.backfill(
        f"load-{CALM}", datetime(2016, 1, 1, tzinfo=UTC), datetime(2017, 1, 1, tzinfo=UTC)
    )
    client.wait(load, timeout_s=LOAD_WAIT_S)
    check_every_event_once(airflow, CALM, names)
    seal = airflow.client.wait(airflow.seal_after(load, CALM), timeout_s=SEAL_WAIT_S)
    check_sealed(airflow, CALM)
    events = airflow.client.asset_events(seal)
    assert {event["partition_key"] for event in events} == {
        f"2015-05-17T{hour:02d}:00:00" for hour in (8, 9, 10)
    }
    said = events[0]["extra"]["hours"]["2015-05-17T08:00:00"]
    assert said["rows"] == said["counts"][airflow.site.sources[0].name]["producer"] == COUNT // 3
    check_daily_active_users(airflow)


def check_daily_active_users(airflow: Airflow) -> None:
    """The example downstream, scheduled on sealed hours: Spark counts the day's users."""

    def problem() -> str | None:
        runs = airflow.client.runs("daily-active-users")
        return None if any(run.has_ended for run in runs) else f"{[run.state for run in runs]}"

    wait_for(problem, LOAD_WAIT_S, "the day's users are counted")
    (run,) = airflow.client.runs("daily-active-users")
    assert run.state == "success", airflow.client.reasons(run)
    (event,) = airflow.client.asset_events(run)
    assert (event["name"], event["partition_key"]) == ("daily active users", "2015-05-17")
    with Hdfs(airflow.site.webhdfs_url) as hdfs:
        written = [path for path, _ in hdfs.walk("/derived/daily-active-users/day=2015-05-17")]
        (path,) = [path for path in written if path.endswith(".parquet")]
        table = pyarrow.parquet.read_table(io.BytesIO(hdfs.read(path)))
    source = airflow.site.sources[0].name
    # Every event comes from the same address.
    assert table.to_pylist() == [{"datacenter": source, "users": 1, "views": COUNT, "hours": 3}]


def driver_of(airflow: Airflow, topic: str) -> int | None:
    """The process id of the Spark driver (the JVM) that loads this topic."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                home = b"HEADRACE_HOME=" + os.fsencode(airflow.site.home)
                is_ours = home in (entry / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if is_ours and b"org.apache.spark.deploy.SparkSubmit" in words and topic.encode() in words:
                return int(entry.name)
    return None


def staging_driver(airflow: Airflow, topic: str, *, other_than: int = 0) -> int:
    """Waits until a load of the topic is staging files; the process id of its driver."""
    staging = TopicPaths("/data", topic).staging

    def problem() -> str | None:
        with Hdfs(airflow.site.webhdfs_url) as hdfs:
            if not hdfs.entries(staging):
                return "nothing is staged yet"
        return "no driver is there" if driver_of(airflow, topic) in (None, other_than) else None

    wait_for(problem, LOAD_WAIT_S, f"the load of {topic} stages files")
    pid = driver_of(airflow, topic)
    assert pid is not None
    return pid


def test_a_killed_driver_and_a_killed_scheduler_cost_tries_and_nothing_else(airflow: Airflow) -> None:
    names = publish(airflow, KILLS)
    load = airflow.load(KILLS)
    first = staging_driver(airflow, KILLS)
    os.kill(first, signal.SIGKILL)
    second = staging_driver(airflow, KILLS, other_than=first)
    assert airflow.tries(load, "load") == 2
    scheduler = f"{airflow.site.warehouse}-airflow-scheduler"
    os.kill(airflow.running.supervisor.states()[scheduler].pid, signal.SIGKILL)
    # Its successor ends what it left behind before it starts: no two drivers load the topic.
    wait_for(lambda: None if not is_alive(second) else "it runs", 60, "the orphaned driver ends")
    load = airflow.client.wait(load, timeout_s=LOAD_WAIT_S)
    check_every_event_once(airflow, KILLS, names)
    airflow.client.wait(airflow.seal_after(load, KILLS), timeout_s=SEAL_WAIT_S)
    check_sealed(airflow, KILLS)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_loss_leaves_its_hour_unsealed_and_the_run_says_so_in_the_audits_words(airflow: Airflow) -> None:
    source = airflow.site.sources[0]
    plan = DropPlan(LOSS, 7, after=150)
    with EventPublisher(
        datacenter=source.name,
        service="frontend",
        bootstrap=source.bootstrap,
        registry_url=source.registry_url,
        schemas={LOSS: PAGE_VIEW},
        producer_options={"interceptor": plan},
    ) as publisher:
        for number in range(COUNT):
            view = {"remote_host": "10.0.0.1", "method": "GET", "path": f"/{number}", "status": 200}
            publisher.publish(LOSS, view, time_ms=FIRST_MS + number * STEP_MS, partition=0)
    assert plan.is_done
    wait_mirrored(airflow, LOSS)
    load = airflow.client.wait(airflow.load(LOSS), timeout_s=LOAD_WAIT_S)
    with pytest.raises(RunFailedError) as failed:
        airflow.client.wait(airflow.seal_after(load, LOSS), timeout_s=SEAL_WAIT_S)
    said = failed.value.reasons["every_hour_sealed"]
    assert said.startswith(f"{LOSS}: 1 hour is not sealed: 2015-05-17T09:00:00 is lost: 7 events of {LOSS}, ")
    assert f"{source.name}, 2015-05-17 09:00" in said
    first = plan.dropped[0].base_sequence
    assert f"sequences {first} to {first + 6} of partition 0" in said
    # Its neighbours are sealed all the same.
    assert airflow.sealed(LOSS) == {FIRST_MS: COUNT // 3, FIRST_MS + 2 * HOUR_MS: COUNT // 3}
