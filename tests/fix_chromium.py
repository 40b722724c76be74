"""Debian's Chromium without a screen, for pages whose script has to run."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
WAIT_MAX_S = 120.0


@pytest.fixture
def page_after_scripts(tmp_path: Path) -> Callable[[str], str]:
    """Opens a URL, lets its scripts and requests end, and returns the page as HTML."""
    program = next((found for name in NAMES if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")

    def opened(url: str) -> str:
        command = [
            program,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={tmp_path / 'browser'}",
        ]
        command += ["--no-proxy-server", "--virtual-time-budget=20000", "--dump-dom", url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_MAX_S, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return opened
