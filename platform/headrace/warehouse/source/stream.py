"""The stream reader: micro-batches of a topic, also with the trigger availableNow.

Owns what a micro-batch reads, and what a stream does where logs are gone, behind, or of a topic that was made
again. Spark keeps the offsets in the query's checkpoint (see `stream_offsets`).
"""

import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

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
from headrace.warehouse.source.stream_offsets import JsonOffsets, StreamOffsets

if TYPE_CHECKING:
    from headrace.warehouse.source.metadata import MetadataClient

_log = logging.getLogger(__name__)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """A stream over the partitions that its options match; a new one is read from its earliest offset."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self.options = options
        self.schema = schema
        self._available: StreamOffsets | None = None

    def initialOffset(self) -> JsonOffsets:
        with plain_errors(is_debug=self.options.is_debug), self._cluster() as cluster:
            partitions = partitions_of(cluster, self.options)
            topic_ids = cluster.topic_ids({topic for topic, _ in partitions})
            earliest = cluster.offsets(dict.fromkeys(partitions, EARLIEST))
            latest = cluster.offsets(dict.fromkeys(partitions, LATEST))
            start = resolve(cluster, partitions, self.options.start, self.options, earliest, latest, "start")
        return StreamOffsets(start, topic_ids).to_json()

    def prepareForTriggerAvailableNow(self) -> None:
        with plain_errors(is_debug=self.options.is_debug):
            self._available = self._latest()

    def getDefaultReadLimit(self) -> ReadLimit:
        # Spark only hands this back to `latestOffset`; the options say what is limited.
        limit = self.options.max_offsets_per_trigger or self.options.max_records_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def latestOffset(self, start: JsonOffsets, limit: ReadLimit) -> JsonOffsets:
        with plain_errors(is_debug=self.options.is_debug):
            reached = StreamOffsets.from_json(start)
            latest = self._settled(reached, self._latest() if self._available is None else self._available)
            ends, begin = latest.offsets, self._begin(reached, latest)
            # Where a loss is allowed: nothing is read of these now, and what comes from here on.
            back = {partition: end for partition, end in ends.items() if end < begin[partition]}
            end = {**ends, **{partition: begin[partition] for partition in back}}
            if isinstance(limit, ReadMaxRows):
                end = self._limited(begin, end)
            return replace(latest, offsets={**end, **back}).to_json()

    def reportLatestOffset(self) -> JsonOffsets | None:
        with plain_errors(is_debug=self.options.is_debug):
            return self._latest().to_json()

    def partitions(self, start: JsonOffsets, end: JsonOffsets) -> list[InputPartition]:
        with plain_errors(is_debug=self.options.is_debug):
            return self._partitions(StreamOffsets.from_json(start), StreamOffsets.from_json(end))

    def _limited(self, begin: Mapping[Partition, int], latest: dict[Partition, int]) -> dict[Partition, int]:
        if self.options.max_offsets_per_trigger is not None:
            latest = limited(begin, latest, self.options.max_offsets_per_trigger)
        if self.options.max_records_per_trigger is None:
            return latest
        with self._cluster() as cluster:
            leaders = cluster.leaders({topic for topic, _ in latest})
        batches = batches_of(self.options, leaders)
        return ends_within(begin, latest, self.options.max_records_per_trigger, batches)

    def _partitions(self, start: StreamOffsets, end: StreamOffsets) -> list[InputPartition]:
        begin = self._begin(start, end)
        ranges = [
            Range(*partition, begin[partition], last)
            for partition, last in sorted(end.offsets.items())
            if last > begin[partition]
        ]
        # A micro-batch that is repeated after a crash may be of a topic that is gone since.
        gone = self._made_again(end) if ranges else set()
        ranges = [range_ for range_ in ranges if range_.topic not in gone]
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

    def _latest(self) -> StreamOffsets:
        with self._cluster() as cluster:
            partitions = partitions_of(cluster, self.options)
            topic_ids = cluster.topic_ids({topic for topic, _ in partitions})
            return StreamOffsets(cluster.offsets(dict.fromkeys(partitions, LATEST)), topic_ids)

    def _begin(self, start: StreamOffsets, end: StreamOffsets) -> dict[Partition, int]:
        """Returns where a micro-batch begins. Partitions that the stream has not read yet begin at their
        earliest offset. So do those of a topic that was made again, where a loss is allowed.

        Raises `DataLossError` if a new partition's first records are gone: the stream would pass over them.
        """
        again = start.topics_unlike(end.topic_ids)
        begin = {each: offset for each, offset in start.offsets.items() if each[0] not in again}
        new = [partition for partition in end.offsets if partition not in begin]
        if not new:
            return begin
        with self._cluster() as cluster:
            first = cluster.offsets(dict.fromkeys(new, EARLIEST))
        late = sorted(each for each, offset in first.items() if offset > 0 and each[0] not in again)
        if late and self.options.fail_on_data_loss:
            topic, partition = late[0]
            raise DataLossError(
                "ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO",
                f"Added partition {topic}-{partition} starts from {first[late[0]]} instead of 0.",
            )
        return {**begin, **first}

    def _settled(self, reached: StreamOffsets, latest: StreamOffsets) -> StreamOffsets:
        """Returns the ends of the logs once none is gone, or before the place that the stream has reached, or
        of another topic than the one that it has read.

        One answer may lack a topic: its broker was cut off before the topic was made. A new leader shows less
        until its followers have fetched. What stays so is deleted, or is the log of a topic that was made
        again. Raises `DataLossError`; if a loss is allowed, these are the ends nevertheless, as in Spark's
        Kafka source.
        """
        until_s = time.monotonic() + self.options.request_timeout_ms / 1000
        while again := _not_reached(reached, latest):
            if time.monotonic() >= until_s:
                self._check_allowed(reached, latest)
                break
            time.sleep(RETRY_PAUSE_MS / 1000)
            shown = self._latest()
            offsets = {each: shown.offsets[each] for each in again if each in shown.offsets}
            latest = StreamOffsets({**latest.offsets, **offsets}, {**latest.topic_ids, **shown.topic_ids})
        # A broker may not tell an id that is known.
        return replace(latest, topic_ids={**reached.topic_ids, **latest.topic_ids})

    def _made_again(self, planned: StreamOffsets) -> set[str]:
        """Returns the topics that were made again since a micro-batch of theirs was planned. Raises
        `DataLossError` for them, unless a loss is allowed: then nothing of them is read.
        """
        until_s = time.monotonic() + self.options.request_timeout_ms / 1000
        topics = {topic for topic, _ in planned.offsets}
        while True:
            with self._cluster() as cluster:
                again = planned.topics_unlike(shown := cluster.topic_ids(topics))
            if not again or time.monotonic() >= until_s:
                break
            time.sleep(RETRY_PAUSE_MS / 1000)
        self._report([_made_again(planned, shown, topic) for topic in sorted(again)])
        return again

    def _check_allowed(self, reached: StreamOffsets, latest: StreamOffsets) -> None:
        """Raises `DataLossError` for logs that are gone, behind or others, unless a loss is allowed."""
        begin, ends = reached.offsets, latest.offsets
        again = reached.topics_unlike(latest.topic_ids)
        problems = [_made_again(reached, latest.topic_ids, topic) for topic in sorted(again)]
        if deleted := sorted(f"{each[0]}-{each[1]}" for each in begin.keys() - ends if each[0] not in again):
            problems.append(("PARTITIONS_DELETED", f"Partitions {', '.join(deleted)} have been deleted."))
        for each in sorted(each for each in begin.keys() & ends if ends[each] < begin[each]):
            if each[0] not in again:
                changed = (
                    f"Partition {each[0]}-{each[1]} offset was changed from {begin[each]} to {ends[each]}."
                )
                problems.append(("PARTITION_OFFSET_CHANGED", changed))
        self._report(problems)

    def _report(self, problems: list[tuple[str, str]]) -> None:
        for subclass, problem in problems:
            if self.options.fail_on_data_loss:
                raise DataLossError(subclass, problem)
            _log.warning("%s A loss is allowed: the stream goes on with what is there", problem)


def _not_reached(reached: StreamOffsets, latest: StreamOffsets) -> list[Partition]:
    """The partitions whose logs are gone, behind what the stream has reached, or of another topic."""
    again = reached.topics_unlike(latest.topic_ids)
    return [
        each
        for each, offset in reached.offsets.items()
        if latest.offsets.get(each, -1) < offset or each[0] in again
    ]


def _made_again(reached: StreamOffsets, topic_ids: Mapping[str, str], topic: str) -> tuple[str, str]:
    """The subclass and the reason of the error."""
    reason = (
        f"Topic {topic} was made again: the stream has read the one with id {reached.topic_ids[topic]}, and "
        f"now there is one with id {topic_ids[topic]}. With failOnDataLoss=false the stream reads that from "
        "its earliest offset. A mirror's copy gets the same records at the same offsets again: to go on "
        "there, start the query with a new checkpoint, and give the offsets of the old one's last "
        "micro-batch as startingOffsets."
    )
    return "PARTITIONS_DELETED", reason


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
