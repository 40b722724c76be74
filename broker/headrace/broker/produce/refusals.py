"""Batches that were refused and will come again: those behind them must wait, or a producer's order is lost.

A producer has several requests under way. If its first one for a partition is refused (the leader was gone,
the log not open yet) and the next arrives a moment later, when all is well again, a leader that knows nothing
of that producer would take it for a beginning (KIP-360 lets an unknown producer begin anywhere), and the
first one, sent again, would come out of order. One connection between the client and the leader can hardly
show this; a front listener, where each batch is passed on by itself, can.

Owns the memory of what was refused. Pure: time comes in.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from headrace.wire.batch import SEQUENCE_SPAN, read_header
from headrace.wire.errors import ErrorCode, WireError
from headrace.wire.primitives import Buffer

KEPT_MS: Final = 120_000  # as long as clients try by default (delivery.timeout.ms)
ENTRIES_MAX: Final = 10_000  # beyond it the oldest is forgotten

# The client sends it again, and it is not in the log, or may not be.
_COMES_AGAIN: Final = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)


class SequencedBatch(NamedTuple):
    """Which batch of which idempotent producer."""

    producer_id: int
    epoch: int
    first_sequence: int


class _Refused(NamedTuple):
    epoch: int
    first_sequence: int
    until_ms: int


def sequenced_batch(records: Buffer | None) -> SequencedBatch | None:
    """Of a partition's records in a Produce request; None without a producer id, without a whole header, and
    for a mirror's verbatim batch: its order is that of addresses.
    """
    if records is None:
        return None
    try:
        header = read_header(records)
    except WireError:
        return None
    if header.producer_id < 0 or header.last_offset_delta != header.record_count - 1:
        return None
    return SequencedBatch(header.producer_id, header.producer_epoch, header.base_sequence)


def precedes(one: int, other: int) -> bool:
    """Whether sequence number `one` comes before `other`; they wrap."""
    return 0 < (other - one) % SEQUENCE_SPAN < SEQUENCE_SPAN // 2


class Refusals:
    """By topic, partition and producer: the earliest batch that was refused and has not come again."""

    def __init__(self) -> None:
        self._refused: dict[tuple[str, int, int], _Refused] = {}

    def __len__(self) -> int:
        return len(self._refused)

    def note(
        self, topic: str, partition: int, batch: SequencedBatch | None, code: ErrorCode, now_ms: int
    ) -> None:
        """The batch was answered with `code`."""
        if batch is None or code not in _COMES_AGAIN:
            return
        key = (topic, partition, batch.producer_id)
        known = self._refused.pop(key, None)
        first = batch.first_sequence
        if known is not None and known.epoch == batch.epoch and precedes(known.first_sequence, first):
            first = known.first_sequence
        self._refused[key] = _Refused(batch.epoch, first, now_ms + KEPT_MS)
        if len(self._refused) > ENTRIES_MAX:
            del self._refused[next(iter(self._refused))]

    def awaited_before(
        self, topic: str, partition: int, batch: SequencedBatch | None, now_ms: int
    ) -> int | None:
        """The sequence number that must come before this batch, or None: the batch may go on.

        The awaited one itself may go on, and is forgotten with that.
        """
        if not self._refused or batch is None:
            return None
        self._expire(now_ms)
        key = (topic, partition, batch.producer_id)
        known = self._refused.get(key)
        if known is None:
            return None
        if known.epoch == batch.epoch and precedes(known.first_sequence, batch.first_sequence):
            return known.first_sequence
        if known.epoch < batch.epoch or (known.epoch, known.first_sequence) == batch[1:]:
            del self._refused[key]
        return None

    def _expire(self, now_ms: int) -> None:
        """Entries are in the order of their times."""
        while self._refused:
            oldest = next(iter(self._refused))
            if self._refused[oldest].until_ms > now_ms:
                return
            del self._refused[oldest]
