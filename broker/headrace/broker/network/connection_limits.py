"""The bounds on connections and their bytes, from the broker's settings. Pure values."""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

logger = logging.getLogger(__name__)

DESCRIPTORS_FOR_FILES_MIN: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Each value is a setting of the same name; `broker.settings.config` explains them."""

    connections_max: int
    connections_per_ip_max: int
    connections_per_ip_overrides: Mapping[str, int] = field(default_factory=dict)
    connections_per_second_max: int
    frame_limit_bytes: int
    receiving_max_bytes: int
    receive_timeout_s: float
    receive_bytes_per_second_min: int
    receive_stall_max_s: float
    send_stall_max_s: float
    unsent_max_bytes: int
    idle_max_s: float

    @classmethod
    def of(cls, setting: Callable[[str], Any]) -> Self:
        """Returns the limits that these settings have; `setting` returns the value of a name."""
        return cls(
            connections_max=setting("max.connections"),
            connections_per_ip_max=setting("max.connections.per.ip"),
            connections_per_ip_overrides=setting("max.connections.per.ip.overrides"),
            connections_per_second_max=setting("max.connection.creation.rate"),
            frame_limit_bytes=setting("socket.request.max.bytes"),
            receiving_max_bytes=setting("queued.max.request.bytes"),
            receive_timeout_s=setting("headrace.request.receive.timeout.ms") / 1000,
            receive_bytes_per_second_min=setting("headrace.request.receive.bytes.per.second.min"),
            receive_stall_max_s=setting("headrace.request.receive.stall.ms") / 1000,
            send_stall_max_s=setting("headrace.response.send.stall.ms") / 1000,
            unsent_max_bytes=setting("headrace.response.unsent.max.bytes"),
            idle_max_s=setting("connections.max.idle.ms") / 1000,
        )


def leave_descriptors(limits: ConnectionLimits, descriptors: int) -> ConnectionLimits:
    """Returns limits under which connections cannot take the descriptors that logs need: a quarter of all.
    Without a descriptor a log could not begin its next segment.
    """
    possible = max(1, descriptors - max(DESCRIPTORS_FOR_FILES_MIN, descriptors // 4))
    if descriptors < 0 or limits.connections_max <= possible:  # below 0: as many as the process wants
        return limits
    logger.warning(
        "max.connections=%d is more than this process may have: at most %d connections are served "
        "(ulimit -n is %d, and the rest is for files)",
        limits.connections_max,
        possible,
        descriptors,
    )
    return replace(limits, connections_max=possible)


def parse_ip_overrides(text: str) -> dict[str, int]:
    """Parses `ADDRESS:COUNT,…`, as Kafka's `max.connections.per.ip.overrides`. Raises `ValueError`."""
    overrides = {}
    for entry in filter(None, (piece.strip() for piece in text.split(","))):
        address, colon, count = entry.rpartition(":")
        try:
            ip = str(ipaddress.ip_address(address.strip("[]")))
        except ValueError:
            raise ValueError(
                f"{entry!r} is not ADDRESS:COUNT with an IP address (names are not resolved)"
            ) from None
        if not colon or not count.isascii() or not count.isdigit():
            raise ValueError(f"{entry!r}: the number of connections must be 0 or more")
        overrides[ip] = int(count)
    return overrides
