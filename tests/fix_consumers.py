"""Consumers of fake clusters, and what they have to read.

Fixtures: `consumer`, a factory that closes what it made; `cluster`, a fake cluster of each kind of offsets.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from fix_client import FakeCluster, StartCluster
from headrace.client import Consumer, ConsumerRecord
from headrace.wire.compression import Codec
from headrace.wire.records import Record, encode_batch

WAIT_S = 60

MakeConsumer = Callable[..., Consumer]


def fill(
    cluster: FakeCluster,
    batches: int = 5,
    records: int = 4,
    partition: int = 0,
    codec: Codec = Codec.NONE,
    size_bytes: int = 20,
) -> None:
    """Batches of records "batch.record", their times 1000 apart per batch and 1 per record."""
    with cluster.lock:
        for i in range(batches):
            batch = encode_batch(
                [
                    Record(
                        0,
                        1_000_000 + 1000 * i + j,
                        b"k",
                        b"%d.%d" % (i, j) + b"x" * size_bytes,
                        (("h", None),),
                    )
                    for j in range(records)
                ],
                codec=codec,
            )
            cluster.log(partition).append(batch)


def read(consumer: Consumer, count: int, *, within_s: float = WAIT_S, **options: Any) -> list[ConsumerRecord]:
    got: list[ConsumerRecord] = []
    deadline = time.monotonic() + within_s
    while len(got) < count and time.monotonic() < deadline:
        got += consumer.poll(0.2, **options)
    return got


def as_stored(cluster: FakeCluster, partition: int = 0) -> list[tuple[Any, ...]]:
    return [("t", partition, *record) for record in cluster.log(partition).records()]


@pytest.fixture
def consumer() -> Iterator[MakeConsumer]:
    made = []

    def make(cluster: FakeCluster, partitions: Iterable[int] = (0,), **options: Any) -> Consumer:
        options = {"auto_offset_reset": "earliest", "retry_backoff_ms": 5, "fetch_max_wait_ms": 50, **options}
        made.append(Consumer(cluster.bootstrap, **options))
        made[-1].assign([("t", partition) for partition in partitions])
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture(params=[True, False], ids=["addresses", "offsets"])
def cluster(request: pytest.FixtureRequest, fake_cluster: StartCluster) -> FakeCluster:
    return fake_cluster(by_address=request.param)
