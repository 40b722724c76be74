"""Parquet files by hour: what a task of a load writes.

Owns the Parquet format of the warehouse where Python writes it, the sizes of row groups and files, and the
bound on what a task holds. Runs on executors; knows no Spark.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROW_GROUP_SIZE_BYTES: Final = 64 << 20
"""Arrow bytes that become one row group."""
FILE_SIZE_MAX_BYTES: Final = 128 << 20
"""A larger file of an hour is ended, and another one begun."""
HELD_SIZE_MAX_BYTES: Final = 256 << 20
"""What all hours of a task may hold together; above it, the largest file is ended."""
HOURS_OPEN_MAX: Final = 2_000
"""Files that are open at once, each of which takes 15 kB beside its rows; above it, the smaller half of them
is ended. A client may write events of a million hours.
"""
KEPT_SHARE_MAX: Final = 2
"""The rows of an hour are a part of their batch, and keep all of it in memory. Where the batch is more than
so many times as large, they are copied: each batch may have a late event.
"""
COMPRESSION: Final = "zstd"
COMPRESSION_LEVEL: Final = 3
"""The level of Spark's own Parquet writer."""

_SPARK_SCHEMA_KEY: Final = "org.apache.spark.sql.parquet.row.metadata"

Store = Callable[[int, int, Any], None]
"""Stores a whole file: its hour, its number among the task's files, its bytes."""


class HourlyFiles:
    """The files that one task writes."""

    def __init__(self, schema: pa.Schema, spark_schema: str, store: Store) -> None:
        self._schema = schema
        self._spark_schema = spark_schema
        self._store = store
        self._open: dict[int, _HourlyFile] = {}
        self._files = 0

    def append(self, rows: pa.RecordBatch, hours: Any) -> None:
        """Adds rows; `hours` has the number of each row's hour. Keeps the order of rows within an hour."""
        for hour, part in by_hour(rows, hours):
            file = self._open.get(hour)
            if file is None:
                file = self._open[hour] = _HourlyFile(self._schema, self._spark_schema)
            file.append(part)
            if file.written_bytes >= FILE_SIZE_MAX_BYTES:
                self._end(hour)
            if len(self._open) > HOURS_OPEN_MAX:
                by_size = sorted(self._open, key=lambda hour: self._open[hour].held_bytes)
                for small in by_size[: len(by_size) // 2]:
                    self._end(small)
        while sum(file.held_bytes for file in self._open.values()) > HELD_SIZE_MAX_BYTES:
            self._end(max(self._open, key=lambda hour: self._open[hour].held_bytes))

    def close(self) -> int:
        """Stores what is left; returns the number of files."""
        for hour in sorted(self._open):
            self._end(hour)
        return self._files

    def _end(self, hour: int) -> None:
        self._store(hour, self._files, self._open.pop(hour).close())
        self._files += 1


class _HourlyFile:
    """A file that is being made, in memory."""

    def __init__(self, schema: pa.Schema, spark_schema: str) -> None:
        self._schema = schema
        self._rows: list[pa.RecordBatch] = []
        self._rows_bytes = 0
        self._sink = pa.BufferOutputStream()
        self._writer = pq.ParquetWriter(
            self._sink,
            schema,
            version="1.0",
            compression=COMPRESSION,
            compression_level=COMPRESSION_LEVEL,
            use_dictionary=dictionary_columns(schema),
            store_schema=False,
        )
        self._writer.add_key_value_metadata({_SPARK_SCHEMA_KEY: spark_schema})

    @property
    def written_bytes(self) -> int:
        return int(self._sink.tell())

    @property
    def held_bytes(self) -> int:
        return self._rows_bytes + self.written_bytes

    def append(self, rows: pa.RecordBatch) -> None:
        if rows.get_total_buffer_size() > KEPT_SHARE_MAX * rows.nbytes:
            rows = rows.take(pa.array(np.arange(rows.num_rows)))
        self._rows.append(rows)
        self._rows_bytes += rows.nbytes
        if self._rows_bytes >= ROW_GROUP_SIZE_BYTES:
            self._write_group()

    def close(self) -> Any:
        self._write_group()
        self._writer.close()
        return self._sink.getvalue()

    def _write_group(self) -> None:
        if self._rows:
            table = pa.Table.from_batches(self._rows, self._schema)
            self._writer.write_table(table, row_group_size=table.num_rows)
        self._rows, self._rows_bytes = [], 0


def by_hour(rows: pa.RecordBatch, hours: Any) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yields the rows of each hour, in their order."""
    if hours.size == 0:
        return
    if (hours == hours[0]).all():
        yield int(hours[0]), rows
        return
    order = np.argsort(hours, kind="stable")
    ordered = hours[order]
    if not (hours[1:] >= hours[:-1]).all():
        rows = rows.take(pa.array(order))
    starts = [0, *(np.flatnonzero(ordered[1:] != ordered[:-1]) + 1).tolist(), len(ordered)]
    for start, end in itertools.pairwise(starts):
        yield int(ordered[start]), rows.slice(start, end - start)


def dictionary_columns(schema: pa.Schema) -> list[str]:
    """Returns the paths of the columns that get a dictionary: all but 64-bit numbers and times.

    Those hardly ever repeat, and filling a dictionary in vain costs a third of the writing.
    """
    return [path for field in schema for path, kind in _leaves(field) if not _is_wide(kind)]


def _leaves(field: pa.Field) -> Iterator[tuple[str, pa.DataType]]:
    if not pa.types.is_struct(field.type):
        yield field.name, field.type
        return
    for child in field.type:
        for path, kind in _leaves(child):
            yield f"{field.name}.{path}", kind


def _is_wide(kind: pa.DataType) -> bool:
    return bool(pa.types.is_int64(kind) or pa.types.is_timestamp(kind) or pa.types.is_floating(kind))
