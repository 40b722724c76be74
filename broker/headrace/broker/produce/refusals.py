"""Refused batches that their producers will send again: later batches must wait, or the order is lost.

A producer has several requests in flight. Suppose its first batch for a partition is refused (the leader was
down, the log not open yet), and the next one arrives a moment later, when the leader is back. A leader that
does not know the producer would accept it as the producer's first (KIP-360 lets an unknown producer start at
any sequence), and the first one, sent again, would be out of order. This hardly ever happens on one
connection between client and leader; it does behind a front listener, which passes on each batch by itself.

Owns the memory of refused batches. Pure: the time is an argument.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import Final, NamedTuple

from headrace.wire.batch import SEQUENCE_SPAN, BatchHeader
from headrace.wire.errors import ErrorCode
from headrace.wire.topic_names import is_topic_name

KEPT_MS: Final = 120_000  # the default delivery.timeout.ms: clients retry this long
# So long a later batch is sent again and again before it is believed that the refused one will not come: the
# default request.timeout.ms, after which a client that has lost the refusal sends that one first.
WAITED_MAX_MS: Final = 30_000
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
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    }
)


class SequencedBatch(NamedTuple):
    """An idempotent producer's batch, by its first sequence number."""

    producer_id: int
    epoch: int
    first_sequence: int


class StoredSequence(NamedTuple):
    """The last sequence number of a producer that a log holds, and its epoch."""

    epoch: int
    last_sequence: int

    def has(self, epoch: int, sequence: int) -> bool:
        return epoch == self.epoch and not precedes(self.last_sequence, sequence)


class _Refused(NamedTuple):
    """`waits_until_ms`: None as long as no later batch has come."""

    epoch: int
    first_sequence: int
    until_ms: int
    waits_until_ms: int | None = None


def sequenced_batch(header: BatchHeader) -> SequencedBatch | None:
    """Returns the batch that has this header; None without a producer id, and for a mirror's batch: mirror
    batches are ordered by address, not by sequence.

    The caller has verified the batch's checksum: a header alone may name any producer.
    """
    if header.producer_id < 0 or header.last_offset_delta != header.record_count - 1:
        return None
    if header.is_stored_at(header.address):
        return None
    return SequencedBatch(header.producer_id, header.producer_epoch, header.base_sequence)


def precedes(one: int, other: int) -> bool:
    """Whether sequence number `one` comes before `other`; sequence numbers wrap."""
    return 0 < (other - one) % SEQUENCE_SPAN < SEQUENCE_SPAN // 2


_Key = tuple[str, int, int]


class Refusals:
    """The earliest refused batch that was not sent again, by topic, partition and producer."""

    def __init__(self) -> None:
        self._refused: OrderedDict[_Key, _Refused] = OrderedDict()  # the oldest first
        self._by_producer: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._refused)

    def concern(self, producer_id: int) -> bool:
        """Whether a batch of this producer was refused, in any partition."""
        return producer_id in self._by_producer

    def note(
        self, topic: str, partition: int, batch: SequencedBatch | None, code: ErrorCode, now_ms: int
    ) -> None:
        """Remembers a batch that got the error `code`, if its producer will send it again, and if a topic may
        have that name: other names may have megabytes.
        """
        if batch is None or code not in _RETRIED or not is_topic_name(topic):
            return
        key = (topic, partition, batch.producer_id)
        known = self._refused.get(key)
        if known is not None:
            if known.epoch == batch.epoch and precedes(known.first_sequence, batch.first_sequence):
                return  # it may have been refused because it waits for that one
            self._forget(key)
        self._refused[key] = _Refused(batch.epoch, batch.first_sequence, now_ms + KEPT_MS)
        self._by_producer[batch.producer_id] += 1
        if len(self._refused) > ENTRIES_MAX:
            self._forget(next(iter(self._refused)))

    def awaited_before(
        self,
        topic: str,
        partition: int,
        batch: SequencedBatch | None,
        now_ms: int,
        stored: StoredSequence | None = None,
    ) -> int | None:
        """Returns the sequence number that must come before this batch; None if the batch may be stored.

        The awaited batch itself may be stored, and is forgotten then. So is one that the log holds: its
        producer has sent it to another leader meanwhile; and one that does not come for `WAITED_MAX_MS` while
        a later one does. `stored`: the producer's last one in the log.
        """
        if not self._refused or batch is None:
            return None
        self._expire(now_ms)
        key = (topic, partition, batch.producer_id)
        known = self._refused.get(key)
        if known is None:
            return None
        if stored is not None and stored.has(known.epoch, known.first_sequence):
            self._forget(key)
            return None
        if known.epoch == batch.epoch and precedes(known.first_sequence, batch.first_sequence):
            if known.waits_until_ms is None:
                self._refused[key] = known._replace(waits_until_ms=now_ms + WAITED_MAX_MS)
            elif now_ms >= known.waits_until_ms:
                self._forget(key)
                return None
            return known.first_sequence
        if known.epoch < batch.epoch or (known.epoch, known.first_sequence) == batch[1:]:
            self._forget(key)
        return None

    def _expire(self, now_ms: int) -> None:
        """Forgets old entries."""
        while self._refused:
            oldest = next(iter(self._refused))
            if self._refused[oldest].until_ms > now_ms:
                return
            self._forget(oldest)

    def _forget(self, key: _Key) -> None:
        del self._refused[key]
        self._by_producer[key[2]] -= 1
        if not self._by_producer[key[2]]:
            del self._by_producer[key[2]]
