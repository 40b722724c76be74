"""All the groups this broker coordinates. Owns the table of groups and its bound; offsets are elsewhere
(ZooKeeper).

Which broker coordinates a group is a pure function of the live brokers (`coordinator_for`, rendezvous
hashing): when a broker comes or goes, only its own groups move. Membership is kept in memory only: after a
move the members get NOT_COORDINATOR or UNKNOWN_MEMBER_ID, find the new coordinator, join there and continue
at their stored offsets.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterable, Set
from typing import Final

from headrace.broker.groups.deadlines import Deadlines
from headrace.broker.groups.group import Group
from headrace.broker.groups.member import ReplyToJoin, ReplyToSync
from headrace.broker.groups.subscriptions import CONSUMER_PROTOCOL_TYPE, subscribed_topics
from headrace.broker.groups.types import (
    ALL_METADATA_MAX_BYTES,
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


class GroupCoordinator:
    """The groups of one broker. Called on the event loop's thread only; `now_ms` is an argument."""

    def __init__(
        self,
        *,
        coordinates: Callable[[str], bool],
        new_member_id: Callable[[str], str],
        initial_delay_ms: int,
        limits: GroupLimits = DEFAULT_LIMITS,
    ) -> None:
        """`coordinates(group_id)`: whether this broker is the group's coordinator now."""
        self._coordinates = coordinates
        self._new_member_id = new_member_id
        self._initial_delay_ms = initial_delay_ms
        self._limits = limits
        self._groups: dict[str, Group] = {}
        self._size_bytes = 0  # of all groups' metadata and assignments
        self._deadlines = Deadlines()

    def join(self, request: Join, now_ms: int, reply: ReplyToJoin) -> None:
        error = self._misplaced(request.group_id)
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
            group = Group(
                request.group_id,
                new_member_id=self._new_member_id,
                initial_delay_ms=self._initial_delay_ms,
                members_max=self._limits.members_max,
            )
            self._groups[request.group_id] = group
        before_bytes = group.size_bytes
        group.join(request, now_ms, reply)
        self._changed(group, before_bytes)

    def sync(self, request: Sync, now_ms: int, reply: ReplyToSync) -> None:
        error, group = self._find(request.group_id)
        assigned_bytes = sum(map(len, request.assignments.values()))
        if group is None:
            reply(SyncReply(error=error))
        elif self._has_no_room(assigned_bytes - group.assigned_bytes):
            reply(SyncReply(error=ErrorCode.COORDINATOR_NOT_AVAILABLE))
        else:
            before_bytes = group.size_bytes
            group.sync(request, now_ms, reply)
            self._changed(group, before_bytes)

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
        before_bytes = group.size_bytes
        error = group.leave(member_id, instance_id, now_ms)
        if error is ErrorCode.NONE:
            self._changed(group, before_bytes)
        return error

    def check_commit(
        self, group_id: str, member_id: str, instance_id: str | None, generation_id: int
    ) -> ErrorCode:
        """Returns NONE if this member may commit offsets. A client outside the group (no generation) may
        while the group is empty.
        """
        error = self._misplaced(group_id)
        if error is not ErrorCode.NONE:
            return error
        group = self._groups.get(group_id)
        if group is not None:
            return group.check_commit(member_id, instance_id, generation_id)
        return ErrorCode.NONE if generation_id < 0 and not member_id else ErrorCode.UNKNOWN_MEMBER_ID

    def refuse_offset_read(self, group_id: str) -> ErrorCode:
        """Returns NONE if this broker coordinates the group, and so serves its offsets."""
        return self._misplaced(group_id)

    def refuse_delete(self, group_id: str) -> ErrorCode:
        """Returns NONE if the group's offsets may be deleted: it has no members."""
        error = self._misplaced(group_id)
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
        error = self._misplaced(group_id)
        group = self._groups.get(group_id)
        return error, None if group is None or error is not ErrorCode.NONE else group.describe()

    def groups(self) -> list[GroupOverview]:
        return [group.overview() for group in self._groups.values()]

    def next_deadline_ms(self) -> int | None:
        """Returns when `expire_and_advance` must run next; None if no group has a deadline."""
        return self._deadlines.first_ms()

    def expire_and_advance(self, now_ms: int) -> int:
        """Returns how many groups were looked at: those whose deadline was reached."""
        due = self._deadlines.take_due(now_ms)
        for group_id in due:
            group = self._groups.get(group_id)
            if group is None:
                continue
            deadline_ms = group.next_deadline_ms()
            before_bytes = group.size_bytes
            if deadline_ms is not None and deadline_ms <= now_ms:
                group.expire_and_advance(now_ms)
            self._changed(group, before_bytes)
        return len(due)

    def brokers_changed(self, *, has_registered: bool = False) -> None:
        """Disbands the groups that another broker coordinates now; all, if this one has registered again:
        others may have coordinated them meanwhile, and what its members read may have been given to others.
        """
        for group_id in [g for g in self._groups if has_registered or not self._coordinates(g)]:
            self._size_bytes -= self._groups[group_id].size_bytes
            self._deadlines.remove(group_id)
            self._groups.pop(group_id).disband(ErrorCode.NOT_COORDINATOR)

    def _misplaced(self, group_id: str) -> ErrorCode:
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID
        return ErrorCode.NONE if self._coordinates(group_id) else ErrorCode.NOT_COORDINATOR

    def _find(self, group_id: str) -> tuple[ErrorCode, Group | None]:
        error = self._misplaced(group_id)
        if error is not ErrorCode.NONE:
            return error, None
        return ErrorCode.UNKNOWN_MEMBER_ID, self._groups.get(group_id)

    def _changed(self, group: Group, before_bytes: int) -> None:
        """Notes a group's next deadline and its size; forgets it if it has neither members nor a deadline."""
        deadline_ms = group.next_deadline_ms()
        self._size_bytes += group.size_bytes - before_bytes
        if deadline_ms is not None:
            self._deadlines.put(group.group_id, deadline_ms)
        elif group.state is GroupState.EMPTY and self._groups.pop(group.group_id, None) is not None:
            self._deadlines.remove(group.group_id)

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
        if self._has_no_room(request.metadata_bytes if group is None else group.growth_bytes(request)):
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return ErrorCode.NONE

    def _has_no_room(self, growth_bytes: int) -> bool:
        """Whether all groups' memory is taken. Members that need no more than they have are still served."""
        return growth_bytes > 0 and self._size_bytes + growth_bytes > ALL_METADATA_MAX_BYTES
