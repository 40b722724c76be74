"""What a stream knows of the place that it has reached: offsets of partitions, and the ids of their topics.

Owns their text in a query's checkpoint. It is that of Spark's Kafka source, `{"topic": {"0": 23}}`, and for
each topic whose id is known (KIP-516) one more name, without partitions: `"topic@id": {}`. A topic's name
has no `@`, so that Spark's Kafka source, and programs that read offsets of partitions, find nothing there.
Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from headrace.warehouse.source.options import Partition

JsonOffsets = dict[str, dict[str, int]]
"""What Spark keeps."""

_MARK: Final = "@"


@dataclass(frozen=True)
class StreamOffsets:
    """Offsets of partitions. `topic_ids` lacks the topics of brokers that give topics no id, and those of
    checkpoints of Spark's Kafka source.
    """

    offsets: dict[Partition, int]
    topic_ids: dict[str, str] = field(default_factory=dict)

    @classmethod
    def from_json(cls, text: Mapping[str, Mapping[str, Any]]) -> StreamOffsets:
        """Returns what a checkpoint has."""
        offsets: dict[Partition, int] = {}
        ids: dict[str, str] = {}
        for name, partitions in text.items():
            topic, mark, topic_id = name.partition(_MARK)
            if mark:
                ids[topic] = topic_id
            else:
                offsets |= {(topic, int(partition)): int(offset) for partition, offset in partitions.items()}
        return cls(offsets, ids)

    def to_json(self) -> JsonOffsets:
        """Returns what is kept in the checkpoint. An id stands only beside offsets of its topic."""
        found: JsonOffsets = {}
        for (topic, partition), offset in sorted(self.offsets.items()):
            found.setdefault(topic, {})[str(partition)] = offset
        named = {f"{topic}{_MARK}{self.topic_ids[topic]}" for topic in found if self.topic_ids.get(topic)}
        return found | {name: {} for name in sorted(named)}

    def topics_unlike(self, others: Mapping[str, str]) -> set[str]:
        """Returns the topics whose id is another one in `others`: they were made again. Nothing can be
        said of a topic whose id one side lacks.
        """
        known = {topic: topic_id for topic, topic_id in self.topic_ids.items() if topic_id}
        return {
            topic for topic, topic_id in known.items() if others.get(topic, topic_id) not in ("", topic_id)
        }
