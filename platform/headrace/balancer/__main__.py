"""`python -m headrace.balancer`: one balancer process. Owns the command line, logging and signals.

SIGTERM ends it, SIGHUP reloads HAProxy without closing a connection.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import shutil
import signal
import sys
import uuid
from functools import partial
from pathlib import Path
from typing import Final

from headrace.balancer.backends import text_of
from headrace.balancer.control import Control, Engine
from headrace.balancer.embedded import EmbeddedEngine
from headrace.balancer.errors import BalancerError
from headrace.balancer.haproxy import HaproxyEngine, socket_path
from headrace.balancer.haproxy_config import HaproxySettings
from headrace.balancer.metrics import metrics
from headrace.balancer.page import page
from headrace.coordination.errors import CoordinationError
from headrace.coordination.fronts import FrontRegistry
from headrace.coordination.session import ZooKeeperSession
from headrace.process.command_line import (
    STOP_SIGNALS,
    HostPort,
    host_port,
    raise_descriptor_limit,
    set_up_logging,
)
from headrace.process.status import StatusServer

logger = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 10_000
DESCRIPTORS_PER_CONNECTION: Final = 2
DESCRIPTORS_FOR_THE_REST: Final = 200
# Debian installs HAProxy in a folder that is not in the PATH of ordinary users.
PROGRAM_PATHS: Final = ("/usr/sbin", "/usr/local/sbin")


def parse_address(text: str) -> HostPort:
    """The type of an option HOST:PORT whose port must not be 0."""
    address = host_port(text)
    if address[1] == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT: the port must be from 1 to 65535")
    return address


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m headrace.balancer",
        description="One address for producers, in front of all brokers of a datacenter.",
    )
    made.add_argument(
        "--listen", type=parse_address, required=True, metavar="HOST:PORT", help="for producers"
    )
    made.add_argument("--zookeeper", required=True, metavar="HOSTS", help="host:port[,host:port…][/chroot]")
    made.add_argument("--directory", type=Path, required=True, metavar="DIR", help="HAProxy's configuration")
    made.add_argument("--status", metavar="HOST:PORT", help="the page, and /status as JSON")
    made.add_argument(
        "--engine",
        choices=("auto", HaproxyEngine.kind, EmbeddedEngine.kind),
        default="auto",
        help="what moves the bytes; auto: HAProxy where it is installed",
    )
    made.add_argument(
        "--statistics", type=parse_address, metavar="HOST:PORT", help="HAProxy's own statistics page"
    )
    made.add_argument("--connections-max", type=int, default=CONNECTIONS_MAX, metavar="N")
    return made


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code: 0 after a clean stop, 1 if it cannot serve, 2 for a wrong command line."""
    options = parser().parse_args(arguments)
    set_up_logging(level_width=7, kazoo_level=logging.WARNING)
    try:
        asyncio.run(_serve(options))
    except (BalancerError, CoordinationError, OSError) as error:
        print(f"balancer {options.listen[0]}:{options.listen[1]}: {error}", file=sys.stderr)
        return 1
    return 0


async def _serve(options: argparse.Namespace) -> None:
    engine, why = _engine(options)
    logger.info("%s", why)
    session = ZooKeeperSession(options.zookeeper, name="balancer")
    await asyncio.to_thread(session.start)
    listen: HostPort = options.listen
    name = f"{listen[0]}:{listen[1]}-{uuid.uuid4().hex[:8]}"
    control = Control(engine, FrontRegistry(session), name=name, listen=listen, why=why)
    server = None
    if options.status:
        statistics: HostPort | None = options.statistics if engine.kind == HaproxyEngine.kind else None
        url = f"http://{text_of(statistics)}/" if statistics else None
        try:
            server = StatusServer(
                options.status, control.status, partial(page, statistics_url=url), metrics=metrics
            )
        except OSError as error:
            raise BalancerError(
                f"cannot serve its status on {options.status}: {error.strerror or error}; is another process "
                "there?"
            ) from None
    running = asyncio.create_task(control.run())
    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, running.cancel)
    loop.add_signal_handler(signal.SIGHUP, control.want_reload)
    try:
        with contextlib.suppress(asyncio.CancelledError):
            await running
    finally:
        if server is not None:
            server.close()
        await asyncio.to_thread(session.close)


def _engine(options: argparse.Namespace) -> tuple[Engine, str]:
    """The engine that moves the bytes, and why this one. Raises `BalancerError`."""
    connections_max = min(options.connections_max, _connections_possible())
    path = os.pathsep.join((os.environ.get("PATH", ""), *PROGRAM_PATHS))
    program = shutil.which("haproxy", path=path)
    if options.engine == EmbeddedEngine.kind or (options.engine == "auto" and program is None):
        cause = "--engine embedded" if program is not None else "haproxy is not installed here"
        return EmbeddedEngine(options.listen, connections_max), f"the embedded balancer serves: {cause}"
    if program is None:
        raise BalancerError("haproxy is not installed; on Debian, as root: apt-get install haproxy")
    settings = HaproxySettings(
        options.listen, socket_path(options.directory), connections_max, options.statistics
    )
    return HaproxyEngine(Path(program), settings, options.directory), f"HAProxy serves ({program})"


def _connections_possible() -> int:
    """Raises the descriptor limit; returns for how many connections it is enough."""
    return max(1, (raise_descriptor_limit() - DESCRIPTORS_FOR_THE_REST) // DESCRIPTORS_PER_CONNECTION)


if __name__ == "__main__":
    sys.exit(main())
