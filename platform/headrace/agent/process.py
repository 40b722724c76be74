"""The agent as a process, from its start to its end.

Owns its options, the listening socket, TLS, the log. Units and supervisord are not its children: they outlive
it, except with `ends_units`. `serving` does the agent's work.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Final, NamedTuple

from headrace.agent.access import Tokens
from headrace.agent.certificate import CertificateFiles
from headrace.agent.errors import AddressTakenError
from headrace.agent.home import AgentHome, lock
from headrace.agent.kinds import KINDS, Kinds
from headrace.agent.processes import holder_of
from headrace.agent.reserve import StateReserve, keep
from headrace.agent.supervisor import Supervisor
from headrace.process.logs import LineFormatter
from headrace.site.addresses import Address
from headrace.site.environment_variables import HOME_VARIABLE
from headrace.site.errors import SiteError

CONNECTIONS_WAITING_MAX: Final = 128
LOG_MAX_BYTES: Final = 5 << 20
LOG_BACKUPS: Final = 2
PRIVATE: Final = 0o077

logger = logging.getLogger("headrace.agent")


class AgentOptions(NamedTuple):
    """How an agent is started.

    `log`: the log file of a daemon, None for stderr. `ends_units`: its units end with it, for containers,
    where nothing can outlive it. `allow_paths`: folders that requests may name besides the home.
    """

    home: Path
    listen: Address
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    allow_plain: bool = False
    log: Path | None = None
    ends_units: bool = False
    allow_paths: tuple[Path, ...] = ()

    def check(self) -> None:
        """Raises `SiteError` for options that contradict each other."""
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise SiteError("--tls-certificate and --tls-key go together: give both or neither")
        if self.tls_certificate is None and not self.allow_plain and not _is_loopback(self.listen.host):
            raise SiteError(
                f"on {self.listen} others could read the token in transit: give --tls-certificate and "
                "--tls-key, listen on loopback, or allow it by --allow-plain"
            )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def run_agent(
    options: AgentOptions, *, kinds: Kinds = KINDS, reached: Callable[[str], None] = lambda step: None
) -> None:
    """Serves until SIGTERM, SIGINT or a shutdown request. Raises `SiteError` if it cannot start.

    `kinds` are the kinds of units it keeps; `reached` is called at each step of a change (see `Keeper`).
    """
    options.check()
    if options.tls_certificate is not None and options.tls_key is not None:
        # The agent changes its working directory.
        certificate, key = options.tls_certificate.absolute(), options.tls_key.absolute()
        options = options._replace(tls_certificate=certificate, tls_key=key)
    # Logs and states may hold what others must not read. Units inherit it.
    os.umask(PRIVATE)
    home = options.home.absolute()
    paths = AgentHome(home)
    paths.make()
    _log_to(options.log)
    with lock(paths):
        # For the processes that it starts, and for reading loads.
        os.environ[HOME_VARIABLE] = str(home)
        tls = _tls(options)
        keep(StateReserve(paths.reserve))
        tokens = Tokens(operate=paths.token, read=paths.read_token)
        with _listen(options.listen) as listening:
            os.chdir(home)
            supervisor = Supervisor(home)
            with ThreadPoolExecutor(1) as pool:
                starting = pool.submit(supervisor.ensure_daemon, ())
                # Imported here because it takes half a second, in which supervisord starts.
                from headrace.agent.serving import serve
            is_new = starting.result()
            try:
                serve(
                    paths,
                    listening,
                    tls=tls,
                    certificate=options.tls_certificate,
                    tokens=tokens,
                    allowed_folders=options.allow_paths,
                    kinds=kinds,
                    is_daemon=options.log is not None,
                    ends_units=options.ends_units,
                    reached=reached,
                )
            except SiteError:
                if is_new and not any(state.is_running for state in supervisor.states().values()):
                    supervisor.shut_down()
                raise
            finally:
                paths.record.unlink(missing_ok=True)


def _log_to(path: Path | None) -> None:
    handler: logging.Handler = logging.StreamHandler(sys.stderr)
    if path is not None:
        handler = RotatingFileHandler(path, maxBytes=LOG_MAX_BYTES, backupCount=LOG_BACKUPS)
    handler.setFormatter(LineFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("headrace.agent").setLevel(logging.INFO)


def _tls(options: AgentOptions) -> CertificateFiles | None:
    if options.tls_certificate is None or options.tls_key is None:
        return None
    return CertificateFiles(options.tls_certificate, options.tls_key)


def _listen(address: Address) -> socket.socket:
    # asyncio sets TCP_NODELAY on accepted connections only if the socket names its protocol. Without
    # it, small responses wait 40 ms for an ACK.
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
