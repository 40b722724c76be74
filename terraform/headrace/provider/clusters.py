"""A datacenter's brokers, asked over the Kafka protocol.

Owns how long they are waited for, and which of their refusals is about which attribute.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from headrace.provider.values import Path, Trouble
from headrace.wire.errors import ErrorCode

if TYPE_CHECKING:
    from headrace.client.errors import BrokerError
    from headrace.client.group_admin import GroupAdmin

# Brokers that are to be made by this very apply do not answer a plan.
PLAN_TIMEOUT_S: Final = 3.0
APPLY_TIMEOUT_S: Final = 30.0

_ABOUT: Final[dict[int, Path]] = {
    ErrorCode.INVALID_TOPIC_EXCEPTION: ("name",),
    ErrorCode.INVALID_PARTITIONS: ("partitions",),
    ErrorCode.INVALID_REPLICATION_FACTOR: ("replication_factor",),
    ErrorCode.INVALID_CONFIG: ("config",),
}


@contextmanager
def administered(bootstrap: Sequence[str], *, timeout_s: float) -> Iterator[GroupAdmin]:
    """A client of these brokers, for one request of Terraform's."""
    # A third of a second of importing, which only those need who have topics.
    from headrace.client.group_admin import GroupAdmin

    admin = GroupAdmin(bootstrap, client_id="headrace-terraform", timeout_ms=timeout_s * 1000)
    with admin:
        yield admin


def refused(error: BrokerError) -> Trouble:
    """What a broker's no means, at its attribute."""
    return Trouble("The brokers refuse it", f"{error}.", _ABOUT.get(error.code, ()))
