"""The running agent: keeper, watch, web server, and the record by which commands find the agent.

Owns what imports a web framework, which takes half a second: `process` imports this module while supervisord
starts.
"""

from __future__ import annotations

import logging
import os
import platform
import signal
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import anyio.to_thread
import uvicorn
from starlette.types import ASGIApp

from headrace.agent.access import Tokens
from headrace.agent.actions import ActionLog
from headrace.agent.app import create_app
from headrace.agent.certificate import CertificateFiles
from headrace.agent.desired import DesiredState
from headrace.agent.endings import Endings, broker_folders
from headrace.agent.home import AgentHome, AgentRecord, build
from headrace.agent.host import Host
from headrace.agent.keeper import Keeper
from headrace.agent.kinds import Kinds, parse_configuration, unit_of
from headrace.agent.loads import LoadStore
from headrace.agent.permitted import PermittedPaths
from headrace.agent.watch import Watch
from headrace.process.web import KEEP_ALIVE_S, bounded_http, bounded_https

SHUTDOWN_WAIT_MAX_S: Final = 5
CONNECTIONS_MAX: Final = 200

logger = logging.getLogger(__name__)


def serve(
    paths: AgentHome,
    listening: socket.socket,
    *,
    tls: CertificateFiles | None,
    certificate: Path | None,
    tokens: Tokens,
    allowed_folders: tuple[Path, ...],
    kinds: Kinds,
    is_daemon: bool,
    ends_units: bool,
    reached: Callable[[str], None],
) -> None:
    """Serves until a signal or a shutdown request. Raises `AgentStateError` before it starts to serve."""
    name, port = listening.getsockname()[:2]
    url = f"{'https' if tls else 'http'}://{f'[{name}]' if ':' in name else name}:{port}"
    host = Host.here(paths.home)
    ending = threading.Event()
    keeper = Keeper(
        paths.home,
        DesiredState(paths.units, partial(parse_configuration, kinds=kinds)),
        partial(unit_of, host=host, kinds=kinds),
        ending=ending,
        agent_url=url,
        reached=reached,
    )
    watch = Watch(keeper, ending)
    endings = Endings(lambda: broker_folders(keeper.units()), ending)
    build_name = build()
    about = _about(host, build_name, kinds)
    app = create_app(
        keeper,
        LoadStore(paths.loads),
        tokens,
        ActionLog(paths.actions),
        _permitted(host, paths, allowed_folders),
        kinds,
        about,
        lambda: setattr(server, "should_exit", True),
    )
    server = _server(app, tokens, tls)
    keeper.open()
    watch.start()
    endings.start()
    try:
        trusted = str(certificate) if certificate else None
        AgentRecord(url, trusted, os.getpid(), build_name, is_daemon).write(paths.record)
        logger.info("the agent of %s listens on %s, with %d units", paths.home, url, len(keeper.names()))
        server.run(sockets=[listening])
    finally:
        ending.set()
        watch.join()
        endings.join()
        keeper.close(ends_units=ends_units)
    logger.info("the agent ends; units %s", "have ended with it" if ends_units else "keep running without it")


def _about(host: Host, build_name: str, kinds: Kinds) -> dict[str, object]:
    return {
        "version": host.own_version,
        "build": build_name,
        "python": platform.python_version(),
        "home": str(host.home),
        "host": socket.gethostname(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "kinds": sorted(kinds),
    }


def _permitted(host: Host, paths: AgentHome, allowed_folders: tuple[Path, ...]) -> PermittedPaths:
    own = (host.airflow_python.absolute(), host.dags.absolute())
    return PermittedPaths((host.home, *allowed_folders), own, paths.permitted)


def _server(app: ASGIApp, tokens: Tokens, tls: CertificateFiles | None) -> uvicorn.Server:
    http = bounded_http(CONNECTIONS_MAX, knows=tokens.know)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        http=http if tls is None else bounded_https(http, tls.context),
        timeout_graceful_shutdown=SHUTDOWN_WAIT_MAX_S,
        timeout_keep_alive=KEEP_ALIVE_S,
    )
    config.load()
    # uvicorn raises the signal again after its own orderly end; without a handler the agent would die of it.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    return _Server(config)


class _Server(uvicorn.Server):
    """Has a thread for each connection: requests that wait for a unit delay no other one."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        anyio.to_thread.current_default_thread_limiter().total_tokens = CONNECTIONS_MAX
        await super().startup(sockets)
