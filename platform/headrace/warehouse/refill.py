"""Refilling hours: rows that the table lacks, and the log still holds, are read from the log again.

Owns what is missing and what is brought: files that are gone, cut or unreadable, and rows that a load did
not write. The addresses that loads consumed for an hour are read again; of their rows, those that no sound
file of the hour has become new files, in one change of the table. So nothing is brought twice, a second run
finds nothing, and a run that is killed leaves a change that the next one completes, or nothing at all. Dead
letters are not missing: a replay brings them, once they can be decoded.
"""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.audit.findings import LOAD_HOP, Status
from headrace.audit.report.report import report
from headrace.audit.store.store import AuditStore
from headrace.warehouse.change import Change, TopicTable
from headrace.warehouse.checksums import checksum_of
from headrace.warehouse.commitlog import CommitConflictError
from headrace.warehouse.counting import FileCount, NotParquetError, count_file, group, read_addresses
from headrace.warehouse.decode import OFFSET_COLUMN, PARTITION_COLUMN
from headrace.warehouse.doubles import removed_offsets
from headrace.warehouse.hdfs.client import HdfsClient
from headrace.warehouse.hdfs.errors import HdfsMissingError
from headrace.warehouse.hdfs.remote_file import RemoteFile
from headrace.warehouse.layout import HOUR_MS, hour_name
from headrace.warehouse.lineage import ALL, Lineage
from headrace.warehouse.loading import (
    data_files,
    file_schema,
    first_offsets,
    stage_planned,
    writer_ids,
)
from headrace.warehouse.made_again import TopicMadeAgainError
from headrace.warehouse.manifest import DataFile, DeadFile, HourCount, LoadedRange, Manifest, TableState
from headrace.warehouse.plan import PlannedRange
from headrace.warehouse.planning import BROKER_TIMEOUT_S, check_is_loaded
from headrace.warehouse.schemas import subject_of
from headrace.warehouse.source.metadata import MetadataClient
from headrace.warehouse.source.options import EARLIEST
from headrace.warehouse.stage import StagedFile
from headrace.warehouse.unsound import unsound_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REFILLED_NAME: Final = "refilled"
_log = logging.getLogger(__name__)

Place = tuple[int, int]
"""A partition, and an hour of Kafka timestamps (ms)."""


@dataclass(frozen=True)
class RefillResult:
    """What a refill of one hour did. `sequence` is None if nothing was missing, or with `problem`."""

    topic: str
    hour_ms: int
    sequence: int | None = None
    rows: int = 0
    replaced: tuple[str, ...] = ()
    """The files that were gone, cut or unreadable, and whose rows are in new ones."""
    problem: str = ""
    """Why not all of it is there again; nothing was changed then."""
    hours: dict[int, int] = field(default_factory=dict)

    @property
    def is_sound(self) -> bool:
        return not self.problem


@dataclass(frozen=True)
class _Hour:
    """An hour before a refill: its sound files, the others, and the addresses that it was loaded from."""

    hour_ms: int
    sound: tuple[DataFile, ...]
    unsound: tuple[DataFile, ...]
    ranges: tuple[PlannedRange, ...]


def unsound_hours(table: TopicTable, state: TableState) -> list[int]:
    """Returns the hours of which a file is missing or has another size, from their folders' lists alone."""
    present = {path: entry.size_bytes for path, entry in table.hdfs.walk(table.paths.hourly)}
    wrong = {file.hour_ms for file in state.files.values() if present.get(file.path) != file.size_bytes}
    return sorted(wrong)


def lost_hours(audit_store: str, topic: str) -> set[int]:
    """Returns the hours of which the audit says that loads consumed rows, and did not write them."""
    store = AuditStore(audit_store, must_exist=True)
    try:
        verdicts = report(store, topic).verdicts
    finally:
        store.close()
    return {
        verdict.hour_ms
        for verdict in verdicts
        for finding in verdict.findings
        if finding.hop == LOAD_HOP and finding.status is Status.LOST
    }


def refill_topic(
    spark: "SparkSession", table: TopicTable, hours: Iterable[int], *, subject: str | None = None
) -> list[RefillResult]:
    """Refills these hours, one change each. Safe to repeat, to kill, and beside loads."""
    table.log.complete_all(table.publish)
    return [
        _refill(spark, table, hour_ms, subject or subject_of(table.topic)) for hour_ms in sorted(set(hours))
    ]


def _refill(spark: "SparkSession", table: TopicTable, hour_ms: int, subject: str) -> RefillResult:
    state, manifests = table.log.state(), table.log.manifests()
    lineage = Lineage(manifests)
    if _is_retained(table, manifests, hour_ms):
        # All that was deleted would be missing, and be reported a second time.
        gone = f"retention has deleted rows of {hour_name(hour_ms)}: none is brought again"
        return RefillResult(table.topic, hour_ms, problem=gone)
    try:
        hour = _hour(table, state, lineage, hour_ms)
    except TopicMadeAgainError as error:
        return RefillResult(table.topic, hour_ms, problem=str(error))
    gone = _gone(lineage, hour, manifests)
    if gone or not hour.ranges:
        return RefillResult(table.topic, hour_ms, problem=gone)
    change = Change(table, "refill")
    with change.discarded_on_error():
        staged = stage_planned(spark, change, hour.ranges, subject)
        with MetadataClient(table.warehouse.servers, BROKER_TIMEOUT_S) as metadata:
            # After all that was read: an id never comes back.
            check_is_loaded(metadata, table.topic, state, (each.partition for each in hour.ranges))
        letters = _letters(table, state, lineage)
        of_hour = [file for file in staged.files if _is_of(file, hour_ms)]
        missing = _missing(change, hour, of_hour, letters, lineage)
        lost_rows = sum(file.rows for file in hour.unsound)
        rows = sum(file.count.rows for file in missing)
        if rows < lost_rows or not rows:
            table.hdfs.delete(change.staging)
            problem = f"only {rows} of {lost_rows} missing rows are still in the log; nothing was changed"
            return RefillResult(table.topic, hour_ms, problem=problem if rows < lost_rows else "")
        ranges = _reported(table.hdfs, hour, staged.files, missing, letters, lineage)
    removed = tuple(file.path for file in hour.unsound)
    files_before = {file.path for file in state.hours().get(hour_ms, [])}

    def rebase(now: TableState) -> Manifest:
        if now.log != state.log or {file.path for file in now.hours().get(hour_ms, [])} != files_before:
            raise CommitConflictError(
                f"{table.topic}, {hour_name(hour_ms)}: another change was committed first; nothing is "
                "duplicated, repeat the repair"
            )
        schema = file_schema(staged.reader)
        return replace(
            change.manifest(now),
            ranges=ranges,
            files=data_files(table.paths, now.next_sequence, missing, schema, now.log),
            removed=removed,
            schema_id=schema.schema_id,
            schema_datacenter=schema.datacenter,
            writer_ids=writer_ids(missing),
            topic_id=lineage.topic_id(now.log),
        )

    manifest = change.commit(rebase)
    return RefillResult(table.topic, hour_ms, manifest.sequence, rows, removed, "", manifest.hours())


def _gone(lineage: Lineage, hour: _Hour, manifests: Iterable[Manifest]) -> str:
    """Returns why no log holds what the hour's unsound files had; "" if one may."""
    if partitions := _of_earlier_logs(lineage, hour, manifests):
        # Nobody knows which rows of the files were theirs.
        return (
            f"files of {hour_name(hour.hour_ms)} may have had rows of an earlier log of partition "
            f"{partitions}, which nobody can read again: restore these files from the trash or a backup"
        )
    if hour.unsound and not hour.ranges:
        return f"the log no longer holds the addresses that {hour_name(hour.hour_ms)} was loaded from"
    return ""


def _is_retained(table: TopicTable, manifests: Iterable[Manifest], hour_ms: int) -> bool:
    """Whether a retention has deleted files of an hour."""
    deleted = (path for manifest in manifests if manifest.kind == "retain" for path in manifest.removed)
    return any(table.paths.hour_of(path) == hour_ms for path in deleted)


def _hour(table: TopicTable, state: TableState, lineage: Lineage, hour_ms: int) -> _Hour:
    """Raises `TopicMadeAgainError` if the topic is not the one that is loaded."""
    unsound = tuple(file for file, _ in unsound_files(table, state, hour_ms))
    wrong = {file.path for file in unsound}
    sound = tuple(file for file in state.hours().get(hour_ms, []) if file.path not in wrong)
    spans: dict[int, tuple[int, int]] = {}
    for manifest, loaded in lineage.present():
        if manifest.kind == "load" and _may_have(manifest, hour_ms):
            low, high = spans.get(loaded.partition, (loaded.from_address, loaded.to_address))
            spans[loaded.partition] = (min(low, loaded.from_address), max(high, loaded.to_address))
    with MetadataClient(table.warehouse.servers, BROKER_TIMEOUT_S) as metadata:
        if spans:
            check_is_loaded(metadata, table.topic, state, spans)
        earliest = metadata.offsets(dict.fromkeys([(table.topic, each) for each in spans], EARLIEST))
    ranges = tuple(
        PlannedRange(partition, max(low, earliest[table.topic, partition]), high)
        for partition, (low, high) in sorted(spans.items())
        if max(low, earliest[table.topic, partition]) < high
    )
    return _Hour(hour_ms, sound, unsound, ranges)


def _of_earlier_logs(lineage: Lineage, hour: _Hour, manifests: Iterable[Manifest]) -> str:
    """Returns the partitions, by commas, of which the hour's unsound files may have rows of a log that is
    there no more.
    """
    loads = {manifest.sequence: manifest for manifest in manifests if manifest.kind == "load"}
    found = {
        loaded.partition
        for manifest, loaded in lineage.earlier()
        if _may_have(loads[manifest.sequence], hour.hour_ms)
        if any(lineage.below(loaded.partition, file.log) < ALL for file in hour.unsound)
    }
    return ", ".join(map(str, sorted(found)))


def _may_have(manifest: Manifest, hour_ms: int) -> bool:
    """Whether a load read events of an hour: by its files, or by the Kafka timestamps that it counted."""
    return hour_ms in manifest.hours() or any(
        count.hour_ms == hour_ms for loaded in manifest.ranges for count in loaded.hours
    )


def _is_of(file: StagedFile, hour_ms: int) -> bool:
    return not file.is_dead and file.hour_number * HOUR_MS == hour_ms


def _letters(table: TopicTable, state: TableState, lineage: Lineage) -> dict[int, Any]:
    """Returns the offsets of dead letters of the logs that are loaded now, by partition, as sorted arrays."""
    found: dict[int, list[Any]] = {}
    for file in state.dead_files.values():
        try:
            _add_offsets(found, table.hdfs, file, lineage)
        except (NotParquetError, HdfsMissingError) as error:
            # No replay can bring its letters either. A file of which HDFS lost a block may come back, and its
            # letters with it: that error is left to end the refill.
            _log.warning("%s", error)
    return _sorted(found)


def _add_offsets(
    found: dict[int, list[Any]], hdfs: HdfsClient, file: DataFile | DeadFile, lineage: Lineage
) -> None:
    addresses = read_addresses(hdfs, file.path, file.size_bytes)
    for partition in map(int, np.unique(addresses.partitions)):
        offsets = addresses.offsets[addresses.partitions == partition]
        found.setdefault(partition, []).append(offsets[offsets < lineage.below(partition, file.log)])


def _sorted(found: Mapping[int, list[Any]]) -> dict[int, Any]:
    return {partition: np.unique(np.concatenate(offsets)) for partition, offsets in found.items()}


def _missing(
    change: Change,
    hour: _Hour,
    staged: Sequence[StagedFile],
    letters: Mapping[int, Any],
    lineage: Lineage,
) -> list[StagedFile]:
    """Returns staged files of the rows that no sound file has; rewrites those of which it has some."""
    hdfs = change.table.hdfs
    held: dict[int, list[Any]] = {partition: [offsets] for partition, offsets in letters.items()}
    for sound in hour.sound:
        _add_offsets(held, hdfs, sound, lineage)
    for partition, removed in removed_offsets(change.table.log.manifests()).items():
        held.setdefault(partition, []).append(removed)
    known = _sorted(held)
    found: list[StagedFile] = []
    for number, file in enumerate(staged):
        addresses = read_addresses(hdfs, file.path, file.size_bytes)
        is_missing = _not_in(known, addresses.partitions, addresses.offsets)
        if is_missing.all():
            found.append(file)
        elif is_missing.any():
            rows = pq.ParquetFile(RemoteFile(hdfs, file.path, file.size_bytes)).read()
            path = f"{change.staging}/{REFILLED_NAME}/{number:05d}.parquet"
            found.append(_written(change, path, rows, known, file.hour_number))
    return found


def _written(
    change: Change, path: str, rows: pa.Table, known: Mapping[int, Any], hour_number: int
) -> StagedFile:
    """Writes the rows that are not known; the rows of a file are in the order of its address columns."""
    partitions = rows.column(PARTITION_COLUMN).to_numpy().astype(np.int64)
    kept = rows.filter(pa.array(_not_in(known, partitions, rows.column(OFFSET_COLUMN).to_numpy())))
    sink = pa.BufferOutputStream()
    pq.write_table(kept, sink, compression="zstd")
    data = sink.getvalue().to_pybytes()
    change.table.hdfs.write(path, data, overwrite=True)
    count = count_file(change.table.hdfs, path, len(data))
    return StagedFile(hour_number, len(data), count, checksum_of(data))


def _not_in(known: Mapping[int, Any], partitions: Any, offsets: Any) -> Any:
    is_missing = np.ones(offsets.size, dtype=bool)
    for partition in np.unique(partitions):
        there = known.get(int(partition))
        if there is not None:
            of_partition = partitions == partition
            is_missing[of_partition] = ~np.isin(offsets[of_partition], there)
    return is_missing


def _reported(
    hdfs: HdfsClient,
    hour: _Hour,
    staged: Iterable[StagedFile],
    missing: Sequence[StagedFile],
    letters: Mapping[int, Any],
    lineage: Lineage,
) -> tuple[LoadedRange, ...]:
    """Returns what the audit has not heard of: the rows that were in no load's report.

    Without unsound files, all that is missing. Else the rows of unsound files were reported once: what the
    log holds of the read addresses, less what was reported of them.
    """
    brought = _rows_of(file.count for file in missing)
    if hour.unsound:
        held = _rows_of(_without(hdfs, file, letters) for file in staged if not file.is_dead)
        said = _said(lineage, {place[0] for place in held})
        brought = {
            place: min(brought.get(place, 0), max(0, held[place] - said.get(place, 0))) for place in held
        }
    by_partition: dict[int, list[HourCount]] = {}
    for (partition, hour_ms), rows in sorted(brought.items()):
        if rows:
            by_partition.setdefault(partition, []).append(HourCount(hour_ms, rows, rows))
    first = first_offsets(missing)
    return tuple(
        LoadedRange(each, first[each], first[each], tuple(by_partition[each])) for each in by_partition
    )


def _without(hdfs: HdfsClient, file: StagedFile, letters: Mapping[int, Any]) -> FileCount:
    """Returns the counts of a file without the rows at these offsets."""
    if not letters:
        return file.count
    addresses = read_addresses(hdfs, file.path, file.size_bytes)
    kept = _not_in(letters, addresses.partitions, addresses.offsets)
    rest = (addresses.partitions[kept], addresses.offsets[kept], addresses.hours_ms[kept])
    return replace(file.count, rows=int(kept.sum()), groups=group(file.path, *rest))


def _rows_of(counts: Iterable[FileCount]) -> dict[Place, int]:
    rows: dict[Place, int] = {}
    for each in (each for count in counts for each in count.groups):
        place = (each.partition, each.timestamp_hour_ms)
        rows[place] = rows.get(place, 0) + each.rows
    return rows


def _said(lineage: Lineage, partitions: Collection[int]) -> dict[Place, int]:
    said: dict[Place, int] = {}
    for _, loaded in lineage.present():
        if loaded.partition in partitions:
            for count in loaded.hours:
                place = (loaded.partition, count.hour_ms)
                said[place] = said.get(place, 0) + count.rows
    return said
