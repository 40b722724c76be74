"""Who works on which partition's folder.

A topic that was deleted and made again has the folders of before, and threads write into them by path. So
the next log is opened once nobody works on the last one any more. Else a flush of the deleted topic could
save its checkpoint beside the new topic's segments, or its opening could move the new topic's folder aside.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from headrace.log.directory import PartitionName

Call = Callable[[], None]


class Folders:
    """Called on the loop's thread. What waits are openings: a folder has one for each change."""

    def __init__(self) -> None:
        self._users: dict[PartitionName, int] = {}
        self._waiting: dict[PartitionName, deque[Call]] = {}

    def use(self, name: PartitionName) -> None:
        """Begins to work on a folder, beside others who do already."""
        self._users[name] = self._users.get(name, 0) + 1

    def use_alone(self, name: PartitionName, begin: Call) -> None:
        """Calls `begin` once nobody works on the folder, which is in use from then on."""
        if name in self._users:
            self._waiting.setdefault(name, deque()).append(begin)
        else:
            self.use(name)
            begin()

    def leave(self, name: PartitionName) -> None:
        """Ends what `use` or `use_alone` began."""
        self._users[name] -= 1
        if self._users[name]:
            return
        del self._users[name]
        waiting = self._waiting.get(name)
        if not waiting:
            return
        begin = waiting.popleft()
        if not waiting:
            del self._waiting[name]
        self.use_alone(name, begin)
