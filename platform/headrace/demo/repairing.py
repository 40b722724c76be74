"""The demo's repair: runs the commands that the report names, and lets Airflow load what they brought."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from headrace.audit.findings import Finding
from headrace.audit.report.remedies import commands_of
from headrace.audit.report.report import Report
from headrace.demo.commands import as_typed
from headrace.demo.plan import TOPIC, DemoPlan
from headrace.demo.screen import Screen
from headrace.fleet.airflow_client import Run
from headrace.fleet.airflow_units import airflow_of
from headrace.site.environment_variables import HOME_VARIABLE
from headrace.site.errors import SiteError

REPAIR: Final = "headrace audit repair "
REPAIR_TIMEOUT_S: Final = 600.0
LOAD_TIMEOUT_S: Final = 600.0
NEITHER_DONE_NOR_WAITING: Final = (1, 2)


def repair_commands(report: Report, findings: Sequence[Finding]) -> list[str]:
    """Returns the commands that repair these findings, as a user types them."""
    return [each for each in commands_of(report.verdicts, findings) if each.startswith(REPAIR)]


def repair(plan: DemoPlan, screen: Screen, report: Report, findings: Sequence[Finding]) -> Run | None:
    """Repairs what was found; returns the load that brought it to HDFS, None if nothing can be repaired.

    Raises `SiteError`.
    """
    commands = repair_commands(report, findings)
    if not commands:
        return None
    screen.step("repair: what was lost comes back from the publisher's spool")
    for command in commands:
        screen.print(f"$ {as_typed(command, plan.site.home)} --no-load")
        _run(command, plan.site.home, screen)
    with airflow_of(plan.site) as airflow:
        run = airflow.trigger(f"load-{TOPIC}")
        airflow.wait(run, timeout_s=LOAD_TIMEOUT_S)
    screen.print(f"Airflow has loaded it: DAG load-{TOPIC}")
    return run


def _run(command: str, home: Path, screen: Screen) -> None:
    program = Path(sys.executable).with_name("headrace")
    words = [str(program), *shlex.split(command)[1:], "--no-load"]
    environment = {**os.environ, HOME_VARIABLE: str(home)}
    try:
        done = subprocess.run(
            words, env=environment, capture_output=True, text=True, timeout=REPAIR_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SiteError(f"`{command}` did not end: {error}") from error
    for line in done.stdout.splitlines():
        if line.startswith(("bring", "brought", "cannot", "nothing")):
            screen.print(line)
    if done.returncode in NEITHER_DONE_NOR_WAITING:
        problem = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise SiteError(f"`{command}` ended with {done.returncode}: {''.join(problem)}")
