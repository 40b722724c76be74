"""The stream reader: micro-batches of a topic, also with the trigger availableNow.

Owns the offsets of a stream. Spark keeps them in the query's checkpoint, in the format of its Kafka source:
`{"topic": {"0": 23}}`.
"""

import logging
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from headrace.warehouse.source.errors import DataLossError
from headrace.warehouse.source.options import EARLIEST, LATEST, RETRY_PAUSE_MS, Partition, SourceOptions
from headrace.warehouse.source.plain_errors import plain_errors
from headrace.warehouse.source.ranges import Range
from headrace.warehouse.source.reader import RangeTask, plan_tasks, read_range
from headrace.warehouse.source.record_limit import batches_of, ends_within
from headrace.warehouse.source.resolve import partitions_of, resolve

if TYPE_CHECKING:
    from headrace.warehouse.source.metadata import MetadataClient

_log = logging.getLogger(__name__)

Offsets = dict[str, dict[str, int]]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """A stream over the partitions that its options match; a new one is read from its earliest offset."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self.options = options
        self.schema = schema
        self._available: dict[Partition, int] | None = None

    def initialOffset(self) -> Offsets:
        with plain_errors(is_debug=self.options.is_debug), self._cluster() as cluster:
            partitions = partitions_of(cluster, self.options)
            earliest = cluster.offsets(dict.fromkeys(partitions, EARLIEST))
            latest = cluster.offsets(dict.fromkeys(partitions, LATEST))
            start = resolve(cluster, partitions, self.options.start, self.options, earliest, latest, "start")
        return to_json(start)

    def prepareForTriggerAvailableNow(self) -> None:
        with plain_errors(is_debug=self.options.is_debug):
            self._available = self._latest()

    def getDefaultReadLimit(self) -> ReadLimit:
        # Spark only hands this back to `latestOffset`; the options say what is limited.
        limit = self.options.max_offsets_per_trigger or self.options.max_records_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:
        with plain_errors(is_debug=self.options.is_debug):
            latest = self._latest() if self._available is None else self._available
            begin = self._with_new_partitions(from_json(start), latest)
            latest = self._settled(begin, latest)
            # Where a loss is allowed: nothing is read of these now, and what comes from here on.
            back = {partition: end for partition, end in latest.items() if end < begin[partition]}
            end = {**latest, **{partition: begin[partition] for partition in back}}
            if isinstance(limit, ReadMaxRows):
                end = self._limited(begin, end)
            return to_json({**end, **back})

    def reportLatestOffset(self) -> Offsets | None:
        with plain_errors(is_debug=self.options.is_debug):
            return to_json(self._latest())

    def partitions(self, start: Offsets, end: Offsets) -> list[InputPartition]:
        with plain_errors(is_debug=self.options.is_debug):
            return self._partitions(start, end)

    def _limited(self, begin: Mapping[Partition, int], latest: dict[Partition, int]) -> dict[Partition, int]:
        if self.options.max_offsets_per_trigger is not None:
            latest = limited(begin, latest, self.options.max_offsets_per_trigger)
        if self.options.max_records_per_trigger is None:
            return latest
        with self._cluster() as cluster:
            leaders = cluster.leaders({topic for topic, _ in latest})
        batches = batches_of(self.options, leaders)
        return ends_within(begin, latest, self.options.max_records_per_trigger, batches)

    def _partitions(self, start: Offsets, end: Offsets) -> list[InputPartition]:
        ends = from_json(end)
        begin = self._with_new_partitions(from_json(start), ends)
        ranges = [
            Range(*partition, begin[partition], last)
            for partition, last in sorted(ends.items())
            if last > begin[partition]
        ]
        if not ranges:
            return []
        with self._cluster() as cluster:
            return plan_tasks(cluster, ranges, self.options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangeTask)
        return read_range(partition, self.options, self.schema)

    def _cluster(self) -> "MetadataClient":
        # Imported here because executors do not need it.
        from headrace.warehouse.source.metadata import MetadataClient

        return MetadataClient(self.options.bootstrap, self.options.request_timeout_ms / 1000)

    def _latest(self) -> dict[Partition, int]:
        with self._cluster() as cluster:
            return cluster.offsets(dict.fromkeys(partitions_of(cluster, self.options), LATEST))

    def _with_new_partitions(
        self, start: dict[Partition, int], end: Mapping[Partition, int]
    ) -> dict[Partition, int]:
        """Adds where the partitions begin that the stream has not read yet. Raises `DataLossError` if their
        first records are gone: the stream would pass over them.
        """
        new = [partition for partition in end if partition not in start]
        if not new:
            return start
        with self._cluster() as cluster:
            first = cluster.offsets(dict.fromkeys(new, EARLIEST))
        late = sorted(partition for partition, offset in first.items() if offset > 0)
        if late and self.options.fail_on_data_loss:
            topic, partition = late[0]
            raise DataLossError(
                "ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO",
                f"Added partition {topic}-{partition} starts from {first[late[0]]} instead of 0.",
            )
        return {**start, **first}

    def _settled(self, begin: Mapping[Partition, int], latest: dict[Partition, int]) -> dict[Partition, int]:
        """Returns the ends of the logs once none is gone, or before the place that the stream has reached.

        One answer may lack a topic: its broker was cut off before the topic was made. A new leader shows less
        until its followers have fetched. What stays so is deleted, or is the log of a topic that was made
        again. Raises `DataLossError`; if a loss is allowed, these are the ends nevertheless, as in Spark's
        Kafka source.
        """
        until_s = time.monotonic() + self.options.request_timeout_ms / 1000
        while doubtful := [each for each in begin if latest.get(each, -1) < begin[each]]:
            if time.monotonic() >= until_s:
                self._check_allowed(begin, latest)
                break
            time.sleep(RETRY_PAUSE_MS / 1000)
            shown = self._latest()
            latest = {**latest, **{each: shown[each] for each in doubtful if each in shown}}
        return latest

    def _check_allowed(self, begin: Mapping[Partition, int], latest: Mapping[Partition, int]) -> None:
        """Raises `DataLossError` for logs that are gone, or behind, unless a loss is allowed."""
        problems: list[tuple[str, str]] = []
        if deleted := sorted(f"{topic}-{partition}" for topic, partition in begin.keys() - latest.keys()):
            problems.append(("PARTITIONS_DELETED", f"Partitions {', '.join(deleted)} have been deleted."))
        for topic, partition in sorted(each for each, end in latest.items() if end < begin[each]):
            at, end = begin[topic, partition], latest[topic, partition]
            changed = f"Partition {topic}-{partition} offset was changed from {at} to {end}."
            problems.append(("PARTITION_OFFSET_CHANGED", changed))
        for subclass, problem in problems:
            if self.options.fail_on_data_loss:
                raise DataLossError(subclass, problem)
            _log.warning("%s A loss is allowed: the stream goes on with what is there", problem)


def limited(
    start: Mapping[Partition, int], latest: Mapping[Partition, int], limit: int
) -> dict[Partition, int]:
    """Returns end offsets such that about `limit` offsets are read, shared in proportion to what is left.

    An offset is a byte at headrace, a record at Apache Kafka. Every partition with records left advances by
    at least one offset. Pure.
    """
    left = {partition: max(0, end - start[partition]) for partition, end in latest.items()}
    total = sum(left.values())
    if total <= limit:
        return {partition: start[partition] + size for partition, size in left.items()}
    return {
        partition: start[partition] + min(size, max(1, size * limit // total) if size else 0)
        for partition, size in left.items()
    }


def to_json(offsets: Mapping[Partition, int]) -> Offsets:
    """Returns offsets in the format of the checkpoint."""
    found: Offsets = {}
    for (topic, partition), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[str(partition)] = offset
    return found


def from_json(offsets: Mapping[str, Mapping[str, Any]]) -> dict[Partition, int]:
    """Returns the offsets of a checkpoint."""
    return {
        (topic, int(partition)): int(offset)
        for topic, partitions in offsets.items()
        for partition, offset in partitions.items()
    }
