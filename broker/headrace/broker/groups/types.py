"""The requests, replies and bounds of a group, as plain values.

Source: https://kafka.apache.org/protocol (JoinGroup, SyncGroup, DescribeGroups), KIP-345 (static members),
KIP-394 (a member gets its id before it joins).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from headrace.wire.errors import ErrorCode

NO_GENERATION: Final = -1
GROUPS_MAX: Final = 10_000
GROUP_OVERHEAD_BYTES: Final = 1_024
PROTOCOLS_MAX: Final = 32  # that one member may know
PROTOCOL_TYPE_LENGTH_MAX: Final = 255  # in characters
MEMBER_METADATA_MAX_BYTES: Final = 1 << 20  # of all its protocols, and its instance id
# The leader's response holds the metadata of all members; clients accept responses of up to 100 MB.
GROUP_METADATA_MAX_BYTES: Final = 32 << 20
MEMBER_OVERHEAD_BYTES: Final = 1_024  # charged for a member beside its metadata and assignment
PROMISED_BYTES: Final = 512  # charged for the id of a member that is yet to join
ALL_METADATA_MAX_BYTES: Final = 256 << 20  # of all groups of this broker, assignments included


class GroupLimits(NamedTuple):
    """The bounds that settings may change."""

    session_timeout_min_ms: int = 1_000
    session_timeout_max_ms: int = 1_800_000
    members_max: int = 1_000


class GroupState(Enum):
    """The states, by the names that DescribeGroups and ListGroups show."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class MemberProtocol(NamedTuple):
    """One way of assigning partitions that a member knows, with the bytes that the leader needs for it."""

    name: str
    metadata: bytes


def metadata_bytes(protocols: tuple[MemberProtocol, ...], group_instance_id: str | None) -> int:
    return len(group_instance_id or "") + sum(len(each.name) + len(each.metadata) for each in protocols)


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    group_id: str
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[MemberProtocol, ...]
    requires_known_member: bool
    knows_skipping: bool = False  # a leader that comes back may be asked for no assignment

    @property
    def metadata_bytes(self) -> int:
        """How much memory it takes, about, what the member says of itself."""
        return metadata_bytes(self.protocols, self.group_instance_id)

    @property
    def size_bytes(self) -> int:
        """How much memory a member takes, about, that has said this: without its assignment."""
        return MEMBER_OVERHEAD_BYTES + len(self.client_id) + self.metadata_bytes


class JoinedMember(NamedTuple):
    member_id: str
    group_instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinReply:
    error: ErrorCode
    member_id: str
    generation_id: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader_id: str = ""
    members: tuple[JoinedMember, ...] = ()
    skips_assignment: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    group_id: str
    member_id: str
    group_instance_id: str | None
    generation_id: int
    protocol_type: str | None
    protocol_name: str | None
    assignments: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncReply:
    error: ErrorCode
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberDescription:
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOverview:
    """What ListGroups shows."""

    group_id: str
    state: GroupState
    protocol_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    group_id: str
    state: GroupState
    protocol_type: str
    protocol_name: str
    members: tuple[MemberDescription, ...]
