"""What a publisher was handed, and which sequence numbers it got: the books behind the producer tier's
reports. Pure.

Owns the tallies and their life; knows nothing of threads (the caller locks), clocks or networks.

A tally is kept per (topic, bucket of event time), in *parts*: a part has a number of its own in the
publisher, at most `RANGES_PER_PART_MAX` ranges, and a life: it grows, is full or idle, is *final* (never
changes again), is forgotten once a report that says so has arrived. The newest part of a (topic, bucket)
takes what comes. A part that takes no more counts exactly the events whose sequence numbers it holds; those
still without a number are always counted in the newest.
"""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from headrace.client import BatchIdentity
from headrace.wire.batch import SEQUENCE_SPAN

BUCKET_DEFAULT_MS: Final = 600_000
HOUR_MS: Final = 3_600_000
RANGES_PER_PART_MAX: Final = 500


class SequenceRange(NamedTuple):
    """Sequences `first_sequence` to `last_sequence`, inclusive, of one producer id and epoch in one
    partition.
    """

    partition: int
    producer_id: int
    producer_epoch: int
    first_sequence: int
    last_sequence: int

    @property
    def event_count(self) -> int:
        return self.last_sequence - self.first_sequence + 1


class Tally(NamedTuple):
    """One part as a report tells it. `version` is for `HandoverBook.acknowledge`."""

    part: int
    topic: str
    bucket_start_ms: int
    handed_over_count: int
    final: bool
    ranges: tuple[SequenceRange, ...]
    version: int


class _Part:
    def __init__(self, number: int, topic: str, bucket_start_ms: int) -> None:
        self.number = number
        self.topic = topic
        self.bucket_start_ms = bucket_start_ms
        self.handed_over_count = 0
        self.ranges: list[SequenceRange] = []
        self.version = 0
        self.acknowledged_version = 0
        self.changed_s = 0.0
        self.final = False

    @property
    def unsequenced_count(self) -> int:
        return self.handed_over_count - sum(each.event_count for each in self.ranges)

    def touch(self, now_s: float) -> None:
        self.version += 1
        self.changed_s = now_s


class HandoverBook:
    """The books of one publisher. `now_s` is any clock that only goes forward."""

    def __init__(self, bucket_ms: int = BUCKET_DEFAULT_MS) -> None:
        if bucket_ms <= 0 or HOUR_MS % bucket_ms:
            raise ValueError(
                f"a bucket of {bucket_ms} ms does not divide an hour; take for example {BUCKET_DEFAULT_MS}"
            )
        self.bucket_ms = bucket_ms
        self._parts: dict[tuple[str, int], list[_Part]] = {}
        self._last_number = 0

    def __len__(self) -> int:
        """How many parts are kept."""
        return sum(len(parts) for parts in self._parts.values())

    def hand_over(self, topic: str, time_ms: int, now_s: float) -> None:
        """Counts one event, when the application hands it over."""
        part = self._newest(topic, self._bucket(time_ms))
        part.handed_over_count += 1
        part.touch(now_s)

    def take_back(self, topic: str, time_ms: int, now_s: float) -> None:
        """Uncounts one: the client refused it, and the application was told so."""
        part = self._newest(topic, self._bucket(time_ms))
        part.handed_over_count -= 1
        part.touch(now_s)

    def batch_closed(self, identity: BatchIdentity, now_s: float) -> None:
        """Notes the sequence numbers that a batch's events got. All of a batch is in one bucket."""
        bucket = self._bucket(identity.base_timestamp_ms)
        for added in ranges_of(identity):
            self._add(identity.topic, bucket, added, now_s)

    def batch_renumbered(self, old: BatchIdentity, new: BatchIdentity, now_s: float) -> None:
        """The same events go on under other numbers."""
        bucket = self._bucket(old.base_timestamp_ms)
        for gone in ranges_of(old):
            for part in tuple(self._parts.get((old.topic, bucket), ())):
                before = sum(each.event_count for each in part.ranges)
                part.ranges = [left for each in part.ranges for left in subtract(each, gone)]
                removed = before - sum(each.event_count for each in part.ranges)
                if removed:
                    part.handed_over_count -= removed
                    part.touch(now_s)
                    newest = self._newest(old.topic, bucket)
                    newest.handed_over_count += removed
                    newest.touch(now_s)
        self.batch_closed(new, now_s)

    def finish_idle(self, idle_since_s: float) -> None:
        """Parts that did not change since are final. Take a moment before which no batch can still be on its
        way.
        """
        for part in self._all():
            if not part.final and part.changed_s < idle_since_s:
                part.final = True
                part.version += 1

    def changed(self, *, closing: bool = False) -> list[Tally]:
        """Every part that changed since it was last acknowledged. `closing`: none will change again."""
        return [
            Tally(
                part.number,
                part.topic,
                part.bucket_start_ms,
                part.handed_over_count,
                part.final or closing,
                tuple(part.ranges),
                part.version,
            )
            for part in self._all()
            if part.version > part.acknowledged_version
        ]

    def acknowledge(self, tallies: Iterable[Tally]) -> None:
        """A report with these tallies has arrived: final ones are forgotten, the others are not told again
        until they change.
        """
        for tally in tallies:
            parts = self._parts.get((tally.topic, tally.bucket_start_ms), [])
            for part in parts:
                if part.number == tally.part:
                    part.acknowledged_version = max(part.acknowledged_version, tally.version)
            kept = [part for part in parts if not (part.final and part.acknowledged_version == part.version)]
            if kept:
                self._parts[tally.topic, tally.bucket_start_ms] = kept
            else:
                self._parts.pop((tally.topic, tally.bucket_start_ms), None)

    def _bucket(self, time_ms: int) -> int:
        return time_ms - time_ms % self.bucket_ms

    def _all(self) -> Iterator[_Part]:
        for parts in self._parts.values():
            yield from parts

    def _newest(self, topic: str, bucket_start_ms: int) -> _Part:
        parts = self._parts.setdefault((topic, bucket_start_ms), [])
        if not parts or parts[-1].final:
            self._last_number += 1
            parts.append(_Part(self._last_number, topic, bucket_start_ms))
        return parts[-1]

    def _add(self, topic: str, bucket_start_ms: int, added: SequenceRange, now_s: float) -> None:
        part = self._newest(topic, bucket_start_ms)
        last = next((each for each in reversed(part.ranges) if each[:3] == added[:3]), None)
        if last is not None and last.last_sequence + 1 == added.first_sequence:
            part.ranges[part.ranges.index(last)] = last._replace(last_sequence=added.last_sequence)
        elif len(part.ranges) < RANGES_PER_PART_MAX:
            part.ranges.append(added)
        else:
            waiting_count = part.unsequenced_count
            part.handed_over_count -= waiting_count
            part.touch(now_s)
            self._last_number += 1
            part = _Part(self._last_number, topic, bucket_start_ms)
            part.handed_over_count = waiting_count
            part.ranges.append(added)
            self._parts[topic, bucket_start_ms].append(part)
        part.touch(now_s)


def ranges_of(identity: BatchIdentity) -> list[SequenceRange]:
    """A batch's sequence numbers; two ranges if they wrap (after 2³¹-1 comes 0)."""
    first, end = identity.base_sequence, identity.base_sequence + identity.record_count
    key = (identity.partition, identity.producer_id, identity.producer_epoch)
    if end <= SEQUENCE_SPAN:
        return [SequenceRange(*key, first, end - 1)]
    return [SequenceRange(*key, first, SEQUENCE_SPAN - 1), SequenceRange(*key, 0, end - SEQUENCE_SPAN - 1)]


def subtract(whole: SequenceRange, gone: SequenceRange) -> list[SequenceRange]:
    """What is left of a range."""
    if (
        whole[:3] != gone[:3]
        or gone.last_sequence < whole.first_sequence
        or gone.first_sequence > whole.last_sequence
    ):
        return [whole]
    left = []
    if whole.first_sequence < gone.first_sequence:
        left.append(whole._replace(last_sequence=gone.first_sequence - 1))
    if gone.last_sequence < whole.last_sequence:
        left.append(whole._replace(first_sequence=gone.last_sequence + 1))
    return left
