"""The command lines of the clients in Python: headrace's own, and those that it is compared with."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_BENCH: Final = Path(__file__).parents[1]


def command(
    mode: str,
    library: str,
    bootstrap: str,
    topic: str,
    *,
    seconds: float,
    value_bytes: int,
    settings: Mapping[str, object] | None = None,
) -> list[str]:
    """Returns the command line of `bench/python_client.py`; `mode`: produce or consume. The library gets the
    settings, by its own names.
    """
    return [
        sys.executable,
        str(_BENCH / "python_client.py"),
        mode,
        f"--library={library}",
        f"--bootstrap={bootstrap}",
        f"--topic={topic}",
        f"--seconds={seconds:g}",
        f"--value-bytes={value_bytes}",
        *(f"--set={name}={value}" for name, value in (settings or {}).items()),
    ]


def latency_command(bootstrap: str, topic: str, *, rate: int, seconds: float) -> list[str]:
    """Returns the command line of `bench/latency.py`: events are produced at a rate, and consumed beside."""
    return [
        sys.executable,
        str(_BENCH / "latency.py"),
        f"--bootstrap={bootstrap}",
        f"--topic={topic}",
        f"--rate={rate}",
        f"--seconds={seconds:g}",
    ]


def windows_command(
    bootstrap: str,
    topic: str,
    *,
    requests: int,
    batch: int,
    value_bytes: int,
    seconds: float,
    warmup_s: float,
) -> list[str]:
    """Returns the command line of `bench/request_windows.py`: `requests` at once, of `batch` records each."""
    return [
        sys.executable,
        str(_BENCH / "request_windows.py"),
        f"--bootstrap={bootstrap}",
        f"--topic={topic}",
        f"--requests={requests}",
        f"--batch={batch}",
        f"--value-bytes={value_bytes}",
        f"--seconds={seconds:g}",
        f"--warmup={warmup_s:g}",
    ]
