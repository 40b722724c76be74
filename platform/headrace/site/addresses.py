"""Addresses of an installation, and the check whether one is free, which binds it for a moment."""

from __future__ import annotations

import errno
import socket
from typing import NamedTuple


class Address(NamedTuple):
    """The host and port that something listens on."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def is_taken(address: Address) -> bool:
    """Whether a process listens there. Raises OSError for an address that this machine does not have."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
            # Linux lets two sockets with SO_REUSEADDR bind the same port until one of them listens.
            probe.listen(1)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return True
            raise
    return False
