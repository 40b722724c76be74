"""The members of one group, by id and by group instance id (KIP-345), and how much memory they take.

Owns the table alone: the group decides who comes and goes.
"""

from __future__ import annotations

from collections.abc import Collection

from headrace.broker.groups.member import Member, share_a_protocol
from headrace.broker.groups.types import Join, JoinReply, SyncReply
from headrace.wire.errors import ErrorCode


class Members:
    """`size_bytes`: how much memory they take, about."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self._by_id: dict[str, Member] = {}
        self._static: dict[str, Member] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._by_id

    def __getitem__(self, member_id: str) -> Member:
        return self._by_id[member_id]

    def get(self, member_id: str) -> Member | None:
        return self._by_id.get(member_id)

    def all(self) -> Collection[Member]:
        """Returns them in the order in which they came."""
        return self._by_id.values()

    def static(self, instance_id: str | None) -> Member | None:
        return None if instance_id is None else self._static.get(instance_id)

    def of(self, request: Join) -> Member | None:
        """Returns the member that a JoinGroup names; None for a new one."""
        return self.get(request.member_id) if request.member_id else self.static(request.group_instance_id)

    def are_consistent_with(self, request: Join, protocol_type: str) -> bool:
        """Whether the group's protocol type and a protocol that all others know are the request's, too."""
        others = [member for member in self.all() if member.member_id != request.member_id]
        fits = request.protocol_type == protocol_type and share_a_protocol(request, others)
        return fits or not others

    def add(self, member: Member) -> None:
        self._by_id[member.member_id] = member
        self.size_bytes += member.size_bytes
        if member.group_instance_id is not None:
            self._static[member.group_instance_id] = member

    def remove(self, member_id: str, error: ErrorCode) -> None:
        """Completes with `error` what the member waits for."""
        member = self._by_id.pop(member_id)
        self.size_bytes -= member.size_bytes
        if member.group_instance_id is not None:
            self._static.pop(member.group_instance_id, None)
        member.complete_join(JoinReply(error=error, member_id=member_id))
        member.complete_sync(SyncReply(error=error))

    def rename(self, member: Member, member_id: str) -> None:
        """Gives a member another id, the last place, and its old part of the assignment."""
        del self._by_id[member.member_id]
        member.member_id = member_id
        self._by_id[member_id] = member

    def renew(self, member: Member, request: Join, now_ms: int) -> None:
        """Takes what a member's latest JoinGroup says of it: a restarted one may have other settings."""
        before_bytes = member.size_bytes
        member.protocols, member.client_id = request.protocols, request.client_id
        self.size_bytes += member.size_bytes - before_bytes
        member.client_host = request.client_host
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.extend(now_ms)

    def assign(self, member: Member, assignment: bytes) -> None:
        self.size_bytes += len(assignment) - len(member.assignment)
        member.assignment = assignment
