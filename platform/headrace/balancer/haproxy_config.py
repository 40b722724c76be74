"""HAProxy's configuration, and what to tell a running one, as text. Pure.

Source: HAProxy 2.6 Configuration Manual and Management Guide ("Unix Socket commands"). Servers come and go by
the runtime API alone; the file names those there are as well, so that a reload begins with them.
"""

from __future__ import annotations

import csv
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
    HostPort,
    Phase,
)
from headrace.wire.apis import ApiKey, frame_request

POOL: Final = "brokers"
# Clients and brokers both close idle connections themselves, after 10 minutes or so.
IDLE_TIMEOUT_S: Final = 3600
# After one side has said that it ends, the other has so long to do so.
HALF_CLOSED_TIMEOUT_S: Final = 30
# After a reload the old process serves its connections; clients that are alive reconnect sooner than that.
OLD_PROCESS_MAX_S: Final = 24 * 3600

CHECK_CORRELATION_ID: Final = 1
# ApiVersions, version 0: a head, and nothing in it.
CHECK_REQUEST: Final = frame_request(ApiKey.API_VERSIONS, 0, CHECK_CORRELATION_ID, None, False, [])
# After its length, a good answer begins with the correlation id and error code 0.
CHECK_ANSWER: Final = CHECK_CORRELATION_ID.to_bytes(4, "big") + bytes(2)

_CHECK_OPTIONS: Final = (
    f"check inter {round(CHECK_INTERVAL_S * 1000)}ms fall {CHECKS_TO_FALL} rise 1 "
    "on-marked-down shutdown-sessions"
)


@dataclass(frozen=True, slots=True)
class HaproxySettings:
    """`statistics` is where HAProxy's own page is served; None: nowhere."""

    listen: HostPort
    socket: Path
    connections_max: int
    statistics: HostPort | None = None


class AdminState(StrEnum):
    """A server's administrative state, in the words of `set server … state`."""

    READY = "ready"
    DRAIN = "drain"
    MAINT = "maint"


class HaproxyServer(NamedTuple):
    """A server as the running HAProxy has it."""

    address: HostPort
    admin: AdminState


def config_text(settings: HaproxySettings, backends: Iterable[Backend]) -> str:
    """The whole file. Backends that drain are left out: a new process has no connection of theirs."""
    text = f"""\
global
    maxconn {settings.connections_max}
    hard-stop-after {OLD_PROCESS_MAX_S}s
    stats socket {settings.socket} mode 600 level admin expose-fd listeners

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
    bind {_at(settings.listen)}
    option clitcpka
    option contstats
    default_backend {POOL}

backend {POOL}
    balance leastconn
    option srvtcpka
    option tcp-check
    tcp-check connect
    tcp-check send-binary {CHECK_REQUEST.hex()}
    tcp-check expect binary {CHECK_ANSWER.hex()}
"""
    for backend in backends:
        if backend.phase is Phase.READY:
            text += f"    server {backend.name} {_at(backend.address)} {_CHECK_OPTIONS}\n"
    if settings.statistics is not None:
        text += f"""
listen statistics
    mode http
    bind {_at(settings.statistics)}
    timeout http-request 10s
    stats enable
    stats uri /
    stats refresh 5s
"""
    return text


def commands(present: Mapping[str, HaproxyServer], wanted: Iterable[Backend]) -> list[str]:
    """What makes the running HAProxy's servers those that are wanted.

    A server that is not wanted any more is deleted: whoever asks knows that it has no connection left, which
    HAProxy 2.6 would cut.
    """
    said = []
    names = set()
    for backend in wanted:
        name = f"{POOL}/{backend.name}"
        names.add(backend.name)
        server = present.get(backend.name)
        if server is None:
            if backend.phase is Phase.READY:
                said.append(f"add server {name} {_at(backend.address)} {_CHECK_OPTIONS}")
                said.append(f"enable health {name}")
                said.append(f"set server {name} state ready")
            continue
        if server.address != backend.address:
            said.append(f"set server {name} addr {backend.address[0]} port {backend.address[1]}")
        admin = AdminState.READY if backend.phase is Phase.READY else AdminState.DRAIN
        if server.admin is not admin:
            # A broker that stops no longer answers checks while it finishes what it has: that is no reason
            # to cut its connections.
            said.append(f"{'enable' if admin is AdminState.READY else 'disable'} health {name}")
            said.append(f"set server {name} state {admin}")
    for gone in sorted(present.keys() - names):
        if present[gone].admin is not AdminState.MAINT:
            said.append(f"set server {POOL}/{gone} state {AdminState.MAINT}")
        said.append(f"del server {POOL}/{gone}")
    return said


_FORCED_MAINTENANCE: Final = 0x01
_FORCED_DRAIN: Final = 0x08


def parse_servers(text: str) -> dict[str, HaproxyServer]:
    """The answer to `show servers state brokers`: server name → server."""
    lines = [line for line in text.splitlines() if line.strip()]
    # The first line is the format's version, the second the names of the fields, after a number sign.
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
    """The answer to `show stat`: server name → figures."""
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


def _number(text: str) -> int:
    return int(text) if text else 0


def _at(address: HostPort) -> str:
    return f"{address[0]}:{address[1]}"
