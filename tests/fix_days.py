"""The sites on which the days of tests/days are lived, and the table of their steps.

Owns `Day`, whose steps with their seconds `pytest_terminal_summary` prints, also of days that failed; a
clone of this checkout with this checkout's environments and jars; and sites that end even if the tests are
killed. Fixtures: `day`; `demo_site`, which `make demo` has made in a clone, the first time that a test asks
for it; `hcl_site`, an empty folder beside a clone, for datacenters by Terraform.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from fix_site import ended_with_tests, kill_site, wait_for
from headrace.agent.airflow_environment import airflow_python
from headrace.agent.errors import AddressTakenError
from headrace.fleet import operate
from headrace.fleet.units import units_of
from headrace.site.site import Site
from shown_runs import Step, steps
from shown_shell import Ran, Shell

ROOT: Final = Path(__file__).parents[1]
ENVIRONMENTS: Final = (".venv", ".venv-airflow", ".venv-terraform")
BLOCKS: Final = (160, 170, 180, 190)
"""Blocks of loopback addresses: another test run on this machine may use the first."""
NETWORKS: Final = {"127.1.0": 1, "127.2.0": 2, "127.9.0": 9}
"""The networks that pages show, and their places in a block."""
DEMO_MAX_S: Final = 600.0
PROPERTY: Final = "day"
# `af-calm` has no slot during the tests: only a backfill starts a run. A new topic has a schedule, as usual.
TOPICS: Final = """
defaults: {owner: tests, audit_delay: 5s, audit_wait: 2m, retries: 2, retry_delay: 1s}
topics: {af-calm: {schedule: "0 0 29 2 *"}, af-kills: {schedule: null}, page-view: {schedule: null}}
"""
DAYS: Final = ("af-days-1", "af-days-2", "af-days-3")
# DAGs with many slots, whose runs cost little. Airflow takes one backfill of a DAG at a time.
DAGS_OF_DAYS: Final = f"""
from datetime import timedelta

from airflow.sdk import DAG, CronTriggerTimetable, task

for dag_id in {DAYS}:
    with DAG(
        dag_id,
        schedule=CronTriggerTimetable("0 0 * * *", timezone="UTC"),
        default_args={{"retries": 3, "retry_delay": timedelta(seconds=1)}},
    ):

        @task
        def day(logical_date=None):
            assert logical_date is not None

        day()
"""
EXAMPLE_TOPIC: Final = "af-calm"
"""The topic of the example DAG on sealed hours."""


class Day:
    """A day of somebody: its steps, each with its seconds, in the order in which they began."""

    def __init__(self, name: str, record: Callable[[str, Any], None]) -> None:
        self.name = name
        self._record = record

    @contextlib.contextmanager
    def step(self, what: str) -> Iterator[None]:
        begun = time.monotonic()
        outcome = "FAILED"
        try:
            yield
            outcome = ""
        finally:
            self.add(what, time.monotonic() - begun, outcome)

    def add(self, what: str, seconds: float, outcome: str = "") -> None:
        self._record(PROPERTY, (self.name, what, seconds, outcome))


@pytest.fixture
def day(request: pytest.FixtureRequest, record_property: Callable[[str, Any], None]) -> Day:
    """The day of this file: test_data_engineer.py is that of the data engineer."""
    return Day(request.path.stem.removeprefix("test_").replace("_", " "), record_property)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    days: dict[str, list[tuple[str, float, str]]] = defaultdict(list)
    for reports in terminalreporter.stats.values():
        for report in reports:
            # The last report of each test, whatever became of it, has all of its steps.
            if getattr(report, "when", "") == "teardown":
                for key, value in report.user_properties:
                    if key == PROPERTY:
                        name, what, seconds, outcome = value
                        days[name].append((what, seconds, outcome))
    for name, rows in sorted(days.items()):
        terminalreporter.write_line(f"the day of the {name}: {sum(row[1] for row in rows):.0f} s")
        for what, seconds, outcome in rows:
            terminalreporter.write_line(f"  {seconds:6.1f} s  {what}  {outcome}".rstrip())


def clone(folder: Path) -> Path:
    """Clones this checkout as it is now, with uncommitted changes, and links its environments."""
    checkout = folder / "headrace"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(checkout)], check=True)
    changed = ["git", "diff", "-z", "--name-only", "--no-renames", "HEAD"]
    new = ["git", "ls-files", "-z", "--others", "--exclude-standard"]
    listed = [
        subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for listing in (changed, new)
    ]
    for name in filter(None, "".join(listed).split("\0")):
        source, target = ROOT / name, checkout / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_file():
            shutil.copyfile(source, target, follow_symlinks=False)
        elif not source.exists():
            target.unlink(missing_ok=True)
    for name in ENVIRONMENTS:
        if (ROOT / name / ".installed").exists():
            _link_environment(ROOT / name, checkout / name)
    return checkout


def _link_environment(source: Path, target: Path) -> None:
    """Makes an environment that is another's, so that make finds nothing to install in it.

    Its interpreter is the other's: what depends on its path, such as Spark's archive of classes, fits.
    """
    (target / "bin").mkdir(parents=True)
    for program in (source / "bin").iterdir():
        ours = target / "bin" / program.name
        if program.name.startswith("python"):
            ours.write_text(f'#!/bin/sh\nexec "{program}" "$@"\n')
            ours.chmod(0o755)
        else:
            ours.symlink_to(program)
    # make compares its time with those of the clone's files and of the environments before.
    (target / ".installed").touch()


class DaySite:
    """A clone of the checkout in a folder of its own, and the addresses of the site that is made with it.

    `folder`: where the clone `headrace` is. `home`: where the site's state will be. `base`: its description.
    """

    def __init__(self, folder: Path, home: Path, base: Site) -> None:
        self.folder = folder
        self.checkout = folder / "headrace"
        self.home = home
        self.base = base

    @property
    def site(self) -> Site:
        return Site.load(self.home)

    def shell(self, folder: Path, **variables: str) -> Shell:
        scratch = Path(tempfile.mkdtemp(prefix="shell-", dir=self.folder))
        path = f"{self.checkout / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
        return Shell(folder, scratch, {"PATH": path, **variables})

    def localised(self, text: str) -> str:
        """Replaces the networks that pages show by this site's."""
        for network, place in NETWORKS.items():
            text = text.replace(network, f"127.{self.block + place}.0")
        return text

    @property
    def block(self) -> int:
        return int(self.base.datacenters[0].network.split(".")[1]) - 1

    def steps(self, page: str, site: str) -> Iterator[Step]:
        """The commands of a page that run on this site, with its addresses."""
        yield from steps(page, self.localised((self.checkout / page).read_text()), site)


class DemoSite(DaySite):
    """The site that `make demo` has made. `made`: steps and seconds; `demo`: what `make demo` did."""

    made: list[tuple[str, float]]
    demo: Ran

    def headrace(
        self, *words: object, stdin: str | None = None, home: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Runs the command as a user does, without a terminal; it may end with any code."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
        return subprocess.run(
            [self.checkout / ".venv" / "bin" / "headrace", *map(str, words)],
            cwd=self.checkout,
            env={**environment, "NO_COLOR": "1", **({"HEADRACE_HOME": str(home)} if home else {})},
            input=stdin or "",
            capture_output=True,
            text=True,
            timeout=DEMO_MAX_S,
            check=False,
        )


def free_site(home: Path) -> Site:
    """A one-machine site of a block whose addresses are free."""
    for block in BLOCKS:
        site = Site.one_machine(home, block=block)
        try:
            operate.check_addresses(units_of(site))
        except AddressTakenError:
            continue
        return site
    return site


@pytest.fixture(scope="session")
def demo_site(java_jars: dict[str, Path]) -> Iterator[DemoSite]:
    if not airflow_python().exists():
        pytest.skip(f"Airflow is not set up ({airflow_python()} is missing): run `make airflow`")
    folder = Path(tempfile.mkdtemp(prefix="headrace-days-"))
    home = folder / "headrace" / ".headrace"
    made = DemoSite(folder, home, free_site(home))
    with ended_with_tests(made.base):
        try:
            begun = time.monotonic()
            clone(folder)
            made.made = [("git clone; the environments are linked", time.monotonic() - begun)]
            _prepare(made, java_jars["hdfs"].parent)
            with made.shell(made.checkout, HEADRACE_DAGS=str(made.checkout / "dags")) as shell:
                made.demo = shell.run("make demo", timeout_s=DEMO_MAX_S)
            made.made.append(("make demo", made.demo.seconds))
            yield made
        finally:
            kill_site(made.site)
            shutil.rmtree(folder, ignore_errors=True)


def _prepare(made: DemoSite, jars: Path) -> None:
    made.home.mkdir()
    (made.home / "jars").symlink_to(jars)
    (made.home / "site.yaml").write_text(f"block: {made.block}\n")
    (made.checkout / "dags" / "topics.yaml").write_text(TOPICS)
    (made.checkout / "dags" / "days.py").write_text(DAGS_OF_DAYS)
    example = made.checkout / "dags" / "daily_active_users.py"
    example.write_text(example.read_text().replace("page-view", EXAMPLE_TOPIC))


@pytest.fixture(scope="module")
def hcl_site(terraform: None, java_jars: dict[str, Path]) -> Iterator[DaySite]:
    """An empty folder `hcl` beside a clone; its site has other addresses than the demo's."""
    folder = Path(tempfile.mkdtemp(prefix="headrace-hcl-"))
    home = folder / "hcl" / ".headrace"
    made = DaySite(folder, home, free_site(home))
    with ended_with_tests(made.base):
        try:
            clone(folder)
            home.mkdir(parents=True)
            (home / "jars").symlink_to(java_jars["hdfs"].parent)
            (home / "site.yaml").write_text(f"block: {made.block}\n")
            yield made
        finally:
            kill_site(made.site)
            shutil.rmtree(folder, ignore_errors=True)


def wait_until(condition: Callable[[], object], timeout_s: float, what: str) -> None:
    wait_for(lambda: None if condition() else "not yet", timeout_s, what)
