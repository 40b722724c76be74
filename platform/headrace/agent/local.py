"""The agent of a home on this machine: finds it, starts it, ends it.

Owns how commands of this machine get a client: by the record that the agent has left in its home, and the
token file in it. A daemon of another build is replaced; units outlive it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from headrace.agent.client import AgentClient, pinned
from headrace.agent.errors import AgentStateError, AgentUnreachableError
from headrace.agent.home import AgentHome, AgentRecord, build, is_locked
from headrace.agent.logs import log_tail
from headrace.agent.processes import is_alive
from headrace.agent.tokens import read_token
from headrace.site.addresses import Address
from headrace.site.environment_variables import HOME_VARIABLE

PROGRAM: Final = (sys.executable, "-m", "headrace.agent")
START_TIMEOUT_S: Final = 60.0
END_TIMEOUT_S: Final = 60.0
POLL_INTERVAL_S: Final = 0.05


def find_agent(home: Path, *, made_by: str = "", start_max_s: float = START_TIMEOUT_S) -> AgentClient | None:
    """A client of the agent that keeps this home; None if there is none.

    `made_by` names the program whose units the client puts (`AgentClient`). `start_max_s`: how long to wait
    for an agent that has just been started; then raises `AgentUnreachableError`.
    """
    paths = AgentHome(home.absolute())
    if not is_locked(paths):
        return None
    deadline = time.monotonic() + start_max_s
    # It may have just been started.
    while (record := AgentRecord.read(paths.record)) is None or not is_alive(record.pid):
        if not is_locked(paths):
            return None
        if time.monotonic() > deadline:
            raise AgentUnreachableError(
                f"an agent keeps {paths.home} and has not recorded where it listens; see {paths.log}"
            )
        time.sleep(POLL_INTERVAL_S)
    return _client(paths, record, made_by)


def ensure_agent(home: Path, listen: Address, *, made_by: str = "") -> AgentClient:
    """A client of the agent that keeps this home; starts one at `listen` if there is none.

    Raises `AgentStateError`, with the last line of its log, if it does not start.
    """
    paths = AgentHome(home.absolute())
    record = AgentRecord.read(paths.record)
    if is_locked(paths) and record is not None and record.is_daemon and record.build != build():
        end_agent(home)
        listen = _address_of(record.url) or listen
    if (client := find_agent(home, made_by=made_by)) is not None:
        return client
    paths.make()
    log_size = paths.log.stat().st_size if paths.log.exists() else 0
    options = ["--home", str(paths.home), "--listen", str(listen), "--daemon"]
    subprocess.run(
        [*PROGRAM, *options],
        env={**os.environ, HOME_VARIABLE: str(paths.home)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    return _wait_started(paths, log_size, made_by)


def _wait_started(paths: AgentHome, log_size: int, made_by: str) -> AgentClient:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        record = AgentRecord.read(paths.record)
        if record is not None and is_alive(record.pid) and is_locked(paths):
            return _client(paths, record, made_by)
        # The size is checked first, so that the lines read next include those that made the log grow.
        if paths.log.exists() and paths.log.stat().st_size > log_size:
            last_line = log_tail(paths.log, 1)
            if "cannot start: " in last_line:
                raise AgentStateError(last_line)
        time.sleep(POLL_INTERVAL_S)
    raise AgentUnreachableError(f"the agent did not start in {START_TIMEOUT_S:g} s; see {paths.log}")


def _client(paths: AgentHome, record: AgentRecord, made_by: str) -> AgentClient:
    tls = pinned(Path(record.certificate)) if record.certificate else None
    return AgentClient(record.url, read_token(paths.token), tls=tls, made_by=made_by)


def _address_of(url: str) -> Address | None:
    host, _, port = url.rpartition("/")[2].rpartition(":")
    return Address(host, int(port)) if port.isdecimal() else None


def end_agent(home: Path) -> None:
    """Ends the agent of this home by a signal, and waits until it has ended; units keep running."""
    paths = AgentHome(home.absolute())
    record = AgentRecord.read(paths.record)
    if record is None or not is_locked(paths):
        return
    with contextlib.suppress(ProcessLookupError):  # it has ended since
        os.kill(record.pid, signal.SIGTERM)
    wait_ended(home)


def end_idle_daemon(home: Path, agent: AgentClient) -> None:
    """Ends an agent that a command started, if it has no units."""
    record = AgentRecord.read(AgentHome(home.absolute()).record)
    if record is not None and record.is_daemon and not agent.units(with_drift=False):
        agent.shut_down()
        wait_ended(home)


def wait_ended(home: Path) -> None:
    """Returns once no agent keeps this home. Raises `AgentStateError` after `END_TIMEOUT_S`."""
    if not has_ended(home, END_TIMEOUT_S):
        raise AgentStateError(f"the agent of {home.absolute()} has not ended in {END_TIMEOUT_S:g} s")


def has_ended(home: Path, timeout_s: float) -> bool:
    """Whether no agent keeps this home; waits for that at most `timeout_s`."""
    paths = AgentHome(home.absolute())
    deadline = time.monotonic() + timeout_s
    while is_locked(paths):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_INTERVAL_S)
    return True
