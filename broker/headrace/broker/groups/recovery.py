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
from collections.abc import Callable, Iterable, Set
from typing import Final

from headrace.broker.groups.coordinator import GroupCoordinator
from headrace.broker.groups.generations import StoredGeneration
from headrace.broker.groups.store import GroupStore
from headrace.broker.promise import Promise
from headrace.coordination.consumers import is_group_name
from headrace.wire.errors import ErrorCode

logger = logging.getLogger(__name__)

AT_ONCE_MAX: Final = 20
"""Groups that are read at once."""
LOOKED_AT_MAX: Final = 1_000
"""Groups of which it is asked at once whether they have members."""
ABSENT_MAX_BYTES: Final = 16 << 20
NAME_OVERHEAD_BYTES: Final = 100
"""Clients choose the names: what is known of groups without members has a bound."""

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
        self._reading: dict[str, Promise[ErrorCode]] = {}
        self._absent: set[str] = set()
        self._absent_bytes = 0  # about, and of all that were noted since it was empty
        self._round = 0  # of changes of the brokers

    def when_known(self, group_id: str, then: Then) -> None:
        """Calls back once the coordinator has all that was stored of the group: at once, if it does. The code
        is COORDINATOR_NOT_AVAILABLE if ZooKeeper did not tell, else NONE.
        """
        if self.is_known(group_id):
            then(ErrorCode.NONE)
        elif (reading := self._reading.get(group_id)) is not None:
            reading.then(then)
        else:
            self._reading[group_id] = reading = Promise()
            reading.then(then)
            self._read(group_id)

    def when_all_known(self, group_ids: Iterable[str], then: Callable[[], None]) -> None:
        """Calls back after `when_known` of each of them. Those without members are found many at once."""
        left = deque(group_ids)

        def go_on() -> None:
            chunk: list[str] = []
            while left and len(chunk) < LOOKED_AT_MAX:
                group_id = left.popleft()
                if not self.is_known(group_id):
                    chunk.append(group_id)
            if not chunk:
                then()
                return
            began = self._round

            def looked(found: Set[str] | Exception) -> None:
                if isinstance(found, Exception):
                    logger.info("groups are restored when somebody asks for them: %s", found)
                    then()
                    return
                if began == self._round:
                    for group_id in chunk:
                        if group_id not in found and group_id not in self._reading:
                            self._note_absent(group_id)
                self._read_all(chunk, go_on)

            self._store.with_members(chunk).then(looked)

        go_on()

    def _read_all(self, group_ids: Iterable[str], then: Callable[[], None]) -> None:
        """Calls back after `when_known` of each of them, some at a time."""
        left = deque(group_ids)
        running = 0
        is_going_on = False

        def read(_: ErrorCode) -> None:
            nonlocal running
            running -= 1
            go_on()

        def go_on() -> None:
            """Not recursive: what is known calls back at once."""
            nonlocal running, is_going_on
            if is_going_on:
                return
            is_going_on = True
            while left and running < AT_ONCE_MAX:
                running += 1
                self.when_known(left.popleft(), read)
            is_going_on = False
            if not left and not running:
                then()

        go_on()

    def forget(self, group_id: str) -> None:
        """Reads this group again when somebody asks for it."""
        self._absent.discard(group_id)

    def brokers_changed(self) -> None:
        """Reads what is this broker's own now."""
        self._round += 1
        self._forget_absent()
        self._store.groups(self._coordinates).then(self._listed)

    def is_known(self, group_id: str) -> bool:
        """Whether nothing has to be read of the group; so it is if another broker coordinates it."""
        if self._coordinator.knows(group_id) or group_id in self._absent:
            return True
        return not (is_group_name(group_id) and self._coordinates(group_id))

    def _read(self, group_id: str) -> None:
        began = self._round

        def read(found: StoredGeneration | Exception | None) -> None:
            if began != self._round and not self.is_known(group_id):
                self._read(group_id)  # another broker may have coordinated it meanwhile
                return
            code = ErrorCode.NONE
            if isinstance(found, Exception):
                logger.info("group %r is not known yet: %s", group_id, found)
                code = ErrorCode.COORDINATOR_NOT_AVAILABLE
            elif not self.is_known(group_id):
                self._take(group_id, found)
            self._reading.pop(group_id).resolve(code)

        self._store.load(group_id).then(read)

    def _take(self, group_id: str, found: StoredGeneration | None) -> None:
        if found is not None and found.members:
            self._coordinator.restore(group_id, found, self._now_ms())
            self._restored()
            logger.info("group %r: %d members are restored", group_id, len(found.members))
        else:
            self._note_absent(group_id)

    def _note_absent(self, group_id: str) -> None:
        self._absent_bytes += len(group_id) + NAME_OVERHEAD_BYTES
        if self._absent_bytes > ABSENT_MAX_BYTES:
            self._forget_absent()
        self._absent.add(group_id)

    def _forget_absent(self) -> None:
        self._absent.clear()
        self._absent_bytes = 0

    def _listed(self, found: list[str] | Exception) -> None:
        if isinstance(found, Exception):
            logger.info("groups are restored when somebody asks for them: %s", found)
        else:
            self.when_all_known(found, lambda: None)
