"""One consumer group: its members, its generation, its parked requests. Owns nothing outside itself.

The state machine of Kafka's classic group protocol. Members join, the first of them leads. When all have
joined (or the rebalance timeout is over) a new generation begins, and the leader gets the metadata of all
members. Its SyncGroup carries the assignment, which is stored (`store`); then the response to each member's
SyncGroup is the member's part of it. `now_ms` is an argument of each call. A response that has to wait is a
callback, called exactly once.

Source: https://kafka.apache.org/protocol; KIP-62 (rebalance timeout), KIP-345 (static members), KIP-394.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.broker.groups import replies
from headrace.broker.groups.generations import StoredGeneration
from headrace.broker.groups.member import Member, ReplyToJoin, ReplyToSync, choose_protocol
from headrace.broker.groups.members import Members
from headrace.broker.groups.replies import Generation
from headrace.broker.groups.returning import is_suited
from headrace.broker.groups.types import (
    GROUP_METADATA_MAX_BYTES,
    PROMISED_BYTES,
    GroupDescription,
    GroupOverview,
    GroupState,
    Join,
    JoinReply,
    Sync,
    SyncReply,
)
from headrace.wire.errors import ErrorCode

Stored = Callable[[int], None]
Store = Callable[["Group", StoredGeneration | None, Stored], None]
"""Stores a generation (None: no members), and calls back with the time then; or else disbands the group."""


class Group:
    """One group's state machine. All calls come from one thread."""

    def __init__(
        self,
        group_id: str,
        *,
        new_member_id: Callable[[str], str],
        store: Store,
        initial_delay_ms: int,
        members_max: int,
    ) -> None:
        """`new_member_id` makes a unique id from a client id; `initial_delay_ms` is how long an empty group
        waits for more members.
        """
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.generation_id = 0
        self.protocol_type = self.protocol_name = self.leader_id = ""
        self._members = Members()
        self._members_max = members_max
        self._promised: dict[str, int] = {}  # ids of members yet to join (KIP-394) → until when they may
        self._phase_deadline_ms = 0  # end of joining or syncing
        self._phase_earliest_ms = 0  # an empty group's first generation does not begin before
        self._new_member_id = new_member_id
        self._store = store
        self._is_stored = False  # whether any generation was to be stored
        self._is_assigned = False  # the present generation, which may not be stored yet
        self._initial_delay_ms = initial_delay_ms

    def restore(self, generation: StoredGeneration, now_ms: int) -> None:
        """Gives a new group the members that another coordinator has stored: each has its part, and a whole
        session timeout to say that it lives.
        """
        for stored in generation.members:
            self._members.add(Member.restored(stored, now_ms))
        self.generation_id, self.leader_id = generation.generation_id, generation.leader_id
        self.protocol_type, self.protocol_name = generation.protocol_type, generation.protocol_name
        self.state, self._is_stored, self._is_assigned = GroupState.STABLE, True, True

    @property
    def size_bytes(self) -> int:
        """How much memory it takes, about."""
        return self._members.size_bytes + len(self._promised) * PROMISED_BYTES

    @property
    def assigned_bytes(self) -> int:
        """How much of it the present assignment takes."""
        return sum(len(member.assignment) for member in self._members.all())

    def growth_bytes(self, request: Join) -> int:
        """How much more memory the group takes with what a member says of itself now: nothing if it has said
        the same before.
        """
        known = self._members.of(request)
        return request.size_bytes - (0 if known is None else known.size_bytes - len(known.assignment))

    # --- requests ---

    def join(self, request: Join, now_ms: int, reply: ReplyToJoin) -> None:
        """Takes a member into the next generation; the reply comes at once or when that begins."""
        error = self._refuse_join(request)
        if error is not ErrorCode.NONE:
            reply(JoinReply(error=error, member_id=request.member_id))
            return
        standing = self._members.static(request.group_instance_id)
        if request.member_id:
            self._rejoin(request, now_ms, reply, standing)
        elif standing is not None:
            self._replace_static(standing, request, now_ms, reply)
        elif request.requires_known_member and request.group_instance_id is None:
            member_id = self._new_member_id(request.client_id)
            self._promised[member_id] = now_ms + request.session_timeout_ms
            reply(JoinReply(error=ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id))
        else:
            self._admit(self._new_member_id(request.client_id), request, now_ms, reply)

    def sync(self, request: Sync, now_ms: int, reply: ReplyToSync) -> None:
        """Takes the leader's assignment; replies with the member's part of it as soon as it is known."""
        error = self.check_member(request.member_id, request.group_instance_id, request.generation_id)
        if error is ErrorCode.NONE and not self._generation.is_named_by(request):
            error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if error is ErrorCode.NONE and self.state is GroupState.PREPARING_REBALANCE:
            error = ErrorCode.REBALANCE_IN_PROGRESS
        if error is not ErrorCode.NONE:
            reply(SyncReply(error=error))
            return
        member = self._members[request.member_id]
        member.extend(now_ms)
        if self.state is GroupState.STABLE:
            reply(self._synced(member))
            return
        # The member may have an older request parked.
        member.complete_sync(SyncReply(error=ErrorCode.REBALANCE_IN_PROGRESS))
        member.reply_to_sync = reply
        if request.member_id == self.leader_id and not self._is_assigned:
            self._assign(request.assignments)

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, now_ms: int) -> ErrorCode:
        """Extends a member's session; returns NONE, or the error that makes it join again."""
        error = self.check_member(member_id, instance_id, generation)
        if error is not ErrorCode.NONE:
            return error
        self._members[member_id].extend(now_ms)
        rebalances = self.state is GroupState.PREPARING_REBALANCE
        return ErrorCode.REBALANCE_IN_PROGRESS if rebalances else ErrorCode.NONE

    def leave(self, member_id: str, instance_id: str | None, now_ms: int) -> ErrorCode:
        """Removes a member; the others rebalance. A static member may be named by its instance id alone."""
        standing = self._members.static(instance_id)
        if instance_id is not None:
            if standing is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if member_id and standing.member_id != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
            member_id = standing.member_id
        if self._promised.pop(member_id, None) is not None:
            self._begin_if_all_joined(now_ms)
            return ErrorCode.NONE
        if member_id not in self._members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        self._members.remove(member_id, ErrorCode.UNKNOWN_MEMBER_ID)
        self._after_loss(now_ms)
        return ErrorCode.NONE

    def check_member(self, member_id: str, instance_id: str | None, generation_id: int) -> ErrorCode:
        """Returns NONE for a member of the present generation."""
        standing = self._members.static(instance_id)
        if instance_id is not None and standing is not None and standing.member_id != member_id:
            return ErrorCode.FENCED_INSTANCE_ID
        if member_id not in self._members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if generation_id == self.generation_id else ErrorCode.ILLEGAL_GENERATION

    def check_commit(self, member_id: str, instance_id: str | None, generation_id: int) -> ErrorCode:
        """Returns NONE if offsets may be committed. A client outside the group (no generation) may commit
        only while the group is empty.
        """
        if generation_id < 0 and not member_id:
            return ErrorCode.NONE if not self._members else ErrorCode.UNKNOWN_MEMBER_ID
        error = self.check_member(member_id, instance_id, generation_id)
        if error is ErrorCode.NONE and self.state is GroupState.COMPLETING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return error

    def overview(self) -> GroupOverview:
        return GroupOverview(group_id=self.group_id, state=self.state, protocol_type=self.protocol_type)

    def describe(self) -> GroupDescription:
        return replies.described(self.group_id, self.state, self._generation, self._members.all())

    # --- time ---

    def next_deadline_ms(self) -> int | None:
        """Returns when `expire_and_advance` has something to do; None if nothing has a deadline."""
        deadlines = [m.session_deadline_ms for m in self._members.all() if not m.waits]
        deadlines.extend(self._promised.values())
        if self.state is GroupState.PREPARING_REBALANCE:
            deadlines.append(self._phase_deadline_ms)
            if self._all_joined():
                deadlines.append(self._phase_earliest_ms)
        elif self.state is GroupState.COMPLETING_REBALANCE:
            deadlines.append(self._phase_deadline_ms)
        return min(deadlines, default=None)

    def expire_and_advance(self, now_ms: int) -> None:
        """Removes members whose session is over, and ends phases whose time is over."""
        for member_id in [i for i, until_ms in self._promised.items() if until_ms <= now_ms]:
            del self._promised[member_id]
        silent = [m for m in self._members.all() if not m.waits and m.session_deadline_ms <= now_ms]
        for member in silent:
            self._members.remove(member.member_id, ErrorCode.UNKNOWN_MEMBER_ID)
        if silent:
            self._after_loss(now_ms)
        if self.state is GroupState.PREPARING_REBALANCE:
            if now_ms >= self._phase_deadline_ms:
                self._begin_generation(now_ms)
            else:
                self._begin_if_all_joined(now_ms)
        elif self.state is GroupState.COMPLETING_REBALANCE and now_ms >= self._phase_deadline_ms:
            for member_id in [m.member_id for m in self._members.all() if m.reply_to_sync is None]:
                self._members.remove(member_id, ErrorCode.UNKNOWN_MEMBER_ID)
            self._after_loss(now_ms)

    def disband(self, error: ErrorCode) -> None:
        """Removes all members with `error`: this broker no longer coordinates the group."""
        for member in list(self._members.all()):
            self._members.remove(member.member_id, error)
        self._promised.clear()
        self.state = GroupState.DEAD

    # --- joining ---

    def _refuse_join(self, request: Join) -> ErrorCode:
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if not request.protocol_type or not request.protocols:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        growth_bytes = self.growth_bytes(request)
        if growth_bytes > 0 and self.size_bytes + growth_bytes > GROUP_METADATA_MAX_BYTES:
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        if not self._members.are_consistent_with(request, self.protocol_type):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        is_new = not request.member_id and self._members.of(request) is None
        if is_new and len(self._members) + len(self._promised) >= self._members_max:
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        return ErrorCode.NONE

    def _rejoin(self, request: Join, now_ms: int, reply: ReplyToJoin, standing: Member | None) -> None:
        member_id = request.member_id
        if standing is not None and standing.member_id != member_id:
            reply(JoinReply(error=ErrorCode.FENCED_INSTANCE_ID, member_id=member_id))
        elif self._promised.pop(member_id, None) is not None:
            self._admit(member_id, request, now_ms, reply)
        elif member_id not in self._members:
            reply(JoinReply(error=ErrorCode.UNKNOWN_MEMBER_ID, member_id=member_id))
        else:
            self._refresh(self._members[member_id], request, now_ms, reply)

    def _admit(self, member_id: str, request: Join, now_ms: int, reply: ReplyToJoin) -> None:
        first = not self._members
        self.protocol_type = request.protocol_type
        self._members.add(Member.joining(member_id, request, now_ms, reply))
        self._prepare(now_ms, earliest_ms=now_ms + self._initial_delay_ms if first else now_ms)

    def _refresh(self, member: Member, request: Join, now_ms: int, reply: ReplyToJoin) -> None:
        """Serves a member that joins again: a rebalance if it leads or has new protocols, else the present
        generation.
        """
        is_changed = member.protocols != request.protocols
        self._members.renew(member, request, now_ms)
        has_generation = self.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE)
        leads_stable = self.state is GroupState.STABLE and member.member_id == self.leader_id
        if has_generation and not is_changed and not leads_stable:
            reply(self._joined(member))
            return
        member.complete_join(JoinReply(error=ErrorCode.REBALANCE_IN_PROGRESS, member_id=member.member_id))
        member.reply_to_join = reply
        self._prepare(now_ms, earliest_ms=now_ms)

    def _replace_static(self, old: Member, request: Join, now_ms: int, reply: ReplyToJoin) -> None:
        """Gives a restarted static member (KIP-345) a new member id, and its old place and assignment."""
        was_leader = old.member_id == self.leader_id
        old.complete_join(JoinReply(error=ErrorCode.FENCED_INSTANCE_ID, member_id=old.member_id))
        old.complete_sync(SyncReply(error=ErrorCode.FENCED_INSTANCE_ID))
        before = old.protocols
        self._members.rename(old, self._new_member_id(request.client_id))
        self._members.renew(old, request, now_ms)
        old.reply_to_join = reply
        self.leader_id = old.member_id if was_leader else self.leader_id
        is_stable = self.state is GroupState.STABLE and (request.knows_skipping or not was_leader)
        if is_stable and is_suited(old, before, self._members.all(), self._generation):
            # Its new id must be stored first: another coordinator would take it for fenced.
            self._store(self, self._to_store(), lambda stored_ms: self._replaced(old, reply, stored_ms))
        else:
            self._prepare(now_ms, earliest_ms=now_ms)

    def _replaced(self, member: Member, reply: ReplyToJoin, now_ms: int) -> None:
        if self.state is GroupState.STABLE and member.reply_to_join is reply:
            member.extend(now_ms)
            member.complete_join(self._joined(member, is_stable=True))

    # --- phases ---

    def _prepare(self, now_ms: int, *, earliest_ms: int) -> None:
        """Begins to wait for all members to join again, unless that has begun; ends the wait if all have."""
        if self.state is not GroupState.PREPARING_REBALANCE:
            for member in self._members.all():
                if member.reply_to_sync is not None:  # it has sent no heartbeats meanwhile
                    member.extend(now_ms)
                    member.complete_sync(SyncReply(error=ErrorCode.REBALANCE_IN_PROGRESS))
            self.state = GroupState.PREPARING_REBALANCE
            timeout_ms = max(m.rebalance_timeout_ms for m in self._members.all())
            self._phase_deadline_ms = now_ms + timeout_ms
            self._phase_earliest_ms = min(earliest_ms, self._phase_deadline_ms)
        self._begin_if_all_joined(now_ms)

    def _all_joined(self) -> bool:
        return not self._promised and all(m.reply_to_join is not None for m in self._members.all())

    def _begin_if_all_joined(self, now_ms: int) -> None:
        is_time = self.state is GroupState.PREPARING_REBALANCE and now_ms >= self._phase_earliest_ms
        if is_time and self._all_joined():
            self._begin_generation(now_ms)

    def _begin_generation(self, now_ms: int) -> None:
        """Goes on with the members that have joined. Static ones stay, too, until their session is over: they
        may be about to come back (KIP-345), and keep their part of the assignment.
        """
        joined = [m for m in self._members.all() if m.reply_to_join is not None]
        absent = [m for m in self._members.all() if m.reply_to_join is None]
        for member_id in [m.member_id for m in absent if m.group_instance_id is None]:
            self._members.remove(member_id, ErrorCode.UNKNOWN_MEMBER_ID)
        if not self._members:
            self._become_empty()
            return
        self._phase_deadline_ms = now_ms + max(m.rebalance_timeout_ms for m in self._members.all())
        if not joined:
            return  # it goes on to wait for one of them
        self.generation_id += 1
        self.protocol_name = choose_protocol(list(self._members.all()))
        if self.leader_id not in {m.member_id for m in joined}:
            self.leader_id = joined[0].member_id
        self.state, self._is_assigned = GroupState.COMPLETING_REBALANCE, False
        for member in joined:
            member.extend(now_ms)
            member.complete_join(self._joined(member))

    def _assign(self, assignments: dict[str, bytes]) -> None:
        """Takes the assignment. Each member gets its part as soon as all parts are stored."""
        self._is_assigned = True
        for member in self._members.all():
            self._members.assign(member, assignments.get(member.member_id, b""))
        generation_id = self.generation_id
        self._store(self, self._to_store(), lambda now_ms: self._become_stable(generation_id, now_ms))

    def _become_stable(self, generation_id: int, now_ms: int) -> None:
        """Unless the members rebalance again already."""
        if self.generation_id != generation_id or self.state is not GroupState.COMPLETING_REBALANCE:
            return
        self.state = GroupState.STABLE
        for member in self._members.all():
            if member.reply_to_sync is not None:
                member.extend(now_ms)
                member.complete_sync(self._synced(member))

    def _become_empty(self) -> None:
        self.state = GroupState.EMPTY
        self.generation_id += 1
        self.leader_id = self.protocol_name = ""
        if self._is_stored:
            self._store(self, None, lambda _: None)

    def _after_loss(self, now_ms: int) -> None:
        """Rebalances the members that remain."""
        if self._members:
            self._prepare(now_ms, earliest_ms=now_ms)
        elif self.state is not GroupState.EMPTY:
            self._become_empty()

    # --- replies ---

    def _joined(self, member: Member, *, is_stable: bool = False) -> JoinReply:
        return replies.joined(self._generation, self._members.all(), member, is_stable=is_stable)

    def _synced(self, member: Member) -> SyncReply:
        return replies.synced(self._generation, member)

    @property
    def _generation(self) -> Generation:
        return Generation(self.generation_id, self.protocol_type, self.protocol_name, self.leader_id)

    def _to_store(self) -> StoredGeneration:
        self._is_stored = True
        return StoredGeneration(
            generation_id=self.generation_id,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader_id=self.leader_id,
            members=tuple(member.stored() for member in self._members.all()),
        )
