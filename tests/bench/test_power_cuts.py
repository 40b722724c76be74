"""`make bench-power-cuts`: brokers come back from a cut, and the verdict is that of headrace's default."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from power_cuts import DEFAULT, PEERS, Row, exit_code

ROOT = Path(__file__).parents[2]
GOOD = Row(DEFAULT, 10, 0, 4_000, 0, 120, [1.0, 2.0])


def run(folder: Path, **environment: str) -> tuple[subprocess.CompletedProcess[str], Path]:
    figures = folder / "figures.json"
    path = os.pathsep.join([str(ROOT / "tests"), str(ROOT / "bench")])
    given = {"PYTHONPATH": path, "HEADRACE_HOME": str(folder), "JSON": str(figures), **environment}
    command = [sys.executable, str(ROOT / "bench" / "power_cuts.py")]
    done = subprocess.run(
        command, env={**os.environ, **given}, capture_output=True, text=True, timeout=300, check=False
    )
    return done, figures


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_in_a_power_cut_of_all_brokers(tmp_path: Path) -> None:
    done, figures = run(tmp_path, PEERS=DEFAULT, CUTS="2", SEED="5")
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = json.loads(figures.read_text())["rows"]
    assert row["cuts"] == 2 and row["lost"] == 0 and row["acknowledged"] > 100
    assert row["cut_bytes"] > 0, "nothing was cut off, so nothing was tried"


@pytest.mark.parametrize(
    ("name", "given", "problem"),
    [
        ("PEERS", "headrace rabbit", f"PEERS=rabbit: there are {', '.join(PEERS)}"),
        ("CUTS", "0", "CUTS=0: give a number from 1 to 999999999"),
        ("SEED", "x", "SEED=x: give a number from 1 to 999999999"),
    ],
)
def test_what_cannot_be_run_is_named(tmp_path: Path, name: str, given: str, problem: str) -> None:
    done, _ = run(tmp_path, **{name: given})
    assert (done.returncode, done.stderr) == (2, problem + "\n")


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({}, 0),
        ({"lost": 1}, 1),
        ({"lost": None, "problem": "not live within 60 s"}, 1),
        ({"peer": "kafka", "lost": 1}, 0),
        ({"peer": "headrace-replicated", "lost": 1}, 0),
    ],
)
def test_the_verdict_is_that_of_headraces_default(changed: dict[str, Any], code: int) -> None:
    assert exit_code([GOOD, replace(GOOD, **changed)]) == code
