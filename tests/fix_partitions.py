"""Partitions on disk and what handlers need around them, without ZooKeeper, threads or sockets.

`SomePartitions(folder, loop, count)` has so many partitions of the topic "t". A flush runs at once, on the
caller's thread, as soon as the broker asks for it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

from headrace.broker.cold_reads import ColdReads
from headrace.broker.loop import EventLoop
from headrace.broker.partition import Partition
from headrace.broker.partitions import Partitions
from headrace.broker.settings.config import BrokerConfig
from headrace.broker.state import BrokerState
from headrace.broker.workers import Workers
from headrace.log.partition import PartitionLog
from headrace.wire.batch import read_header
from headrace.wire.records import Record, encode_batch

TOPIC = "t"
ID = UUID(int=1)


class _AtOnce:
    """Runs each job when it is submitted."""

    def submit(self, job: Callable[[], Any], done: Callable[[Any, Exception | None], None]) -> None:
        done(job(), None)


class SomePartitions:
    """`state` is what handlers get. Every batch has a record of 1970."""

    def __init__(
        self, folder: Path, loop: EventLoop, count: int = 1, settings: dict[str, str] | None = None
    ) -> None:
        config = BrokerConfig(settings or {})
        topic_config = config.topic_config({})
        workers = cast(Workers, _AtOnce())
        self.all = [
            Partition(
                TOPIC, index, ID, topic_config, PartitionLog(folder / f"t-{index}", topic_config.log), 0
            )
            for index in range(count)
        ]
        partitions = Partitions(workers, loop.call_later)
        for partition in self.all:
            partitions.add(partition)
        nothing = cast(Any, None)
        self.state = BrokerState(
            broker_id=1,
            datacenter="test",
            cluster_id="test",
            config=config,
            loop=loop,
            partitions=partitions,
            control=cast(Any, SimpleNamespace(client="")),
            codec=nothing,
            topics=nothing,
            on_demand=nothing,
            lookups=nothing,
            cold_reads=ColdReads(workers),
        )

    def append(self, index: int, size_bytes: int = 10) -> int:
        """Writes a batch; flushed at once if a reader waits. Returns its size."""
        raw = bytearray(encode_batch([Record(0, 1_000, None, b"x" * size_bytes)]))
        partition = self.all[index]
        partition.log.stage(raw, read_header(raw))
        self.state.partitions.staged(partition, None, 1)
        self.state.partitions.commit()
        return len(raw)

    def flush(self, index: int) -> None:
        """Makes all that was written visible, whether a reader waits or not."""
        self.state.partitions._start_flush(self.all[index])

    def delete_expired(self, now_ms: int) -> None:
        """Deletes what retention lets expire by that time, of logs that are flushed with a checkpoint."""
        for partition in self.all:
            if partition.log.flushed_address == partition.log.end_address:
                self.state.partitions.checkpoint(partition)
            for path in self.state.partitions.delete_expired(partition, now_ms):
                path.unlink()

    def close(self) -> None:
        for partition in self.all:
            partition.log.abandon()
