"""A load over what a log may hold: good events become rows, all others dead letters by name."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from fix_bad_batches import flipped, poisoned, spoil_in_file, timed, undecompressable
from fix_broker import BrokerCluster
from fix_warehouse import BASE_TIME_MS, CLICK, HOUR_MS, NUMBER, TestTopic, World, click, event_schema
from headrace.warehouse.api import replay_topics, verify_topics
from headrace.warehouse.options import WarehouseOptions
from headrace.wire.batch import BatchHeader, hop

pytestmark = [pytest.mark.spark, pytest.mark.hdfs]

EVENTS = 5  # in each batch
BATCHES = 12
US_FOR_MS = BASE_TIME_MS * 1000
SPOILS = {
    1: flipped,
    3: poisoned,
    4: undecompressable,
    6: timed(US_FOR_MS, US_FOR_MS + 10),  # the records are sound; their Kafka timestamps are absurd
    7: timed(2**62, 2**63 - 1),
    8: timed(-(2**62), -(2**62)),
    11: flipped,
}
LISTED = event_schema(NUMBER, {"name": "list", "type": {"type": "array", "items": "int"}, "default": []})
"""A schema that no compiled program handles: `from_avro` decodes its events."""


def spoiled_topic(
    world: World, one_broker: BrokerCluster, name: str, schema: dict[str, Any]
) -> tuple[TestTopic, list[BatchHeader], dict[int, BatchHeader]]:
    """A topic with one partition, its batches' headers, and those of the bad ones."""
    topic = world.topic(name, partitions=1)
    for batch in range(BATCHES):
        events = [
            click(number, BASE_TIME_MS + number * 1000)
            for number in range(batch * EVENTS, (batch + 1) * EVENTS)
        ]
        if schema is LISTED:
            events = [
                {key: value for key, value in event.items() if key != "word"} | {"list": [1]}
                for event in events
            ]
        topic.publish(events, schema)
    folder = one_broker[1].data_dir / f"{topic.name}-0"
    bad = spoil_in_file(folder, SPOILS)
    (segment,) = folder.glob("*.log")
    headers = [header for _, header in hop(segment.read_bytes())]
    assert [header.record_count for header in headers] == [EVENTS] * BATCHES
    return topic, headers, bad


@pytest.mark.parametrize("schema", [CLICK, LISTED], ids=["program", "from_avro"])
def test_a_load_sets_bad_batches_aside_and_counts_each_record_once(
    world: World, one_broker: BrokerCluster, schema: dict[str, Any]
) -> None:
    topic, headers, bad = spoiled_topic(world, one_broker, "rotten", schema)
    warehouse = WarehouseOptions(**{**world.addresses, "audit": False})
    dead_count = EVENTS * len(SPOILS)
    result = topic.load()
    assert (result.rows, result.dead_lettered) == (EVENTS * (BATCHES - len(SPOILS)), dead_count)
    numbers = sorted(row.number for row in topic.table().select("number").collect())
    good = [batch for batch in range(BATCHES) if batch not in SPOILS]
    assert numbers == [batch * EVENTS + i for batch in good for i in range(EVENTS)]

    # The manifest counts, hour by hour, what the headers claim: the audit compares just that.
    claimed: Counter[int] = Counter()
    for header in headers:
        most_ms = ((1 << 63) - 1) // 1000
        time_ms = min(max(header.base_timestamp_ms, -most_ms), most_ms)
        claimed[time_ms // HOUR_MS * HOUR_MS] += header.record_count
    counted = {
        hour.hour_ms: hour.distinct_offsets + hour.dead_lettered
        for loaded in result.ranges
        for hour in loaded.hours
    }
    assert counted == dict(claimed)

    [letters] = [path for path, _ in world.hdfs.walk(topic.paths.dead)]
    dead = (
        world.spark.read.parquet(f"{world.process.hdfs_url}{letters}")
        .select("_offset", "reason", "value")  # not the time: Python has no year 55,000
        .orderBy("_offset")
        .collect()
    )
    assert [row._offset for row in dead] == [
        bad[batch].base_offset + i for batch in sorted(SPOILS) for i in range(EVENTS)
    ]
    reasons = {batch: dead[i * EVENTS].reason for i, batch in enumerate(sorted(SPOILS))}
    place = f"corrupt batch at addresses {bad[1].address} to {bad[1].next_offset}: "
    assert reasons[1].startswith(place) and "CRC" in reasons[1]
    assert "lz4" in reasons[3]  # the topic's codec, over noise
    assert "zstd" in reasons[4]
    assert f"the Kafka timestamp is {US_FOR_MS} ms" in reasons[6] and "microseconds" in reasons[6]
    assert "after 9999" in reasons[7] and "before the year 1" in reasons[8]
    assert len(bytes(dead[0].value)) == bad[1].size_bytes
    assert [row.value for row in dead[1:EVENTS]] == [None] * (EVENTS - 1)
    assert verify_topics(warehouse, [topic.name])[0].problems == ()

    # The next load goes on, and a replay changes nothing: the reasons stay.
    topic.publish([click(1000, BASE_TIME_MS)] if schema is CLICK else [], schema)
    assert topic.load().rows == (1 if schema is CLICK else 0)
    [replayed] = replay_topics(world.spark, warehouse, [topic.name])
    assert (replayed.rows, replayed.still_dead) == (0, dead_count)
