"""The agent of a home on this machine: find it, or start it.

Owns how the commands of this machine come to a client: by what the agent has left in its home, with the token
that lies there. A daemon of another build is replaced, since units outlive it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from headrace.agent.client import AgentClient, pinned
from headrace.agent.errors import AgentStateError, AgentUnreachableError
from headrace.agent.logs import log_tail
from headrace.agent.places import (
    Places,
    Whereabouts,
    build,
    is_locked,
)
from headrace.agent.processes import is_alive
from headrace.agent.tokens import read_token
from headrace.site.addresses import Address
from headrace.site.variables import HOME_VARIABLE

PROGRAM: Final = (sys.executable, "-m", "headrace.agent")
START_TIMEOUT_S: Final = 60.0
END_TIMEOUT_S: Final = 60.0
POLL_INTERVAL_S: Final = 0.05


def find_agent(home: Path) -> AgentClient | None:
    """A client of the agent that keeps this home; None when there is none."""
    places = Places(home.absolute())
    if not is_locked(places):
        return None
    deadline = time.monotonic() + START_TIMEOUT_S
    # It may have just been started.
    while (there := Whereabouts.read(places.whereabouts)) is None or not is_alive(there.pid):
        if not is_locked(places):
            return None
        if time.monotonic() > deadline:
            raise AgentUnreachableError(
                f"an agent keeps {places.home} and does not say where it listens; see {places.log}"
            )
        time.sleep(POLL_INTERVAL_S)
    return _client(places, there)


def ensure_agent(home: Path, listen: Address) -> AgentClient:
    """A client of the agent that keeps this home; one is started, at `listen`, when there is none.

    Raises `AgentStateError`, with the agent's last words, when it does not start.
    """
    places = Places(home.absolute())
    there = Whereabouts.read(places.whereabouts)
    if is_locked(places) and there is not None and there.is_daemon and there.build != build():
        end_agent(home)
        listen = _address_of(there.url) or listen
    if (client := find_agent(home)) is not None:
        return client
    places.make()
    log_size = places.log.stat().st_size if places.log.exists() else 0
    options = ["--home", str(places.home), "--listen", str(listen), "--daemon"]
    subprocess.run(
        [*PROGRAM, *options],
        env={**os.environ, HOME_VARIABLE: str(places.home)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    return _wait_for(places, log_size)


def _wait_for(places: Places, log_size: int) -> AgentClient:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        there = Whereabouts.read(places.whereabouts)
        if there is not None and is_alive(there.pid) and is_locked(places):
            return _client(places, there)
        # First whether it grew: what is read after that holds at least those words.
        if places.log.exists() and places.log.stat().st_size > log_size:
            last_words = log_tail(places.log, 1)
            if "cannot start: " in last_words:
                raise AgentStateError(last_words)
        time.sleep(POLL_INTERVAL_S)
    raise AgentUnreachableError(f"the agent did not start in {START_TIMEOUT_S:g} s; see {places.log}")


def _client(places: Places, there: Whereabouts) -> AgentClient:
    tls = pinned(Path(there.certificate)) if there.certificate else None
    return AgentClient(there.url, read_token(places.token), tls=tls)


def _address_of(url: str) -> Address | None:
    host, _, port = url.rpartition("/")[2].rpartition(":")
    return Address(host, int(port)) if port.isdecimal() else None


def end_agent(home: Path) -> None:
    """Ends the agent of this home by a signal, and waits for its end; units go on."""
    places = Places(home.absolute())
    there = Whereabouts.read(places.whereabouts)
    if there is None or not is_locked(places):
        return
    os.kill(there.pid, signal.SIGTERM)
    wait_ended(home)


def end_idle_daemon(home: Path, agent: AgentClient) -> None:
    """Ends an agent that a command has started, when it has nothing to keep."""
    there = Whereabouts.read(Places(home.absolute()).whereabouts)
    if there is not None and there.is_daemon and not agent.units(with_drift=False):
        agent.shut_down()
        wait_ended(home)


def wait_ended(home: Path) -> None:
    """Returns once no agent keeps this home. Raises `AgentStateError` after `END_TIMEOUT_S`."""
    if not has_ended(home, END_TIMEOUT_S):
        raise AgentStateError(f"the agent of {home.absolute()} has not ended in {END_TIMEOUT_S:g} s")


def has_ended(home: Path, timeout_s: float) -> bool:
    """Whether no agent keeps this home; waits `timeout_s` at most for that."""
    places = Places(home.absolute())
    deadline = time.monotonic() + timeout_s
    while is_locked(places):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_INTERVAL_S)
    return True
