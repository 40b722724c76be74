"""How a client ends: closed once, as a context manager; unusable in a process forked after it was created.

A fork copies neither threads nor the right to use the parent's connections.
"""

from __future__ import annotations

import os
import weakref
from abc import ABC, abstractmethod
from typing import Self

from headrace.client.errors import ClosedError, ForkedError


class Client(ABC):
    """Base of all clients. `kind` is its name in error messages."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._forked = False
        _clients.add(self)

    @abstractmethod
    def close(self) -> None:
        """May be called again."""

    @property
    @abstractmethod
    def _is_closed(self) -> bool: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def after_fork_in_child(self) -> None:
        """Marks this copy as unusable. Must take no lock: another thread may have held it during the fork."""
        self._forked = True

    def _check_usable(self) -> None:
        """Raises `ForkedError` or `ClosedError`."""
        self._check_not_forked()
        if self._is_closed:
            raise ClosedError(f"the {self._kind} is closed")

    def _check_not_forked(self) -> None:
        if self._forked:
            raise ForkedError(f"this {self._kind} was created before os.fork; create a new one in the child")


_clients: weakref.WeakSet[Client] = weakref.WeakSet()


def _mark_all_forked() -> None:
    for client in list(_clients):
        client.after_fork_in_child()


os.register_at_fork(after_in_child=_mark_all_forked)
