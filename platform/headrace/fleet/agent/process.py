"""The agent's own life: one process, from its start to a signal.

Owns the listening socket, TLS, the log, and what is left of the agent on disk while it runs. Units and
supervisord are not its children: they outlive it.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import platform
import signal
import socket
import ssl
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Final, NamedTuple

import uvicorn

from headrace.fleet.addresses import holder_of
from headrace.fleet.errors import AddressTakenError, FleetError
from headrace.fleet.site import HOME_VARIABLE, Address

from .app import create_app
from .desired import DesiredState
from .errors import AgentStateError
from .keeper import Keeper
from .kinds import KINDS, Host, Kinds, parse_configuration, unit_of
from .places import Places, Whereabouts, build, lock
from .tokens import make_token

SHUTDOWN_WAIT_MAX_S: Final = 5
CONNECTIONS_WAITING_MAX: Final = 128
REQUESTS_AT_ONCE_MAX: Final = 200
LOG_BYTES_MAX: Final = 5 << 20
LOG_BACKUPS: Final = 2

logger = logging.getLogger("headrace.fleet.agent")


class Options(NamedTuple):
    """How an agent is started. `log`: a file for the log of a daemon, None for stderr."""

    home: Path
    listen: Address
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    allow_plain: bool = False
    log: Path | None = None

    def check(self) -> None:
        """Raises `FleetError` for options that do not go together."""
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise FleetError("--tls-certificate and --tls-key go together: give both, or neither")
        if self.tls_certificate is None and not self.allow_plain and not _is_loopback(self.listen.host):
            raise FleetError(
                f"on {self.listen} others could read the token on its way: give --tls-certificate and "
                "--tls-key, listen on loopback, or say --allow-plain"
            )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def run_agent(
    options: Options, *, kinds: Kinds = KINDS, reached: Callable[[str], None] = lambda step: None
) -> None:
    """Serves until SIGTERM or SIGINT, or until it is asked to end. Raises `FleetError` when it cannot start.

    `kinds` are the kinds of units it keeps; `reached` is told each step of a change (see `Keeper`).
    """
    options.check()
    if options.tls_certificate is not None and options.tls_key is not None:
        # It leaves this working directory.
        absolute = (options.tls_certificate.absolute(), options.tls_key.absolute())
        options = options._replace(tls_certificate=absolute[0], tls_key=absolute[1])
    home = options.home.absolute()
    places = Places(home)
    places.make()
    _log_to(options.log)
    with lock(places):
        # What it starts, and asks, looks for its things there.
        os.environ[HOME_VARIABLE] = str(home)
        context = _tls(options)
        token = make_token(places.token)
        with _listen(options.listen) as listening:
            os.chdir(home)
            try:
                _serve(places, options, listening, context, token, kinds, reached)
            finally:
                places.whereabouts.unlink(missing_ok=True)


def _serve(
    places: Places,
    options: Options,
    listening: socket.socket,
    context: ssl.SSLContext | None,
    token: str,
    kinds: Kinds,
    reached: Callable[[str], None],
) -> None:
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
        create_app(keeper, token, kinds, about, lambda: setattr(server, "should_exit", True)),
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
        certificate = str(options.tls_certificate) if options.tls_certificate else None
        Whereabouts(url, certificate, os.getpid(), made, options.log is not None).write(places.whereabouts)
        logger.info("the agent of %s listens on %s, with %d units", places.home, url, len(keeper.names()))
        server.run(sockets=[listening])
    finally:
        keeper.close()
    logger.info("the agent ends; units go on without it")


def _version() -> str:
    try:
        return version("headrace")
    except PackageNotFoundError:
        return "unknown"


def _log_to(path: Path | None) -> None:
    handler: logging.Handler = logging.StreamHandler(sys.stderr)
    if path is not None:
        handler = RotatingFileHandler(path, maxBytes=LOG_BYTES_MAX, backupCount=LOG_BACKUPS)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("headrace.fleet").setLevel(logging.INFO)


def _tls(options: Options) -> ssl.SSLContext | None:
    if options.tls_certificate is None or options.tls_key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # A key with a passphrase would make OpenSSL ask at the terminal.
        context.load_cert_chain(options.tls_certificate, options.tls_key, password=lambda: "")
    except (OSError, ValueError) as error:
        reason = error.reason if isinstance(error, ssl.SSLError) else getattr(error, "strerror", error)
        raise AgentStateError(
            f"certificate {options.tls_certificate} and key {options.tls_key} cannot be used: {reason}; "
            "give a PEM certificate (with its chain) and its key without a passphrase"
        ) from error
    return context


def _listen(address: Address) -> socket.socket:
    # With the protocol named, asyncio sets TCP_NODELAY on what it accepts; without, small answers wait 40 ms
    # for an ACK.
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(address)
        listening.listen(CONNECTIONS_WAITING_MAX)
    except OSError as error:
        listening.close()
        holder = holder_of(address) if address.port else None
        raise AddressTakenError(
            f"the agent cannot listen on {address}: {holder or error.strerror or error}; "
            "end that process (another site: `make down` there), give this site another `block` in "
            "site.yaml, or the agent another --listen"
        ) from error
    return listening
