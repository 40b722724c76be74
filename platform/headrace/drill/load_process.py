"""The load of the canary topic: `headrace.warehouse.job load`, in a process of its own, as its DAGs run it.

The process is bounded in time, and ends with the drill. Killed at any moment it leaves a load that the next
one completes, or nothing.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from typing import Final

from headrace.drill.errors import DrillError
from headrace.warehouse.options import WarehouseOptions

LOAD_MAX_S: Final = 300.0
POLL_S: Final = 0.2
LINE_MAX_CHARS: Final = 500
ERROR_MARK: Final = "headrace warehouse: "
"""Before an error in the job's output."""


class LoadFailedError(DrillError):
    """The load was refused, or failed; the message has its last error."""


def load_command(warehouse: WarehouseOptions, topic: str) -> list[str]:
    """Returns the command that loads a topic."""
    zookeeper = ("--zookeeper", warehouse.zookeeper) if warehouse.zookeeper else ()
    return [
        *(sys.executable, "-m", "headrace.warehouse.job", "load", topic),
        *("--bootstrap", warehouse.bootstrap),
        *("--registry-url", warehouse.registry_url),
        *("--hdfs-url", warehouse.hdfs_url),
        *("--webhdfs-url", warehouse.webhdfs_url),
        *("--root", warehouse.root),
        *("--datacenter", warehouse.datacenter),
        *zookeeper,
    ]


def run_load(command: Iterable[str], stopping: threading.Event, *, timeout_s: float = LOAD_MAX_S) -> None:
    """Runs a load to its end.

    Raises `LoadFailedError` with its last error; `DrillError` if it takes too long, or `stopping` is set.
    """
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        with subprocess.Popen(
            list(command), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        ) as process:
            try:
                _wait(process, stopping, timeout_s)
            finally:
                if process.poll() is None:
                    process.kill()
        output.seek(0)
        lines = output.read().splitlines()
    if process.returncode:
        raise LoadFailedError(f"the load ended with {process.returncode}: {last_error(lines)}")


def _wait(process: subprocess.Popen[bytes], stopping: threading.Event, timeout_s: float) -> None:
    deadline_s = time.monotonic() + timeout_s
    while process.poll() is None:
        if stopping.wait(POLL_S):
            raise DrillError("the load was interrupted")
        if time.monotonic() > deadline_s:
            raise DrillError(f"the load did not end within {timeout_s:g} s")


def last_error(lines: Iterable[str]) -> str:
    """Returns the last error of the job among its lines; the last line if there is none. Pure."""
    found = last = ""
    for line in lines:
        _, mark, error = line.partition(ERROR_MARK)
        found = error.strip() if mark else found
        last = line.strip() or last
    return (found or last or "it printed nothing")[:LINE_MAX_CHARS]
