"""Batches that were damaged when they were to be counted, and may be whole by now: reads them again.

A damaged batch is set aside, and counting goes on behind it. If its bytes are restored later, nobody else
would ever count it. So the auditor reads such places again, every `LOOK_S`, and counts those in which whole
batches lie now: their tally takes the finding back. Nothing but the bytes decides: no record says that a
place is whole. Places that are still damaged are said again every `SAY_S`, so that an auditor that starts
again finds them among the latest records.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Final

from headrace.audit.batches.damage import walk
from headrace.audit.batches.raw_reader import RawReader
from headrace.audit.counting.partition_counter import PartitionCounter
from headrace.audit.topic.records import AuditRecord, CorruptRecord, RangeTally, ReceivedRecord
from headrace.client.errors import ClientError
from headrace.wire.errors import ErrorCode
from headrace.wire.topic_names import TopicPartition

logger = logging.getLogger(__name__)

LOOK_S: Final = 10.0
SAY_S: Final = 300.0
PLACES_MAX: Final = 1_000  # of all partitions; beyond, the oldest is left to `headrace audit recount`
LOOKS_PER_ROUND_MAX: Final = 50  # each costs a Fetch, for which counting waits

Place = tuple[TopicPartition, int, int]


class SetAsidePlaces:
    """The places that this auditor's tier set aside, as the audit topic names them. One thread uses it."""

    def __init__(self, raw: RawReader, clock: Callable[[], float] = time.monotonic) -> None:
        self._raw = raw
        self._clock = clock
        self._places: dict[Place, dict[str, CorruptRecord]] = {}  # by tier
        self._look_at_s: dict[Place, float] = {}
        self._said_s: dict[Place, float] = {}

    def learn(self, received: ReceivedRecord) -> None:
        """Notes what a record says was set aside; ignores other records."""
        record = received.record
        if isinstance(record, CorruptRecord) and record.cause and not record.in_tally:
            place = ((record.topic, record.log_partition), record.from_address, record.to_address)
            self._said_s[place] = self._clock()
            if place not in self._places:
                self._look_at_s[place] = self._clock() + LOOK_S
            self._places.setdefault(place, {})[record.tier] = record
            if len(self._places) > PLACES_MAX:
                self._forget(next(iter(self._places)))

    def news(self, counters: Mapping[TopicPartition, PartitionCounter]) -> list[AuditRecord]:
        """Returns tallies of places that are whole now, and again the records of those that are not."""
        now_s = self._clock()
        due = sorted((at_s, place) for place, at_s in self._look_at_s.items() if at_s <= now_s)
        news: list[AuditRecord] = []
        for _, place in due[:LOOKS_PER_ROUND_MAX]:
            self._look_at_s[place] = now_s + LOOK_S
            counter = counters.get(place[0])
            if counter is not None and place[2] <= counter.counted_to:
                said = [each for each in self._places[place].values() if _is_meant(each, counter)]
                news += self._look(place, counter, said) if said else ()
        return news

    def _look(self, place: Place, counter: PartitionCounter, said: list[CorruptRecord]) -> list[AuditRecord]:
        """`said`: what was said of the place."""
        (topic, number), start, end = place
        try:
            read = self._raw.read(topic, number, start, end - start)
        except ClientError as error:  # of this partition alone, perhaps: the others are to be counted
            logger.info("%s, addresses %d to %d: %s", counter.partition.name, start, end, error)
            return []
        if read.error is ErrorCode.OFFSET_OUT_OF_RANGE:
            self._forget(place)  # retention deleted it
        if read.error is not ErrorCode.NONE:
            return []
        held = read.buffer[: end - start]
        steps = list(walk(held, start))
        if any(step.cause for step in steps[:1]):
            return self._say_again(place, said)
        if any(step.cause for step in steps) or not steps or steps[-1].end != end - start:
            return []
        tallies = _counted(counter, held, start)
        if tallies:
            logger.warning("%s: addresses %d to %d are whole again", counter.partition.name, start, end)
            self._forget(place)
        return [*tallies]

    def _say_again(self, place: Place, said: list[CorruptRecord]) -> list[AuditRecord]:
        if self._clock() - self._said_s[place] < SAY_S:
            return []
        self._said_s[place] = self._clock()
        return [*said]

    def _forget(self, place: Place) -> None:
        for state in (self._places, self._look_at_s, self._said_s):
            state.pop(place, None)


def _is_meant(record: CorruptRecord, counter: PartitionCounter) -> bool:
    source = counter.partition.source
    is_here = (record.datacenter, record.partition, record.topic_id) == tuple(source)
    return is_here and record.tier in counter.partition.tiers


def _counted(counter: PartitionCounter, held: memoryview, start: int) -> list[RangeTally]:
    """Returns the tallies of these bytes; none if something in them cannot be counted."""
    again = counter.beside(start)
    again.feed(held, start)
    cut = again.cut()
    tallies = [each for each in cut if isinstance(each, RangeTally)]
    return tallies if again.counted_to == start + len(held) and len(tallies) == len(cut) else []
