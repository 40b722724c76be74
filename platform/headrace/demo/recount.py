"""Counts the rows that HDFS holds, from the Parquet files and by another reader than the one that wrote them.

Reads over WebHDFS with pyarrow, without Spark and without the commit log: three columns of the given hours.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.warehouse.commitlog import CommitLog
from headrace.warehouse.decode import OFFSET_COLUMN, PARTITION_COLUMN
from headrace.warehouse.hdfs.client import HdfsClient
from headrace.warehouse.layout import TopicPaths, hour_of
from headrace.warehouse.options import DEFAULT_ROOT

READERS: Final = 4
# Smaller files are fetched whole: separate requests for the footer and each column would take longer.
WHOLE_FILE_MAX_BYTES: Final = 4 << 20
_EVENT_TIME: Final = "header.time"


class RunStart(NamedTuple):
    """Where a run begins: the analysis cluster's end addresses by partition, and the next load's sequence."""

    addresses: Mapping[int, int]
    load_sequence: int


def next_load(webhdfs_url: str, topic: str) -> int:
    """Returns the sequence number that the next change of the topic's table will have."""
    with HdfsClient(webhdfs_url) as hdfs:
        return CommitLog(hdfs, TopicPaths(DEFAULT_ROOT, topic)).state().next_sequence


def count_rows(
    webhdfs_url: str, topic: str, hours_ms: Iterable[int], start: RunStart
) -> dict[int, tuple[int, int]]:
    """Returns, by hour (Unix ms), the rows and the distinct rows of events that arrived after `start`.

    `hours_ms`: the hours whose directories are read. Counts a row in the hour of its own event time, whatever
    directory it is in. Raises `HdfsError`.
    """
    paths = TopicPaths(DEFAULT_ROOT, topic)
    rows: Counter[int] = Counter()
    distinct: dict[int, set[tuple[int, int]]] = {}
    with HdfsClient(webhdfs_url) as hdfs, ThreadPoolExecutor(READERS, thread_name_prefix="recount") as pool:
        # Loads of this headrace alone, so not the directories of older ones.
        listed = pool.map(lambda hour_ms: hdfs.walk(paths.hour_dir(hour_ms)), sorted(set(hours_ms)))
        # Earlier loads cannot hold events that arrived after `start`.
        files = [
            (path, entry.size_bytes)
            for found in listed
            for path, entry in found
            if int(entry.name.partition("-")[0]) >= start.load_sequence
        ]
        for table in pool.map(lambda file: _read(hdfs, *file), files):
            for partition, offset, time in zip(
                *(column.to_pylist() for column in table.columns), strict=True
            ):
                if offset >= start.addresses.get(partition, 0):
                    hour_ms = hour_of(time)
                    rows[hour_ms] += 1
                    distinct.setdefault(hour_ms, set()).add((partition, offset))
    return {hour_ms: (count, len(distinct[hour_ms])) for hour_ms, count in sorted(rows.items())}


def _read(hdfs: HdfsClient, path: str, size_bytes: int) -> pa.Table:
    """Reads partition, offset and event time (Unix ms) of every row of a file."""
    source: io.RawIOBase | io.BytesIO = _HdfsFile(hdfs, path, size_bytes)
    if size_bytes <= WHOLE_FILE_MAX_BYTES:
        source = io.BytesIO(hdfs.read(path))
    table = pq.ParquetFile(source).read(columns=[PARTITION_COLUMN, OFFSET_COLUMN, _EVENT_TIME])
    time = pc.struct_field(table["header"], "time").cast(pa.timestamp("ms", tz="UTC"), safe=False)
    return pa.table(
        [table[PARTITION_COLUMN], table[OFFSET_COLUMN], time.cast(pa.int64())],
        ["partition", "offset", "time"],
    )


class _HdfsFile(io.RawIOBase):
    """A seekable file in HDFS; each read is a request."""

    def __init__(self, hdfs: HdfsClient, path: str, size_bytes: int) -> None:
        self._hdfs, self._path, self._size, self._at = hdfs, path, size_bytes, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        length = self._size - self._at if size is None or size < 0 else min(size, self._size - self._at)
        data = self._hdfs.read(self._path, offset=self._at, length=length) if length > 0 else b""
        self._at += len(data)
        return data

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)
