"""A whole site on this machine, for tests that kill parts of it: datacenters, mirrors, HDFS.

Owns a site with its own block of loopback and home, started once per session; publishers (`Service`);
the load job as a process; the rows in HDFS and the audit's report. Fixture: `running_site`.
"""

import collections
import contextlib
import io
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import httpx
import psutil
import pyarrow.parquet
import pytest

from headrace.agent.errors import AddressTakenError
from headrace.agent.processes import is_alive, unit_processes
from headrace.agent.supervisor import Supervisor
from headrace.agent.unit import Unit
from headrace.audit.report.report import Report, report, wait_until_resolved
from headrace.audit.store.store import AuditStore
from headrace.events import EventPublisher
from headrace.fleet import operate
from headrace.fleet.units import units_of
from headrace.site.environment_variables import HOME_VARIABLE
from headrace.site.site import Datacenter, Site
from headrace.warehouse.hdfs.client import HdfsClient
from headrace.warehouse.layout import TopicPaths

BLOCKS: Final = (120, 130, 140, 150)
"""Blocks of loopback addresses: another test run on this machine may use the first."""
RESTART_WAIT_MAX_S: Final = 120.0
MIRROR_WAIT_MAX_S: Final = 120.0
LOAD_WAIT_MAX_S: Final = 300.0
AUDIT_WAIT_MAX_S: Final = 150.0
FLUSH_WAIT_MAX_S: Final = 150.0
KILL_WAIT_MAX_S: Final = 30.0
EMPTY_LOOKS: Final = 2
POLL_S: Final = 0.1
EVENTS_PER_SECOND: Final = 300
FIRST_EVENT_MS: Final = 1_431_849_600_000
"""2015-05-17T08:00Z: the site keeps events of any age."""
EVENT_STEP_MS: Final = 5_000
"""Event time between two events: the fewer hours, the fewer files."""
PAGE_VIEW: Final = (Path(__file__).parents[1] / "schemas" / "page-view.avsc").read_text()


class Service(threading.Thread):
    """Publishes to one topic of one datacenter at a steady rate until `finish`; records what was delivered.

    The name of an event, /label/datacenter/number, is in its `path`.
    """

    def __init__(
        self,
        datacenter: Datacenter,
        topic: str,
        *,
        label: str = "",
        count_max: int | None = None,
        from_ms: int = FIRST_EVENT_MS,
        step_ms: int = EVENT_STEP_MS,
    ) -> None:
        super().__init__(name=f"{datacenter.name}-service", daemon=True)
        self.acknowledged: set[str] = set()
        self.failed: dict[str, BaseException] = {}
        self.error: BaseException | None = None
        self._datacenter = datacenter
        self._topic = topic
        self._label = label
        self._from_ms = from_ms
        self._step_ms = step_ms
        self._count_max = count_max
        self._ending = threading.Event()
        self._handed_over = 0

    def finish(self, *, at_once: bool = True) -> None:
        """Waits for all acknowledgements and the last audit report; `at_once`: publishes no more events."""
        if at_once:
            self._ending.set()
        self.join(FLUSH_WAIT_MAX_S)
        assert not self.is_alive(), f"the service of {self._datacenter.name} did not end"
        if self.error is not None:
            raise self.error

    def run(self) -> None:
        try:
            self._publish_all()
        except BaseException as error:
            self.error = error

    def _publish_all(self) -> None:
        futures: dict[str, Any] = {}
        with EventPublisher(
            datacenter=self._datacenter.name,
            service="kill-test",
            bootstrap=self._datacenter.producer_bootstrap,
            registry_url=self._datacenter.registry_url,
            schemas={self._topic: PAGE_VIEW},
            report_interval_s=1.0,
        ) as publisher:
            while not self._ending.is_set() and self._handed_over != self._count_max:
                number = self._handed_over
                name = f"/{self._label}/{self._datacenter.name}/{number}"
                view = {"remote_host": "10.0.0.1", "method": "GET", "path": name, "status": 200}
                futures[name] = publisher.publish(
                    self._topic,
                    view,
                    key=f"member-{number % 50}",
                    time_ms=self._from_ms + number * self._step_ms,
                )
                self._handed_over += 1
                self._ending.wait(1 / EVENTS_PER_SECOND)
            publisher.flush(FLUSH_WAIT_MAX_S)
        for name, future in futures.items():
            try:
                future.result(timeout=0)
                self.acknowledged.add(name)
            except Exception as error:
                self.failed[name] = error


class RunningSite:
    """A site that runs, and what tests do with it."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.units: dict[str, Unit] = {unit.name: unit for unit in units_of(site)}
        self.supervisor = Supervisor(site.home)

    def pid(self, unit: str) -> int:
        return self.supervisor.states()[unit].pid

    def kill(self, unit: str) -> int:
        """Sends SIGKILL to the unit's process; returns its pid."""
        pid = self.pid(unit)
        assert pid > 0, f"{unit} does not run"
        os.kill(pid, signal.SIGKILL)
        return pid

    def wait_restarted(self, unit: str, killed_pid: int) -> None:
        """Waits until supervisord has started the unit again and it is ready."""

        def problem() -> str | None:
            state = self.supervisor.states()[unit]
            if not state.is_running or state.pid in (0, killed_pid):
                return f"{unit} is {state.state} as process {state.pid}"
            return self.units[unit].probe.check()

        wait_for(problem, RESTART_WAIT_MAX_S, f"{unit} came back")

    def wait_mirrored(self, topics: Iterable[str]) -> None:
        """Waits until every mirror has copied these topics to their end."""
        wanted = set(topics)

        def problem() -> str | None:
            for mirror in self.site.mirrors:
                url = f"http://{self.site.mirror_status(mirror)}/status"
                try:
                    rows = httpx.get(url, timeout=20, trust_env=False, verify=False).json()["partitions"]
                except httpx.HTTPError as error:
                    return f"{url}: {error}"
                mine = [row for row in rows if row["topic"] in wanted]
                missing = wanted - {row["topic"] for row in mine}
                if missing:
                    return f"the mirror from {mirror.source} has not found {sorted(missing)}"
                for row in mine:
                    if row["state"] == "halted" or row["lag_bytes"] or row["source_end"] is None:
                        return f"the mirror from {mirror.source}: {row}"
            return None

        wait_for(problem, MIRROR_WAIT_MAX_S, "everything is mirrored")

    def start_load(
        self, topics: Iterable[str], environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Starts the Spark job that loads new records, as a process."""
        site = self.site
        registries = ",".join(each.registry_url for each in (*site.sources, site.analysis))
        command = [sys.executable, "-m", "headrace.warehouse.job", "load", *topics]
        command += ["--bootstrap", site.analysis.bootstrap, "--registry-url", registries]
        command += ["--hdfs-url", site.hdfs_url, "--webhdfs-url", site.webhdfs_url, "--master", "local[2]"]
        return subprocess.Popen(
            command,
            env={**os.environ, "HEADRACE_HOME": str(site.home), **(environment or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def load(self, topics: Iterable[str], environment: Mapping[str, str] | None = None) -> tuple[int, str]:
        """Runs the job to its end; returns its exit code and output."""
        with self.start_load(topics, environment) as job:
            output = output_of(job)
        return job.returncode, output

    def rows(self, topic: str) -> collections.Counter[str]:
        """Returns how often each event is in the topic's table, by name."""
        found: collections.Counter[str] = collections.Counter()
        with HdfsClient(self.site.webhdfs_url) as hdfs:
            for path, entry in hdfs.walk(TopicPaths("/data", topic).hourly):
                data = hdfs.read(path, length=entry.size_bytes)
                table = pyarrow.parquet.read_table(io.BytesIO(data), columns=["path"])
                found.update(table.column("path").to_pylist())
        return found

    def settled_report(self, topic: str, from_ms: int | None = None, to_ms: int | None = None) -> Report:
        """Returns the audit's report of a topic's hours once no verdict is pending, or the time is up."""
        store = AuditStore(self.site.audit_store_url)
        try:
            return wait_until_resolved(lambda: report(store, topic, from_ms, to_ms), AUDIT_WAIT_MAX_S)
        finally:
            store.close()


def output_of(job: subprocess.Popen[str]) -> str:
    """Waits for the job's end; returns its output."""
    try:
        return job.communicate(timeout=LOAD_WAIT_MAX_S)[0]
    finally:
        job.kill()


def wait_for(problem: Callable[[], str | None], timeout_s: float, what: str) -> None:
    """Waits until `problem` returns None; fails with the last problem."""
    deadline = time.monotonic() + timeout_s
    while (found := problem()) is not None:
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}: {found}"
        time.sleep(POLL_S)


def kill_site(site: Site) -> None:
    """Kills all that runs in a home that nobody needs any more; `operate.down` would take tens of seconds.

    What is written down of the agent and of supervisord is not enough: either may be just starting, and
    starts others as long as it lives. So it looks at all processes, until none is left. A look misses the
    child of one that forks and ends meanwhile, as supervisord does when it starts: two looks must find none.
    """
    home, supervisor = site.home.absolute(), Supervisor(site.home)
    deadline = time.monotonic() + KILL_WAIT_MAX_S
    empty_looks = 0
    while empty_looks < EMPTY_LOOKS:
        left = _processes_of(home, supervisor)
        empty_looks = 0 if left else empty_looks + 1
        assert time.monotonic() < deadline, f"{left} outlive SIGKILL"
        for process in left:
            _kill(process.pid)
        time.sleep(POLL_S)
    supervisor.socket_path.unlink(missing_ok=True)


def _processes_of(home: Path, supervisor: Supervisor) -> list[psutil.Process]:
    """The agent and supervisord of a home, whether or not they have written their records, and the units."""
    found = unit_processes(home)
    for process in psutil.process_iter():
        if process.pid == os.getpid() or not is_alive(process.pid):
            continue
        with contextlib.suppress(psutil.Error):
            words = process.cmdline()
            is_supervisor = str(supervisor.configuration_path) in words
            if is_supervisor or str(home) in words or process.environ().get(HOME_VARIABLE) == str(home):
                found.append(process)
    return found


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


_END_WITH_TESTS: Final = """
import shutil, sys
sys.stdin.read()
from headrace.fleet import operate
from headrace.site.site import Site
site = Site.model_validate_json(sys.argv[1])
if site.home.exists():
    operate.down(site)
    shutil.rmtree(site.home, ignore_errors=True)
"""


@contextlib.contextmanager
def ended_with_tests(site: Site) -> Iterator[None]:
    """Ends the site even if the test process is killed: another process sees its pipe close, and ends it."""
    command = [sys.executable, "-c", _END_WITH_TESTS, site.model_dump_json()]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True):
        yield


@pytest.fixture(scope="session")
def running_site(java_jars: dict[str, Path]) -> Iterator[RunningSite]:
    home = Path(tempfile.mkdtemp(prefix="headrace-site-"))
    (home / "jars").symlink_to(java_jars["hdfs"].parent)
    # Each test process tries another block first: two concurrent ones would both find the same block free.
    first = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % len(BLOCKS)
    site = _site(home, BLOCKS[first])
    for block in BLOCKS[first + 1 :] + BLOCKS[:first]:
        try:
            operate.check_addresses(units_of(site))
        except AddressTakenError:
            site = _site(home, block)
    with ended_with_tests(site):
        try:
            operate.up(site)
            yield RunningSite(site)
        except BaseException:
            kept = Path(tempfile.gettempdir()) / f"headrace-site-logs-{uuid.uuid4().hex[:8]}"
            if (home / "logs").exists():
                shutil.copytree(home / "logs", kept)
                print(f"the logs of the site are kept in {kept}", file=sys.stderr)
            raise
        finally:
            kill_site(site)
            shutil.rmtree(home, ignore_errors=True)


def _site(home: Path, block: int) -> Site:
    whole = Site.one_machine(home, block=block)
    # With two brokers, one keeps serving while the other is killed.
    smaller = tuple(each.model_copy(update={"broker_count": 2}) for each in whole.datacenters)
    return whole.model_copy(update={"datacenters": smaller, "airflow": False})
