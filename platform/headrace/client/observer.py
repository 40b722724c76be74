"""What the producer tells whoever watches its batches.

The audit of the producers' tier rests on this contract.
"""

from __future__ import annotations

from typing import NamedTuple

from headrace.client.errors import ClientError


class BatchIdentity(NamedTuple):
    """Which records a batch holds, as every log it is copied to can tell from its header alone.

    An idempotent producer's records are `base_sequence` to `base_sequence + record_count - 1` (modulo
    2**31) of `(producer_id, producer_epoch)` in one partition; no sequence number is ever given to two
    records under one epoch. The three are -1 for a producer that is not idempotent. Times in ms since the
    epoch.
    """

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int
    base_timestamp_ms: int
    max_timestamp_ms: int


class BatchObserver:
    """Override what you want to hear.

    All methods are called in the producer's sender thread and must be quick.

    Of every batch: `batch_closed` once, then `batch_renumbered` any number of times (each time its identity
    is another one), then exactly one of `batch_delivered` and `batch_failed`. The exception is a batch that
    an interceptor dropped: nothing follows its `batch_closed`. What an observer raises is logged and
    changes nothing.
    """

    def batch_closed(self, identity: BatchIdentity) -> None:
        """The batch has its identity and takes no more records. It has not been sent yet."""

    def batch_renumbered(self, old: BatchIdentity, new: BatchIdentity) -> None:
        """The same records go on under a new epoch (KIP-360): nothing will ever arrive as `old`."""

    def batch_delivered(self, identity: BatchIdentity, base_offset: int) -> None:
        """Acknowledged. `base_offset` is -1 where the broker does not say (acks=0, some duplicates)."""

    def batch_failed(self, identity: BatchIdentity, error: ClientError) -> None:
        """Given up. After a `DeliveryTimeoutError` with `maybe_appended` it may be in the log after all."""
