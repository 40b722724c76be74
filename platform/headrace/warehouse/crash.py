"""Where a test makes a process die: `HEADRACE_CRASH_AT=<step>` kills it by SIGKILL when it comes to that
step.

The steps of a change, in order: `planned`, `staged`, `prepared`, `committed`, `moved-one`, `moved`,
`published`. With `HEADRACE_CRASH_ONCE=<file>` only the process that can create that file dies.
"""

import os
import signal
from pathlib import Path
from typing import Final

STEPS: Final = ("planned", "staged", "prepared", "committed", "moved-one", "moved", "published")


def reached(step: str) -> None:
    """Say that a step is reached."""
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
