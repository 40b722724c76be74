"""Runs a client program of the bench to its end and returns its outcome."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

from clients.outcome import ClientFailedError, Outcome
from side_by_side.process import PinnedProcess

RUN_MAX_S: Final = 900.0
EXIT_WAIT_MAX_S: Final = 60.0


def run(
    command: Sequence[str],
    *,
    cores: Collection[int],
    log: Path,
    env: Mapping[str, str] | None = None,
    on_begin: Callable[[], None] = lambda: None,
    on_end: Callable[[], None] = lambda: None,
    timeout_s: float = RUN_MAX_S,
) -> Outcome:
    """Runs `command` on `cores` and returns what it measured.

    Calls `on_begin` when its measured part begins and `on_end` when that part ends; a producer may go on
    after that, because it still waits for what is in flight. Raises `ClientFailedError` if the program ends
    with a problem, prints no outcome, or still runs after `timeout_s`.
    """
    process = PinnedProcess(command, cores=cores, log=log, env=env, pipe_output=True)
    outcome: Outcome | None = None
    line = ""
    too_long = threading.Timer(timeout_s, _kill, [process.pid])
    too_long.start()
    try:
        for printed in process.output:
            line = printed.decode(errors="replace")
            if line == "begin\n":
                on_begin()
            elif line.startswith("{"):
                on_end()
                outcome = Outcome.parse(line)
        code = process.wait(EXIT_WAIT_MAX_S)
    finally:
        too_long.cancel()
        process.kill()
    if code == 0 and outcome is not None:
        return outcome
    late = f" (it is stopped after {timeout_s:.0f} s)" if code == -signal.SIGKILL else ""
    raise ClientFailedError(
        f"{process.name} ended with {code}{late}; its last line: {line!r}; "
        f"the end of {log}: {process.log_tail()}"
    )


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
