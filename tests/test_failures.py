"""A test that fails beside others is named at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

TESTS = """
import os
from pathlib import Path

import pytest

@pytest.fixture
def bad():
    yield
    assert False

def test_fails():
    assert False

def test_cannot_be_torn_down(bad):
    pass

def test_that_passes():
    pass
"""
CUT_OFF = """
import os
import signal

import pytest

@pytest.hookimpl(trylast=True)
def pytest_runtest_logfinish(nodeid):
    if "passes" in nodeid and "PYTEST_XDIST_WORKER" not in os.environ:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_failed_is_named_in_a_run_that_is_cut_off(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "cut_off.py").write_text(CUT_OFF)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    folders = os.pathsep.join((str(Path(__file__).parent), str(tmp_path)))
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    words = ("-q", "-n", "1", "-p", "fix_failures", "-p", "cut_off")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        cwd=tmp_path,
        env={**inherited, "PYTHONPATH": folders},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == -signal.SIGKILL, done.stdout
    named = [line for line in done.stdout.splitlines() if line.startswith("failed")]
    assert named == [
        "failed: test_some.py::test_fails",
        "failed, at its teardown: test_some.py::test_cannot_be_torn_down",
    ]
