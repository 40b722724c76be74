"""Ranges of which an earlier auditor said that a replica holds other bytes: from the audit topic.

Nobody else would take back what it said. So an auditor says again every few minutes what still differs, finds
it among the latest records when it starts, and takes a range back once all replicas hold there what was
counted. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Final

from headrace.audit.batches.damage import OTHER_BYTES
from headrace.audit.counting.partition_counter import PartitionCounter
from headrace.audit.intervals import Interval
from headrace.audit.topic.records import CorruptRecord
from headrace.wire.topic_names import TopicPartition

SAY_S: Final = 300.0
"""Between repetitions: within the ten minutes that an auditor which starts reads back."""
PLACES_MAX: Final = 1_000  # more are left to `headrace audit recount`


@dataclass(slots=True)
class _Place:
    cause: str
    topic_id: str
    right_on: set[int] = field(default_factory=set)


class SaidBefore:
    """The ranges that other processes said. One thread uses it."""

    def __init__(self) -> None:
        self._places: dict[TopicPartition, dict[Interval, _Place]] = {}

    def learn(self, record: CorruptRecord) -> None:
        """Notes what a record says of a range that this process has not named."""
        key, place = (record.topic, record.log_partition), (record.from_address, record.to_address)
        if not record.cause:
            self.forget(key, place)
            return
        is_meant = record.in_tally and record.cause.startswith(OTHER_BYTES)
        if is_meant and sum(map(len, self._places.values())) < PLACES_MAX:
            places = self._places.setdefault(key, {})
            places.setdefault(place, _Place(record.cause, record.topic_id)).cause = record.cause

    def forget(self, key: TopicPartition, place: Interval) -> None:
        """Forgets a range, of which this process says now what is so."""
        places = self._places.get(key, {})
        if places.pop(place, None) is not None and not places:
            del self._places[key]

    def of(self, counter: PartitionCounter) -> Iterator[tuple[Interval, str]]:
        """Yields the ranges of a partition, and what was said of each."""
        partition = counter.partition
        for place, known in self._places.get((partition.topic, partition.log_partition), {}).items():
            if known.topic_id == partition.source.topic_id:
                yield place, known.cause

    def confirmed(
        self, key: TopicPartition, number: int, where: Interval, replicas: Collection[int]
    ) -> list[Interval]:
        """Returns the ranges within `where` that are right on all replicas, now that broker `number` is right
        there; and forgets them.
        """
        found = []
        for place, known in list(self._places.get(key, {}).items()):
            if where[0] <= place[0] and place[1] <= where[1]:
                known.right_on.add(number)
                if known.right_on.issuperset(replicas):
                    found.append(place)
                    self.forget(key, place)
        return found
