"""What happens to clients when the process forks: each is told so in the child."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Forkable(Protocol):
    def after_fork_in_child(self) -> None: ...


_watched: weakref.WeakSet[Forkable] = weakref.WeakSet()


def watch(client: Forkable) -> None:
    """Call `client.after_fork_in_child()` in every child forked from now on. It must take no lock."""
    _watched.add(client)


def _tell_all() -> None:
    for client in list(_watched):
        client.after_fork_in_child()


os.register_at_fork(after_in_child=_tell_all)
