"""The hook for observing a producer's batches. The audit's producer tier depends on this contract."""

from __future__ import annotations

from typing import NamedTuple

from headrace.client.errors import ClientError


class BatchIdentity(NamedTuple):
    """The records of a batch, identified by the fields of its header, which every copy of the log preserves.

    An idempotent producer's records are `base_sequence` to `base_sequence + record_count - 1` (modulo
    2**31) of `(producer_id, producer_epoch)` in one partition; no sequence number is ever assigned to two
    records under one epoch. The three are -1 for a producer that is not idempotent. Times in ms since the
    epoch. `content`: of the batch as it is sent (`wire.content`); None if it is not known.
    """

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    content: int | None = None


class BatchObserver:
    """Override the methods you need. They are called in the producer's sender thread and must be quick.

    For every batch: `batch_closed` once, then `batch_renumbered` any number of times, then exactly one of
    `batch_delivered` and `batch_failed`. Exception: nothing follows the `batch_closed` of a batch that an
    interceptor dropped. What an observer raises is logged and has no other effect.
    """

    def batch_encoded(self, identity: BatchIdentity, data: bytearray) -> None:
        """Called just before `batch_closed`, with the batch's bytes, which must not be changed or kept."""

    def batch_closed(self, identity: BatchIdentity) -> None:
        """The batch was numbered and is closed to more records. It has not been sent yet."""

    def batch_renumbered(self, old: BatchIdentity, new: BatchIdentity) -> None:
        """The same records will be sent under a new epoch (KIP-360); they never reach a log as `old`.

        Of several batches of a partition the newest comes first.
        """

    def batch_delivered(self, identity: BatchIdentity, base_offset: int) -> None:
        """The batch was acknowledged. `base_offset` is -1 if unknown (acks=0, some duplicates)."""

    def batch_failed(self, identity: BatchIdentity, error: ClientError) -> None:
        """The batch failed. It may be in the log nevertheless if the error has `maybe_appended` set."""
