"""A test that fails beside others runs once more; what fails twice fails the run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from second_run import FAILED_MAX

SECOND_RUN = Path(__file__).with_name("second_run.py")
FAILS_ONCE = """
from pathlib import Path

def test_once():
    seen = Path("seen")
    first = not seen.exists()
    seen.touch()
    assert not first

def test_sound():
    pass
"""
TEARDOWN_FAILS = """
import pytest

@pytest.fixture
def bad():
    yield
    assert False

def test_some(bad):
    pass
"""


def both_runs(directory: Path, tests: str) -> tuple[int, int, str]:
    """Returns the exit codes of both runs, and the output of the second one."""
    (directory / "test_some.py").write_text(tests)
    (directory / "pytest.ini").write_text("[pytest]\n")
    first = subprocess.run(
        [sys.executable, "-m", "pytest", "-q"], cwd=directory, capture_output=True, text=True
    )
    second = subprocess.run(
        [sys.executable, str(SECOND_RUN), "-q"], cwd=directory, capture_output=True, text=True
    )
    return first.returncode, second.returncode, second.stdout


def test_what_passes_the_second_time_is_named(tmp_path: Path) -> None:
    first, second, out = both_runs(tmp_path, FAILS_ONCE)
    assert (first, second) == (1, 0)
    assert "  test_some.py::test_once\n" in out and "test_sound" not in out
    assert out.splitlines()[-1].startswith("1 passed in")


@pytest.mark.parametrize(
    "tests",
    [
        "def test_bad():\n    assert False\n",
        FAILS_ONCE + "def test_bad():\n    assert False\n",
        "".join(f"def test_{n}():\n    assert False\n" for n in range(FAILED_MAX + 1)),
        "import nothing_of_that_name\n",
        TEARDOWN_FAILS,
    ],
    ids=["always", "one of two", "too many", "import", "teardown"],
)
def test_what_fails_twice_fails_the_run(tmp_path: Path, tests: str) -> None:
    _, second, _ = both_runs(tmp_path, tests)
    assert second == 1


def test_more_failures_than_a_few_are_not_run_again(tmp_path: Path) -> None:
    _, second, out = both_runs(
        tmp_path, "".join(f"def test_{n}():\n    assert False\n" for n in range(FAILED_MAX + 1))
    )
    assert second == 1 and not out
