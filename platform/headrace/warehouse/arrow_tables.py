"""The rows of a table's files as Arrow record batches, over WebHDFS, without Spark.

Owns the reading of files by a few threads. Rows of older schemas get the newest schema's columns
(`warehouse.evolution`); a column that a file lacks is null.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.warehouse.arrow_values import as_type, evolved
from headrace.warehouse.counting import CAUSE_MAX_CHARS, NotParquetError, naming
from headrace.warehouse.evolution import Step
from headrace.warehouse.hdfs.client import HdfsClient
from headrace.warehouse.hdfs.remote_file import RemoteFile
from headrace.warehouse.page_sizes import sizes_of, start_of
from headrace.warehouse.versions import LocatedFile

FILES_AT_ONCE: Final = 4
"""Files that are read ahead of their reader at the same time: their rows are what a reader holds."""

READ_ROWS: Final = 8 * 1024
UNPACKED_MAX_BYTES: Final = 4 << 30
"""Of the rows of one file, in Arrow's form; files are closed long before that."""
FOOTER_MAX_BYTES: Final = 16 << 20
FOOTER_ITEMS_MAX: Final = 1_000_000
GROUPS_MAX: Final = 10_000  # row groups of a file

Steps = Mapping[str, tuple[str, Step]]
"""How a file's columns become those of the newest schema (`evolution.columns`)."""


@dataclass(frozen=True)
class TimeRange:
    """Rows whose time is in `[from_ms, until_ms)`; None is no bound. `path` leads to the time's column."""

    from_ms: int | None
    until_ms: int | None
    path: Sequence[str]

    def of(self, rows: pa.Table) -> pa.Table:
        """Returns the rows in the range. A row without a time is none."""
        time: Any = rows.column(self.path[0])
        for name in self.path[1:]:
            time = pc.struct_field(time, name)
        time_us = time.cast(pa.int64())
        for bound_ms, is_within in ((self.from_ms, pc.greater_equal), (self.until_ms, pc.less)):
            if bound_ms is not None:
                chosen = is_within(time_us, bound_ms * 1000)
                rows, time_us = rows.filter(chosen), time_us.filter(chosen)
        return rows


def batches(
    hdfs: HdfsClient,
    files: Sequence[LocatedFile],
    schema: pa.Schema,
    steps: Mapping[str, Steps],
    times: Mapping[str, TimeRange],
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of the files, in their order, with the columns of `schema`.

    `steps`: how a file's columns become those of `schema`, by its path. `times`: which of its rows. Holds
    the rows of at most `FILES_AT_ONCE` files. Raises `HdfsError`, `NotParquetError`.
    """

    def rows_of(located: LocatedFile) -> pa.Table:
        return read_file(hdfs, located, schema, steps.get(located.path, {}), times.get(located.path))

    with ThreadPoolExecutor(FILES_AT_ONCE, thread_name_prefix="read") as pool:
        reading: deque[Future[pa.Table]] = deque()
        left = iter(files)
        try:
            for located in left:
                reading.append(pool.submit(rows_of, located))
                if len(reading) >= FILES_AT_ONCE:
                    yield from reading.popleft().result().to_batches()
            while reading:
                yield from reading.popleft().result().to_batches()
        finally:
            for future in reading:
                future.cancel()


def read_file(
    hdfs: HdfsClient,
    located: LocatedFile,
    schema: pa.Schema,
    steps: Steps,
    times: TimeRange | None = None,
) -> pa.Table:
    """Reads the columns of `schema` from one file, and of its rows those in the range.

    `steps`: of the columns that have another name or shape in the file.
    """
    needed = {field.name: steps.get(field.name, (field.name, None)) for field in schema}
    with naming(located.path):
        remote = RemoteFile(hdfs, located.path, located.file.size_bytes)
        parquet = opened(remote, located)
        present = set(parquet.schema_arrow.names)
        wanted = [name for name, _ in needed.values() if name in present]
        time = () if times is None else times.path[:1]
        rows = _read(parquet, remote, list(dict.fromkeys([*wanted, *time])))
        if times is not None:
            rows = times.of(rows)
        columns = [_column(located, rows, field, *needed[field.name]) for field in schema]
        return pa.Table.from_arrays(columns, schema=schema)


def column_names(hdfs: HdfsClient, located: LocatedFile) -> list[str]:
    """Returns the columns that a file has. Raises `HdfsError`, `NotParquetError`."""
    with naming(located.path):
        remote = RemoteFile(hdfs, located.path, located.file.size_bytes)
        names: list[str] = opened(remote, located).schema_arrow.names
    return names


def opened(remote: RemoteFile, located: LocatedFile) -> pq.ParquetFile:
    """Returns the file, whose footer has as many rows as its manifest. Inside `naming`."""
    parquet = pq.ParquetFile(
        remote,
        thrift_string_size_limit=FOOTER_MAX_BYTES,
        thrift_container_size_limit=FOOTER_ITEMS_MAX,
    )
    if parquet.metadata.num_rows != located.file.rows:
        raise ValueError(f"it has {parquet.metadata.num_rows} rows, its manifest {located.file.rows}")
    return parquet


def _read(parquet: pq.ParquetFile, remote: RemoteFile, names: list[str]) -> pa.Table:
    """Reads these columns in steps: a few bytes can unpack to more than any memory holds."""
    if not names:
        return parquet.read(names)
    if parquet.num_row_groups > GROUPS_MAX:
        raise ValueError(f"it has {parquet.num_row_groups} row groups, at most {GROUPS_MAX} are read")
    found, held_bytes, row_count = [], 0, 0
    schema = pa.schema([parquet.schema_arrow.field(name) for name in names])
    for group in range(parquet.num_row_groups):
        reader = _bounded(parquet, remote, group, names, UNPACKED_MAX_BYTES - held_bytes)
        for batch in reader.iter_batches(READ_ROWS, row_groups=[group], columns=names):
            held_bytes += sum(unpacked_size(column) for column in batch.columns)
            row_count += batch.num_rows
            if held_bytes > UNPACKED_MAX_BYTES or row_count > parquet.metadata.num_rows:
                raise ValueError(f"its first {row_count} rows unpack to {held_bytes} bytes")
            columns = [as_type(batch.column(field.name), field.type) for field in schema]
            found.append(pa.RecordBatch.from_arrays(columns, schema=schema))
    return pa.Table.from_batches(found) if found else parquet.read(names)


def _bounded(
    parquet: pq.ParquetFile, remote: RemoteFile, group: int, names: list[str], left_bytes: int
) -> pq.ParquetFile:
    """Returns what reads a row group. Columns that could unpack to more than is left come as dictionaries,
    whose rows can be measured first. Raises `ValueError` if that is not enough.
    """
    row_group = parquet.metadata.row_group(group)
    every = (row_group.column(number) for number in range(row_group.num_columns))
    chunks = [each for each in every if each.path_in_schema.partition(".")[0] in names]
    starts, packed_bytes = [start_of(each) for each in chunks], sum(c.total_compressed_size for c in chunks)
    end = max(start_of(each) + each.total_compressed_size for each in chunks)
    if 0 <= end - min(starts) <= 2 * packed_bytes:  # one request, unless most of it would be other columns
        remote.fetch(min(starts), end)
    sizes = [sizes_of(chunk, remote) for chunk in chunks]
    total_bytes, measured = sum(each.all_bytes for each in sizes), []
    for each in sorted(sizes, key=lambda each: -each.named_bytes):
        if total_bytes > left_bytes and each.named_bytes:
            total_bytes -= each.named_bytes
            measured.append(each.path)
    if total_bytes > left_bytes:
        raise ValueError(f"its rows unpack to up to {total_bytes} bytes, at most {left_bytes} are read")
    if not measured:
        return parquet
    return pq.ParquetFile(remote, metadata=parquet.metadata, read_dictionary=measured)


def unpacked_size(array: pa.Array) -> int:
    """Returns the bytes that an array takes once `as_type` has unpacked its dictionaries."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        lengths = pc.binary_length(array.dictionary).cast(pa.int64())
        named: int = pc.sum(lengths.take(array.indices)).as_py() or 0
        return named + int(array.indices.nbytes)
    if pa.types.is_struct(kind):
        return sum(unpacked_size(array.field(index)) for index in range(kind.num_fields))
    if pa.types.is_map(kind):
        return unpacked_size(array.keys) + unpacked_size(array.items) + 4 * len(array)
    if pa.types.is_list(kind):
        return unpacked_size(array.values) + 4 * len(array)
    return int(array.nbytes)


def _column(located: LocatedFile, rows: pa.Table, field: pa.Field, name: str, step: Step) -> pa.ChunkedArray:
    if name not in rows.column_names:
        return pa.chunked_array([pa.nulls(rows.num_rows, field.type)], field.type)
    column = rows.column(name)
    try:
        chunks = [evolved(chunk, field.type, step) for chunk in column.chunks]
    except pa.ArrowException as error:
        raise ColumnTypeError(
            f"{located.path}: column {name} is of the type {str(column.type)!a} of schema "
            f"{located.file.schema_id}, and the newest schema's {str(field.type)!a} does not read it "
            f"({str(error)[:CAUSE_MAX_CHARS]!a}). Read other columns, the hours of one schema, or the "
            "plain files; docs/warehouse.md shows all three"
        ) from error
    return pa.chunked_array(chunks, field.type)


class ColumnTypeError(NotParquetError):
    """The newest schema gives a column a type that does not read what older files have there."""
