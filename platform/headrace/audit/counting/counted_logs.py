"""The logs that an auditor counts: each is of one topic by its id, and read as that topic's alone.

A topic may be deleted at any moment, and another one made under its name: the other topic's records are never
counted as those of the deleted one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from uuid import UUID

from headrace.audit.topic.logs_read import named_id
from headrace.client import Consumer
from headrace.wire.topic_names import TopicPartition


class CountedLogs:
    """Of one consumer. Owns which topics' logs it reads, and from where."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._ids: dict[TopicPartition, UUID] = {}

    def begin(self, places: Mapping[TopicPartition, int], topic_ids: Mapping[str, UUID]) -> None:
        """Reads these logs, too, from these addresses on. `topic_ids`: of the topics that are meant."""
        if not places:
            return
        self._ids |= {key: topic_ids[key[0]] for key in places}
        self._consumer.assign([*self._consumer.assignment, *places])
        for key, address in places.items():
            self.seek(*key, address)

    def seek(self, topic: str, partition: int, address: int) -> None:
        """Continues at an address of the same topic. If it was deleted, a poll raises
        `LogTruncationError`, even if another topic has its name.
        """
        self._consumer.seek(topic, partition, address, topic_id=self._ids[topic, partition])

    def topic_id(self, key: TopicPartition) -> str:
        """Returns the topic's id as audit records name it."""
        return named_id(self._ids.get(key))

    def topic_ids(self) -> dict[str, str]:
        """Returns the ids of all topics, by name."""
        return {topic: named_id(topic_id) for (topic, _), topic_id in self._ids.items()}

    def of_other_topics(self, topic_ids: Mapping[str, UUID]) -> set[TopicPartition]:
        """Returns the logs of topics that are not among these."""
        return {key for key, topic_id in self._ids.items() if topic_id != topic_ids.get(key[0])}

    def end(self, keys: Iterable[TopicPartition]) -> None:
        """Reads these logs no more."""
        for key in (ended := set(keys)):
            self._ids.pop(key, None)
        self._consumer.assign(key for key in self._consumer.assignment if key not in ended)
