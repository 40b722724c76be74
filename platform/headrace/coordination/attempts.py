"""How often the library tries to connect before a session is lost."""

from __future__ import annotations

from typing import Final

ATTEMPTS_MIN: Final = 3


def with_attempts(hosts: str) -> str:
    """Returns "host:port,host:port/chroot" with its servers named several times if they are few.

    The library gives each named server its share of the session's timeout to answer. A server that starts may
    accept a connection and never answer: where it is the only one, that would last until the session is lost.
    """
    servers, slash, chroot = hosts.partition("/")
    times = -(-ATTEMPTS_MIN // len(servers.split(",")))
    return ",".join([servers] * times) + slash + chroot
