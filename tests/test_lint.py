"""Types and layers, as `make lint` checks them: beside the other tests, because they take a minute or two.

`make check` leaves these out, because it lints first.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
TYPES_MAX_S = 900
LAYERS_MAX_S = 300

pytestmark = [pytest.mark.slow, pytest.mark.timeout(TYPES_MAX_S + 30)]


def output_of(*command: str, timeout_s: float) -> tuple[int, str]:
    """Runs a program with what the others leave of the processors: they wait for real processes."""
    done = subprocess.run(
        ["nice", "-n", "19", str(BIN / command[0]), *command[1:]],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    return done.returncode, done.stdout


def test_types_hold() -> None:
    code, output = output_of("mypy", timeout_s=TYPES_MAX_S)
    assert code == 0, output


def test_imports_point_down() -> None:
    code, output = output_of("lint-imports", "--no-cache", timeout_s=LAYERS_MAX_S)
    assert code == 0 and " 0 broken" in output, output
