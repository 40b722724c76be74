"""How often the library tries to connect before a session is lost, and how often it says that it failed."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from math import inf
from typing import Any, Final

from kazoo.client import KazooClient

ATTEMPTS_MIN: Final = 3
SAID_AGAIN_AFTER_S: Final = 10.0
TEXTS_MAX: Final = 100


class Servers(list[tuple[str, int]]):
    """The servers of a client of the library, which gives each of them its share of the session's timeout to
    answer: the shares are those of `ATTEMPTS_MIN` servers at least.

    A server that starts may accept a connection and never answer. Where it is the only one, that would last
    until the session is lost.
    """

    def __len__(self) -> int:
        return max(ATTEMPTS_MIN, super().__len__())


def make_client(hosts: str, **options: Any) -> KazooClient:
    """Returns a client of the library for "host:port,host:port/chroot"; `options` are its own."""
    client = KazooClient(hosts, logger=library_logger(), **options)
    client.hosts = Servers(client.hosts)
    return client


class SaidOnce(logging.Filter):
    """Passes each text once in `SAID_AGAIN_AFTER_S`: a server that is away is tried often."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock_s = clock_s
        self._said_s: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        text, now_s = record.getMessage(), self._clock_s()
        if now_s - self._said_s.get(text, -inf) < SAID_AGAIN_AFTER_S:
            return False
        if len(self._said_s) >= TEXTS_MAX:
            self._said_s.clear()
        self._said_s[text] = now_s
        return True


_said_once: Final = SaidOnce()


def library_logger() -> logging.Logger:
    """Returns the logger for the library's clients."""
    found = logging.getLogger("kazoo.client")
    found.addFilter(_said_once)  # once, however often it is added
    return found
