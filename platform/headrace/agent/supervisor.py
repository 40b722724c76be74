"""supervisord: its configuration and its control.

Owns the file `supervisord.conf`, the daemon's socket and its RPC (supervisord.org/api.html). Decides nothing
about order or readiness; that is `agent.keeper`'s. Imports nothing of supervisord, which runs as a
process of its own.
"""

from __future__ import annotations

import hashlib
import http.client
import logging
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
import xmlrpc.client
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple
from xml.parsers.expat import ExpatError

from headrace.agent.errors import SupervisorError
from headrace.agent.processes import command_of, end_units_left_in, is_alive
from headrace.agent.unit import Unit
from headrace.site.variables import DEFINITION_VARIABLE, HOME_VARIABLE, UNIT_VARIABLE

logger = logging.getLogger(__name__)

LOG_MAX_BYTES: Final = 10 << 20
LOG_BACKUPS: Final = 2
# A unit that ends within this many seconds counts as a failed start: supervisord then waits 1 s, 2 s, 3 s, …
START_S: Final = 5
START_RETRIES: Final = 20
RPC_TIMEOUT_S: Final = 30.0
DAEMON_TIMEOUT_S: Final = 20.0
# sockaddr_un holds 108 bytes, and supervisord binds a longer temporary name first.
SOCKET_PATH_MAX: Final = 90
# Longer than the longest `stop_timeout_s`, after which supervisord kills.
STOP_TIMEOUT_MAX_S: Final = 60.0
COMMAND_LENGTH_MAX: Final = 10_000

_NOT_RUNNING_FAULT: Final = 70
_ALREADY_STARTED_FAULT: Final = 60
_ALREADY_ADDED_FAULT: Final = 90
_STILL_RUNNING_FAULT: Final = 91
# Within a value supervisord takes these for a comment's begin; behind two quotes they are the same word.
_COMMENT_SIGN: Final = re.compile(r"(?<=\s)(?=[;#])")


class UnitState(NamedTuple):
    """What supervisord knows of a unit; `state` is its word for it (RUNNING, BACKOFF, STOPPED, …)."""

    name: str
    state: str
    pid: int
    uptime_s: int
    note: str

    @property
    def is_running(self) -> bool:
        return self.state in ("STARTING", "RUNNING")


class Differences(NamedTuple):
    """Units that the daemon does not know yet, runs by an earlier definition, or should not have."""

    added: frozenset[str] = frozenset()
    changed: frozenset[str] = frozenset()
    removed: frozenset[str] = frozenset()


class Supervisor:
    """The supervisord of one home directory.

    All calls raise `SupervisorError` when the daemon should answer and does not.
    """

    def __init__(self, home: Path) -> None:
        self.home = home.absolute()
        self.configuration_path = self.home / "supervisord.conf"
        self.log_path = self.home / "logs" / "supervisord.log"
        self.pid_path = self.home / "supervisord.pid"
        self.socket_path = _socket_path(self.home)

    def write_files(self, unit: Unit) -> None:
        """Writes what the unit wants to find beside it."""
        unit.log_path.parent.mkdir(parents=True, exist_ok=True)
        for path, text in unit.files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def write_configuration(self, units: Iterable[Unit]) -> None:
        """Writes the daemon's configuration, by a rename: a reader sees the old one or the new."""
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        self.socket_path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        new = self.configuration_path.with_suffix(".new")
        new.write_text(self._configuration(units))
        new.replace(self.configuration_path)

    def _configuration(self, units: Iterable[Unit]) -> str:
        daemon = {
            "logfile": self.log_path,
            "logfile_maxbytes": LOG_MAX_BYTES,
            "logfile_backups": LOG_BACKUPS,
            "pidfile": self.pid_path,
            "childlogdir": self.log_path.parent,
            "directory": self.home,
            "identifier": "headrace",
        }
        text = _section("supervisord", daemon)
        text += _section("unix_http_server", {"file": self.socket_path, "chmod": "0700"})
        factory = "supervisor.rpcinterface:make_main_rpcinterface"
        text += _section("rpcinterface:supervisor", {"supervisor.rpcinterface_factory": factory})
        text += _section("supervisorctl", {"serverurl": f"unix://{self.socket_path}"})
        for unit in units:
            text += _section(f"program:{unit.name}", self._program(unit))
        return text

    def _program(self, unit: Unit) -> dict[str, object]:
        environment = {
            "PYTHONUNBUFFERED": "1",
            **unit.environment,
            HOME_VARIABLE: str(self.home),
            UNIT_VARIABLE: unit.name,
            # supervisord compares environments, but knows nothing of a unit's files.
            DEFINITION_VARIABLE: unit.definition,
        }
        return {
            "command": _COMMENT_SIGN.sub("''", shlex.join(unit.command)),
            "environment": ",".join(f'{name}="{value}"' for name, value in environment.items()),
            # The agent starts units in their order; the daemon alone only keeps them alive.
            "autostart": "false",
            "autorestart": "true",
            "startsecs": START_S,
            "startretries": START_RETRIES,
            "stopwaitsecs": unit.stop_timeout_s,
            "stopasgroup": "true",
            "killasgroup": "true",
            "redirect_stderr": "true",
            "stdout_logfile": unit.log_path,
            "stdout_logfile_maxbytes": LOG_MAX_BYTES,
            "stdout_logfile_backups": LOG_BACKUPS,
        }

    def is_alive(self) -> bool:
        """Whether the daemon answers."""
        try:
            self._call("getState")
        except SupervisorError:
            return False
        return True

    def ensure_daemon(self, units: Iterable[Unit]) -> bool:
        """Starts the daemon where there is none, knowing these units; none of them is started.

        What a dead one has left behind is ended before. True when it was started.
        """
        if self.is_alive():
            return False
        self._end_silent_daemon()
        if orphans := end_units_left_in(self.home):
            logger.warning("ended %d processes that a dead supervisord had left behind", len(orphans))
        self._start_daemon(units)
        return True

    def _start_daemon(self, units: Iterable[Unit]) -> None:
        self.write_configuration(units)
        self.socket_path.unlink(missing_ok=True)
        command = [sys.executable, "-m", "supervisor.supervisord", "-c", str(self.configuration_path)]
        # supervisord imports pkg_resources, which warns on every start.
        environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        deadline = time.monotonic() + DAEMON_TIMEOUT_S
        while done.returncode == 0 and time.monotonic() < deadline:
            if self.is_alive():
                return
            time.sleep(0.05)
        said = (done.stderr or done.stdout).strip().splitlines()
        raise SupervisorError(
            f"supervisord did not start with {self.configuration_path}: "
            f"{said[-1] if said else 'it does not answer'}; see {self.log_path}"
        )

    def _end_silent_daemon(self) -> None:
        """Kills a daemon of this home that lives and does not answer: there must never be two."""
        try:
            pid = int(self.pid_path.read_text())
        except (OSError, ValueError):
            return
        if is_alive(pid) and str(self.configuration_path) in command_of(pid, length_max=COMMAND_LENGTH_MAX):
            os.kill(pid, signal.SIGKILL)
            _wait_gone(pid)

    def differences(self, units: Iterable[Unit]) -> Differences:
        """Compares what the daemon runs with these units. Changes nothing but what the daemon has read."""
        self.write_configuration(units)
        ((added, changed, removed),) = self._call("reloadConfig")
        return Differences(frozenset(added), frozenset(changed), frozenset(removed))

    def add(self, name: str) -> None:
        """Takes a unit up as it was last read by `differences`; does not start it."""
        self._call("addProcessGroup", name, ignore=_ALREADY_ADDED_FAULT)

    def remove(self, name: str) -> None:
        """Stops a unit, and forgets it. Returns when its process is gone."""
        deadline = time.monotonic() + STOP_TIMEOUT_MAX_S
        # Asking again and again is quicker than waiting: between requests supervisord looks up once a second.
        while (state := self.states().get(name)) is not None:
            if state.state in ("STARTING", "RUNNING", "BACKOFF"):
                self.stop(name)
            elif self._call("removeProcessGroup", name, ignore=_STILL_RUNNING_FAULT):
                return
            if time.monotonic() > deadline:
                raise SupervisorError(f"unit {name}, process {state.pid}, does not end; see {self.log_path}")
            time.sleep(0.05)

    def states(self) -> dict[str, UnitState]:
        """Every unit the daemon knows, by name; empty when there is no daemon."""
        if not self.is_alive():
            return {}
        now = int(time.time())
        return {
            row["name"]: UnitState(
                name=row["name"],
                state=row["statename"],
                pid=row["pid"],
                uptime_s=max(0, now - row["start"]) if row["pid"] else 0,
                note=row["spawnerr"] or ("" if row["pid"] else row["description"]),
            )
            for row in self._call("getAllProcessInfo")
        }

    def start(self, name: str) -> None:
        """Asks for a start and returns at once. A unit that runs already is left alone."""
        self._call("startProcess", name, False, ignore=_ALREADY_STARTED_FAULT)

    def stop(self, name: str, *, wait: bool = False) -> None:
        self._call("stopProcess", name, wait, ignore=_NOT_RUNNING_FAULT)

    def signal(self, name: str, signal_name: str) -> None:
        """Sends a signal (`KILL`, `STOP`, …) to a running unit."""
        self._call("signalProcess", name, signal_name)

    def shut_down(self) -> None:
        """Ends the daemon, and with it any unit still running. Returns when its process is gone."""
        pid = self._call("getPID")
        self._call("shutdown")
        deadline = time.monotonic() + DAEMON_TIMEOUT_S
        while is_alive(pid) and time.monotonic() < deadline:
            time.sleep(0.05)
        if is_alive(pid):
            os.kill(pid, signal.SIGKILL)
            _wait_gone(pid)
        self.socket_path.unlink(missing_ok=True)

    def _call(self, method: str, *arguments: Any, ignore: int | None = None) -> Any:
        request = xmlrpc.client.dumps(arguments, f"supervisor.{method}")
        connection = _UnixConnection(self.socket_path)
        try:
            connection.request("POST", "/RPC2", request.encode(), {"Content-Type": "text/xml"})
            ((value,), _) = xmlrpc.client.loads(connection.getresponse().read())
        except xmlrpc.client.Fault as fault:
            if fault.faultCode == ignore:
                return None
            what = " ".join(str(argument) for argument in arguments)
            raise SupervisorError(f"supervisord refuses {method} {what}: {fault.faultString}") from fault
        except (OSError, http.client.HTTPException, ExpatError) as error:
            raise SupervisorError(f"supervisord of {self.home} does not answer ({error})") from error
        finally:
            connection.close()
        return value


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=RPC_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(self.timeout)
            connection.connect(str(self._path))
        except OSError:
            connection.close()
            raise
        self.sock = connection


def _wait_gone(pid: int) -> None:
    deadline = time.monotonic() + DAEMON_TIMEOUT_S
    while is_alive(pid):
        if time.monotonic() > deadline:
            raise SupervisorError(
                f"supervisord, process {pid}, outlives SIGKILL; look at the machine's disks"
            )
        time.sleep(0.05)


def _socket_path(home: Path) -> Path:
    path = home / "supervisor.sock"
    if len(os.fsencode(path)) <= SOCKET_PATH_MAX:
        return path
    name = hashlib.sha256(os.fsencode(home)).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"headrace-{os.getuid()}" / f"{name}.sock"


def _section(name: str, values: Mapping[str, object]) -> str:
    # supervisord expands %(…)s in every value.
    lines = (f"{key}={str(value).replace('%', '%%')}\n" for key, value in values.items())
    return f"[{name}]\n{''.join(lines)}\n"
