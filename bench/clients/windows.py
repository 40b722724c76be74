"""The command line of the client that sends the same requests in every round."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

_PROGRAM: Final = Path(__file__).parents[1] / "request_windows.py"


def command(
    bootstrap: str,
    topic: str,
    *,
    requests: int,
    batch: int,
    value_bytes: int,
    seconds: float,
    warmup_s: float,
) -> list[str]:
    """Returns the command line of `bench/request_windows.py`: windows of so many requests, of `batch` records
    each.
    """
    return [
        sys.executable,
        str(_PROGRAM),
        f"--bootstrap={bootstrap}",
        f"--topic={topic}",
        f"--requests={requests}",
        f"--batch={batch}",
        f"--value-bytes={value_bytes}",
        f"--seconds={seconds:g}",
        f"--warmup={warmup_s:g}",
    ]
