"""Resolves the boundaries of a read (earliest, latest, -1, -2, timestamps) to offsets of the cluster.

Owns their meaning, and the errors if one does not exist.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from headrace.warehouse.source.errors import (
    DataLossError,
    NoSuchTopicError,
    OptionError,
    PartitionsMismatchError,
    StartAfterEndError,
)
from headrace.warehouse.source.options import EARLIEST, LATEST, Partition, ReadBoundary, SourceOptions
from headrace.warehouse.source.ranges import Range

if TYPE_CHECKING:
    from headrace.warehouse.source.metadata import MetadataClient


def partitions_of(cluster: "MetadataClient", options: SourceOptions) -> list[Partition]:
    """Returns the partitions that `subscribe`, `subscribePattern` or `assign` matches now."""
    if options.partitions:
        present = cluster.leaders_of(options.partitions)
        missing = [partition for partition in options.partitions if partition not in present]
        if missing:
            raise NoSuchTopicError(f"topic {missing[0][0]!r} has no partition {missing[0][1]}")
        return sorted(options.partitions)
    if options.topic_pattern is not None:
        return sorted(cluster.leaders_matching(options.topic_pattern))
    return sorted(cluster.leaders(options.topics))


def resolve_ranges(cluster: "MetadataClient", options: SourceOptions) -> list[Range]:
    """Returns the ranges of a batch read, one per partition, empty ones included."""
    partitions = partitions_of(cluster, options)
    earliest = cluster.offsets(dict.fromkeys(partitions, EARLIEST))
    latest = cluster.offsets(dict.fromkeys(partitions, LATEST))
    start = resolve(cluster, partitions, options.start, options, earliest, latest, "start")
    end = resolve(cluster, partitions, options.end, options, earliest, latest, "end")
    ranges: list[Range] = []
    for partition in partitions:
        first, last = start[partition], end[partition]
        if first > last:
            raise StartAfterEndError(*partition, first, last)
        first = check_start(partition, first, last, earliest[partition], options.fail_on_data_loss)
        last = check_end(partition, last, latest[partition], options.fail_on_data_loss)
        ranges.append(Range(*partition, min(first, last), last))
    return ranges


def resolve(
    cluster: "MetadataClient",
    partitions: list[Partition],
    boundary: ReadBoundary,
    options: SourceOptions,
    earliest: dict[Partition, int],
    latest: dict[Partition, int],
    which: str,
) -> dict[Partition, int]:
    """Returns the offset of a boundary in every partition. Raises `PartitionsMismatchError`."""
    if boundary.timestamps_ms is not None:
        return _by_timestamp(cluster, partitions, boundary.timestamps_ms, options, latest, which)
    if boundary.offsets == "earliest":
        return dict(earliest)
    if boundary.offsets == "latest":
        return dict(latest)
    if set(boundary.offsets) != set(partitions):
        raise PartitionsMismatchError(_names(boundary.offsets), _names(partitions), which)
    words = {EARLIEST: earliest, LATEST: latest}
    return {
        partition: words[offset][partition] if offset in words else offset
        for partition, offset in boundary.offsets.items()
    }


def check_start(partition: Partition, start: int, end: int, earliest: int, fail_on_data_loss: bool) -> int:
    """Returns `start`, or a later earliest offset if a loss is allowed. Raises `DataLossError`."""
    if start >= earliest or start == end:
        return start
    if fail_on_data_loss:
        raise DataLossError(
            "START_OFFSET_RESET",
            f"Starting offset for {_name(partition)} was {start} but the earliest offset is {earliest}.",
        )
    return earliest


def check_end(partition: Partition, end: int, latest: int, fail_on_data_loss: bool) -> int:
    """Returns `end`, or an earlier end of the log if a loss is allowed. Raises `DataLossError`."""
    if end <= latest:
        return end
    if fail_on_data_loss:
        raise DataLossError(
            "PARTITION_OFFSET_CHANGED",
            f"Partition {_name(partition)} offset was changed from {end} to {latest}. This could be either "
            "1) a user error that the offset is set beyond what is available, or 2) the topic is deleted and "
            "re-created.",
        )
    return latest


def _by_timestamp(
    cluster: "MetadataClient",
    partitions: list[Partition],
    timestamps_ms: int | dict[Partition, int],
    options: SourceOptions,
    latest: dict[Partition, int],
    which: str,
) -> dict[Partition, int]:
    if isinstance(timestamps_ms, int):
        timestamps_ms = dict.fromkeys(partitions, timestamps_ms)
    if set(timestamps_ms) != set(partitions):
        raise PartitionsMismatchError(_names(timestamps_ms), _names(partitions), f"timestamp based {which}")
    found = cluster.offsets(timestamps_ms)
    for partition, offset in found.items():
        if offset >= 0:
            continue
        if which == "start" and options.strict_timestamps:
            raise OptionError(
                f"No offset matched from request of topic-partition {_name(partition)} and timestamp "
                f"{timestamps_ms[partition]}."
            )
        found[partition] = latest[partition]
    return found


def _name(partition: Partition) -> str:
    return f"{partition[0]}-{partition[1]}"


def _names(partitions: Iterable[Partition]) -> set[str]:
    return {_name(partition) for partition in partitions}
