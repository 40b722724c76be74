"""The agent at its work: the keeper, the web server, and the word in the home where it listens.

Owns what brings a web framework with it, which costs half a second of importing: `process` comes here late.
"""

from __future__ import annotations

import logging
import os
import platform
import signal
import socket
import ssl
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

import uvicorn

from headrace.agent.app import create_app
from headrace.agent.desired import DesiredState
from headrace.agent.keeper import Keeper
from headrace.agent.kinds import (
    Host,
    Kinds,
    parse_configuration,
    unit_of,
)
from headrace.agent.loads import Loads
from headrace.agent.places import Places, Whereabouts, build

SHUTDOWN_WAIT_MAX_S: Final = 5
REQUESTS_AT_ONCE_MAX: Final = 200

logger = logging.getLogger(__name__)


def serve(
    places: Places,
    listening: socket.socket,
    *,
    context: ssl.SSLContext | None,
    certificate: Path | None,
    token: str,
    kinds: Kinds,
    is_daemon: bool,
    ends_units: bool,
    reached: Callable[[str], None],
) -> None:
    """Serves until a signal, or until it is asked to end. Raises `AgentStateError` before it begins."""
    host = Host.here(places.home)
    keeper = Keeper(
        places.home,
        DesiredState(places.units, partial(parse_configuration, kinds=kinds)),
        partial(unit_of, host=host, kinds=kinds),
        reached=reached,
    )
    made = build()
    about = {
        "version": _version(),
        "build": made,
        "python": platform.python_version(),
        "home": str(places.home),
        "host": socket.gethostname(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "kinds": sorted(kinds),
    }
    config = uvicorn.Config(
        create_app(
            keeper, Loads(places.loads), token, kinds, about, lambda: setattr(server, "should_exit", True)
        ),
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        limit_concurrency=REQUESTS_AT_ONCE_MAX,
        timeout_graceful_shutdown=SHUTDOWN_WAIT_MAX_S,
    )
    server = uvicorn.Server(config)
    config.load()
    config.ssl = context
    # uvicorn raises the signal once more after its own orderly end; without a handler that would be a death
    # by signal.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    keeper.open()
    try:
        name, port = listening.getsockname()[:2]
        url = f"{'https' if context else 'http'}://{f'[{name}]' if ':' in name else name}:{port}"
        trusted = str(certificate) if certificate else None
        Whereabouts(url, trusted, os.getpid(), made, is_daemon).write(places.whereabouts)
        logger.info("the agent of %s listens on %s, with %d units", places.home, url, len(keeper.names()))
        server.run(sockets=[listening])
    finally:
        keeper.close(ends_units=ends_units)
    logger.info("the agent ends; units %s", "have ended with it" if ends_units else "go on without it")


def _version() -> str:
    try:
        return version("headrace")
    except PackageNotFoundError:
        return "unknown"
