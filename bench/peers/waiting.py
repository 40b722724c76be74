"""Waiting until a broker that was just started serves."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable
from typing import Final

from side_by_side.process import PinnedProcess, ProcessFailedError

READY_WAIT_MAX_S: Final = 120.0
POLL_S: Final = 0.01
CONNECT_WAIT_MAX_S: Final = 1.0


def wait_until(
    is_ready: Callable[[], bool],
    what: str,
    process: PinnedProcess | None = None,
    wait_max_s: float = READY_WAIT_MAX_S,
) -> None:
    """Returns once `is_ready`. Raises `ProcessFailedError` if the process ends or the time is up."""
    deadline_s = time.monotonic() + wait_max_s
    while not is_ready():
        if process is not None:
            process.check_running()
        if time.monotonic() > deadline_s:
            tail = f"; the end of {process.log}: {process.log_tail()}" if process is not None else ""
            raise ProcessFailedError(f"{what}: not within {wait_max_s:.0f} s{tail}")
        time.sleep(POLL_S)


def wait_for_listener(process: PinnedProcess, host: str, port: int) -> None:
    """Returns once something accepts connections there. Raises `ProcessFailedError`."""
    wait_until(lambda: accepts(host, port), f"{process.name} listens on {host}:{port}", process)


def accepts(host: str, port: int) -> bool:
    """Says whether something accepts connections there."""
    with (
        contextlib.suppress(OSError),
        socket.create_connection((host, port), timeout=CONNECT_WAIT_MAX_S),
    ):
        return True
    return False


def check_port_free(host: str, port: int) -> None:
    """Raises `ProcessFailedError` if something listens there: a broker that an earlier run has left."""
    if accepts(host, port):
        raise ProcessFailedError(f"{host}:{port} is taken; end what listens there, or give another address")
