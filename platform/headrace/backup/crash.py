"""Where tests end a backup or a restore: `HEADRACE_CRASH_AT=<step>` sends SIGKILL to this process there."""

from __future__ import annotations

import os
import signal
from typing import Final

VARIABLE: Final = "HEADRACE_CRASH_AT"
STEPS: Final = (
    "backup-began",
    "backup-copied",
    "backup-finished",
    "restore-began",
    "restore-copied",
    "restore-complete",
    "restore-moved-one",
)


def reached(step: str) -> None:
    """Ends this process if the environment names this step."""
    assert step in STEPS, step
    if os.environ.get(VARIABLE) == step:
        os.kill(os.getpid(), signal.SIGKILL)
