"""Which topics the members of a group read: the metadata that consumers send with JoinGroup.

Brokers hand it on unread, but for the deletion of offsets (KIP-496), which spares what members read. Source:
Apache Kafka's ConsumerProtocolSubscription: a version (int16), then its topics (an array of strings) in each
version that there is.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import Final

from headrace.wire.errors import MalformedMessageError
from headrace.wire.primitives import BROKEN, INT16, INT32, read_name

CONSUMER_PROTOCOL_TYPE: Final = "consumer"
TOPICS_MAX: Final = 20_000
"""That all members of a group name together. A member may name half a million in a megabyte."""


def subscribed_topics(metadata: Iterable[bytes]) -> Set[str] | None:
    """Returns the topics that any of the members names; None if that cannot be read, or is too much."""
    read: set[str] = set()
    left = TOPICS_MAX
    for each in metadata:
        try:
            topics = _topics(each, left)
        except (MalformedMessageError, *BROKEN):
            return None
        left -= len(topics)
        read.update(topics)
    return read


def _topics(metadata: bytes, count_max: int) -> list[str]:
    """Raises `MalformedMessageError`, or one of `BROKEN`, if it is not a consumer's, or names more topics."""
    (version,) = INT16.unpack_from(metadata, 0)
    (count,) = INT32.unpack_from(metadata, INT16.size)
    if version < 0 or not 0 <= count <= count_max:
        raise ValueError(f"version {version} of a subscription to {count} topics")
    topics = []
    at = INT16.size + INT32.size
    for _ in range(count):
        topic, at = read_name(metadata, at, False)
        topics.append(topic)
    return topics
