"""Other processes of this machine, as `/proc` shows them (proc(5)).

Owns reading `/proc` and ending processes that carry a unit's mark. Starts nothing.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from headrace.fleet.site import HOME_VARIABLE, UNIT_VARIABLE

ORPHAN_TERM_TIMEOUT_S: Final = 10.0
ORPHAN_KILL_TIMEOUT_S: Final = 10.0
POLL_INTERVAL_S: Final = 0.05


def environment_of(pid: int) -> dict[str, str]:
    """The environment a process was started with; empty when it may not be read."""
    try:
        data = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (item.partition(b"=") for item in data.split(b"\0") if item)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


def command_of(pid: int, *, length_max: int = 60) -> str:
    """A process's command line, shortened."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return "gone"
    command = " ".join(word for word in words if word)
    return command if len(command) <= length_max else command[: length_max - 1] + "…"


def is_alive(pid: int) -> bool:
    """Whether the process runs. One that has ended but whose parent never asked (a zombie) does not."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in ("Z", "X")


def all_pids() -> Iterator[int]:
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit():
            yield int(directory.name)


def units_left_in(home: Path, unit: str | None = None) -> list[int]:
    """Processes started as units (or as the one named) of this home, whoever is their parent now."""
    found = []
    for pid in all_pids():
        environment = environment_of(pid)
        is_ours = UNIT_VARIABLE in environment and environment.get(HOME_VARIABLE) == str(home.absolute())
        if unit is not None and environment.get(UNIT_VARIABLE) != unit:
            continue
        if is_ours and pid != os.getpid() and is_alive(pid):
            found.append(pid)
    return found


def end_units_left_in(home: Path, unit: str | None = None) -> list[int]:
    """Ends what a killed supervisord left behind: politely, then not. Returns the pids it found."""
    found = units_left_in(home, unit)
    for number, timeout_s in (
        (signal.SIGTERM, ORPHAN_TERM_TIMEOUT_S),
        (signal.SIGKILL, ORPHAN_KILL_TIMEOUT_S),
    ):
        for pid in filter(is_alive, found):
            _signal(pid, number)
        deadline = time.monotonic() + timeout_s
        while any(map(is_alive, found)) and time.monotonic() < deadline:
            time.sleep(POLL_INTERVAL_S)
    return found


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return
