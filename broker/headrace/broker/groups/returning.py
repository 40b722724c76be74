"""A static member that comes back (KIP-345): whether the present generation still suits it."""

from __future__ import annotations

from collections.abc import Collection

from headrace.broker.groups.member import Member, choose_protocol
from headrace.broker.groups.replies import Generation
from headrace.broker.groups.subscriptions import CONSUMER_PROTOCOL_TYPE, subscribed_topics
from headrace.broker.groups.types import MemberProtocol


def is_suited(
    member: Member, before: Collection[MemberProtocol], members: Collection[Member], present: Generation
) -> bool:
    """Whether the `present` protocol would be chosen again, and the member, which said `before` what it was,
    reads the same topics.

    The rest of what consumers say differs after every restart: which partitions they own, in which
    generation. Apache Kafka does not look at the topics, either: its group goes on with the old ones.
    """
    name = present.protocol_name
    if choose_protocol(list(members)) != name:
        return False
    was = next((each.metadata for each in before if each.name == name), None)
    if was is None:
        return False
    said = member.metadata_for(name)
    if present.protocol_type != CONSUMER_PROTOCOL_TYPE or said == was:
        return said == was
    topics = subscribed_topics([said])
    return topics is not None and topics == subscribed_topics([was])
