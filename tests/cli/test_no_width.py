"""$COLUMNS is 0, as where a terminal has no size: nothing that a command says is left out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("columns", ["0", "00", "1", "", "wide"])
def test_errors_and_help_are_shown_at_any_width(columns: str, tmp_path: Path) -> None:
    environment = {**os.environ, "COLUMNS": columns, "HEADRACE_HOME": str(tmp_path)}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "headrace.cli", *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    wrong = run("nope")
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("error: No such command 'nope'"), wrong.stderr
    if columns != "1":
        assert "Usage: " in run("--help").stdout
