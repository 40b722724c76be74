"""Other processes of this machine: finds those of a unit and those that listen on an address, and ends them.

Owns all use of psutil. Starts nothing.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from headrace.site.addresses import Address
from headrace.site.environment_variables import HOME_VARIABLE, UNIT_VARIABLE

ORPHAN_TERM_TIMEOUT_S: Final = 10.0
ORPHAN_KILL_TIMEOUT_S: Final = 10.0
POLL_INTERVAL_S: Final = 0.05


class Holder(NamedTuple):
    """The process that listens on an address; `unit` and `home` are None unless it is a unit of a site."""

    pid: int
    command: str
    unit: str | None
    home: str | None

    def __str__(self) -> str:
        process = f"process {self.pid} ({self.command})"
        return f"{process}, unit {self.unit} of the site in {self.home}" if self.unit else process


def is_alive(pid: int) -> bool:
    """Whether the process runs. A zombie, which has ended and was not waited for, does not."""
    try:
        return _runs(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return False


def _runs(process: psutil.Process) -> bool:
    try:
        # is_running: another process may have got the same pid since.
        return process.is_running() and process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.Error:
        return False


def has_ended(pid: int, timeout_s: float) -> bool:
    """Whether the process has ended; waits for that at most `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while (alive := is_alive(pid)) and time.monotonic() < deadline:
        time.sleep(POLL_INTERVAL_S)
    return not alive


def arguments_of(pid: int) -> list[str]:
    """The words of a process's command line; none if it may not be read."""
    try:
        return psutil.Process(pid).cmdline()
    except psutil.Error:
        return []


def command_of(pid: int, *, length_max: int = 60) -> str:
    """A process's command line, shortened."""
    command = " ".join(filter(None, arguments_of(pid))) or "command unknown"
    return command if len(command) <= length_max else command[: length_max - 1] + "…"


def holder_of(address: Address) -> Holder | None:
    """The process that listens on the address; None if there is none, or if it is another user's."""
    # An IPv6 socket may hold the address as ::ffff:a.b.c.d, or all of them as ::.
    hosts = {address.host, f"::ffff:{address.host}", "0.0.0.0", "::"}
    for connection in psutil.net_connections("tcp"):
        if (
            connection.status == psutil.CONN_LISTEN
            and connection.pid is not None
            and connection.laddr
            and connection.laddr.ip in hosts
            and connection.laddr.port == address.port
        ):
            environment = _environment_of(connection.pid)
            return Holder(
                connection.pid,
                command_of(connection.pid),
                environment.get(UNIT_VARIABLE),
                environment.get(HOME_VARIABLE),
            )
    return None


def unit_processes(home: Path, unit: str | None = None) -> list[psutil.Process]:
    """The processes that were started as units of this home (or as the named one), whatever their parent."""
    return [process for process in psutil.process_iter() if _is_unit(process, home, unit)]


class LeftUnit(NamedTuple):
    """A unit's first process, whose supervisor is gone."""

    pid: int
    uptime_s: int


def left_units(home: Path) -> dict[str, LeftUnit]:
    """The units of this home whose processes run, by name, also without a supervisor."""
    oldest: dict[str, tuple[float, int]] = {}
    for process in unit_processes(home):
        with contextlib.suppress(psutil.Error):
            name = _environment_of(process.pid)[UNIT_VARIABLE]
            # The first one started is the unit's own; the others are its children.
            started = process.create_time(), process.pid
            oldest[name] = min(started, oldest.get(name, started))
    now = time.time()
    return {name: LeftUnit(pid, max(0, int(now - began))) for name, (began, pid) in oldest.items()}


def end_units_left_in(home: Path, unit: str | None = None) -> list[int]:
    """Ends what a killed supervisord left behind: SIGTERM, then SIGKILL. Returns the pids it found."""
    found = unit_processes(home, unit)
    for number, timeout_s in (
        (signal.SIGTERM, ORPHAN_TERM_TIMEOUT_S),
        (signal.SIGKILL, ORPHAN_KILL_TIMEOUT_S),
    ):
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.send_signal(number)
        # psutil.wait_procs would also wait for a zombie, whose parent may never reap it.
        deadline = time.monotonic() + timeout_s
        while any(map(_runs, found)) and time.monotonic() < deadline:
            time.sleep(POLL_INTERVAL_S)
    return [process.pid for process in found]


def _is_unit(process: psutil.Process, home: Path, unit: str | None) -> bool:
    environment = _environment_of(process.pid)
    return (
        UNIT_VARIABLE in environment
        and environment.get(HOME_VARIABLE) == str(home.absolute())
        and (unit is None or environment[UNIT_VARIABLE] == unit)
        and process.pid != os.getpid()
        and _runs(process)
    )


def _environment_of(pid: int) -> dict[str, str]:
    """The environment that the process was started with; empty if it may not be read."""
    try:
        return psutil.Process(pid).environ()
    except psutil.Error:
        return {}
