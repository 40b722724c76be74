"""The batches of one partition, in order, from their numbering to their end. Pure: no I/O, clock or threads.

Owns the rules by which retries neither reorder nor repeat records (KIP-98), and by which a producer continues
after a loss (KIP-360):

- Batches are sent in the order of their sequence numbers. A batch to retry is sent before all later ones.
- From the oldest unfinished batch to the latest sent one there are at most `window` batches: brokers
  recognise duplicates only among the last five.
- A broker that does not know a producer accepts any first sequence number. So until one batch of an epoch is
  acknowledged, no second one is sent: it might be appended in place of the first. Brokers forget producers
  (`producer.id.expiration.ms`, retention), so this holds again after a silence of `KNOWN_MAX_S`.
- Brokers append the batches of an epoch only in order. So an acknowledgement proves that all earlier batches
  are in the log, whatever happened to their responses; and where one is known not to be in the log, none
  after it is.
- A batch that ends without being appended leaves a gap, and the broker refuses the batches after it. They
  continue under the next epoch, numbered from 0. Exception: a batch whose fate is unknown may be in the log
  under its old numbers, so it is retried with those until the broker decides.
"""

from __future__ import annotations

from collections import deque
from itertools import takewhile
from math import inf
from typing import Final

from headrace.client.batches import NO_SEQUENCE, ProducerBatch
from headrace.client.observer import BatchIdentity
from headrace.wire.batch import SEQUENCE_SPAN
from headrace.wire.compression import Codec

EPOCH_MAX: Final = 32_767
NO_PRODUCER: Final = -1
WINDOW_MAX: Final = 5
KNOWN_MAX_S: Final = 60.0
"""How long after the last acknowledged batch was sent the broker is taken to know the producer. It must be
shorter than the time after which any broker forgets it.
"""


class PartitionQueue:
    """One partition's numbered batches. Without a producer id (`NO_PRODUCER`) it only keeps their order."""

    def __init__(
        self, topic: str, partition: int, *, producer_id: int, producer_epoch: int, window: int
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.next_sequence = 0
        self.bump_wanted = False  # a gap precedes the unsent batches: they wait for the next epoch
        self._new_id_wanted = False  # the broker fenced the producer id: the next epoch needs another one
        self._window = window
        # When the latest acknowledged batch of this epoch was sent: the broker knew the producer after that.
        self._known_s = -inf if self.is_idempotent else inf
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
        """Numbers a closed batch and appends it to the queue."""
        base_sequence = NO_SEQUENCE
        if self.is_idempotent:
            base_sequence = self.next_sequence
            self.next_sequence = (base_sequence + batch.builder.record_count) % SEQUENCE_SPAN
        batch.number(self.producer_id, self.producer_epoch, base_sequence, codec)
        self._batches.append(batch)

    def next_to_send(self, now_s: float) -> ProducerBatch | None:
        """Returns the first batch that is not in flight, if it may be sent now."""
        window = self._window if now_s - self._known_s <= KNOWN_MAX_S else 1
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
        """Returns from when on the first batch that is not in flight may be sent; None if there is none."""
        batch = self.first_waiting
        return None if batch is None else batch.retry_at_s

    @property
    def first_waiting(self) -> ProducerBatch | None:
        """The oldest batch that is not in flight; None if there is none."""
        for batch in self._batches:
            if not batch.in_flight:
                return batch
        return None

    def on_sent(self, batch: ProducerBatch, now_s: float) -> None:
        batch.in_flight = True
        batch.sent_s = now_s
        batch.attempts += 1

    def on_acknowledged(self, batch: ProducerBatch) -> None:
        """Removes an acknowledged batch: it is in the log, and so are all before it."""
        batch.in_flight = False
        for older in self._batches:
            if older is batch:
                break
            # One that was refused is not: the broker had forgotten the producer, and took a later one first.
            older.surely_appended = self.is_idempotent and (older.in_flight or older.maybe_appended)
        self._batches.remove(batch)
        if not batch.surely_appended:  # else a later batch proves it, and says when
            self._known_s = max(self._known_s, batch.sent_s)

    def on_ended(self, batch: ProducerBatch) -> None:
        """Removes a batch that was refused permanently, expired, or dropped: its numbers become a gap."""
        batch.in_flight = False
        self._batches.remove(batch)
        self.bump_wanted = self.is_idempotent

    def retry_later(self, batch: ProducerBatch, *, at_s: float, maybe_appended: bool) -> None:
        """Schedules another attempt. `maybe_appended`: the fate of the last attempt is unknown."""
        batch.in_flight = False
        batch.retry_at_s = at_s
        batch.maybe_appended = batch.maybe_appended or maybe_appended

    def on_gap(self, batch: ProducerBatch, *, at_s: float) -> None:
        """Handles OUT_OF_ORDER_SEQUENCE_NUMBER and UNKNOWN_PRODUCER_ID: the broker lacks earlier batches.

        That is expected while an older batch is unfinished. If the batch is the oldest, the broker has lost
        batches it had acknowledged, or never got a batch that has ended: a gap. Either way this batch is not
        in the log.
        """
        self.retry_later(batch, at_s=at_s, maybe_appended=False)
        if self._batches[0] is batch:
            batch.maybe_appended = False
            self.bump_wanted = True

    def on_fenced(self, batch: ProducerBatch, *, at_s: float) -> None:
        """Handles INVALID_PRODUCER_EPOCH: the broker knows a newer epoch of the producer id. Not appended."""
        self.retry_later(batch, at_s=at_s, maybe_appended=False)
        batch.maybe_appended = False
        self.bump_wanted = self._new_id_wanted = True

    @property
    def can_bump(self) -> bool:
        """Whether all remaining batches may be renumbered now: the oldest is not in the log, so none is."""
        if not self.bump_wanted or any(batch.in_flight for batch in self._batches):
            return False
        return not self._batches or not self._batches[0].maybe_appended

    @property
    def needs_new_id(self) -> bool:
        """Whether the next epoch needs another producer id: fenced, or the epochs of this one are used up."""
        return self._new_id_wanted or self.producer_epoch >= EPOCH_MAX

    def bump_epoch_and_renumber(
        self, new_producer: tuple[int, int] | None = None
    ) -> list[tuple[BatchIdentity, BatchIdentity]]:
        """Renumbers all batches under the next epoch, or as `new_producer` (id, epoch) if `needs_new_id`.

        Returns their old and new identities.
        """
        assert self.can_bump
        if new_producer is None:
            assert not self.needs_new_id
            new_producer = (self.producer_id, self.producer_epoch + 1)
        self.producer_id, self.producer_epoch = new_producer
        self.bump_wanted = self._new_id_wanted = False
        self._known_s = -inf
        sequence = 0
        changes = []
        for batch in self._batches:
            old = batch.identity
            batch.maybe_appended = False
            batch.renumber(self.producer_id, self.producer_epoch, sequence)
            changes.append((old, batch.identity))
            sequence = (sequence + old.record_count) % SEQUENCE_SPAN
        self.next_sequence = sequence
        return changes

    def expired(self, created_before_s: float) -> list[ProducerBatch]:
        """Returns the batches that were created before that time and are not in flight. Looks at no later
        one: thousands may wait.
        """
        older = takewhile(lambda batch: batch.created_s < created_before_s, self._batches)
        return [batch for batch in older if not batch.in_flight]
