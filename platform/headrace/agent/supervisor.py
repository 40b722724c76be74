"""supervisord: its configuration and its control.

Owns the file `supervisord.conf`, the daemon's socket and its RPC (supervisord.org/api.html). Decides nothing
about order or readiness: `keeper` does. supervisord runs as a process of its own.
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
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from xml.parsers.expat import ExpatError

from supervisor.xmlrpc import Faults, SupervisorTransport

from headrace.agent.errors import SupervisorError
from headrace.agent.folders import holds, write_durably
from headrace.agent.processes import arguments_of, end_units_left_in, has_ended, is_alive
from headrace.agent.unit import Unit, UnitState
from headrace.process.neighbours import PageAddress, file_text
from headrace.process.own_folder import make_own_folder
from headrace.process.text import has_control
from headrace.site.environment_variables import (
    DEFINITION_VARIABLE,
    HOME_VARIABLE,
    PAGES_VARIABLE,
    UNIT_VARIABLE,
)

logger = logging.getLogger(__name__)

LOG_MAX_BYTES: Final = 10 << 20
LOG_BACKUPS: Final = 2
# A unit that ends within this many seconds failed to start: supervisord retries after 1 s, 2 s, 3 s, …
START_S: Final = 5
START_RETRIES: Final = 20
RPC_TIMEOUT_S: Final = 30.0
DAEMON_TIMEOUT_S: Final = 20.0
# sockaddr_un holds 108 bytes, and supervisord binds a longer temporary name first.
SOCKET_PATH_MAX: Final = 90
# Longer than the longest `stop_timeout_s`, after which supervisord kills.
STOP_TIMEOUT_MAX_S: Final = 60.0

# supervisord reads these in a value as the start of a comment; after two quotes they are part of the word.
_COMMENT_SIGN: Final = re.compile(r"(?<=\s)(?=[;#])")


class Differences(NamedTuple):
    """Units that the daemon does not have yet, runs by an earlier definition, or should not have."""

    added: frozenset[str] = frozenset()
    changed: frozenset[str] = frozenset()
    removed: frozenset[str] = frozenset()


class Supervisor:
    """The supervisord of one home directory. `agent_url`: where the agent serves, given by the agent itself,
    which alone writes down the units' pages. `answer_max_s` bounds each call.

    All calls raise `SupervisorError` if the daemon does not respond.
    """

    def __init__(
        self, home: Path, agent_url: str | None = None, *, answer_max_s: float = RPC_TIMEOUT_S
    ) -> None:
        self.home = home.absolute()
        self._answer_max_s = answer_max_s
        self._agent_url = agent_url
        self.pages_path = self.home / "agent" / "pages.json"
        self.configuration_path = self.home / "supervisord.conf"
        self.log_path = self.home / "logs" / "supervisord.log"
        self.pid_path = self.home / "supervisord.pid"
        self.socket_path = _socket_path(self.home)

    def write_configuration(self, units: Iterable[Unit]) -> None:
        """Writes the daemon's configuration, and which pages the units have; a reader of either file sees the
        old one or the new."""
        self.log_path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _make_own_folder(self.socket_path.parent)
        units = list(units)
        texts = {self.configuration_path: self._configuration(units)}
        if self._agent_url is not None:
            own = PageAddress("agent", "", f"{self._agent_url}/")
            pages = [
                PageAddress(each.name, each.datacenter, each.page_url) for each in units if each.page_url
            ]
            by_datacenter = sorted(pages, key=lambda page: (page.datacenter, page.unit))
            texts[self.pages_path] = file_text([own, *by_datacenter])
        for path, text in texts.items():
            # Reports of units come here, too: they need no room on a full disk.
            if not holds(path, text):
                write_durably(path, text, is_durable=False)

    def _configuration(self, units: Iterable[Unit]) -> str:
        daemon = {
            "logfile": self.log_path,
            "logfile_maxbytes": LOG_MAX_BYTES,
            "logfile_backups": LOG_BACKUPS,
            "pidfile": self.pid_path,
            "childlogdir": self.log_path.parent,
            "directory": self.home,
            # Logs and data may hold what others must not read.
            "umask": "077",
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
            PAGES_VARIABLE: str(self.pages_path),
            # supervisord compares environments, but not the files of a unit.
            DEFINITION_VARIABLE: unit.definition,
        }
        return {
            "command": _COMMENT_SIGN.sub("''", shlex.join(unit.command)),
            "environment": ",".join(f"{name}={_quoted(value)}" for name, value in environment.items()),
            # The agent starts units in their order; the daemon only keeps them alive.
            "autostart": "false",
            "autorestart": "true",
            "startsecs": START_S,
            "startretries": START_RETRIES,
            "stopsignal": unit.stop_signal,
            "stopwaitsecs": unit.stop_timeout_s,
            "stopasgroup": "true",
            "killasgroup": "true",
            "redirect_stderr": "true",
            "stdout_logfile": unit.log_path,
            "stdout_logfile_maxbytes": LOG_MAX_BYTES,
            "stdout_logfile_backups": LOG_BACKUPS,
        }

    def is_alive(self) -> bool:
        """Whether the daemon responds."""
        try:
            self._call("getState")
        except SupervisorError:
            return False
        return True

    def ensure_daemon(self, units: Iterable[Unit]) -> bool:
        """Starts the daemon with these units unless it runs; returns whether it did. Starts no unit.

        Processes that a dead daemon left behind are ended first.
        """
        if self.is_alive():
            return False
        self._kill_unresponsive_daemon()
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
        output = (done.stderr or done.stdout).strip().splitlines()
        raise SupervisorError(
            f"supervisord did not start with {self.configuration_path}: "
            f"{output[-1] if output else 'it does not respond'}; see {self.log_path}"
        )

    def _kill_unresponsive_daemon(self) -> None:
        """Kills a daemon of this home that runs and does not respond: there must never be two."""
        try:
            pid = int(self.pid_path.read_text())
        except (OSError, ValueError):
            return
        # As a whole word: of a home that was copied, the file names the daemon of a path that ends alike.
        if is_alive(pid) and str(self.configuration_path) in arguments_of(pid):
            _kill(pid)

    def reload(self, units: Iterable[Unit]) -> Differences:
        """Makes the daemon reload these units; returns how they differ from what runs. Changes no process."""
        self.write_configuration(units)
        ((added, changed, removed),) = self._call("reloadConfig")
        return Differences(frozenset(added), frozenset(changed), frozenset(removed))

    def add(self, name: str) -> None:
        """Adds a unit to the daemon as `reload` last read it; does not start it."""
        self._call("addProcessGroup", name, ignore=(Faults.ALREADY_ADDED,))

    def remove(self, name: str) -> None:
        """Stops a unit and removes it from the daemon; returns once its process has ended."""
        deadline = time.monotonic() + STOP_TIMEOUT_MAX_S
        # Polling is quicker than a request that waits: without requests supervisord looks once a second.
        while (state := self.states().get(name)) is not None:
            if state.state in ("STARTING", "RUNNING", "BACKOFF"):
                self.stop(name)
            elif self._call("removeProcessGroup", name, ignore=(Faults.STILL_RUNNING,)):
                return
            if time.monotonic() > deadline:
                raise SupervisorError(f"unit {name}, process {state.pid}, does not end; see {self.log_path}")
            time.sleep(0.05)

    def states(self) -> dict[str, UnitState]:
        """The state of every unit that the daemon has, by name; empty without a daemon."""
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
                ended_s=row["stop"],
            )
            for row in self._call("getAllProcessInfo")
        }

    def start(self, name: str) -> None:
        """Starts a unit that does not run; returns without waiting for the start.

        A process that has ended before supervisord answers is started again like one that ends later.
        """
        self._call("startProcess", name, False, ignore=(Faults.ALREADY_STARTED, Faults.SPAWN_ERROR))

    def stop(self, name: str, *, wait: bool = False) -> None:
        self._call("stopProcess", name, wait, ignore=(Faults.NOT_RUNNING,))

    def shut_down(self) -> None:
        """Ends the daemon, and any unit that still runs; returns once the daemon's process has ended."""
        pid = self._call("getPID")
        self._call("shutdown")
        if not has_ended(pid, DAEMON_TIMEOUT_S):
            _kill(pid)
        self.socket_path.unlink(missing_ok=True)

    def _call(self, method: str, *arguments: Any, ignore: Collection[int] = ()) -> Any:
        """Returns the result of an RPC; None if it fails with a fault code in `ignore`."""
        try:
            return self._request(method, arguments)
        except xmlrpc.client.Fault as fault:
            if fault.faultCode in ignore:
                return None
            call = " ".join(map(str, (method, *arguments)))
            raise SupervisorError(f"supervisord refused {call}: {fault.faultString}") from fault
        except (OSError, http.client.HTTPException, xmlrpc.client.Error, ExpatError) as error:
            raise SupervisorError(f"supervisord of {self.home} does not respond ({error})") from error

    def _request(self, method: str, arguments: Sequence[Any]) -> Any:
        transport = SupervisorTransport(serverurl=f"unix://{self.socket_path}")
        connection = transport._get_connection()
        # supervisor's transport has no timeout: it gets a socket that has one, and is connected already.
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as bounded:
            bounded.settimeout(self._answer_max_s)
            bounded.connect(str(self.socket_path))
            connection.sock = bounded
            transport._get_connection = lambda: connection
            proxy = xmlrpc.client.ServerProxy("http://localhost/RPC2", transport)
            return getattr(proxy.supervisor, method)(*arguments)


def _kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    if not has_ended(pid, DAEMON_TIMEOUT_S):
        raise SupervisorError(f"supervisord, process {pid}, survives SIGKILL; check the machine's disks")


def _socket_path(home: Path) -> Path:
    path = home / "supervisor.sock"
    if len(os.fsencode(path)) <= SOCKET_PATH_MAX:
        return path
    name = hashlib.sha256(os.fsencode(home)).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"headrace-{os.getuid()}" / f"{name}.sock"


def _make_own_folder(folder: Path) -> None:
    """Makes the socket's folder. Raises `SupervisorError` for one that somebody else made or may change: they
    could put a socket of their own in the daemon's place."""
    if not make_own_folder(folder):
        raise SupervisorError(
            f"others than this user can write {folder}, where the supervisor's socket has to be: remove it, "
            f"or `chmod go-w {folder}`"
        )


def _quoted(value: str) -> str:
    """Quotes a variable's value; supervisord knows no escape inside quotes."""
    if '"' not in value:
        return f'"{value}"'
    if "'" in value:
        raise SupervisorError(f"supervisord cannot hold a variable with both kinds of quotes: {value[:80]!r}")
    return f"'{value}'"


def _section(name: str, values: Mapping[str, object]) -> str:
    # A new line would begin another setting or program. `agent.configuration` has refused such values before.
    for key, value in {"name": name, **values}.items():
        if has_control(str(value)):
            raise SupervisorError(f"[{name!r}] {key}: control characters in {str(value)[:80]!r}")
    # supervisord expands %(…)s in every value.
    lines = (f"{key}={str(value).replace('%', '%%')}\n" for key, value in values.items())
    return f"[{name}]\n{''.join(lines)}\n"
