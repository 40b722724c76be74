"""Taking events from a datacenter's own log that its copy in the analysis cluster can never hold.

A copy that went on behind a gap has no place for the gap's addresses, and an address never changes its
meaning. So the warehouse reads the missing addresses from the log where they were given out: its rows are
those that a load of the copy would have written, with the analysis cluster's partition and the same offsets.

One range is one change of the table. What a change consumed is in its manifest, so a second run takes nothing
twice, and a run that is killed leaves a change that the next one completes, or nothing at all.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.audit.intervals import subtract
from headrace.warehouse.change import Change, TopicTable
from headrace.warehouse.checksums import checksum_of
from headrace.warehouse.commitlog import CommitConflictError
from headrace.warehouse.counting import FileCount, count_file
from headrace.warehouse.decode import OFFSET_COLUMN, PARTITION_COLUMN
from headrace.warehouse.hdfs.remote_file import RemoteFile
from headrace.warehouse.layout import HOUR_MS
from headrace.warehouse.lineage import Lineage
from headrace.warehouse.loading import (
    StagedLoad,
    data_files,
    dead_letter_files,
    file_schema,
    loaded_ranges,
    stage_planned,
    writer_ids,
)
from headrace.warehouse.manifest import LoadedRange, Manifest, TableState
from headrace.warehouse.plan import PlannedRange
from headrace.warehouse.planning import BROKER_TIMEOUT_S
from headrace.warehouse.schemas import subject_of
from headrace.warehouse.source.metadata import MetadataClient
from headrace.warehouse.source.options import EARLIEST, LATEST
from headrace.warehouse.stage import StagedFile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LABELLED_NAME: Final = "labelled"


@dataclass(frozen=True)
class SourceLog:
    """A datacenter's own brokers, and the registry that knows what its producers meant."""

    datacenter: str
    bootstrap: str
    registry_url: str


@dataclass(frozen=True)
class WantedRange:
    """Addresses `[from_address, to_address)` of a source partition, which the copy's `log_partition` lacks.

    `record_count`: how many events lie there at least, as the audit counted them.
    """

    partition: int
    log_partition: int
    from_address: int
    to_address: int
    record_count: int = 0
    topic_id: str = ""
    """Kafka's id of the source's topic; "" if the audit does not know it."""


@dataclass(frozen=True)
class TakenResult:
    """What was done about one range. `sequence` is None if nothing was left to take, or with `problem`."""

    topic: str
    wanted: WantedRange
    sequence: int | None = None
    rows: int = 0
    dead_lettered: int = 0
    problem: str = ""
    """Why the range was not taken; nothing was changed then."""
    hours: dict[int, int] = field(default_factory=dict)

    @property
    def is_sound(self) -> bool:
        return not self.problem


def still_there(
    topic: str, source: SourceLog, wanted: Iterable[WantedRange]
) -> list[tuple[WantedRange, WantedRange | None]]:
    """Returns each range with the part of it that the source's log still has: its end, or None of it."""
    ranges = list(wanted)
    partitions = dict.fromkeys((topic, each.partition) for each in ranges)
    with MetadataClient(_servers(source), BROKER_TIMEOUT_S) as metadata:
        earliest = metadata.offsets(dict.fromkeys(partitions, EARLIEST))
        latest = metadata.offsets(dict.fromkeys(partitions, LATEST))
        topic_id = metadata.topic_id(topic)
    found: list[tuple[WantedRange, WantedRange | None]] = []
    for each in ranges:
        low = max(each.from_address, earliest[topic, each.partition])
        is_there = low < each.to_address <= latest[topic, each.partition]
        is_there = is_there and _is_named(each, topic_id)
        known = each.record_count if low == each.from_address else 0
        part = replace(each, from_address=low, record_count=known) if is_there else None
        found.append((each, part))
    return found


def _is_named(wanted: WantedRange, topic_id: str) -> bool:
    """Whether a source's topic may be the one in which the addresses were counted."""
    return "" in (wanted.topic_id, topic_id) or wanted.topic_id == topic_id


def take_from_source(
    spark: "SparkSession",
    table: TopicTable,
    source: SourceLog,
    wanted: Iterable[WantedRange],
    *,
    subject: str | None = None,
) -> list[TakenResult]:
    """Takes what no change has consumed yet of these ranges, one change each. Safe to repeat and to kill."""
    table.log.complete_all(table.publish)
    done: list[TakenResult] = []
    for each in wanted:
        left = _not_consumed(table, each)
        if not left:
            done.append(TakenResult(table.topic, each))
        done += [_take(spark, table, source, part, subject or subject_of(table.topic)) for part in left]
    return done


def _servers(source: SourceLog) -> tuple[str, ...]:
    return tuple(server.strip() for server in source.bootstrap.split(","))


def _not_consumed(table: TopicTable, wanted: WantedRange) -> list[WantedRange]:
    """Returns what no change has consumed. A load's range that spans all of it read nothing there: the copy
    has a gap. That no row of it is in the table is checked before it is committed.
    """
    consumed = [
        (loaded.from_address, loaded.to_address)
        for manifest, loaded in Lineage(table.log.manifests()).present()
        if loaded.partition == wanted.log_partition
        and (manifest.kind == "refill" or (manifest.kind == "load" and not _spans(loaded, wanted)))
    ]
    left = subtract([(wanted.from_address, wanted.to_address)], consumed)
    if left == [(wanted.from_address, wanted.to_address)]:
        return [wanted]
    return [replace(wanted, from_address=low, to_address=high, record_count=0) for low, high in left]


def _spans(loaded: LoadedRange, wanted: WantedRange) -> bool:
    return loaded.from_address <= wanted.from_address and wanted.to_address <= loaded.to_address


def _rows_there(table: TopicTable, state: TableState, staged: StagedLoad, wanted: WantedRange) -> int:
    """Returns how many rows of these addresses the table has already, in the hours of what was staged."""
    hours_ms = {file.hour_number * HOUR_MS for file in staged.files}
    lineage = Lineage(table.log.manifests())
    there = 0
    for file in (file for hour_ms in hours_ms for file in state.hours().get(hour_ms, [])):
        remote = RemoteFile(table.hdfs, file.path, file.size_bytes)
        rows = pq.ParquetFile(remote).read(columns=[PARTITION_COLUMN, OFFSET_COLUMN])
        offsets = rows.column(OFFSET_COLUMN).to_numpy()[
            rows.column(PARTITION_COLUMN).to_numpy() == wanted.log_partition
        ]
        end = min(wanted.to_address, lineage.below(wanted.log_partition, file.log))
        there += int(((offsets >= wanted.from_address) & (offsets < end)).sum())
    return there


def _take(
    spark: "SparkSession", table: TopicTable, source: SourceLog, wanted: WantedRange, subject: str
) -> TakenResult:
    state = table.log.state()
    at_source = replace(
        table.warehouse,
        bootstrap=source.bootstrap,
        registry_url=f"{source.datacenter}={source.registry_url}",
        zookeeper=None,
    )
    change = Change(replace(table, warehouse=at_source), "refill")
    with change.discarded_on_error():
        planned = PlannedRange(wanted.partition, wanted.from_address, wanted.to_address)
        staged = stage_planned(spark, change, [planned], subject)
        with MetadataClient(_servers(source), BROKER_TIMEOUT_S) as metadata:
            # After all that was read: an id never comes back.
            topic_id = metadata.topic_id(table.topic)
        if not _is_named(wanted, topic_id):
            table.log.discard(change.change_id)
            problem = (
                f"{source.datacenter}'s topic {table.topic} was deleted and made again: its id is {topic_id} "
                f"now, and the addresses are of {wanted.topic_id}; nothing was changed"
            )
            return TakenResult(table.topic, wanted, problem=problem)
        count = sum(file.count.rows for file in staged.files)
        if count < wanted.record_count:
            table.log.discard(change.change_id)
            problem = (
                f"{source.datacenter}'s log has {count} events at addresses {wanted.from_address} to "
                f"{wanted.to_address} of partition {wanted.partition}, and the audit counted "
                f"{wanted.record_count} at least; nothing was changed"
            )
            return TakenResult(table.topic, wanted, problem=problem)
        if there := _rows_there(table, state, staged, wanted):
            table.log.discard(change.change_id)
            problem = (
                f"the table has {there} rows of addresses {wanted.from_address} to {wanted.to_address} of "
                f"partition {wanted.log_partition} already, which the copy should lack; nothing was changed. "
                f"Look at it with `headrace warehouse verify {table.topic}`"
            )
            return TakenResult(table.topic, wanted, problem=problem)
        staged = _labelled(change, staged, wanted.log_partition)
        ranges = loaded_ranges([replace(planned, partition=wanted.log_partition)], staged.files, None)
    manifest = _commit(change, staged, ranges, state)
    dead = sum(loaded.dead_lettered for loaded in manifest.ranges)
    return TakenResult(table.topic, wanted, manifest.sequence, manifest.rows, dead, "", manifest.hours())


def _commit(
    change: Change, staged: StagedLoad, ranges: Sequence[LoadedRange], planned: TableState
) -> Manifest:
    table, schema = change.table, file_schema(staged.reader)

    def rebase(now: TableState) -> Manifest:
        if now.log != planned.log:
            raise CommitConflictError(
                f"{table.topic}: another run took the same addresses first; this one is discarded, "
                "nothing is duplicated"
            )
        for sequence in range(planned.next_sequence, now.next_sequence):
            other = table.log.manifest(sequence)
            if other.kind in ("load", "refill") and _overlap(other.ranges, ranges):
                raise CommitConflictError(
                    f"{table.topic}: another run took the same addresses first; this one is discarded, "
                    "nothing is duplicated"
                )
        # The names of a table's columns come from loads; a table without any has those of its first rows.
        names = schema if now.schema_id is None else None
        return replace(
            change.manifest(now),
            ranges=tuple(ranges),
            files=data_files(table.paths, now.next_sequence, staged.files, schema, now.log),
            dead_files=dead_letter_files(table.paths, now.next_sequence, staged.dead_letters, now.log),
            schema_id=names.schema_id if names else None,
            schema_datacenter=names.datacenter if names else None,
            writer_ids=writer_ids(staged.files),
            topic_id=now.topic_ids.get(ranges[0].partition, ""),
        )

    return change.commit(rebase)


def _overlap(some: Iterable[LoadedRange], others: Sequence[LoadedRange]) -> bool:
    return any(
        one.partition == other.partition
        and one.from_address < other.to_address
        and other.from_address < one.to_address
        for one in some
        for other in others
    )


def _labelled(change: Change, staged: StagedLoad, partition: int) -> StagedLoad:
    """Returns what was staged as rows of the analysis cluster's partition."""
    files = [
        # Of rows that could not be decoded only the counts are used: their letters are other files.
        replace(file, count=_relabelled(file.count, partition))
        if file.is_dead
        else _rewritten(change, file, f"{number:05d}", partition)
        for number, file in enumerate(staged.files)
    ]
    letters = [
        _rewritten(change, file, f"dead-{number:05d}", partition)
        for number, file in enumerate(staged.dead_letters)
    ]
    return replace(staged, files=files, dead_letters=letters)


def _rewritten(change: Change, file: StagedFile, name: str, partition: int) -> StagedFile:
    if {group.partition for group in file.count.groups} <= {partition}:
        return file
    hdfs = change.table.hdfs
    rows = pq.ParquetFile(RemoteFile(hdfs, file.path, file.size_bytes)).read()
    at = rows.schema.get_field_index(PARTITION_COLUMN)
    column = pa.array([partition] * rows.num_rows, rows.schema.field(at).type)
    sink = pa.BufferOutputStream()
    pq.write_table(rows.set_column(at, rows.schema.field(at), column), sink, compression="zstd")
    data = sink.getvalue().to_pybytes()
    path = f"{change.staging}/{LABELLED_NAME}/{name}.parquet"
    hdfs.write(path, data, overwrite=True)
    return StagedFile(file.hour_number, len(data), count_file(hdfs, path, len(data)), checksum_of(data))


def _relabelled(count: FileCount, partition: int) -> FileCount:
    return replace(count, groups=tuple(_groups(count, partition)))


def _groups(count: FileCount, partition: int) -> Iterator[Any]:
    for group in count.groups:
        yield replace(group, partition=partition)
