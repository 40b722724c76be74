"""`make bench-airflow`: Airflow over PostgreSQL and over SQLite: its start, its memory, its backfills.

Owns a site of its own for each start (block 180 of loopback, a temporary home), of which only Airflow and its
database run; the DAGs that are backfilled; the table. The exit code is 1 if a backfill over PostgreSQL fails.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from headrace.agent.airflow_environment import DAGS_VARIABLE, airflow_python
from headrace.agent.processes import unit_processes
from headrace.agent.unit import Unit
from headrace.fleet import operate
from headrace.fleet.airflow_client import AirflowClient, Run
from headrace.fleet.airflow_units import airflow_configurations, airflow_home, airflow_of
from headrace.fleet.units import units_of
from headrace.site.errors import SiteError
from headrace.site.site import POSTGRESQL, SQLITE, Site

BLOCK: Final = 180
DATABASES: Final = (POSTGRESQL, SQLITE)
ROUNDS: Final = 1
# A pause before memory is read, until the work of the start has ended.
CALM_S: Final = 15.0
BACKFILLS: Final = 10
SLOTS: Final = 6
SPAN: Final = ("2015-05-17", f"2015-05-{17 + SLOTS - 1}")
COMMAND_MAX_S: Final = 240.0
RUNS_MAX_S: Final = 600.0
POLL_S: Final = 0.5
LOCKED: Final = "database is locked"
DAG_IDS: Final = tuple(f"bench-{number}" for number in range(BACKFILLS))
DAGS: Final = f"""
from airflow.sdk import DAG, CronTriggerTimetable, task

for dag_id in {DAG_IDS}:
    with DAG(dag_id, schedule=CronTriggerTimetable("0 0 * * *", timezone="UTC")):

        @task
        def day(logical_date=None):
            assert logical_date is not None

        day()
"""


@dataclass(frozen=True)
class Backfills:
    """What became of `BACKFILLS` commands one after another, each of `SLOTS` runs of one task, no retries."""

    commands_failed: int
    runs_failed: int
    locked_count: int
    """Lines about a locked database, in what the commands printed and in the logs of Airflow's processes."""
    seconds: float
    """From the first command until the last run has ended."""


@dataclass(frozen=True)
class Round:
    """One new home: its first start, its second, its memory when idle, and its backfills."""

    first_start_s: float
    later_start_s: float
    airflow_bytes: int
    database_bytes: int
    """Proportional set size, of the database's own processes; 0 if it has none."""
    disk_bytes: int
    backfills: Backfills


@contextmanager
def new_site(database: str) -> Iterator[Site]:
    """A site without anything in it; ends what runs there, and removes it."""
    home = Path(tempfile.mkdtemp(prefix="headrace-bench-"))
    # PostgreSQL runs as another user if root starts it.
    home.chmod(0o755)
    dags = home / "dags"
    dags.mkdir()
    (dags / "bench.py").write_text(DAGS)
    os.environ[DAGS_VARIABLE] = str(dags)
    site = Site.one_machine(home, block=BLOCK).model_copy(update={"airflow_database": database})
    try:
        yield site
    finally:
        operate.down(site)
        shutil.rmtree(home, ignore_errors=True)


def airflow_units(site: Site) -> list[Unit]:
    names = airflow_configurations(site)
    return [unit for unit in units_of(site) if unit.name in names]


def timed(act: Callable[[], object]) -> float:
    began = time.monotonic()
    act()
    return time.monotonic() - began


def memory_bytes(site: Site) -> dict[str, int]:
    """Proportional set size of all processes of each unit."""
    found: dict[str, int] = {}
    for unit in airflow_units(site):
        found[unit.name] = sum(map(pss_bytes, family(site, unit.name)))
    return found


def family(site: Site, unit: str) -> set[psutil.Process]:
    """A unit's processes; those of PostgreSQL's sessions hide their environment behind a title."""
    found = set(unit_processes(site.home, unit))
    for process in tuple(found):
        with contextlib.suppress(psutil.Error):
            found.update(process.children(recursive=True))
    return found


def pss_bytes(process: psutil.Process) -> int:
    """0 if the process has just ended."""
    try:
        return int(process.memory_full_info().pss)
    except psutil.Error:
        return 0


def disk_bytes(site: Site) -> int:
    """What the database takes on the disk."""
    paths = [*site.home.glob("airflow/airflow.db*"), *site.home.glob("data/*/postgresql/**/*")]
    return sum(path.stat().st_blocks * 512 for path in paths if path.is_file())


def backfill(site: Site) -> Backfills:
    """Runs the command that docs/airflow.md shows, for one DAG after another, while their runs go on."""
    program = str(airflow_python().parent / "airflow")
    environment = {**os.environ, "AIRFLOW_HOME": str(airflow_home(site))}
    failed, locked = 0, 0
    with airflow_of(site) as client:
        for dag_id in DAG_IDS:
            client.unpause(dag_id)
        began = time.monotonic()
        for dag_id in DAG_IDS:
            done = subprocess.run(
                [
                    program,
                    "backfill",
                    "create",
                    "--dag-id",
                    dag_id,
                    "--from-date",
                    SPAN[0],
                    "--to-date",
                    SPAN[1],
                ],
                env=environment,
                capture_output=True,
                text=True,
                timeout=COMMAND_MAX_S,
                check=False,
            )
            failed += done.returncode != 0
            locked += (done.stdout + done.stderr).count(LOCKED)
        runs = wait_ended(client, BACKFILLS * SLOTS if not failed else 0)
    seconds = time.monotonic() - began
    locked += sum(path.read_text(errors="replace").count(LOCKED) for path in site.home.glob("logs/*.log"))
    succeeded = sum(run.state == "success" for run in runs)
    return Backfills(failed, BACKFILLS * SLOTS - succeeded, locked, seconds)


def wait_ended(client: AirflowClient, wanted: int) -> list[Run]:
    """The runs of all backfills, once at least `wanted` are there and all have ended, or the time is up."""
    deadline = time.monotonic() + RUNS_MAX_S
    while True:
        runs = [run for dag_id in DAG_IDS for run in client.runs(dag_id) if run.run_type == "backfill"]
        is_over = len(runs) >= wanted and all(run.has_ended for run in runs)
        if is_over or time.monotonic() > deadline:
            return runs
        time.sleep(POLL_S)


def measure(database: str) -> Round:
    with new_site(database) as site:
        first_s = timed(lambda: operate.up(site, units=airflow_units(site)))
        operate.down(site)
        later_s = timed(lambda: operate.up(site, units=airflow_units(site)))
        time.sleep(CALM_S)
        memory = memory_bytes(site)
        server = sum(size for name, size in memory.items() if name.endswith("-postgresql"))
        return Round(
            first_s, later_s, sum(memory.values()) - server, server, disk_bytes(site), backfill(site)
        )


def table(rounds: Mapping[str, Sequence[Round]]) -> str:
    """The figures in Markdown: medians of the rounds, and sums of what failed."""
    titles = {POSTGRESQL: "PostgreSQL", SQLITE: "SQLite"}
    rows: list[tuple[str, Callable[[Sequence[Round]], str]]] = [
        ("first start, the database made", lambda each: _seconds(one.first_start_s for one in each)),
        ("later starts", lambda each: _seconds(one.later_start_s for one in each)),
        ("memory of Airflow's four processes", lambda each: _megabytes(one.airflow_bytes for one in each)),
        ("memory of the database's server", lambda each: _megabytes(one.database_bytes for one in each)),
        ("disk", lambda each: _megabytes(one.disk_bytes for one in each)),
        ("backfills made at the first try", _commands),
        ("runs of them that succeeded", _runs),
        (f"*{LOCKED}* in output and logs", lambda each: str(sum(one.backfills.locked_count for one in each))),
        (
            f"from the first of {BACKFILLS} backfills to the end of their {BACKFILLS * SLOTS} runs",
            lambda each: _seconds(one.backfills.seconds for one in each),
        ),
    ]
    lines = [f"| | {' | '.join(titles[name] for name in rounds)} |", f"|---|{'---:|' * len(rounds)}"]
    lines += [f"| {what} | {' | '.join(show(each) for each in rounds.values())} |" for what, show in rows]
    return "\n".join(lines)


def _seconds(values: Iterator[float]) -> str:
    return f"{statistics.median(values):.1f} s"


def _megabytes(values: Iterator[int]) -> str:
    found = statistics.median(values)
    return f"{found / 1e6:.0f} MB" if found else "none"


def _commands(rounds: Sequence[Round]) -> str:
    made = BACKFILLS * len(rounds)
    return f"{made - sum(each.backfills.commands_failed for each in rounds)} of {made}"


def _runs(rounds: Sequence[Round]) -> str:
    made = BACKFILLS * SLOTS * len(rounds)
    return f"{made - sum(each.backfills.runs_failed for each in rounds)} of {made}"


def main() -> int:
    rounds: dict[str, list[Round]] = {name: [] for name in DATABASES}
    try:
        for number in range(ROUNDS):
            for name in DATABASES:
                rounds[name].append(measure(name))
                print(f"round {number + 1} of {ROUNDS}, {name}: {rounds[name][-1]}", flush=True)
    except SiteError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(table(rounds))
    failures = [each.backfills for each in rounds[POSTGRESQL]]
    return int(any(each.commands_failed or each.runs_failed for each in failures))


if __name__ == "__main__":
    sys.exit(main())
