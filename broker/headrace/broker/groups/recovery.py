"""Restores the groups that another broker coordinated before, as it has stored them.

A group is read when somebody asks for it first, and what others ask of it waits until then. After brokers
have come or gone, all groups that are this broker's own now are read: members that died with their
coordinator must be missed in time.

Owns which groups are being read, and which ones are known to have no stored members. All calls come from the
loop's thread.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from headrace.broker.groups.coordinator import GroupCoordinator
from headrace.broker.groups.generations import KeptGeneration
from headrace.broker.groups.store import GroupStore
from headrace.broker.groups.types import GROUPS_MAX
from headrace.coordination.consumers import is_group_name
from headrace.wire.errors import ErrorCode

logger = logging.getLogger(__name__)

AT_ONCE_MAX: Final = 20
"""Groups that are read at once after brokers have come or gone."""

Then = Callable[[ErrorCode], None]


class Recovery:
    """Puts groups into `coordinator`. `now_ms`: the monotonic time. `restored`: called after each of them."""

    def __init__(
        self,
        coordinator: GroupCoordinator,
        store: GroupStore,
        *,
        coordinates: Callable[[str], bool],
        now_ms: Callable[[], int],
        restored: Callable[[], None],
    ) -> None:
        self._coordinator = coordinator
        self._store = store
        self._coordinates = coordinates
        self._now_ms = now_ms
        self._restored = restored
        self._reading: dict[str, list[Then]] = {}
        self._absent: set[str] = set()
        self._round = 0  # of changes of the brokers

    def when_known(self, group_id: str, then: Then) -> None:
        """Calls back once the coordinator has all that was stored of the group: at once, if it does. The code
        is COORDINATOR_NOT_AVAILABLE if ZooKeeper did not tell, else NONE.
        """
        if self.is_known(group_id):
            then(ErrorCode.NONE)
        elif group_id in self._reading:
            self._reading[group_id].append(then)
        else:
            self._reading[group_id] = [then]
            self._read(group_id)

    def when_all_known(self, group_ids: Iterable[str], then: Callable[[], None]) -> None:
        """Calls back after `when_known` of each of them, one after the other."""
        left = deque(group_ids)
        is_reading = is_going_on = False

        def go_on(_: ErrorCode = ErrorCode.NONE) -> None:
            """Not recursive: reads may be refused at once."""
            nonlocal is_reading, is_going_on
            is_reading = False
            if is_going_on:
                return
            is_going_on = True
            while left and not is_reading:
                group_id = left.popleft()
                if not self.is_known(group_id):
                    is_reading = True
                    self.when_known(group_id, go_on)
            is_going_on = False
            if not is_reading:
                then()

        go_on()

    def forget(self, group_id: str) -> None:
        """Reads this group again when somebody asks for it."""
        self._absent.discard(group_id)

    def brokers_changed(self) -> None:
        """Reads what is this broker's own now."""
        self._round += 1
        self._absent.clear()
        self._store.groups().then(self._listed)

    def is_known(self, group_id: str) -> bool:
        """Whether nothing has to be read of the group; so it is if another broker coordinates it."""
        is_own = is_group_name(group_id) and self._coordinates(group_id)
        return not is_own or self._coordinator.knows(group_id) or group_id in self._absent

    def _read(self, group_id: str) -> None:
        began = self._round

        def read(found: KeptGeneration | Exception | None) -> None:
            if began != self._round and not self.is_known(group_id):
                self._read(group_id)  # another broker may have coordinated it meanwhile
                return
            code = ErrorCode.NONE
            if isinstance(found, Exception):
                logger.info("group %r is not known yet: %s", group_id, found)
                code = ErrorCode.COORDINATOR_NOT_AVAILABLE
            elif not self.is_known(group_id):
                self._take(group_id, found)
            for then in self._reading.pop(group_id):
                then(code)

        self._store.load(group_id).then(read)

    def _take(self, group_id: str, found: KeptGeneration | None) -> None:
        if found is not None and found.members:
            self._coordinator.restore(group_id, found, self._now_ms())
            self._restored()
            logger.info("group %r: %d members are restored", group_id, len(found.members))
            return
        if len(self._absent) >= GROUPS_MAX:
            self._absent.clear()
        self._absent.add(group_id)

    def _listed(self, found: dict[str, bool] | Exception) -> None:
        if isinstance(found, Exception):
            logger.info("groups are restored when somebody asks for them: %s", found)
            return
        groups = [group_id for group_id, has_members in found.items() if has_members]
        for lane in range(AT_ONCE_MAX):
            self.when_all_known(groups[lane::AT_ONCE_MAX], lambda: None)
