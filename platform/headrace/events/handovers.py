"""The counts behind the producer tier's reports: handed-over events, and the sequence numbers they got. Pure.

Knows nothing of threads (the caller locks), clocks or networks.

Events are counted per (topic, bucket of event time), in *parts*. A part has its own number in the publisher
and at most `RANGES_PER_PART_MAX` ranges. It grows, becomes full or idle, becomes *final* (never changes
again), and is forgotten once a report of its final state has arrived. Only the newest part of a (topic,
bucket) grows. All older parts count exactly the events whose sequence numbers they hold; events without a
sequence number are counted in the newest part.
"""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from headrace.client import BatchIdentity
from headrace.wire.batch import SEQUENCE_SPAN
from headrace.wire.content import NO_BATCHES, subtracted
from headrace.wire.content import added as content_together

BUCKET_DEFAULT_MS: Final = 600_000
HOUR_MS: Final = 3_600_000
RANGES_PER_PART_MAX: Final = 500


class SequenceRange(NamedTuple):
    """Sequences `first_sequence` to `last_sequence`, inclusive, of one producer id and epoch in one
    partition. `content`: of their batches (`wire.content`); None if it is not known.
    """

    partition: int
    producer_id: int
    producer_epoch: int
    first_sequence: int
    last_sequence: int
    content: int | None = None

    @property
    def event_count(self) -> int:
        return self.last_sequence - self.first_sequence + 1


class PartTally(NamedTuple):
    """The state of one part, as reported. `version` is for `HandoverCounts.acknowledge`."""

    part: int
    topic: str
    bucket_start_ms: int
    handed_over_count: int
    final: bool
    ranges: tuple[SequenceRange, ...]
    version: int


class PartState(NamedTuple):
    """A part as a journal keeps it (`events.journal`)."""

    number: int
    topic: str
    bucket_start_ms: int
    handed_over_count: int
    final: bool
    ranges: tuple[SequenceRange, ...]


class Handover:
    """Whether an event is counted: to be seen also if a signal's handler raises in that call."""

    __slots__ = ("is_counted",)

    def __init__(self) -> None:
        self.is_counted = False


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
        return self.handed_over_count - self.sequenced_count

    @property
    def sequenced_count(self) -> int:
        return sum(held.event_count for held in self.ranges)

    def touch(self, now_s: float) -> None:
        self.version += 1
        self.changed_s = now_s


class HandoverCounts:
    """The counts of one publisher. `now_s` is the time of any monotonic clock."""

    def __init__(self, bucket_ms: int = BUCKET_DEFAULT_MS) -> None:
        if bucket_ms <= 0 or HOUR_MS % bucket_ms:
            raise ValueError(
                f"bucket_ms {bucket_ms} does not divide an hour; use for example {BUCKET_DEFAULT_MS}"
            )
        self.bucket_ms = bucket_ms
        self._parts: dict[tuple[str, int], list[_Part]] = {}
        self._last_number = 0

    def __len__(self) -> int:
        """Returns how many parts are kept."""
        return sum(len(parts) for parts in self._parts.values())

    def hand_over(
        self, topic: str, time_ms: int, now_s: float, count: int = 1, *, handover: Handover | None = None
    ) -> None:
        """Counts events that the application hands over."""
        part = self._newest(topic, self.bucket_start(time_ms))
        part.touch(now_s)
        # Last, and without a call between them, after which a signal's handler may raise.
        part.handed_over_count += count
        if handover is not None:
            handover.is_counted = True

    def take_back(self, topic: str, time_ms: int, now_s: float) -> None:
        """Takes one event out of the count: the producer refused it, and the application got the error."""
        self.hand_over(topic, time_ms, now_s, -1)

    def batch_closed(self, identity: BatchIdentity, now_s: float) -> None:
        """Records the sequence numbers of a batch. All its events are in one bucket."""
        bucket = self.bucket_start(identity.base_timestamp_ms)
        for added in ranges_of(identity):
            self._add(identity.topic, bucket, added, now_s)

    def batch_renumbered(self, old: BatchIdentity, new: BatchIdentity, now_s: float) -> None:
        """Replaces the sequence numbers of a batch; its events move to the newest part."""
        bucket = self.bucket_start(old.base_timestamp_ms)
        for replaced in ranges_of(old):
            for part in tuple(self._parts.get((old.topic, bucket), ())):
                before = part.sequenced_count
                part.ranges = [left for held in part.ranges for left in subtract(held, replaced)]
                removed = before - part.sequenced_count
                if removed:
                    part.handed_over_count -= removed
                    part.touch(now_s)
                    newest = self._newest(old.topic, bucket)
                    newest.handed_over_count += removed
                    newest.touch(now_s)
        self.batch_closed(new, now_s)

    def finish_idle(self, idle_since_s: float) -> list[int]:
        """Makes parts final that did not change since then, and returns their numbers. Older batches must not
        be in flight any more.
        """
        idle = [part for part in self._all() if not part.final and part.changed_s < idle_since_s]
        for part in idle:
            part.final = True
            part.version += 1
        return [part.number for part in idle]

    # --- for the journal ---

    @property
    def last_number(self) -> int:
        """The number of the part that was begun last, kept or not."""
        return self._last_number

    def states(self) -> tuple[PartState, ...]:
        """Returns all parts that are kept."""
        return tuple(
            PartState(
                part.number,
                part.topic,
                part.bucket_start_ms,
                part.handed_over_count,
                part.final,
                tuple(part.ranges),
            )
            for part in self._all()
        )

    def restore(self, state: PartState) -> None:
        """Adds a part as it was, behind those of its topic and bucket."""
        part = _Part(state.number, state.topic, state.bucket_start_ms)
        part.handed_over_count, part.final = state.handed_over_count, state.final
        part.ranges = list(state.ranges)
        part.version = 1
        self._parts.setdefault((state.topic, state.bucket_start_ms), []).append(part)

    def restore_numbers(self, last_number: int) -> None:
        """Continues the parts' numbers behind this one."""
        self._last_number = max(self._last_number, last_number)

    def finish(self, number: int) -> None:
        """Makes one part final."""
        for part in self._all():
            if part.number == number:
                part.final = True
                part.version += 1

    def changed(self, *, closing: bool = False) -> list[PartTally]:
        """Returns the tallies of parts that changed since they were acknowledged. `closing`: as final."""
        return [
            PartTally(
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

    def acknowledge(self, tallies: Iterable[PartTally]) -> None:
        """Handles the arrival of a report: forgets final parts; reports the others again once they change."""
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

    def bucket_start(self, time_ms: int) -> int:
        """Returns the start of the bucket in which the time lies, ms."""
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
        last = next((held for held in reversed(part.ranges) if held[:3] == added[:3]), None)
        joined = None if last is None else join(last, added)
        if last is not None and joined is not None:
            part.ranges[part.ranges.index(last)] = joined
        elif len(part.ranges) < RANGES_PER_PART_MAX:
            part.ranges.append(added)
        else:
            unsequenced_count = part.unsequenced_count
            part.handed_over_count -= unsequenced_count
            part.touch(now_s)
            self._last_number += 1
            part = _Part(self._last_number, topic, bucket_start_ms)
            part.handed_over_count = unsequenced_count
            part.ranges.append(added)
            self._parts[topic, bucket_start_ms].append(part)
        part.touch(now_s)


def ranges_of(identity: BatchIdentity) -> list[SequenceRange]:
    """Returns a batch's sequence numbers: two ranges if they wrap (after 2³¹-1 comes 0)."""
    first, end = identity.base_sequence, identity.base_sequence + identity.record_count
    key = (identity.partition, identity.producer_id, identity.producer_epoch)
    content = identity.content
    if end <= SEQUENCE_SPAN:
        return [SequenceRange(*key, first, end - 1, content)]
    rest = None if content is None else NO_BATCHES
    return [
        SequenceRange(*key, first, SEQUENCE_SPAN - 1, content),
        SequenceRange(*key, 0, end - SEQUENCE_SPAN - 1, rest),
    ]


def join(one: SequenceRange, other: SequenceRange) -> SequenceRange | None:
    """Returns two ranges of the same producer as one; None if neither follows the other."""
    content = content_together(one.content, other.content)
    if one.last_sequence + 1 == other.first_sequence:
        return one._replace(last_sequence=other.last_sequence, content=content)
    if other.last_sequence + 1 == one.first_sequence:
        return one._replace(first_sequence=other.first_sequence, content=content)
    return None


def subtract(whole: SequenceRange, removed: SequenceRange) -> list[SequenceRange]:
    """Returns `whole` without `removed`, of which the batches are known; the content of two pieces is not."""
    if (
        whole[:3] != removed[:3]
        or removed.last_sequence < whole.first_sequence
        or removed.first_sequence > whole.last_sequence
    ):
        return [whole]
    left = []
    if whole.first_sequence < removed.first_sequence:
        left.append(whole._replace(last_sequence=removed.first_sequence - 1, content=None))
    if removed.last_sequence < whole.last_sequence:
        left.append(whole._replace(first_sequence=removed.last_sequence + 1, content=None))
    is_inside = (
        whole.first_sequence <= removed.first_sequence and removed.last_sequence <= whole.last_sequence
    )
    if len(left) == 1 and is_inside:
        return [left[0]._replace(content=subtracted(whole.content, removed.content))]
    return left
