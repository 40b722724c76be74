"""Groups of Kafka's own protocol as values, and how their members' assignments are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from kio.schema.consumer_protocol_assignment.v0.data import ConsumerProtocolAssignment

from headrace.client.asking import SilentBroker
from headrace.client.cluster import TopicPartition
from headrace.wire.primitives import ItemBound
from headrace.wire.schemas import BROKEN_MESSAGE, reader

CONSUMER_PROTOCOL: Final = "consumer"
"""The protocol type of consumers; members of other types (connectors) share other things than partitions."""
_VERSION_BYTES: Final = 2


@dataclass(frozen=True, slots=True)
class GroupMember:
    """One member. `client_id` and `host` are what its client said, and where it connected from."""

    member_id: str
    client_id: str
    host: str
    instance_id: str | None
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """One group, as its coordinator describes it. `state`: Kafka's name, such as Stable, Empty or Dead.

    `members` is None if the coordinator did not answer; the state is then "Unknown" or a moment older.
    """

    name: str
    state: str
    protocol_type: str
    protocol: str
    coordinator: int
    members: tuple[GroupMember, ...] | None

    @property
    def is_live(self) -> bool:
        """Whether it has, or may have, members."""
        return self.members is None or bool(self.members)


@dataclass(frozen=True, slots=True)
class GroupListing:
    """The groups that the answering brokers coordinate, by name; the groups of `silent` ones are missing."""

    groups: dict[str, GroupDescription]
    silent: tuple[SilentBroker, ...]


def described(group: Any, coordinator: int) -> GroupDescription:
    """Returns a group of a DescribeGroups response (kio's, any version)."""
    return GroupDescription(
        name=group.group_id,
        state=group.group_state,
        protocol_type=group.protocol_type,
        protocol=group.protocol_data,
        coordinator=coordinator,
        members=tuple(
            GroupMember(
                member.member_id,
                member.client_id,
                member.client_host.removeprefix("/"),  # Apache Kafka writes Java's "/127.0.0.1"
                getattr(member, "group_instance_id", None),
                assigned(group.protocol_type, bytes(member.member_assignment)),
            )
            for member in group.members
        ),
    )


def assigned(protocol_type: str, assignment: bytes) -> tuple[TopicPartition, ...]:
    """Returns the partitions of a consumer's assignment; none if the bytes are not one."""
    if protocol_type != CONSUMER_PROTOCOL or len(assignment) < _VERSION_BYTES:
        return ()
    view = memoryview(assignment)
    try:
        # Later versions add fields at the end, which version 0 does not read.
        body = reader(ConsumerProtocolAssignment)(view, _VERSION_BYTES, ItemBound(len(view)))[0]
    except BROKEN_MESSAGE:
        return ()
    return tuple(
        sorted((topic.topic, part) for topic in body.assigned_partitions for part in topic.partitions)
    )
