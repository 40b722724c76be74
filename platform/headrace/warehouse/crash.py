"""Crash points for tests: `HEADRACE_CRASH_AT=<step>` kills the process by SIGKILL at that step of a change.

With `HEADRACE_CRASH_ONCE=<file>` only the process that can create that file dies.
"""

import os
import signal
from pathlib import Path
from typing import Final

STEPS: Final = ("planned", "staged", "prepared", "committed", "moved-one", "moved", "published")
"""In the order of a change."""


def reached(step: str) -> None:
    """Kills this process if it is to die at `step`."""
    assert step in STEPS
    if os.environ.get("HEADRACE_CRASH_AT") != step:
        return
    once = os.environ.get("HEADRACE_CRASH_ONCE")
    if once is not None:
        try:
            Path(once).touch(exist_ok=False)
        except FileExistsError:
            return
    os.kill(os.getpid(), signal.SIGKILL)
