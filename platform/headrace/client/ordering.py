"""The batches of one partition, in order, from their numbering to their end.

Pure: no I/O, no clock, no threads.

Owns the rules that make retries neither reorder nor repeat records (KIP-98) and that carry on after a loss
(KIP-360):

- Batches are sent in the order of their numbers. One that has to be retried goes before those after it.
- At most `window` batches reach from the oldest unfinished to the youngest sent: brokers recognise duplicates
  among the last five only.
- A broker that does not know a producer takes any first number. So until one batch of an epoch is
  acknowledged, no second one is sent: it might be stored in place of the first.
- Brokers take the batches of an epoch in order only. So one that was acknowledged says that those before it
  are in the log, whatever became of their answers.
- A batch that ends without being appended leaves a gap that the broker refuses to skip. Those after it go on
  under the next epoch, numbered from 0. But never one whose fate is unknown: it may be in the log under
  its old number, so it is first retried under that until the broker says whether it is.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from headrace.client.batches import NO_SEQUENCE, ProducerBatch
from headrace.client.observer import BatchIdentity
from headrace.wire.batch import SEQUENCE_SPAN
from headrace.wire.compression import Codec

EPOCH_MAX: Final = 32_767
NO_PRODUCER: Final = -1
WINDOW_MAX: Final = 5


class PartitionQueue:
    """One partition's numbered batches. Without a producer id (`NO_PRODUCER`) it only keeps the order."""

    def __init__(
        self, topic: str, partition: int, *, producer_id: int, producer_epoch: int, window: int
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.next_sequence = 0
        self.bump_wanted = False
        """A gap lies before the batches that are not yet sent: they wait for the next epoch."""
        self.new_id_wanted = False
        """The next epoch has to be another producer id's: this one's are used up, or the broker disowned
        it.
        """
        self._window = window
        self._is_known = not self.is_idempotent
        """The broker has acknowledged something of this epoch."""
        self._batches: deque[ProducerBatch] = deque()

    @property
    def is_idempotent(self) -> bool:
        return self.producer_id != NO_PRODUCER

    @property
    def batches(self) -> tuple[ProducerBatch, ...]:
        return tuple(self._batches)

    def __len__(self) -> int:
        return len(self._batches)

    def add(self, batch: ProducerBatch, codec: Codec) -> None:
        """Number a closed batch and put it last."""
        base_sequence = NO_SEQUENCE
        if self.is_idempotent:
            base_sequence = self.next_sequence
            self.next_sequence = (base_sequence + batch.builder.record_count) % SEQUENCE_SPAN
        batch.number(self.producer_id, self.producer_epoch, base_sequence, codec)
        self._batches.append(batch)

    def next_to_send(self, now_s: float) -> ProducerBatch | None:
        """The batch whose turn it is, if it may go now."""
        window = self._window if self._is_known else 1
        for position, batch in enumerate(self._batches):
            if position >= window:
                return None
            if batch.in_flight:
                continue
            if batch.retry_at_s > now_s or (self.bump_wanted and not batch.maybe_appended):
                return None
            return batch
        return None

    def retry_at_s(self) -> float | None:
        """When the batch whose turn it is may go, if it has to wait for that."""
        for batch in self._batches:
            if not batch.in_flight:
                return batch.retry_at_s
        return None

    def sent(self, batch: ProducerBatch) -> None:
        batch.in_flight = True
        batch.attempts += 1

    def acknowledged(self, batch: ProducerBatch) -> None:
        """In the log, under the number it has."""
        batch.in_flight = False
        for older in self._batches:
            if older is batch:
                break
            older.surely_appended = self.is_idempotent
        self._batches.remove(batch)
        self._is_known = True

    def ended(self, batch: ProducerBatch) -> None:
        """Refused for good, expired, or dropped: its numbers are gone."""
        batch.in_flight = False
        self._batches.remove(batch)
        self.bump_wanted = self.is_idempotent

    def to_retry(self, batch: ProducerBatch, *, at_s: float, maybe_appended: bool) -> None:
        """It was not acknowledged, but may be later. `maybe_appended`: this attempt's fate is unknown."""
        batch.in_flight = False
        batch.retry_at_s = at_s
        batch.maybe_appended = batch.maybe_appended or maybe_appended

    def out_of_order(self, batch: ProducerBatch, *, at_s: float) -> None:
        """The broker misses what comes before it (OUT_OF_ORDER_SEQUENCE_NUMBER, UNKNOWN_PRODUCER_ID).

        While an older batch is unfinished that is no surprise. If it is the oldest itself, the broker has
        lost what it had acknowledged, or never got what we gave up: a gap. In both cases this batch is not
        in the log.
        """
        self.to_retry(batch, at_s=at_s, maybe_appended=False)
        if self._batches[0] is batch:
            batch.maybe_appended = False
            self.bump_wanted = True

    def disowned(self, batch: ProducerBatch, *, at_s: float) -> None:
        """The broker knows a newer epoch of our producer id than we do (INVALID_PRODUCER_EPOCH): not
        appended.
        """
        self.to_retry(batch, at_s=at_s, maybe_appended=False)
        batch.maybe_appended = False
        self.bump_wanted = self.new_id_wanted = True

    @property
    def can_bump(self) -> bool:
        """Whether all that are left may be renumbered now."""
        return self.bump_wanted and not any(b.in_flight or b.maybe_appended for b in self._batches)

    @property
    def needs_new_id(self) -> bool:
        return self.new_id_wanted or self.producer_epoch >= EPOCH_MAX

    def bump(self, new_producer: tuple[int, int] | None = None) -> list[tuple[BatchIdentity, BatchIdentity]]:
        """Go on under the next epoch, or as `new_producer` (id, epoch) if `needs_new_id`.

        Old and new identities.
        """
        assert self.can_bump
        if new_producer is None:
            assert not self.needs_new_id
            new_producer = (self.producer_id, self.producer_epoch + 1)
        self.producer_id, self.producer_epoch = new_producer
        self.bump_wanted = self.new_id_wanted = self._is_known = False
        sequence = 0
        changes = []
        for batch in self._batches:
            old = batch.identity
            batch.renumber(self.producer_id, self.producer_epoch, sequence)
            changes.append((old, batch.identity))
            sequence = (sequence + old.record_count) % SEQUENCE_SPAN
        self.next_sequence = sequence
        return changes

    def expired(self, created_before_s: float) -> list[ProducerBatch]:
        """The batches made before that and not in flight: their delivery timeout has passed."""
        return [b for b in self._batches if b.created_s < created_before_s and not b.in_flight]
