"""One member of a consumer group: its timeouts, its protocols, its parked requests.

Owns the choice of a protocol that all members know, too. Decides nothing else for the group.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from headrace.broker.groups.generations import StoredMember
from headrace.broker.groups.types import (
    MEMBER_OVERHEAD_BYTES,
    Join,
    JoinReply,
    MemberDescription,
    MemberProtocol,
    SyncReply,
    metadata_bytes,
)

ReplyToJoin = Callable[[JoinReply], None]
ReplyToSync = Callable[[SyncReply], None]


@dataclass(slots=True, kw_only=True)
class Member:
    """A member. `reply_to_join` and `reply_to_sync` complete its parked requests."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[MemberProtocol, ...]
    session_deadline_ms: int
    assignment: bytes = b""
    reply_to_join: ReplyToJoin | None = None
    reply_to_sync: ReplyToSync | None = None

    @classmethod
    def joining(cls, member_id: str, request: Join, now_ms: int, reply: ReplyToJoin) -> Self:
        """Returns a new member."""
        return cls(
            member_id=member_id,
            group_instance_id=request.group_instance_id,
            client_id=request.client_id,
            client_host=request.client_host,
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            protocols=request.protocols,
            session_deadline_ms=now_ms + request.session_timeout_ms,
            reply_to_join=reply,
        )

    @classmethod
    def restored(cls, stored: StoredMember, now_ms: int) -> Self:
        """Returns a member as it was stored. Its session begins anew."""
        return cls(**stored._asdict(), session_deadline_ms=now_ms + stored.session_timeout_ms)

    def stored(self) -> StoredMember:
        """Returns what is stored of it."""
        return StoredMember(*(getattr(self, name) for name in StoredMember._fields))

    def extend(self, now_ms: int) -> None:
        """Lets its session begin anew."""
        self.session_deadline_ms = now_ms + self.session_timeout_ms

    def metadata_for(self, protocol_name: str) -> bytes:
        """Returns this member's bytes for a protocol; all members of a generation know the chosen one."""
        return next(p.metadata for p in self.protocols if p.name == protocol_name)

    @property
    def metadata_bytes(self) -> int:
        """What it says of itself takes so much memory, about."""
        return metadata_bytes(self.protocols, self.group_instance_id)

    @property
    def size_bytes(self) -> int:
        """How much memory it takes, about."""
        return MEMBER_OVERHEAD_BYTES + len(self.client_id) + self.metadata_bytes + len(self.assignment)

    @property
    def waits(self) -> bool:
        """Whether a request is parked: the member sends no heartbeats then, and its session does not end."""
        return self.reply_to_join is not None or self.reply_to_sync is not None

    def complete_join(self, reply: JoinReply) -> None:
        """Completes the parked JoinGroup, if there is one."""
        waiting, self.reply_to_join = self.reply_to_join, None
        if waiting is not None:
            waiting(reply)

    def complete_sync(self, reply: SyncReply) -> None:
        """Completes the parked SyncGroup, if there is one."""
        waiting, self.reply_to_sync = self.reply_to_sync, None
        if waiting is not None:
            waiting(reply)

    def describe(self, protocol_name: str | None) -> MemberDescription:
        """Returns what DescribeGroups shows: without a protocol (no stable generation) no assignment."""
        return MemberDescription(
            member_id=self.member_id,
            group_instance_id=self.group_instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            metadata=b"" if protocol_name is None else self.metadata_for(protocol_name),
            assignment=b"" if protocol_name is None else self.assignment,
        )


def known_to_all(members: list[Member]) -> set[str]:
    """Returns the names of the protocols that all members know."""
    return set.intersection(*({p.name for p in m.protocols} for m in members))


def share_a_protocol(request: Join, others: list[Member]) -> bool:
    """Whether a member that joins knows a protocol that all others know."""
    return not others or bool({p.name for p in request.protocols} & known_to_all(others))


def choose_protocol(members: list[Member]) -> str:
    """Returns the protocol with most votes, the first by name in a tie. Each member votes for the first one
    in its list that all know.
    """
    common = known_to_all(members)
    votes: dict[str, int] = {}
    for member in members:
        choice = next(p.name for p in member.protocols if p.name in common)
        votes[choice] = votes.get(choice, 0) + 1
    return min(votes, key=lambda name: (-votes[name], name))
