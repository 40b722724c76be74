"""docs/agent.md on a host of its own: its agent with TLS, and curl, whose answers are those of the page."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from headrace.agent.client import AgentClient
from headrace.agent.local import find_agent
from headrace.agent.processes import end_units_left_in
from headrace.agent.supervisor import Supervisor
from shown_runs import steps
from shown_shell import Shell

pytestmark = [pytest.mark.zookeeper, pytest.mark.timeout(240)]

ROOT = Path(__file__).parents[2]
PAGE = "docs/agent.md"
SHOWN_HOME, SHOWN_HOST = "/var/lib/headrace", "10.0.0.5"


def own_host() -> str:
    """An address of loopback that no other test process has."""
    pid = os.getpid()
    return f"127.107.{pid // 250 % 250}.{pid % 250 + 1}"


def end(home: Path) -> None:
    found: AgentClient | None = find_agent(home)
    if found is not None:
        with found:
            for unit in found.units(with_drift=False):
                found.delete(unit.name)
            found.shut_down()
    if Supervisor(home).is_alive():
        Supervisor(home).shut_down()
    end_units_left_in(home)


def test_what_the_page_shows(tmp_path: Path) -> None:
    home = tmp_path / "home"
    text = (ROOT / PAGE).read_text().replace(SHOWN_HOME, str(home)).replace(SHOWN_HOST, own_host())
    shown = list(steps(PAGE, text, "agent"))
    assert len([step for step in shown if "curl" in step.command]) >= 10
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with Shell(tmp_path, tmp_path, {"PATH": path}) as shell:
        try:
            for step in shown:
                shell.follow(step)
        finally:
            end(home)
