"""Thousands of batches may wait for one partition, while its leader is away: a round must not look at all."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from headrace.client.batches import ProducerBatch
from headrace.client.ordering import PartitionQueue
from headrace.wire.compression import Codec


class Counted(deque[ProducerBatch]):
    """Counts the batches that somebody looks at."""

    looked_at = 0

    def __iter__(self) -> Iterator[ProducerBatch]:
        for batch in super().__iter__():
            self.looked_at += 1
            yield batch


def test_of_a_thousand_batches_that_wait_a_round_looks_at_the_oldest_ones() -> None:
    queue = PartitionQueue("t", 0, producer_id=1, producer_epoch=0, window=5)
    for number in range(1_000):
        batch = ProducerBatch(
            "t", 0, limit_bytes=10_000, created_s=float(number), bucket=None, record_limit=None
        )
        batch.builder.append(1000, None, b"%d" % number)
        queue.add(batch, Codec.NONE)
    first, second = queue.batches[:2]
    queue.on_sent(first, 0.0)
    queue._batches = counted = Counted(queue._batches)
    assert queue.expired(2.0) == [second]
    assert counted.looked_at == 3
    assert queue.first_waiting is second
    assert queue.retry_at_s() == 0.0
    assert counted.looked_at == 7
