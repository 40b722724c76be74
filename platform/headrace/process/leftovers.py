"""Processes that an earlier, killed run of a program left behind, recognised by their working directory.

Owns the search in /proc (proc(5)) and their end. A run that has a directory of its own as its working
directory finds there the processes of the run before.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Final

LEFTOVERS_TIMEOUT_S: Final = 10.0
POLL_INTERVAL_S: Final = 0.05


def processes_in(directory: Path) -> list[int]:
    """Returns other processes without a terminal whose working directory this is; `directory` is resolved."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                # After the name: state, ppid, pgrp, session, tty_nr. A user's shell has a terminal.
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                is_ours = fields[0] != "Z" and fields[4] == "0" and (entry / "cwd").readlink() == directory
            except OSError:
                continue
            if is_ours:
                found.append(int(entry.name))
    return found


def end_leftovers(directory: Path) -> list[int]:
    """Kills the processes that a killed run left behind in this directory, and returns their pids."""
    leftovers = processes_in(directory)
    deadline = time.monotonic() + LEFTOVERS_TIMEOUT_S
    while (living := processes_in(directory)) and time.monotonic() < deadline:
        for pid in living:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(POLL_INTERVAL_S)
    return leftovers
