"""Batches that lie, produced by otherwise right requests: what a broker accepts, every reader can read.

A broker that opens records before it believes them stores no batch that our own reader or librdkafka refuses.
"""

from __future__ import annotations

import random
import time
from typing import Final

import confluent_kafka

from fix_broker import RawClient, batches_of
from fuzzing.batches import TIME_MS, honest_batch, records
from fuzzing.world import PARTITIONS, RECORDS_TOPIC, World
from headrace.wire.batch import hop
from headrace.wire.records import decode_records

BATCHES: Final = 250
TOPIC: Final = RECORDS_TOPIC
READ_WAIT_MAX_S: Final = 30.0
POLL_S: Final = 0.2
SHOWN_BYTES: Final = 4096


def run(world: World, rng: random.Random) -> list[str]:
    """Returns the last batch in hex."""
    partition = rng.randrange(PARTITIONS)
    accepted: dict[
        int, int
    ] = {}  # records by their batch's first offset: a duplicate is answered with its own
    with RawClient(world.address) as client:
        start, _ = client.list_offset(TOPIC, partition, -1)
        data = b""
        for number in range(BATCHES + 1):
            # The last one is durable when it is answered, and so is all before it.
            is_last = number == BATCHES
            data = honest_batch(b"last", TIME_MS) if is_last else records(rng)
            result = client.produce(TOPIC, partition, data, acks=-1 if is_last else rng.choice((1, -1)))
            if result.error_code == 0:
                accepted[result.base_offset] = sum(header.record_count for _, header in hop(data))
        end, _ = client.list_offset(TOPIC, partition, -1)
        found = _read_raw(client, partition, start, end)
        wanted = sum(count for offset, count in accepted.items() if offset >= start)
        if found != wanted:
            raise AssertionError(f"{wanted} records were accepted, {found} can be read, from {start} on")
    _read_by_librdkafka(world.address, partition, start, end, found)
    return [data[:SHOWN_BYTES].hex()]


def _read_raw(client: RawClient, partition: int, start: int, end: int) -> int:
    number = 0
    at = start
    while at < end:
        data = batches_of(client.fetch(TOPIC, partition, at, max_bytes=16 << 20))
        for position, header in hop(data):
            assert header.is_stored_at(at), f"the batch at {at} has the header {header}"
            if not header.is_control:
                number += len(decode_records(data, position))
            at += header.size_bytes
    return number


def _read_by_librdkafka(address: str, partition: int, start: int, end: int, count: int) -> None:
    settings = {
        "bootstrap.servers": address,
        "group.id": "unused",
        "check.crcs": True,
        "enable.partition.eof": True,
        "isolation.level": "read_uncommitted",
    }
    consumer = confluent_kafka.Consumer(settings)
    number = 0
    try:
        consumer.assign([confluent_kafka.TopicPartition(TOPIC, partition, start)])
        deadline = time.monotonic() + READ_WAIT_MAX_S
        while number < count:
            assert time.monotonic() < deadline, (
                f"librdkafka reads {number} of {count} records in [{start}, {end})"
            )
            for message in consumer.consume(100, POLL_S):
                error = message.error()
                if error is None:
                    number += 1
                elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                    assert number >= count, f"librdkafka reads {number} of {count} records from {start} on"
                else:
                    raise AssertionError(f"librdkafka at {message.offset()}: {error}")
    finally:
        consumer.close()
