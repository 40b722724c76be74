"""All the groups this broker coordinates. Owns the table of groups and its bound; offsets are elsewhere
(ZooKeeper).

Which broker coordinates a group is a pure function of the live brokers (`coordinator_for`, rendezvous
hashing): when a broker comes or goes, only its own groups move. Each generation is stored before its members
get their parts (`generations`): after a move they find the new coordinator, which has restored the group
(`recovery`), and go on. What had begun since, a rebalance, begins again.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Collection, Iterable, Set
from typing import Final

from headrace.broker.groups.deadlines import Deadlines
from headrace.broker.groups.generations import StoredGeneration
from headrace.broker.groups.group import Group, Stored
from headrace.broker.groups.member import ReplyToJoin, ReplyToSync
from headrace.broker.groups.subscriptions import CONSUMER_PROTOCOL_TYPE, subscribed_topics
from headrace.broker.groups.types import (
    ALL_METADATA_MAX_BYTES,
    GROUP_OVERHEAD_BYTES,
    GROUPS_MAX,
    MEMBER_METADATA_MAX_BYTES,
    PROTOCOL_TYPE_LENGTH_MAX,
    PROTOCOLS_MAX,
    GroupDescription,
    GroupLimits,
    GroupOverview,
    GroupState,
    Join,
    JoinReply,
    Sync,
    SyncReply,
)
from headrace.wire.errors import ErrorCode


def coordinator_for(group_id: str, broker_ids: Iterable[int]) -> int | None:
    """Returns the live broker that coordinates a group, the same on every broker; None if no broker lives."""
    return max(broker_ids, key=lambda b: (zlib.crc32(f"{b}/{group_id}".encode()), b), default=None)


DEFAULT_LIMITS: Final = GroupLimits()

Store = Callable[[str, StoredGeneration | None, Stored], None]
"""Stores the generation of a group (None: it has no members). Calls back with the time when it is stored, or
disbands the group (`GroupCoordinator.disband`).
"""


class GroupCoordinator:
    """The groups of one broker. Called on the event loop's thread only; `now_ms` is an argument."""

    def __init__(
        self,
        *,
        coordinates: Callable[[str], bool],
        new_member_id: Callable[[str], str],
        store: Store,
        initial_delay_ms: int,
        limits: GroupLimits = DEFAULT_LIMITS,
    ) -> None:
        """`coordinates(group_id)`: whether this broker is the group's coordinator now."""
        self._coordinates = coordinates
        self._store = store
        self._new_member_id = new_member_id
        self._initial_delay_ms = initial_delay_ms
        self._limits = limits
        self._groups: dict[str, Group] = {}
        self._sizes_bytes: dict[str, int] = {}
        self._size_bytes = 0  # of all groups' metadata and assignments
        self._deadlines = Deadlines()

    def join(self, request: Join, now_ms: int, reply: ReplyToJoin) -> None:
        error = self.misplaced(request.group_id)
        if error is ErrorCode.NONE:
            error = self._refuse_limits(request)
        group = self._groups.get(request.group_id)
        if error is ErrorCode.NONE and group is None:
            if request.member_id:
                error = ErrorCode.UNKNOWN_MEMBER_ID
            elif len(self._groups) >= GROUPS_MAX:
                error = ErrorCode.COORDINATOR_NOT_AVAILABLE
        if error is not ErrorCode.NONE:
            reply(JoinReply(error=error, member_id=request.member_id))
            return
        if group is None:
            group = self._groups[request.group_id] = self._new_group(request.group_id)
        group.join(request, now_ms, reply)
        self._changed(group)

    def sync(self, request: Sync, now_ms: int, reply: ReplyToSync) -> None:
        error, group = self._find(request.group_id)
        assigned_bytes = sum(map(len, request.assignments.values()))
        if group is None:
            reply(SyncReply(error=error))
        elif self._has_no_room(assigned_bytes - group.assigned_bytes):
            reply(SyncReply(error=ErrorCode.COORDINATOR_NOT_AVAILABLE))
        else:
            group.sync(request, now_ms, reply)
            self._changed(group)

    def heartbeat(
        self, group_id: str, member_id: str, instance_id: str | None, generation_id: int, now_ms: int
    ) -> ErrorCode:
        error, group = self._find(group_id)
        # It only puts off a deadline: the group is looked at when the earlier one comes.
        return error if group is None else group.heartbeat(member_id, instance_id, generation_id, now_ms)

    def leave(self, group_id: str, member_id: str, instance_id: str | None, now_ms: int) -> ErrorCode:
        error, group = self._find(group_id)
        if group is None:
            return error
        error = group.leave(member_id, instance_id, now_ms)
        if error is ErrorCode.NONE:
            self._changed(group)
        return error

    def check_commit(
        self, group_id: str, member_id: str, instance_id: str | None, generation_id: int
    ) -> ErrorCode:
        """Returns NONE if this member may commit offsets. A client outside the group (no generation) may
        while the group is empty.
        """
        error = self.misplaced(group_id)
        if error is not ErrorCode.NONE:
            return error
        group = self._groups.get(group_id)
        if group is not None:
            return group.check_commit(member_id, instance_id, generation_id)
        if generation_id >= 0:
            return ErrorCode.ILLEGAL_GENERATION
        return ErrorCode.UNKNOWN_MEMBER_ID if member_id else ErrorCode.NONE

    def misplaced(self, group_id: str) -> ErrorCode:
        """Returns NONE if this broker coordinates the group; else the error that says so."""
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID
        return ErrorCode.NONE if self._coordinates(group_id) else ErrorCode.NOT_COORDINATOR

    def refuse_delete(self, group_id: str) -> ErrorCode:
        """Returns NONE if the group's offsets may be deleted: it has no members."""
        error = self.misplaced(group_id)
        if error is ErrorCode.NONE and group_id in self._groups:
            return ErrorCode.NON_EMPTY_GROUP
        return error

    def refuse_offset_deletion(self, group_id: str, topics: Collection[str]) -> tuple[ErrorCode, Set[str]]:
        """Returns NONE if the group may lose offsets, and of which topics it may not: members read those. All
        of `topics`, while the members rebalance, or if it is not known what they read.
        """
        error, found = self.describe(group_id)
        if error is not ErrorCode.NONE or found is None:
            return error, frozenset()
        if found.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return ErrorCode.NON_EMPTY_GROUP, frozenset()
        read = subscribed_topics(member.metadata for member in found.members)
        return ErrorCode.NONE, frozenset(topics) if read is None else read

    def describe(self, group_id: str) -> tuple[ErrorCode, GroupDescription | None]:
        """Returns the group's state; (NONE, None) if it has no members; it may still have offsets."""
        error = self.misplaced(group_id)
        group = self._groups.get(group_id)
        return error, None if group is None or error is not ErrorCode.NONE else group.describe()

    def groups(self) -> list[GroupOverview]:
        return [group.overview() for group in self._groups.values()]

    def next_deadline_ms(self) -> int | None:
        """Returns when `expire_and_advance` must run next; None if no group has a deadline."""
        return self._deadlines.first_ms()

    def expire_and_advance(self, now_ms: int, *, size_max_bytes: float = math.inf) -> int:
        """Returns how many groups were looked at: those whose deadline was reached, or as many of them as
        take `size_max_bytes` together. What is left is due still.
        """
        left_bytes = size_max_bytes

        def is_enough(group_id: str) -> bool:
            nonlocal left_bytes
            left_bytes -= GROUP_OVERHEAD_BYTES + self._sizes_bytes.get(group_id, 0)
            return left_bytes <= 0

        due = self._deadlines.take_due(now_ms, is_enough)
        for group_id in due:
            group = self._groups.get(group_id)
            if group is None:
                continue
            deadline_ms = group.next_deadline_ms()
            if deadline_ms is not None and deadline_ms <= now_ms:
                group.expire_and_advance(now_ms)
            self._changed(group)
        return len(due)

    # --- moves ---

    def knows(self, group_id: str) -> bool:
        return group_id in self._groups

    def restore(self, group_id: str, generation: StoredGeneration, now_ms: int) -> None:
        """Takes over a group, not known yet, as its last coordinator has stored it: even if there is no room
        for it, since its members were let in before.
        """
        group = self._groups[group_id] = self._new_group(group_id)
        group.restore(generation, now_ms)
        self._changed(group)

    def brokers_changed(self, *, has_registered: bool = False) -> None:
        """Forgets the groups that another broker coordinates now; all, if this one has registered again:
        others may have coordinated them meanwhile, and what its members read may have been given to others.
        """
        for group_id in [g for g in self._groups if has_registered or not self._coordinates(g)]:
            self.disband(group_id, ErrorCode.NOT_COORDINATOR)

    def disband(self, group_id: str, error: ErrorCode) -> None:
        """Forgets a group, if it is known. What its members wait for ends with `error`."""
        group = self._groups.get(group_id)
        if group is not None:
            self._forget(group_id)
            group.disband(error)

    def _new_group(self, group_id: str) -> Group:
        return Group(
            group_id,
            new_member_id=self._new_member_id,
            store=self._store_generation,
            initial_delay_ms=self._initial_delay_ms,
            members_max=self._limits.members_max,
        )

    def _store_generation(self, group: Group, generation: StoredGeneration | None, then: Stored) -> None:
        def stored(now_ms: int) -> None:
            if self._groups.get(group.group_id) is group:
                then(now_ms)
                self._changed(group)

        self._store(group.group_id, generation, stored)

    def _find(self, group_id: str) -> tuple[ErrorCode, Group | None]:
        error = self.misplaced(group_id)
        if error is not ErrorCode.NONE:
            return error, None
        return ErrorCode.UNKNOWN_MEMBER_ID, self._groups.get(group_id)

    def _changed(self, group: Group) -> None:
        """Notes a group's next deadline and its size; forgets it if it has neither members nor a deadline."""
        group_id, deadline_ms = group.group_id, group.next_deadline_ms()
        if self._groups.get(group_id) is not group:
            return  # it was disbanded meanwhile
        if deadline_ms is None and group.state is GroupState.EMPTY:
            self._forget(group_id)
            return
        self._size_bytes += group.size_bytes - self._sizes_bytes.get(group_id, 0)
        self._sizes_bytes[group_id] = group.size_bytes
        if deadline_ms is not None:
            self._deadlines.put(group_id, deadline_ms)

    def _forget(self, group_id: str) -> None:
        del self._groups[group_id]
        self._size_bytes -= self._sizes_bytes.pop(group_id, 0)
        self._deadlines.remove(group_id)

    def _refuse_limits(self, request: Join) -> ErrorCode:
        limits = self._limits
        session_ms = request.session_timeout_ms
        if not limits.session_timeout_min_ms <= session_ms <= limits.session_timeout_max_ms:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        if len(request.protocols) > PROTOCOLS_MAX or len(request.protocol_type) > PROTOCOL_TYPE_LENGTH_MAX:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if request.metadata_bytes > MEMBER_METADATA_MAX_BYTES:
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        group = self._groups.get(request.group_id)
        if self._has_no_room(request.size_bytes if group is None else group.growth_bytes(request)):
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return ErrorCode.NONE

    def _has_no_room(self, growth_bytes: int) -> bool:
        """Whether all groups' memory is taken. Members that need no more than they have are still served."""
        return growth_bytes > 0 and self._size_bytes + growth_bytes > ALL_METADATA_MAX_BYTES
