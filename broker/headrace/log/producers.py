"""The state of idempotent producers in a partition, and the sequence check. Pure: no files, no clock.

Source: KIP-98 (sequence numbers), KIP-360 (an unknown producer may begin at any sequence number, a new epoch
begins at 0).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Final, NamedTuple

from headrace.wire.batch import SEQUENCE_SPAN, BatchHeader

BATCHES_KEPT: Final = 5  # Kafka's limit of batches in flight (max.in.flight.requests.per.connection)
PRODUCERS_MAX: Final = 20_000  # beyond this, a partition forgets the producer that has been silent longest


class StoredBatch(NamedTuple):
    """One batch of a producer: its first and last sequence number and its base offset."""

    first_sequence: int
    last_sequence: int
    base_offset: int


class ProducerEntry(NamedTuple):
    """The epoch and last batches of a producer, newest last; `last_append_ms` is wall clock, for expiry."""

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
    """All producers of a partition; the one that has been silent longest is first."""

    __slots__ = ("_entries",)

    def __init__(self, entries: Iterable[tuple[int, ProducerEntry]] = ()) -> None:
        self._entries: dict[int, ProducerEntry] = dict(entries)

    def get(self, producer_id: int) -> ProducerEntry | None:
        return self._entries.get(producer_id)

    def put(self, producer_id: int, entry: ProducerEntry) -> None:
        entries = self._entries
        entries.pop(producer_id, None)
        entries[producer_id] = entry
        if len(entries) > PRODUCERS_MAX:
            del entries[next(iter(entries))]

    def note(self, header: BatchHeader, base_offset: int, now_ms: int) -> None:
        """Records an accepted batch; ignores batches without a producer id."""
        producer_id = header.producer_id
        if producer_id >= 0:
            before = self._entries.get(producer_id)
            sequences = header.base_sequence, header.last_sequence
            self.put(producer_id, advance(before, header.producer_epoch, *sequences, base_offset, now_ms))

    def restore(self, producer_id: int, entry: ProducerEntry | None) -> None:
        """Undoes a `put`: `entry` is the one before it, if any."""
        if entry is None:
            self._entries.pop(producer_id, None)
        else:
            self._entries[producer_id] = entry

    def expire(self, before_ms: int) -> None:
        """Forgets producers whose last append was before `before_ms`."""
        silent = [
            producer_id for producer_id, entry in self._entries.items() if entry.last_append_ms < before_ms
        ]
        for producer_id in silent:
            del self._entries[producer_id]

    def __iter__(self) -> Iterator[tuple[int, ProducerEntry]]:
        return iter(self._entries.items())

    def __len__(self) -> int:
        return len(self._entries)
