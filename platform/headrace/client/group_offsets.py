"""Where a member continues in each partition of its share, and what the group stores of that (paper §3.2).

A partition of which the group has stored nothing begins where `auto_offset_reset` says. If that is the end of
the log, it is stored as soon as it is known: else the next owner would look for the end again, and leave out
what was published meanwhile. A partition that was created after the group had begun with its topic is read
from the beginning, for the same reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

from headrace.client.cluster import TopicPartition
from headrace.client.consumer import Consumer
from headrace.client.errors import MetadataTimeoutError
from headrace.client.unpacking import ConsumerRecord
from headrace.coordination.consumers import ConsumerRegistry


class GroupOffsets:
    """Offsets of one share at a time; called on the group's thread. `begins_at_end`: what the member asks for
    is "latest"."""

    def __init__(self, consumer: Consumer, registry: ConsumerRegistry, *, begins_at_end: bool) -> None:
        self._consumer = consumer
        self._registry = registry
        self._begins_at_end = begins_at_end
        self._delivered: dict[TopicPartition, int] = {}  # the last offset put into a stream
        self._stored: dict[TopicPartition, int] = {}
        self._topic_zxids: dict[str, int] = {}
        self._unknown: set[TopicPartition] = set()  # where it begins is looked up
        self._begins: dict[TopicPartition, int] = {}  # known, and not stored yet

    def begin(self, keys: list[TopicPartition], created_zxids: Mapping[TopicPartition, int]) -> None:
        """Reads a new share from where the group has stored. `created_zxids`: when the partitions were
        created. Raises `CoordinationError`."""
        self.end()
        # Before the offsets: one that is older than its topic is not read, nor stored for a later one.
        self._topic_zxids = self._registry.created({topic for topic, _ in keys})
        offsets = self._registry.offsets(keys)
        unknown = {key for key, offset in offsets.items() if offset is None and self._begins_at_end}
        began = self._registry.began({topic for topic, _ in unknown}) if unknown else {}
        self._consumer.assign(keys)
        for key, offset in offsets.items():
            if offset is not None:
                self._consumer.seek(*key, offset)
                self._stored[key] = offset
            elif key[0] in began and created_zxids.get(key, 0) > began[key[0]]:
                self._consumer.seek_to_beginning(*key)
        self._unknown = unknown

    def end(self) -> None:
        """Gives the share up."""
        self._consumer.assign([])
        for each in (self._delivered, self._stored, self._unknown, self._begins):
            each.clear()

    @property
    def is_complete(self) -> bool:
        """Whether the group has stored an offset of every partition, or need not."""
        return not (self._unknown or self._begins)

    def look(self, records: Iterable[ConsumerRecord] = ()) -> bool:
        """Notes where partitions begin, before `records` are delivered; returns whether there is a beginning
        to store."""
        found: dict[TopicPartition, int] = {}
        for record in records if self._unknown else ():
            found.setdefault((record.topic, record.partition), record.offset)
        for key in list(self._unknown):
            if key not in found:
                with suppress(MetadataTimeoutError):
                    found[key] = self._consumer.position(*key, timeout_s=0.0)
            if key in found:
                self._begins[key] = found[key]
                self._unknown.discard(key)
        return bool(self._begins)

    def delivered(self, key: TopicPartition, offset: int) -> None:
        self._delivered[key] = offset

    def begins(self) -> dict[TopicPartition, int]:
        """Returns the beginnings that are not stored yet."""
        return dict(self._begins)

    def to_store(self, consumed: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Returns what is not stored yet, given the offsets behind what the share's streams have consumed.
        All that was polled must have been delivered.
        """
        offsets = self.begins()
        for key, offset in consumed.items():
            offsets[key] = offset
            if self._delivered.get(key) == offset - 1:  # all is consumed: it goes on at the batch's end
                with suppress(MetadataTimeoutError):  # unless the place is gone, and another is looked up
                    offsets[key] = self._consumer.position(*key, timeout_s=0.0)
        return {key: offset for key, offset in offsets.items() if self._stored.get(key) != offset}

    def is_stored(self, key: TopicPartition, offset: int) -> bool:
        """Whether the next owner begins at this offset, or behind it."""
        return self._stored.get(key, -1) >= offset

    def store(self, key: TopicPartition, offset: int, owner: str) -> None:
        """Raises `NotOwnerError`, `OtherTopicError`, and what ZooKeeper raises."""
        self._registry.commit(*key, offset, owner=owner, created_zxid=self._topic_zxids.get(key[0], 0))
        self._stored[key] = offset
        self._begins.pop(key, None)
