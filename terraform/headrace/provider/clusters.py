"""A datacenter's brokers, over the Kafka protocol.

Owns the timeouts, the check of their addresses, and which of the brokers' errors is about which attribute.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from headrace.provider.problems import Path, Problem
from headrace.provider.values import Values, is_known
from headrace.wire.errors import ErrorCode

if TYPE_CHECKING:
    from headrace.client.errors import BrokerError
    from headrace.client.group_admin import GroupAdmin
    from headrace.client.replica_admin import ReplicaAdmin

# Short, because the brokers may be created by the apply of this same plan.
PLAN_TIMEOUT_S: Final = 3.0
APPLY_TIMEOUT_S: Final = 30.0
_ADDRESS: Final = re.compile(r"[^\s,:/]+:[0-9]{1,5}")

_ATTRIBUTES: Final[dict[int, Path]] = {
    ErrorCode.INVALID_TOPIC_EXCEPTION: ("name",),
    ErrorCode.INVALID_PARTITIONS: ("partitions",),
    ErrorCode.INVALID_REPLICATION_FACTOR: ("replication_factor",),
    ErrorCode.INVALID_CONFIG: ("config",),
}


@contextmanager
def admin_client(bootstrap: Sequence[str], *, timeout_s: float) -> Iterator[GroupAdmin]:
    """Opens a client of these brokers for one request of Terraform."""
    # Imported here because it takes 0.3 s, and only topics and brokers need it.
    from headrace.client.group_admin import GroupAdmin

    admin = GroupAdmin(bootstrap, client_id="headrace-terraform", timeout_ms=timeout_s * 1000)
    with admin:
        yield admin


@contextmanager
def replica_admin(bootstrap: Sequence[str], *, timeout_s: float) -> Iterator[ReplicaAdmin]:
    """Like `admin_client`, with the operations on replicas."""
    from headrace.client.replica_admin import ReplicaAdmin

    with ReplicaAdmin(bootstrap, client_id="headrace-terraform", timeout_ms=timeout_s * 1000) as admin:
        yield admin


def refused(error: BrokerError) -> Problem:
    """Returns the problem for an error response of a broker, at its attribute."""
    return Problem("The brokers refuse the request", f"{error}.", _ATTRIBUTES.get(error.code, ()))


def bootstrap_problems(values: Values) -> list[Problem]:
    """Returns the problems of `bootstrap_servers`."""
    servers = values.get("bootstrap_servers")
    if not isinstance(servers, list):
        return []
    path = ("bootstrap_servers",)
    if not servers:
        return [Problem("bootstrap_servers is empty", "Name at least one broker, as HOST:PORT.", path)]
    return [
        Problem(
            "Not a broker address",
            f"Got {'null' if server is None else repr(server)}; expected HOST:PORT, such as 127.1.0.11:9092.",
            path,
        )
        for server in servers
        if is_known(server) and not is_address(server)
    ]


def is_address(server: object) -> bool:
    """Whether it is HOST:PORT of one broker, as clients take it."""
    # Imported here because the import is slow, and only topics and clusters need it.
    from headrace.client.cluster import parse_bootstrap

    if not isinstance(server, str) or not _ADDRESS.fullmatch(server):
        return False
    try:
        return len(parse_bootstrap(server)) == 1
    except ValueError:
        return False
