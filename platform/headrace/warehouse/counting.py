"""Counts of the rows in Parquet files, made by reading their address columns back over WebHDFS.

Owns the reading of footers and of the address columns, which are next to each other at the end of each row
group: one request per row group. A count by a Spark job would take a second, and hash every row.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.warehouse.decode import (
    ADDRESS_COLUMNS,
    OFFSET_COLUMN,
    PARTITION_COLUMN,
    SCHEMA_ID_COLUMN,
    TIMESTAMP_COLUMN,
)
from headrace.warehouse.hdfs.client import HdfsClient
from headrace.warehouse.hdfs.errors import HdfsDamagedError
from headrace.warehouse.hdfs.remote_file import RemoteFile
from headrace.warehouse.layout import HOUR_MS
from headrace.warehouse.page_sizes import start_of

FILES_AT_ONCE: Final = 4
CAUSE_MAX_CHARS: Final = 300


class NotParquetError(Exception):
    """A file of the warehouse is no Parquet file with the warehouse's columns, or is truncated."""


UNREADABLE: Final = (NotParquetError, HdfsDamagedError)
"""What reading a file raises that nobody can read any more. Other errors of HDFS say nothing of the file."""


@contextmanager
def naming(path: str) -> Iterator[None]:
    """Raises `NotParquetError`, which names the file, for all that Arrow says of its bytes."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, LookupError, OverflowError, RecursionError) as error:
        text = ascii(str(error)[:CAUSE_MAX_CHARS])[1:-1]
        raise NotParquetError(f"{path} can't be read as a file of the warehouse: {text}") from error


@dataclass(frozen=True)
class GroupCount:
    """Rows of one file that share a partition and an hour of Kafka timestamps."""

    path: str
    partition: int
    timestamp_hour_ms: int
    rows: int
    distinct_offsets: int
    first_offset: int
    last_offset: int


@dataclass(frozen=True)
class FileCount:
    """The counts of one file. `groups` are sorted."""

    path: str
    rows: int
    groups: tuple[GroupCount, ...]
    schema_ids: tuple[int, ...]
    schema_rows: tuple[int, ...]
    """The rows of each of these schema ids."""


def count_files(hdfs: HdfsClient, sizes: Mapping[str, int]) -> list[FileCount]:
    """Counts each file (path → size in bytes), in order of path. Raises `NotParquetError`, `HdfsError`."""
    paths = sorted(sizes)
    with ThreadPoolExecutor(FILES_AT_ONCE) as pool:
        return list(pool.map(lambda path: count_file(hdfs, path, sizes[path]), paths))


def count_file(hdfs: HdfsClient, path: str, size_bytes: int) -> FileCount:
    """Counts one file."""
    addresses = read_addresses(hdfs, path, size_bytes)
    groups = group(path, addresses.partitions, addresses.offsets, addresses.hours_ms)
    ids, rows = np.unique(addresses.schema_ids, return_counts=True)
    return FileCount(path, int(addresses.offsets.size), groups, tuple(ids.tolist()), tuple(rows.tolist()))


def distinct_offsets(hdfs: HdfsClient, sizes: Mapping[str, int]) -> dict[tuple[int, int], int]:
    """Counts the distinct offsets over all these files (path → size in bytes), by partition and hour of
    Kafka timestamps.

    Holds all their addresses at once: use it only for files of which `may_repeat` is true.
    """
    found: dict[tuple[int, int], list[Any]] = {}
    for path in sorted(sizes):
        addresses = read_addresses(hdfs, path, sizes[path])
        for partition in np.unique(addresses.partitions):
            of_partition = addresses.partitions == partition
            for hour_ms in np.unique(addresses.hours_ms[of_partition]):
                key = (int(partition), int(hour_ms))
                offsets = addresses.offsets[of_partition & (addresses.hours_ms == hour_ms)]
                found.setdefault(key, []).append(offsets)
    return {key: int(np.unique(np.concatenate(offsets)).size) for key, offsets in found.items()}


def group(path: str, partitions: Any, offsets: Any, hours_ms: Any) -> tuple[GroupCount, ...]:
    """Counts rows by partition and hour, from three int64 arrays of the same length in any order of rows."""
    groups: list[GroupCount] = []
    for partition in np.unique(partitions):
        of_partition = partitions == partition
        for hour_ms in np.unique(hours_ms[of_partition]):
            found = offsets[of_partition & (hours_ms == hour_ms)]
            # A task writes its rows in the order of their offsets, so that sorting is hardly ever needed.
            is_rising = bool((np.diff(found) > 0).all())
            distinct = found.size if is_rising else np.unique(found).size
            groups.append(
                GroupCount(
                    path,
                    int(partition),
                    int(hour_ms),
                    int(found.size),
                    int(distinct),
                    int(found.min()),
                    int(found.max()),
                )
            )
    return tuple(groups)


def may_repeat(groups: Iterable[GroupCount]) -> bool:
    """Returns whether an offset may be in two files, which needs a count of distinct offsets across files."""
    spans: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for group in groups:
        span = (group.first_offset, group.last_offset)
        spans.setdefault((group.partition, group.timestamp_hour_ms), []).append(span)
    for found in spans.values():
        found.sort()
        if any(first <= last for (_, last), (first, _) in itertools.pairwise(found)):
            return True
    return False


class Addresses(NamedTuple):
    """The address columns of one file, as int64 arrays."""

    partitions: Any
    offsets: Any
    hours_ms: Any
    schema_ids: Any


def read_addresses(hdfs: HdfsClient, path: str, size_bytes: int) -> Addresses:
    """Reads the address columns of one file. Raises `NotParquetError`, `HdfsError`."""
    remote = RemoteFile(hdfs, path, size_bytes)
    with naming(path):
        parquet = pq.ParquetFile(remote)
        tables = [_read_group(parquet, remote, index) for index in range(parquet.metadata.num_row_groups)]
        empty = parquet.schema_arrow.empty_table().select(ADDRESS_COLUMNS)
        table = pa.concat_tables(tables) if tables else empty
        times = table.column(TIMESTAMP_COLUMN).cast(pa.timestamp("us", "UTC"))
        return Addresses(
            whole_numbers(PARTITION_COLUMN, table.column(PARTITION_COLUMN)),
            whole_numbers(OFFSET_COLUMN, table.column(OFFSET_COLUMN)),
            whole_numbers(TIMESTAMP_COLUMN, times) // (HOUR_MS * 1000) * HOUR_MS,
            whole_numbers(SCHEMA_ID_COLUMN, table.column(SCHEMA_ID_COLUMN)),
        )


def whole_numbers(name: str, column: pa.ChunkedArray) -> Any:
    """Returns a column as an int64 array. Raises `ValueError` and Arrow's errors for other values."""
    if column.null_count:
        raise ValueError(f"{column.null_count} of its rows have no {name}")
    return column.cast(pa.int64()).to_numpy()


def _read_group(parquet: pq.ParquetFile, remote: RemoteFile, index: int) -> pa.Table:
    row_group = parquet.metadata.row_group(index)
    chunks = [row_group.column(number) for number in range(row_group.num_columns)]
    wanted = [chunk for chunk in chunks if chunk.path_in_schema in ADDRESS_COLUMNS]
    if len(wanted) != len(ADDRESS_COLUMNS):
        raise KeyError(f"it has no columns {', '.join(ADDRESS_COLUMNS)}")
    starts = [start_of(chunk) for chunk in wanted]
    ends = [start_of(chunk) + chunk.total_compressed_size for chunk in wanted]
    remote.fetch(min(starts), max(ends))
    return parquet.read_row_group(index, columns=list(ADDRESS_COLUMNS))
