"""What a group answers to its members, and what it shows of itself. Pure functions of its members."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from headrace.broker.groups.member import Member
from headrace.broker.groups.types import (
    GroupDescription,
    GroupState,
    JoinedMember,
    JoinReply,
    Sync,
    SyncReply,
)
from headrace.wire.errors import ErrorCode


class Generation(NamedTuple):
    """A group's present generation, and what was chosen for it."""

    number: int
    protocol_type: str
    protocol_name: str
    leader_id: str

    def is_named_by(self, request: Sync) -> bool:
        """Whether a SyncGroup names the protocol that was chosen, or none, as older versions do."""
        same_type = request.protocol_type in (None, self.protocol_type)
        return same_type and request.protocol_name in (None, self.protocol_name)


def joined(
    generation: Generation, members: Collection[Member], member: Member, *, is_stable: bool = False
) -> JoinReply:
    """Returns the answer to a member's JoinGroup: the leader gets the metadata of all, and need not assign
    anything in a stable generation (KIP-814).
    """
    number, protocol_type, protocol_name, leader_id = generation
    shown: tuple[JoinedMember, ...] = ()
    if member.member_id == leader_id:
        shown = tuple(
            JoinedMember(each.member_id, each.group_instance_id, each.metadata_for(protocol_name))
            for each in members
        )
    return JoinReply(
        error=ErrorCode.NONE,
        member_id=member.member_id,
        generation_id=number,
        protocol_type=protocol_type,
        protocol_name=protocol_name,
        leader_id=leader_id,
        members=shown,
        skips_assignment=is_stable and member.member_id == leader_id,
    )


def synced(generation: Generation, member: Member) -> SyncReply:
    """Returns the answer to a member's SyncGroup: its part of the assignment."""
    return SyncReply(
        error=ErrorCode.NONE,
        protocol_type=generation.protocol_type,
        protocol_name=generation.protocol_name,
        assignment=member.assignment,
    )


def described(
    group_id: str, state: GroupState, generation: Generation, members: Collection[Member]
) -> GroupDescription:
    """Returns what DescribeGroups shows: metadata and assignments only of a stable generation."""
    protocol = generation.protocol_name if state is GroupState.STABLE else None
    return GroupDescription(
        group_id=group_id,
        state=state,
        protocol_type=generation.protocol_type,
        protocol_name=protocol or "",
        members=tuple(member.describe(protocol) for member in members),
    )
