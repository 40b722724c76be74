"""What a consumer fetches ahead stays within `buffer_memory_bytes`, however many brokers it reads from."""

from __future__ import annotations

from fix_broker import StartCluster
from headrace.client import Admin, Consumer, Producer

PARTITIONS = 12
BATCH_BYTES = 5_000


def test_what_is_fetched_ahead_is_bounded_over_all_brokers(broker_cluster: StartCluster) -> None:
    """Each leader was asked for as much as there was room for: ten of them sent ten times the bound."""
    cluster = broker_cluster(3)
    with Admin(cluster.bootstrap) as admin:
        admin.create_topic("t", PARTITIONS, 1)
    with Producer(cluster.bootstrap, batch_size_bytes=BATCH_BYTES - 1000) as producer:
        for n in range(12_000):
            producer.send("t", b"x" * 500, partition=n % PARTITIONS)
    with Consumer(
        cluster.bootstrap,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=100_000,
        buffer_memory_bytes=200_000,
        max_poll_records=1,
    ) as consumer:
        consumer.assign(("t", n) for n in range(PARTITIONS))
        most_bytes = count = 0
        while count < 12_000:
            count += len(consumer.poll(10, max_records=1 if count < 1_000 else 100))
            most_bytes = max(most_bytes, consumer._fetcher.buffered_bytes)
    # A broker's answer has one whole batch, however little was asked for.
    assert 100_000 < most_bytes <= 200_000 + 3 * BATCH_BYTES
