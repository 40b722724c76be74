"""What clusters hold of mirrored topics: events to send to a source, the bytes of both logs, compared."""

from __future__ import annotations

import json
import time

from fix_audit import WAIT_MAX_S, MirrorProcess
from fix_broker import BrokerCluster
from headrace.client import Producer


def files_of(cluster: BrokerCluster, topic: str, partition: int) -> bytes:
    """The bytes of a partition's log, all segments concatenated, from a broker that has it."""
    for broker in cluster.brokers:
        paths = sorted((broker.data_dir / f"{topic}-{partition}").glob("*.log"))
        if paths:
            return b"".join(path.read_bytes() for path in paths)
    return b""


def assert_same(mirror: MirrorProcess, topic: str, *partitions: int) -> None:
    """Waits until the copies are as long as the source's partitions, then compares all bytes."""
    for partition in partitions:
        copy = mirror.partitions()[topic, partition]["target_partition"]
        expected = files_of(mirror.source, topic, partition)
        assert expected, f"{topic}-{partition} is empty"
        deadline = time.monotonic() + WAIT_MAX_S
        while len(files_of(mirror.target, topic, copy)) < len(expected):
            assert time.monotonic() < deadline, (
                f"{len(expected)} {json.dumps(mirror.status())} {mirror.output()[-3000:]}"
            )
            time.sleep(0.05)
        assert files_of(mirror.target, topic, copy) == expected


def send(cluster: BrokerCluster, topic: str, count: int, *, partitions: int, codec: str = "none") -> None:
    with Producer(cluster.bootstrap, compression=codec) as producer:
        for index in range(count):
            producer.send(topic, b"event %d " % index * 20, partition=index % partitions)
        producer.flush(WAIT_MAX_S)
