"""Refused batches that their producers will send again: later batches must wait, or the order is lost.

A producer has several requests in flight. Suppose its first batch for a partition is refused (the leader was
down, the log not open yet), and the next one arrives a moment later, when the leader is back. A leader that
does not know the producer would accept it as the producer's first (KIP-360 lets an unknown producer start at
any sequence), and the first one, sent again, would be out of order. This hardly ever happens on one
connection between client and leader; it does behind a front listener, which passes on each batch by itself.

Owns the memory of refused batches. Pure: the time is an argument.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from headrace.wire.batch import SEQUENCE_SPAN, read_header
from headrace.wire.errors import ErrorCode, WireError
from headrace.wire.primitives import Buffer

KEPT_MS: Final = 120_000  # the default delivery.timeout.ms: clients retry this long
ENTRIES_MAX: Final = 10_000  # beyond it the oldest is forgotten

# After these errors clients send the batch again, and it may not be in the log.
_RETRIED: Final = frozenset(
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
    """An idempotent producer's batch, by its first sequence number."""

    producer_id: int
    epoch: int
    first_sequence: int


class _Refused(NamedTuple):
    epoch: int
    first_sequence: int
    until_ms: int


def sequenced_batch(records: Buffer | None) -> SequencedBatch | None:
    """Returns the batch that a partition's records begin with; None without a whole header or a producer id,
    and for a mirror's batch: mirror batches are ordered by address, not by sequence.
    """
    if records is None:
        return None
    try:
        header = read_header(records)
    except WireError:
        return None
    if header.producer_id < 0 or header.last_offset_delta != header.record_count - 1:
        return None
    if header.is_stored_at(header.address):
        return None
    return SequencedBatch(header.producer_id, header.producer_epoch, header.base_sequence)


def precedes(one: int, other: int) -> bool:
    """Whether sequence number `one` comes before `other`; sequence numbers wrap."""
    return 0 < (other - one) % SEQUENCE_SPAN < SEQUENCE_SPAN // 2


class Refusals:
    """The earliest refused batch that was not sent again, by topic, partition and producer."""

    def __init__(self) -> None:
        self._refused: dict[tuple[str, int, int], _Refused] = {}

    def __len__(self) -> int:
        return len(self._refused)

    def note(
        self, topic: str, partition: int, batch: SequencedBatch | None, code: ErrorCode, now_ms: int
    ) -> None:
        """Remembers a batch that got the error `code`, if its producer will send it again."""
        if batch is None or code not in _RETRIED:
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
        """Returns the sequence number that must come before this batch; None if the batch may be stored.

        The awaited batch itself may be stored, and is forgotten then.
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
        """Forgets old entries; entries are ordered oldest first."""
        while self._refused:
            oldest = next(iter(self._refused))
            if self._refused[oldest].until_ms > now_ms:
                return
            del self._refused[oldest]
