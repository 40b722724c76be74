"""HAProxy's configuration and the commands for a running HAProxy, as text. Pure.

Source: HAProxy 2.6 Configuration Manual and Management Guide ("Unix Socket commands"). Servers are added and
deleted by the runtime API alone; the file names them as well, so that a reload starts with them.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple

from headrace.balancer.backends import (
    CHECK_INTERVAL_S,
    CHECK_TIMEOUT_S,
    CHECKS_TO_FALL,
    CONNECT_TIMEOUT_S,
    Backend,
    BackendFigures,
    Phase,
    text_of,
)
from headrace.balancer.errors import BalancerError
from headrace.process.command_line import HostPort
from headrace.process.text import has_control
from headrace.wire.apis import ApiKey, frame_request

POOL: Final = "brokers"
# Longer than the 10 minutes or so after which clients and brokers close idle connections themselves.
IDLE_TIMEOUT_S: Final = 3600
# After one side has closed its half of a connection, the other may still send for this long.
HALF_CLOSED_TIMEOUT_S: Final = 30
# After a reload the old process serves its open connections at most this long.
OLD_PROCESS_MAX_S: Final = 24 * 3600

CHECK_CORRELATION_ID: Final = 1
# ApiVersions, version 0: a header without a body.
CHECK_REQUEST: Final = frame_request(ApiKey.API_VERSIONS, 0, CHECK_CORRELATION_ID, None, False, [])
# A good response starts, after its length, with the correlation id and error code 0.
CHECK_RESPONSE: Final = CHECK_CORRELATION_ID.to_bytes(4, "big") + bytes(2)

_CHECK_OPTIONS: Final = (
    f"check inter {round(CHECK_INTERVAL_S * 1000)}ms fall {CHECKS_TO_FALL} rise 1 "
    "on-marked-down shutdown-sessions"
)


@dataclass(frozen=True, slots=True)
class HaproxySettings:
    """What HAProxy is started with. `statistics` is the address of HAProxy's own page, None for no page."""

    listen: HostPort
    socket: Path
    connections_max: int
    statistics: HostPort | None = None


class AdminState(StrEnum):
    """A server's administrative state, as in `set server … state`."""

    READY = "ready"
    DRAIN = "drain"
    MAINT = "maint"


class HaproxyServer(NamedTuple):
    """A server in the running HAProxy."""

    address: HostPort
    admin: AdminState


def config_text(settings: HaproxySettings, backends: Iterable[Backend]) -> str:
    """The configuration file, without backends that drain: a new process has no connections of theirs."""
    text = f"""\
global
    maxconn {settings.connections_max}
    hard-stop-after {OLD_PROCESS_MAX_S}s
    stats socket {_word(settings.socket)} mode 600 level admin expose-fd listeners

defaults
    mode tcp
    timeout connect {round(CONNECT_TIMEOUT_S * 1000)}ms
    timeout check {round(CHECK_TIMEOUT_S * 1000)}ms
    timeout client {IDLE_TIMEOUT_S}s
    timeout server {IDLE_TIMEOUT_S}s
    timeout client-fin {HALF_CLOSED_TIMEOUT_S}s
    timeout server-fin {HALF_CLOSED_TIMEOUT_S}s
    retries 3
    option redispatch 1

frontend producers
    bind {text_of(settings.listen)}
    option clitcpka
    option contstats
    default_backend {POOL}

backend {POOL}
    balance leastconn
    option srvtcpka
    option tcp-check
    tcp-check connect
    tcp-check send-binary {CHECK_REQUEST.hex()}
    tcp-check expect binary {CHECK_RESPONSE.hex()}
"""
    for backend in backends:
        if backend.phase is Phase.READY:
            text += f"    server {backend.name} {text_of(backend.address)} {_CHECK_OPTIONS}\n"
    if settings.statistics is not None:
        text += f"""
listen statistics
    mode http
    bind {text_of(settings.statistics)}
    timeout http-request 10s
    stats enable
    stats uri /
    stats refresh 5s
"""
    return text


def commands(present: Mapping[str, HaproxyServer], wanted: Iterable[Backend]) -> list[str]:
    """The commands that make the wanted backends the servers of the running HAProxy.

    Other servers are deleted. HAProxy 2.6 would cut their connections, so the caller makes sure that they
    have none left.
    """
    lines = []
    names = set()
    for backend in wanted:
        name = f"{POOL}/{backend.name}"
        names.add(backend.name)
        server = present.get(backend.name)
        if server is None:
            if backend.phase is Phase.READY:
                lines.append(f"add server {name} {text_of(backend.address)} {_CHECK_OPTIONS}")
                lines.append(f"enable health {name}")
                lines.append(f"set server {name} state ready")
            continue
        if server.address != backend.address:
            lines.append(f"set server {name} addr {backend.address[0]} port {backend.address[1]}")
        admin = AdminState.READY if backend.phase is Phase.READY else AdminState.DRAIN
        if server.admin is not admin:
            # A stopping broker does not answer health checks while it finishes its requests; failed checks
            # would cut its connections.
            lines.append(f"{'enable' if admin is AdminState.READY else 'disable'} health {name}")
            lines.append(f"set server {name} state {admin}")
    for name in sorted(present.keys() - names):
        if present[name].admin is not AdminState.MAINT:
            lines.append(f"set server {POOL}/{name} state {AdminState.MAINT}")
        lines.append(f"del server {POOL}/{name}")
    return lines


_FORCED_MAINTENANCE: Final = 0x01
_FORCED_DRAIN: Final = 0x08


def parse_servers(text: str) -> dict[str, HaproxyServer]:
    """Parses the response to `show servers state brokers`: server name → server."""
    lines = [line for line in text.splitlines() if line.strip()]
    # The first line is the version of the format, the second the field names, after a `#`.
    names = lines[1].lstrip("# ").split() if len(lines) > 1 else []
    servers = {}
    for line in lines[2:]:
        row = dict(zip(names, line.split(), strict=False))
        state = int(row["srv_admin_state"])
        admin = AdminState.READY
        if state & _FORCED_MAINTENANCE:
            admin = AdminState.MAINT
        elif state & _FORCED_DRAIN:
            admin = AdminState.DRAIN
        servers[row["srv_name"]] = HaproxyServer((row["srv_addr"], int(row["srv_port"])), admin)
    return servers


def parse_figures(text: str) -> dict[str, BackendFigures]:
    """Parses the response to `show stat`: server name → figures."""
    rows = csv.DictReader(text.lstrip("# \n").splitlines())
    return {
        row["svname"]: BackendFigures(
            is_up=row["status"].startswith(("UP", "DRAIN")),
            connections=_number(row["scur"]),
            connections_total=_number(row["stot"]),
            connect_errors=_number(row["econ"]),
            bytes_in=_number(row["bin"]),
            bytes_out=_number(row["bout"]),
            check=row["check_status"].removeprefix("* "),
        )
        for row in rows
        if row["pxname"] == POOL and row["svname"] not in ("BACKEND", "FRONTEND")
    }


def _word(path: Path) -> str:
    """Returns the path as one word. Raises `BalancerError` for one that HAProxy's file cannot hold."""
    text = str(path)
    if has_control(text):
        raise BalancerError(f"the directory {text!r} has control characters in its name; use another one")
    return re.sub(r"""([\\\s"'#$])""", r"\\\1", text)


def _number(text: str) -> int:
    return int(text) if text else 0
