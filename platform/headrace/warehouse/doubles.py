"""Events that a table has more than once: rows with the same guid in their headers, at different addresses.

A client that sends an event again as another producer, without an id or under its next number makes two
events of it, for brokers and for every count. Only the guid tells. Owns finding such rows in an hour's files,
and writing the hour's next version with each event once: of equal guids the row at the lowest partition and
offset stays. Needs no Spark.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.audit.topic.doubled import RUNS_PER_RECORD_MAX, DoubledRecord, DoubledRun
from headrace.warehouse.change import Change, TopicTable
from headrace.warehouse.checksums import checksum_of
from headrace.warehouse.commitlog import CommitConflictError
from headrace.warehouse.counting import UNREADABLE, count_file, naming, whole_numbers
from headrace.warehouse.decode import OFFSET_COLUMN, PARTITION_COLUMN
from headrace.warehouse.hdfs.remote_file import RemoteFile
from headrace.warehouse.layout import HOUR_MS, hour_name
from headrace.warehouse.lineage import Lineage
from headrace.warehouse.loading import data_files
from headrace.warehouse.manifest import DataFile, LoadedRange, Manifest, TableState
from headrace.warehouse.stage import StagedFile
from headrace.warehouse.unsound import refusal_of

HEADER_COLUMN: Final = "header"
GUID_FIELD: Final = "guid"
ROWS_MAX: Final = 20_000_000
"""Of one hour: their guids are held in memory, some 80 bytes each. A larger hour is not compared."""
DEDUPED_NAME: Final = "deduped"
NO_GUIDS: Final = pa.array([b"", bytes(16), str(UUID(int=0)).encode()], pa.large_binary())
"""What clients write that have no guid: their languages' empty values. It tells no event from another."""


class Row(NamedTuple):
    """Rows as arrays: number of the file, position in it, partition, offset, and the guid's number."""

    file: Any
    position: Any
    partition: Any
    offset: Any
    guid: Any


@dataclass(frozen=True)
class Doubles:
    """The rows of one hour whose guid another row has, too. `extra`: those that a dedupe removes."""

    topic: str
    hour_ms: int
    events: int = 0
    """How many events are there more than once."""
    extra: int = 0
    runs: tuple[DoubledRun, ...] = ()
    problem: str = ""
    """Why the hour could not be compared."""


@dataclass(frozen=True)
class DedupeResult:
    """What a dedupe of one hour did. `sequence` is None if nothing was doubled, or with `problem`."""

    topic: str
    hour_ms: int
    sequence: int | None = None
    removed: int = 0
    problem: str = ""

    @property
    def is_sound(self) -> bool:
        return not self.problem


def find_doubles(
    table: TopicTable, state: TableState, hour_ms: int, *, skips_unsound: bool = False
) -> Doubles:
    """Returns what an hour's files have more than once. Raises `NotParquetError`, `HdfsError`.

    `skips_unsound`: files that are gone, cut or unreadable are left out, instead of an error.
    """
    files = state.hours().get(hour_ms, [])
    if (rows := sum(file.rows for file in files)) > ROWS_MAX:
        problem = f"{hour_name(hour_ms)} has {rows} rows, more than the {ROWS_MAX} that are compared at once"
        return Doubles(table.topic, hour_ms, problem=problem)
    found = _doubled(table, files, skips_unsound=skips_unsound)
    if found is None:
        return Doubles(table.topic, hour_ms)
    rows_of, is_extra = found
    events = int(np.unique(rows_of.guid).size)
    runs = (*_runs(rows_of, is_extra, extra=False), *_runs(rows_of, is_extra, extra=True))
    return Doubles(table.topic, hour_ms, events, int(is_extra.sum()), runs)


def records_of(doubles: Doubles, warehouse: str, *, removed: int = 0) -> list[DoubledRecord]:
    """Returns the records for the audit of doubles, as many as it takes."""
    pieces = [
        doubles.runs[start : start + RUNS_PER_RECORD_MAX]
        for start in range(0, len(doubles.runs), RUNS_PER_RECORD_MAX)
    ]
    return [
        DoubledRecord(warehouse, doubles.topic, doubles.hour_ms, removed, tuple(piece)) for piece in pieces
    ]


def dedupe_topic_hour(table: TopicTable, hour_ms: int) -> DedupeResult:
    """Writes the hour's next version, with each event once. Safe to repeat, to kill, and beside loads."""
    table.log.complete_all(table.publish)
    state = table.log.state()
    files = state.hours().get(hour_ms, [])
    doubles = find_doubles(table, state, hour_ms)
    if doubles.problem or not doubles.extra:
        return DedupeResult(table.topic, hour_ms, problem=doubles.problem)
    found = _doubled(table, files)
    assert found is not None
    rows, is_extra = found
    # Changed bytes may be another event's guid, and would get a checksum that fits.
    if refusal := _refusal(table, [files[number] for number in np.unique(rows.file).tolist()]):
        return DedupeResult(table.topic, hour_ms, problem=refusal)
    change = Change(table, "dedupe")
    with change.discarded_on_error():
        harmed = np.unique(rows.file[is_extra]).tolist()
        staged = [
            (files[number], _without(change, files[number], rows.position[is_extra & (rows.file == number)]))
            for number in harmed
        ]
        # What changed before it was written again is still changed: what is sound now was read soundly.
        refusal = _refusal(table, [files[number] for number in harmed])
    removed = tuple(files[number].path for number in harmed)
    # Not what another change has removed meanwhile: the commit says that.
    if refusal and table.log.state().files.keys() >= set(removed):
        table.log.discard(change.change_id)
        return DedupeResult(table.topic, hour_ms, problem=refusal)
    removed_ranges = tuple(
        LoadedRange(run.log_partition, run.first_offset, run.last_offset + 1, log=log)
        for log in sorted({files[number].log for number in harmed})
        for run in _runs_of(rows, is_extra, [number for number in harmed if files[number].log == log])
    )

    def rebase(now: TableState) -> Manifest:
        if any(path not in now.files for path in removed):
            raise CommitConflictError(
                f"{table.topic}, {hour_name(hour_ms)}: another change was committed first; nothing is "
                "removed, repeat the dedupe"
            )
        return replace(
            change.manifest(now),
            ranges=removed_ranges,
            files=_data_files(change, now, staged),
            removed=removed,
            note=str(hour_ms),
        )

    manifest = change.commit(rebase)
    return DedupeResult(table.topic, hour_ms, manifest.sequence, doubles.extra)


def _refusal(table: TopicTable, files: Iterable[DataFile]) -> str:
    """Reads files, and returns what is wrong with the first one that is not as it was written; or ""."""
    return next(filter(None, (refusal_of(table, file) for file in files)), "")


def removed_offsets(manifests: Iterable[Manifest]) -> dict[int, Any]:
    """Returns the offsets that dedupes removed of the logs that are loaded now, by partition, as sorted
    arrays: nothing brings them again.
    """
    found: dict[int, list[Any]] = {}
    for manifest, removed in (lineage := Lineage(manifests)).present():
        if manifest.kind == "dedupe":
            end = min(removed.to_address, lineage.below(removed.partition, removed.log))
            found.setdefault(removed.partition, []).append(np.arange(removed.from_address, end))
    return {partition: np.unique(np.concatenate(offsets)) for partition, offsets in found.items()}


def _doubled(
    table: TopicTable, files: Sequence[DataFile], *, skips_unsound: bool = False
) -> tuple[Row, Any] | None:
    """Returns the rows whose guid is there more than once, in the order of their addresses; and which of them
    are extra. None if there are none, or the events have no guids.
    """
    read = _read_if_sound if skips_unsound else _read
    parts = [read(table, number, file) for number, file in enumerate(files)]
    held = [part for part in parts if part is not None]
    if not held:
        return None
    guids = pa.concat_arrays([guid for _, guid in held])
    numbers = pc.fill_null(guids.dictionary_encode().indices, -1).to_numpy(zero_copy_only=False)
    columns = [np.concatenate([getattr(row, name) for row, _ in held]) for name in Row._fields[:4]]
    known = numbers >= 0
    _, inverse, counts = np.unique(numbers, return_inverse=True, return_counts=True)
    chosen = np.flatnonzero(known & (counts[inverse] > 1))
    if not chosen.size:
        return None
    order = chosen[np.lexsort((columns[3][chosen], columns[2][chosen]))]
    file, position, partition, offset = (column[order] for column in columns)
    rows = Row(file, position, partition, offset, numbers[order])
    _, first = np.unique(rows.guid, return_index=True)
    is_extra = np.ones(order.size, dtype=bool)
    is_extra[first] = False
    return rows, is_extra


def _read(table: TopicTable, number: int, file: DataFile) -> tuple[Row, Any] | None:
    """Returns a file's addresses and guids, as bytes; None if its events have no guid in a header."""
    with naming(file.path):
        parquet = pq.ParquetFile(RemoteFile(table.hdfs, file.path, file.size_bytes))
        schema = parquet.schema_arrow
        if HEADER_COLUMN not in schema.names:
            return None
        kind = schema.field(HEADER_COLUMN).type
        if not pa.types.is_struct(kind) or kind.get_field_index(GUID_FIELD) < 0:
            return None
        wanted = [f"{HEADER_COLUMN}.{GUID_FIELD}", PARTITION_COLUMN, OFFSET_COLUMN]
        rows = parquet.read(columns=wanted).combine_chunks()
        headers = rows.column(HEADER_COLUMN).combine_chunks()
        guid = _known(pc.struct_field(headers, GUID_FIELD))
        partitions = whole_numbers(PARTITION_COLUMN, rows.column(PARTITION_COLUMN))
        offsets = whole_numbers(OFFSET_COLUMN, rows.column(OFFSET_COLUMN))
    if guid is None:
        return None
    count = rows.num_rows
    return Row(np.full(count, number), np.arange(count), partitions, offsets, None), guid


def _known(found: Any) -> pa.Array | None:
    """Returns guids as bytes, null where there is none; None if values of their type are none."""
    guids = found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found
    if pa.types.is_nested(guids.type):
        return None
    if not _is_bytes(guids.type):
        guids = guids.cast(pa.string())
    guids = guids.cast(pa.large_binary())
    return pc.if_else(pc.is_in(guids, NO_GUIDS), None, guids)


def _is_bytes(kind: pa.DataType) -> bool:
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    is_binary = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    return bool(is_text or is_binary or pa.types.is_fixed_size_binary(kind))


def _read_if_sound(table: TopicTable, number: int, file: DataFile) -> tuple[Row, Any] | None:
    """Reads a file as `_read` does; None for one that is gone, cut or unreadable: a verification names it."""
    status = table.hdfs.status(file.path)
    if status is None or status.size_bytes != file.size_bytes:
        return None
    try:
        return _read(table, number, file)
    except UNREADABLE:
        return None


def _runs_of(rows: Row, is_extra: Any, files: Sequence[int]) -> Iterable[DoubledRun]:
    """Returns the runs of the rows that are extra in these files."""
    return _runs(rows, is_extra & np.isin(rows.file, files), extra=True)


def _runs(rows: Row, is_extra: Any, *, extra: bool) -> Iterable[DoubledRun]:
    """Returns runs of adjacent offsets among the rows that are extra, or among the others."""
    partitions, offsets = rows.partition[is_extra == extra], rows.offset[is_extra == extra]
    if not offsets.size:
        return []
    breaks = np.flatnonzero((np.diff(offsets) != 1) | (np.diff(partitions) != 0)) + 1
    starts, ends = np.r_[0, breaks], np.r_[breaks, offsets.size] - 1
    return [
        DoubledRun(int(partitions[start]), int(offsets[start]), int(offsets[end]), extra)
        for start, end in zip(starts, ends, strict=True)
    ]


def _without(change: Change, file: DataFile, positions: Any) -> StagedFile | None:
    """Writes a file again without some rows; None if no row is left."""
    hdfs = change.table.hdfs
    with naming(file.path):
        rows = pq.ParquetFile(RemoteFile(hdfs, file.path, file.size_bytes)).read()
    kept = np.ones(rows.num_rows, dtype=bool)
    kept[positions] = False
    if not kept.any():
        return None
    sink = pa.BufferOutputStream()
    pq.write_table(rows.filter(pa.array(kept)), sink, compression="zstd")
    data = sink.getvalue().to_pybytes()
    path = f"{change.staging}/{DEDUPED_NAME}/{file.path.rsplit('/', 1)[-1]}"
    hdfs.write(path, data, overwrite=True)
    count = count_file(hdfs, path, len(data))
    return StagedFile(file.hour_ms // HOUR_MS, len(data), count, checksum_of(data))


def _data_files(
    change: Change, now: TableState, staged: Sequence[tuple[DataFile, StagedFile | None]]
) -> tuple[DataFile, ...]:
    """Returns the new files, each with the schema of the one that it replaces."""
    found: list[DataFile] = []
    for old, new in staged:
        if new is not None:
            (file,) = data_files(change.table.paths, now.next_sequence, [new], old.schema, old.log)
            path = change.table.paths.data_file(old.hour_ms, now.next_sequence, len(found))
            found.append(replace(file, path=path))
    return tuple(found)
