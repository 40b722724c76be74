"""Batches and a queue of one partition, for tests of `client.ordering`."""

from __future__ import annotations

from headrace.client.batches import ProducerBatch
from headrace.client.ordering import PartitionQueue


def closed_batch(*values: bytes, created_s: float = 0.0) -> ProducerBatch:
    """A batch of partition t-0 with these values, to be numbered."""
    batch = ProducerBatch("t", 0, limit_bytes=10_000, created_s=created_s, bucket=None, record_limit=None)
    for value in values:
        batch.builder.append(1000, None, value)
    return batch


def queue(producer_id: int = 1, epoch: int = 0, window: int = 5) -> PartitionQueue:
    """The queue of partition t-0, without batches."""
    return PartitionQueue("t", 0, producer_id=producer_id, producer_epoch=epoch, window=window)
