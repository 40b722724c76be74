"""The state of idempotent producers in a partition, and the sequence check. No files; the clock is an
argument.

How long a producer has been silent is measured with a monotonic clock. If the wall clock decided it, a step
of two days would make the partition forget every producer, and store a second time what they send again.

A producer that has been silent for a minute is kept as bytes, a quarter of what its entry takes, until it
appends again: programs that run for seconds leave thousands behind, which are remembered for a day.

Source: KIP-98 (sequence numbers), KIP-360 (an unknown producer may begin at any sequence number, a new epoch
begins at 0).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from typing import Final, NamedTuple

from headrace.process.clock import monotonic_ms
from headrace.wire.batch import SEQUENCE_SPAN, BatchHeader

BATCHES_KEPT: Final = 5  # Kafka's limit of batches in flight (max.in.flight.requests.per.connection)
PRODUCERS_MAX: Final = 20_000  # beyond this, a partition forgets the producer that has been silent longest
PACKED_AFTER_MS: Final = 60_000
SILENCE_MAX_MS: Final = 1 << 60  # by a checkpoint
_ENTRY: Final = struct.Struct("<qh")  # when it appended last, epoch; its batches follow
_BATCH: Final = struct.Struct("<iiq")


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


def pack(entry: ProducerEntry) -> bytes:
    batches = (_BATCH.pack(*batch) for batch in entry.batches)
    return b"".join((_ENTRY.pack(entry.last_append_ms, entry.epoch), *batches))


def unpack(packed: bytes) -> ProducerEntry:
    last_append_ms, epoch = _ENTRY.unpack_from(packed)
    batches = _BATCH.iter_unpack(memoryview(packed)[_ENTRY.size :])
    return ProducerEntry(epoch, tuple(map(StoredBatch._make, batches)), last_append_ms)


class ProducerStates:
    """All producers of a partition; the one that has been silent longest is first: those that are packed come
    before the recent ones.

    Their times are those of `clock_ms`, which no other process shares.
    """

    __slots__ = ("_packed", "_recent", "clock_ms")

    def __init__(
        self,
        entries: Iterable[tuple[int, ProducerEntry]] = (),
        clock_ms: Callable[[], int] = monotonic_ms,
    ) -> None:
        self._packed: dict[int, bytes] = {}
        self._recent: dict[int, ProducerEntry] = dict(entries)
        self.clock_ms = clock_ms

    @classmethod
    def restored(
        cls,
        entries: Iterable[tuple[int, ProducerEntry | bytes]],
        saved_ms: int | None,
        clock_ms: Callable[[], int] = monotonic_ms,
    ) -> ProducerStates:
        """Returns the producers that an earlier process saved at `saved_ms` of its own clock.

        How long no process ran is unknown, and counts for nothing: a producer is rather kept too long. With
        no `saved_ms` its silence is unknown, too.
        """
        now = clock_ms()

        states = cls((), clock_ms)
        for number, saved in entries:
            packed = saved if isinstance(saved, bytes) else pack(saved)
            at_ms, epoch = _ENTRY.unpack_from(packed)
            silent_ms = 0 if saved_ms is None else min(max(0, saved_ms - at_ms), SILENCE_MAX_MS)
            packed = _ENTRY.pack(now - silent_ms, epoch) + packed[_ENTRY.size :]
            if silent_ms < PACKED_AFTER_MS or states._recent:
                states._recent[number] = unpack(packed)
            else:
                states._packed[number] = packed
        return states

    def get(self, producer_id: int) -> ProducerEntry | None:
        entry = self._recent.get(producer_id)
        if entry is None and self._packed:
            packed = self._packed.get(producer_id)
            return None if packed is None else unpack(packed)
        return entry

    def put(self, producer_id: int, entry: ProducerEntry) -> None:
        recent, packed = self._recent, self._packed
        recent.pop(producer_id, None)
        recent[producer_id] = entry
        if packed:
            packed.pop(producer_id, None)
        if len(recent) + len(packed) > PRODUCERS_MAX:
            if packed:
                del packed[next(iter(packed))]
            else:
                del recent[next(iter(recent))]

    def note(self, header: BatchHeader, base_offset: int) -> ProducerEntry | None:
        """Records an accepted batch, unless it has no producer id; returns what was known of its producer."""
        producer_id = header.producer_id
        if producer_id < 0:
            return None
        before = self.get(producer_id)
        sequences = header.base_sequence, header.last_sequence
        self.put(
            producer_id, advance(before, header.producer_epoch, *sequences, base_offset, self.clock_ms())
        )
        return before

    def note_all(self, headers: Sequence[BatchHeader]) -> list[tuple[int, ProducerEntry | None]]:
        """Records stored batches, like `note`; returns what was known of each of their producers.

        Of each producer the last `BATCHES_KEPT` batches are enough: no more are kept.
        """
        latest: dict[int, list[BatchHeader]] = {}  # newest first, the producers and their batches
        for header in reversed(headers):
            producer_id = header.producer_id
            if producer_id >= 0:
                batches = latest.get(producer_id)
                if batches is None:
                    latest[producer_id] = [header]
                elif len(batches) < BATCHES_KEPT:
                    batches.append(header)
        now_ms = self.clock_ms()
        undo = []
        for producer_id, batches in reversed(latest.items()):
            before = entry = self.get(producer_id)
            for header in reversed(batches):
                sequences = header.base_sequence, header.last_sequence
                entry = advance(entry, header.producer_epoch, *sequences, header.base_offset, now_ms)
            assert entry is not None
            self.put(producer_id, entry)
            undo.append((producer_id, before))
        return undo

    def restore(self, producer_id: int, entry: ProducerEntry | None) -> None:
        """Undoes a `put`: `entry` is the one before it, if any."""
        self._packed.pop(producer_id, None)
        if entry is None:
            self._recent.pop(producer_id, None)
        else:
            self._recent[producer_id] = entry

    def expire(self, silent_max_ms: int) -> None:
        """Forgets producers that have appended nothing for longer than `silent_max_ms`."""
        before_ms = self.clock_ms() - silent_max_ms
        self.forget([number for number, at_ms in self.packed_ones() if at_ms < before_ms])
        silent = [number for number, entry in self._recent.items() if entry.last_append_ms < before_ms]
        for producer_id in silent:
            del self._recent[producer_id]

    # --- memory ---

    def pack_silent(self, count_max: int) -> int:
        """Packs producers that have been silent for long, at most so many; returns how many."""
        before_ms, silent = self.clock_ms() - PACKED_AFTER_MS, list[int]()
        for producer_id, entry in self._recent.items():
            if entry.last_append_ms > before_ms or len(silent) == count_max:
                break
            silent.append(producer_id)
        for producer_id in silent:
            self._packed[producer_id] = pack(self._recent.pop(producer_id))
        return len(silent)

    def packed_ones(self) -> Iterator[tuple[int, int]]:
        """Yields those that are packed, and when each appended last: the first one is silent longest."""
        for producer_id, packed in self._packed.items():
            yield producer_id, _ENTRY.unpack_from(packed)[0]

    def forget(self, producer_ids: Iterable[int]) -> None:
        """Forgets producers that are packed."""
        for producer_id in producer_ids:
            del self._packed[producer_id]

    def saved(self) -> tuple[tuple[int, ProducerEntry | bytes], ...]:
        """Returns all of them for a checkpoint, which unpacks them on a thread."""
        return (*self._packed.items(), *self._recent.items())

    def __iter__(self) -> Iterator[tuple[int, ProducerEntry]]:
        for producer_id, packed in self._packed.items():
            yield producer_id, unpack(packed)
        yield from self._recent.items()

    def __len__(self) -> int:
        return len(self._packed) + len(self._recent)
