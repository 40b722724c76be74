"""Kills a unit for good: its process gets SIGKILL, and supervisord does not start another one.

The unit stays desired. It comes back when somebody asks for it: `headrace up`, `headrace restart`, an apply.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Final

from headrace.agent.processes import has_ended
from headrace.agent.supervisor import Supervisor
from headrace.site.errors import SiteError

FREEZE_WAIT_MAX_S: Final = 2.0
END_WAIT_MAX_S: Final = 10.0
_POLL_S: Final = 0.001


def kill_for_good(home: Path, unit: str) -> int:
    """Returns the id of the process, which has ended. Raises `SiteError` if the unit does not run."""
    supervisor = Supervisor(home)
    state = supervisor.states().get(unit)
    if state is None or not state.pid:
        raise SiteError(f"unit {unit} does not run, so it cannot be killed; `headrace status` says why")
    # supervisord starts no other process only after a request to stop the unit, for which it sends SIGTERM. A
    # frozen process does not see that.
    os.kill(state.pid, signal.SIGSTOP)
    try:
        _wait_until_frozen(state.pid)
        supervisor.stop(unit)
    finally:
        os.kill(state.pid, signal.SIGKILL)
    if not has_ended(state.pid, END_WAIT_MAX_S):
        raise SiteError(f"process {state.pid} of {unit} survives SIGKILL; check the machine's disks")
    return state.pid


def _wait_until_frozen(pid: int) -> None:
    deadline = time.monotonic() + FREEZE_WAIT_MAX_S
    while _state_of(pid) != "T" and time.monotonic() < deadline:
        time.sleep(_POLL_S)


def _state_of(pid: int) -> str:
    """Returns the letter of proc(5): T for a process that is stopped by a signal."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""
