"""`make soak`: growth is found, and a site with visitors is measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from soak.growth import Growth, Held, growths, held
from soak.visits import KINDS

ROOT = Path(__file__).parents[2]
STILL = Held(30.0, 50.0, 20.0)


def run(folder: Path, minutes: str) -> tuple[subprocess.CompletedProcess[str], Path]:
    figures = folder / "figures.json"
    given = {"PYTHONPATH": str(ROOT / "bench"), "MINUTES": minutes, "JSON": str(figures)}
    command = [sys.executable, "-m", "soak"]
    done = subprocess.run(
        command, env={**os.environ, **given}, capture_output=True, text=True, timeout=400, check=False
    )
    return done, figures


@pytest.mark.slow
def test_each_process_of_a_site_is_measured_while_all_kinds_of_visitors_come_and_go(tmp_path: Path) -> None:
    done, figures = run(tmp_path, "0.6")
    assert "Traceback" not in done.stderr
    samples = json.loads(figures.read_text())
    units = {"east-broker-1", "east-registry", "analysis-mirror-east", "analysis-auditor", "agent"}
    assert units | set(KINDS) <= samples.keys()
    assert all(memory_mb > 1 and descriptors > 1 for memory_mb, descriptors, _ in samples["east-broker-1"])
    assert "visits failed" not in done.stdout and "started again" not in done.stdout, done.stdout
    visits = dict(
        each.rsplit(" ", 1) for each in done.stdout.split("visits: ")[1].splitlines()[0].split(", ")
    )
    assert visits.keys() == KINDS.keys() and "0" not in visits.values(), visits


@pytest.mark.parametrize("given", ["0", "0.1", "-3", "ten", "1e3", "10001"])
def test_minutes_that_cannot_be_measured_are_named(tmp_path: Path, given: str) -> None:
    done, _ = run(tmp_path, given)
    assert (done.returncode, done.stderr) == (2, f"MINUTES={given}: give a number from 0.5 to 10000\n")


def test_the_start_does_not_count_and_what_grows_after_it_does() -> None:
    begun = [Held(10.0 + number, 40.0, 20.0) for number in range(10)]
    (still,) = growths({"still": [*begun, *[STILL] * 30]})
    assert still.beyond() == []
    climbing = [Held(30.0 + number, 50.0 + number, 20.0 + number) for number in range(40)]
    (grown,) = growths({"climbing": climbing})
    assert grown.beyond() == ["memory_mb", "descriptors", "threads"]


@pytest.mark.parametrize(
    ("late", "beyond"),
    [
        (Held(35.0, 62.0, 24.0), []),
        (Held(35.1, 50.0, 20.0), ["memory_mb"]),
        (Held(30.0, 63.0, 20.0), ["descriptors"]),
        (Held(30.0, 50.0, 25.0), ["threads"]),
        (Held(10.0, 5.0, 2.0), []),
    ],
)
def test_each_figure_has_a_bound(late: Held, beyond: list[str]) -> None:
    assert Growth("unit", STILL, late).beyond() == beyond


def test_too_few_samples_are_no_verdict() -> None:
    with pytest.raises(ValueError, match="unit: 7 samples; it takes 8"):
        growths({"unit": [STILL] * 7})


HOLDING = """
import sys, subprocess, threading
print("is up", flush=True)
input()
kept, files = bytearray(b"x") * 20_000_000, [open("/dev/null"), open("/dev/null")]
threading.Thread(target=threading.Event().wait, daemon=True).start()
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
print("holds all", flush=True)
input()
child.communicate(b"\\n")
"""


def test_what_a_process_holds_is_counted_with_all_below_it() -> None:
    """Of a process of its own: the tests' own one has threads and memory that come and go."""
    command = [sys.executable, "-c", HOLDING]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == b"is up\n"
        before = held([process.pid])
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"holds all\n"
        now = held([process.pid])
        process.stdin.write(b"\n")
    assert before is not None and now is not None
    assert now.memory_mb > before.memory_mb + 19
    assert now.descriptors >= before.descriptors + 2 and now.threads >= before.threads + 2


def test_processes_that_are_gone_hold_nothing() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert held([gone.pid]) is None
