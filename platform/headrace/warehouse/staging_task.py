"""What a Spark task of a load does: reads its range, decodes the events, writes hourly Parquet to HDFS.

Owns the work of one task. It runs on an executor, in Spark's Python worker, and imports only what is shipped
there. Each attempt writes into a directory of its own, so an attempt that fails, or runs twice, leaves
nothing that a load uses.
"""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from headrace.warehouse.checksums import checksum_of
from headrace.warehouse.hdfs.client import HdfsClient
from headrace.warehouse.hourly import HourlyFiles
from headrace.warehouse.layout import DEAD_HOUR, TIME_MAX_US, TIME_MIN_US
from headrace.warehouse.read_contents import Contents, ReadContents
from headrace.warehouse.source.columns import END_MARK, record_batches
from headrace.warehouse.source.connection import Address
from headrace.warehouse.source.events import Payloads, decode
from headrace.warehouse.source.options import LOAD_COLUMNS, SourceOptions
from headrace.warehouse.source.program import Program
from headrace.warehouse.source.ranges import Range
from headrace.warehouse.source.reading import read_batches

PAYLOAD_SCHEMA: Final = pa.schema(
    [
        ("payload", pa.binary()),
        ("schemaId", pa.int32()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
    ]
)
assert tuple(PAYLOAD_SCHEMA.names) == LOAD_COLUMNS
_ADDRESSES: Final = ("partition", "offset", "timestamp", "schemaId")


@dataclass(frozen=True)
class Decoding:
    """How the payloads become rows."""

    program: Program
    is_timed: bool
    """Whether an event's hour is that of its `header.time`; else it is that of its Kafka timestamp."""
    schema: pa.Schema
    """The event's columns, then the address columns."""
    spark_schema: str
    """The same in Spark's JSON, for the files' metadata."""

    def rows(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Any]:
        """Returns the table's rows of a batch with `PAYLOAD_SCHEMA`, and the number of each row's hour."""
        times_us = numbers_of(batch.column("timestamp"), np.int64)
        events = decode(payloads_of(batch), self.program, None if self.is_timed else times_us)
        is_storable = (times_us >= TIME_MIN_US) & (times_us <= TIME_MAX_US)
        hours = np.where(is_storable, events.hours, DEAD_HOUR).astype(np.int32)
        addresses = [batch.column(name) for name in _ADDRESSES]
        return pa.RecordBatch.from_arrays([*events.columns, *addresses], schema=self.schema), hours


@dataclass(frozen=True)
class HdfsTarget:
    """The directory below which tasks write."""

    webhdfs_url: str
    user: str | None
    patience_s: float
    directory: str
    hour_column: str


@dataclass(frozen=True)
class StagingTask:
    """The work of one task."""

    ranges: tuple[tuple[Range, Address | None], ...]
    options: SourceOptions
    decoding: Decoding
    target: HdfsTarget


@dataclass(frozen=True)
class StagedTask:
    """What one attempt of a task wrote, below `directory`."""

    directory: str
    files: int
    rows: int
    contents: Contents = field(default_factory=dict)
    """What the batches hold that it read."""
    checksums: dict[str, str] = field(default_factory=dict)
    """The checksum of each file, by its path below `directory`."""


def run_task(task: StagingTask) -> StagedTask:
    """Reads, decodes and writes. Raises a `SourceError` or an `HdfsError`."""
    target = task.target
    directory = f"{target.directory}/{uuid.uuid4().hex}"
    rows_written = 0
    with HdfsClient(target.webhdfs_url, user=target.user, patience_s=target.patience_s) as hdfs:
        checksums: dict[str, str] = {}

        def store(hour: int, number: int, data: Any) -> None:
            name, written = f"{target.hour_column}={hour}/{number:05d}.parquet", data.to_pybytes()
            # A request whose response was lost is repeated: nobody else writes to this attempt's files.
            hdfs.write(f"{directory}/{name}", written, overwrite=True)
            checksums[name] = checksum_of(written)

        files = HourlyFiles(task.decoding.schema, task.decoding.spark_schema, store)
        contents = ReadContents()
        for batch in _payload_batches(task, contents):
            rows, hours = task.decoding.rows(batch)
            files.append(rows, hours)
            rows_written += rows.num_rows
        return StagedTask(directory, files.close(), rows_written, contents.sums, checksums)


def _payload_batches(task: StagingTask, contents: ReadContents) -> Iterator[pa.RecordBatch]:
    for range_, leader in task.ranges:
        batches = contents.noting(read_batches(range_, task.options, leader), range_)
        for rows in record_batches(batches, range_, PAYLOAD_SCHEMA, is_compiled=True, on_corrupt="keep"):
            offsets, times_us = (numbers_of(rows.column(name), np.int64) for name in ("offset", "timestamp"))
            contents.add(range_.partition, offsets, times_us)
            yield rows


def payloads_of(batch: pa.RecordBatch) -> Payloads:
    """Returns the payloads of a batch with `payload` and `schemaId`, without copying them."""
    column = batch.column("payload")
    ends = numbers_of(column, np.int32, index=1, count=len(column) + 1).astype(np.int64)
    data = np.frombuffer(column.buffers()[2] or b"", np.uint8)
    schema_ids = numbers_of(batch.column("schemaId"), np.int32)
    # A null payload has no bytes, not even the mark, and its schema id has no program.
    return Payloads(data, ends[:-1], np.maximum(ends[1:] - len(END_MARK), ends[:-1]), schema_ids)


def numbers_of(column: pa.Array, kind: Any, *, index: int = 1, count: int | None = None) -> Any:
    """Returns a buffer of an Arrow array as numbers, without copying them."""
    numbers = np.frombuffer(column.buffers()[index], kind)
    return numbers[column.offset : column.offset + (len(column) if count is None else count)]
