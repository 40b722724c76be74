"""What a client may do (KIP-430): everything that Apache Kafka names, since there is no access control.

A client gets it only if it asks; else the protocol's default says that nobody asked.
Source: https://cwiki.apache.org/confluence/display/KAFKA/KIP-430.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class _Operation(IntEnum):
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


def _bits(*operations: _Operation) -> int:
    return sum(1 << operation for operation in operations)


ON_TOPIC: Final = _bits(
    _Operation.READ,
    _Operation.WRITE,
    _Operation.CREATE,
    _Operation.DELETE,
    _Operation.ALTER,
    _Operation.DESCRIBE,
    _Operation.DESCRIBE_CONFIGS,
    _Operation.ALTER_CONFIGS,
)
ON_GROUP: Final = _bits(
    _Operation.READ,
    _Operation.DELETE,
    _Operation.DESCRIBE,
    _Operation.DESCRIBE_CONFIGS,
    _Operation.ALTER_CONFIGS,
)
ON_CLUSTER: Final = _bits(
    _Operation.CREATE,
    _Operation.ALTER,
    _Operation.DESCRIBE,
    _Operation.CLUSTER_ACTION,
    _Operation.DESCRIBE_CONFIGS,
    _Operation.ALTER_CONFIGS,
    _Operation.IDEMPOTENT_WRITE,
)
NOT_ASKED: Final = -(1 << 31)
"""The protocol's default."""


def answer(operations: int, request: object, flag: str) -> int:
    """Returns the operations if the request has that flag, and it is set."""
    return operations if getattr(request, flag, False) else NOT_ASKED
