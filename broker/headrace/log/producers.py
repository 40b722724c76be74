"""The state of idempotent producers in a partition, and the sequence check. No files; the clock is an
argument.

How long a producer has been silent is measured with a monotonic clock. If the wall clock decided it, a step
of two days would make the partition forget every producer, and store a second time what they send again.

Source: KIP-98 (sequence numbers), KIP-360 (an unknown producer may begin at any sequence number, a new epoch
begins at 0).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from typing import Final, NamedTuple

from headrace.process.clock import monotonic_ms
from headrace.wire.batch import SEQUENCE_SPAN, BatchHeader

BATCHES_KEPT: Final = 5  # Kafka's limit of batches in flight (max.in.flight.requests.per.connection)
PRODUCERS_MAX: Final = 20_000  # beyond this, a partition forgets the producer that has been silent longest


class StoredBatch(NamedTuple):
    """One batch of a producer: its first and last sequence number and its base offset."""

    first_sequence: int
    last_sequence: int
    base_offset: int


class ProducerEntry(NamedTuple):
    """The epoch and last batches of a producer, newest last; `last_append_ms`: see `ProducerStates`."""

    epoch: int
    batches: tuple[StoredBatch, ...]
    last_append_ms: int


class SequenceVerdict(Enum):
    """The result of the sequence check."""

    ACCEPT = "accept"
    DUPLICATE = "duplicate"
    OUT_OF_ORDER = "out of order"
    FENCED = "fenced"


class Checked(NamedTuple):
    """`base_offset`: of the stored copy if the batch is a duplicate, else -1. `expected_sequence`: for the
    error message.
    """

    verdict: SequenceVerdict
    base_offset: int = -1
    expected_sequence: int = -1


ACCEPTED: Final = Checked(SequenceVerdict.ACCEPT)


def check_sequence(
    entry: ProducerEntry | None, epoch: int, first_sequence: int, last_sequence: int
) -> Checked:
    """Checks whether a batch with these sequence numbers may be appended after those of `entry`."""
    if entry is None:
        return ACCEPTED
    if epoch < entry.epoch:
        return Checked(SequenceVerdict.FENCED)
    if epoch > entry.epoch:
        return ACCEPTED if first_sequence == 0 else Checked(SequenceVerdict.OUT_OF_ORDER, expected_sequence=0)
    expected = (entry.batches[-1].last_sequence + 1) % SEQUENCE_SPAN
    if first_sequence == expected:
        return ACCEPTED
    for batch in entry.batches:
        if batch.first_sequence == first_sequence and batch.last_sequence == last_sequence:
            return Checked(SequenceVerdict.DUPLICATE, batch.base_offset)
    return Checked(SequenceVerdict.OUT_OF_ORDER, expected_sequence=expected)


def follows(entry: ProducerEntry | None, epoch: int, first_sequence: int) -> bool:
    """Whether `check_sequence` accepts the batch for the usual reason: it is the next one of its epoch, or
    the first of its producer.
    """
    if entry is None:
        return True
    return epoch == entry.epoch and first_sequence == (entry.batches[-1].last_sequence + 1) % SEQUENCE_SPAN


def advance(
    entry: ProducerEntry | None,
    epoch: int,
    first_sequence: int,
    last_sequence: int,
    base_offset: int,
    now_ms: int,
) -> ProducerEntry:
    """Returns the entry after an accepted batch."""
    batch = StoredBatch(first_sequence, last_sequence, base_offset)
    if entry is None or entry.epoch != epoch:
        return ProducerEntry(epoch, (batch,), now_ms)
    return ProducerEntry(epoch, (*entry.batches[1 - BATCHES_KEPT :], batch), now_ms)


class ProducerStates:
    """All producers of a partition; the one that has been silent longest is first.

    Their times are those of `clock_ms`, which no other process shares.
    """

    __slots__ = ("_entries", "clock_ms")

    def __init__(
        self,
        entries: Iterable[tuple[int, ProducerEntry]] = (),
        clock_ms: Callable[[], int] = monotonic_ms,
    ) -> None:
        self._entries: dict[int, ProducerEntry] = dict(entries)
        self.clock_ms = clock_ms

    @classmethod
    def restored(
        cls,
        entries: Iterable[tuple[int, ProducerEntry]],
        saved_ms: int | None,
        clock_ms: Callable[[], int] = monotonic_ms,
    ) -> ProducerStates:
        """Returns the producers that an earlier process saved at `saved_ms` of its own clock.

        How long no process ran is unknown, and counts for nothing: a producer is rather kept too long. With
        no `saved_ms` its silence is unknown, too.
        """
        now = clock_ms()

        def last_append_ms(entry: ProducerEntry) -> int:
            return now if saved_ms is None else now - max(0, saved_ms - entry.last_append_ms)

        return cls(
            ((number, entry._replace(last_append_ms=last_append_ms(entry))) for number, entry in entries),
            clock_ms,
        )

    def get(self, producer_id: int) -> ProducerEntry | None:
        return self._entries.get(producer_id)

    def put(self, producer_id: int, entry: ProducerEntry) -> None:
        entries = self._entries
        entries.pop(producer_id, None)
        entries[producer_id] = entry
        if len(entries) > PRODUCERS_MAX:
            del entries[next(iter(entries))]

    def note(self, header: BatchHeader, base_offset: int) -> ProducerEntry | None:
        """Records an accepted batch, unless it has no producer id; returns what was known of its producer."""
        producer_id = header.producer_id
        if producer_id < 0:
            return None
        before = self._entries.get(producer_id)
        sequences = header.base_sequence, header.last_sequence
        self.put(
            producer_id, advance(before, header.producer_epoch, *sequences, base_offset, self.clock_ms())
        )
        return before

    def note_all(self, headers: Iterable[BatchHeader]) -> list[tuple[int, ProducerEntry | None]]:
        """Records stored batches, like `note`; returns what was known of each of their producers.

        Of each producer the last `BATCHES_KEPT` batches are enough: no more are kept.
        """
        recent: dict[int, list[BatchHeader]] = {}
        for header in headers:
            producer_id = header.producer_id
            if producer_id >= 0:
                batches = recent.pop(producer_id, [])  # the one that appended last comes last
                recent[producer_id] = [*batches[1 - BATCHES_KEPT :], header]
        now_ms = self.clock_ms()
        undo = []
        for producer_id, batches in recent.items():
            before = entry = self._entries.get(producer_id)
            for header in batches:
                sequences = header.base_sequence, header.last_sequence
                entry = advance(entry, header.producer_epoch, *sequences, header.base_offset, now_ms)
            assert entry is not None
            self.put(producer_id, entry)
            undo.append((producer_id, before))
        return undo

    def restore(self, producer_id: int, entry: ProducerEntry | None) -> None:
        """Undoes a `put`: `entry` is the one before it, if any."""
        if entry is None:
            self._entries.pop(producer_id, None)
        else:
            self._entries[producer_id] = entry

    def expire(self, silent_max_ms: int) -> None:
        """Forgets producers that have appended nothing for longer than `silent_max_ms`."""
        before_ms = self.clock_ms() - silent_max_ms
        silent = [
            producer_id for producer_id, entry in self._entries.items() if entry.last_append_ms < before_ms
        ]
        for producer_id in silent:
            del self._entries[producer_id]

    def __iter__(self) -> Iterator[tuple[int, ProducerEntry]]:
        return iter(self._entries.items())

    def __len__(self) -> int:
        return len(self._entries)
