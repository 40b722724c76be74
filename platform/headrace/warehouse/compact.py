"""Compaction: an hour's many small files become few, through the commit log.

Owns the choice of files and the rewriting. Files that are not as they were written stay as they are, with
their problem; where one changes while it is rewritten, nothing is committed. The rows are counted before and
after, and must be the same. The old files go to the trash; a reader that began with them finds them missing
and has to start again.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Final

from headrace.warehouse.change import Change, TopicTable
from headrace.warehouse.commitlog import CommitConflictError
from headrace.warehouse.counting import GroupCount, count_files
from headrace.warehouse.decode import HOUR_COLUMN, OFFSET_COLUMN, PARTITION_COLUMN
from headrace.warehouse.hdfs.client import HdfsClient
from headrace.warehouse.layout import HOUR_MS
from headrace.warehouse.loading import LoadError, data_files
from headrace.warehouse.manifest import DataFile, FileSchema, Manifest, TableState
from headrace.warehouse.stage import staged_files, write_hours
from headrace.warehouse.unsound import refusal_of
from headrace.warehouse.versions import late_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILE_SIZE_BYTES: Final = 256 << 20
FILES_MIN: Final = 2
"""Fewer small files than this stay as they are."""
HOURS_AT_ONCE: Final = 64

_Key = tuple[int, FileSchema, int]
Chosen = Mapping[_Key, Sequence[DataFile]]
"""The files to merge, by hour, schema and log (`DataFile.log`)."""


@dataclass(frozen=True)
class CompactResult:
    """What a compaction did. `sequence` is None if no hour had enough small files.

    `problems`: the files that are not as they were written; theirs stay as they are.
    """

    topic: str
    sequence: int | None = None
    hours: tuple[int, ...] = ()
    files_before: int = 0
    files_after: int = 0
    rows: int = 0
    problems: tuple[str, ...] = ()

    @property
    def is_sound(self) -> bool:
        return not self.problems


def choose(
    state: TableState,
    now_ms: int,
    *,
    hours: Collection[int] | None = None,
    grace_ms: int = 0,
    most: int | None = None,
) -> Chosen:
    """Returns the files of closed hours that are worth rewriting: several small ones of one schema and
    log. Pure.

    Chooses the oldest hours, at most `most` of them.
    """
    found: dict[_Key, list[DataFile]] = {}
    for hour_ms, files in state.hours().items():
        if hour_ms + HOUR_MS + grace_ms > now_ms or (hours is not None and hour_ms not in hours):
            continue
        small = [file for file in files if file.size_bytes < FILE_SIZE_BYTES // 2]
        for schema, log in sorted({(file.schema, file.log) for file in small}, key=str):
            alike = [file for file in small if (file.schema, file.log) == (schema, log)]
            if len(alike) >= FILES_MIN:
                found[hour_ms, schema, log] = alike
        if most is not None and len({hour for hour, _, _ in found}) >= most:
            break
    return found


def compact_topic(
    spark: "SparkSession", table: TopicTable, *, hours: Collection[int] | None = None, grace_ms: int = 0
) -> CompactResult:
    """Merges small files of closed hours. Safe to repeat and to kill; loads may run concurrently.

    Rows that came after an hour's seal stay apart from those that it vouches for, by a change of their own:
    so these can be read as they were sealed.
    """
    table.log.complete_all(table.publish)
    state = table.log.state()
    now_ms = table.clock_ms()
    wanted = {hour for hour, _, _ in choose(state, now_ms, hours=hours, grace_ms=grace_ms)}
    late = late_files(table.log, state, wanted)
    done: list[CompactResult] = []
    for is_late in (False, True) if late else (False,):
        files = {path: file for path, file in state.files.items() if (path in late) is is_late}
        found = choose(
            replace(state, files=files), now_ms, hours=wanted, grace_ms=grace_ms, most=HOURS_AT_ONCE
        )
        done.append(_compacted(spark, table, found))
    return _together(table.topic, done)


def _together(topic: str, done: Sequence[CompactResult]) -> CompactResult:
    return CompactResult(
        topic,
        max((each.sequence for each in done if each.sequence is not None), default=None),
        tuple(sorted({hour for each in done for hour in each.hours})),
        sum(each.files_before for each in done),
        sum(each.files_after for each in done),
        sum(each.rows for each in done),
        tuple(problem for each in done for problem in each.problems),
    )


def _compacted(spark: "SparkSession", table: TopicTable, found: Chosen) -> CompactResult:
    problems = _problems(table, found)
    chosen = {key: files for key, files in found.items() if key not in problems}
    told = _told(table, found, problems)
    if not chosen:
        return CompactResult(table.topic, problems=told)
    old = [file for files in chosen.values() for file in files]
    change = Change(table, "compact")
    with change.discarded_on_error():
        new = _rewrite(spark, change, chosen)
        # What changed before it was rewritten is still changed: bytes that are sound now were read soundly.
        changed = _told(table, chosen, _problems(table, chosen))
        if not changed:
            _check_same_rows(table, old, new)
    if changed:
        table.log.discard(change.change_id)
        return CompactResult(table.topic, problems=(*told, *changed))
    manifest = _commit(change, old, new)
    return CompactResult(
        topic=table.topic,
        sequence=manifest.sequence,
        hours=tuple(sorted({hour for hour, _, _ in chosen})),
        files_before=len(old),
        files_after=len(new),
        rows=manifest.rows,
        problems=told,
    )


def _problems(table: TopicTable, chosen: Chosen) -> dict[_Key, str]:
    """Reads the files, and returns what is wrong with the first one of each group that is not as it was
    written: a rewrite would give its bytes a checksum that fits.
    """
    found: dict[_Key, str] = {}
    for key, files in chosen.items():
        if refusal := next(filter(None, (refusal_of(table, file) for file in files)), ""):
            found[key] = refusal
    return found


def _told(table: TopicTable, chosen: Chosen, problems: Mapping[_Key, str]) -> tuple[str, ...]:
    """Returns the problems without those of files that another change has removed meanwhile."""
    now = table.log.state().files if problems else {}
    return tuple(text for key, text in problems.items() if all(file.path in now for file in chosen[key]))


def _rewrite(spark: "SparkSession", change: Change, chosen: Chosen) -> list[DataFile]:
    new: list[DataFile] = []
    # One schema at a time: a rewrite changes no column.
    for schema, log in sorted({(schema, log) for _, schema, log in chosen}, key=str):
        hours = [
            _merge_hour(spark, change.table, hour_ms, files)
            for (hour_ms, *alike), files in chosen.items()
            if alike == [schema, log]
        ]
        directory = f"{change.staging}/{schema.datacenter or 'any'}-{schema.schema_id}-{log}"
        write_hours(reduce(lambda left, right: left.union(right), hours), change.table, directory)
        new += data_files(change.table.paths, 0, staged_files(change.table.hdfs, directory), schema, log)
    return new


def _merge_hour(
    spark: "SparkSession", table: TopicTable, hour_ms: int, files: Sequence[DataFile]
) -> "DataFrame":
    # Imported here because commands without Spark import this module, too.
    from pyspark.sql import functions as f

    count = -(-sum(file.size_bytes for file in files) // FILE_SIZE_BYTES)
    rows = spark.read.parquet(*[table.warehouse.url(file.path) for file in files]).coalesce(count)
    ordered = rows.sortWithinPartitions(PARTITION_COLUMN, OFFSET_COLUMN)
    return ordered.withColumn(HOUR_COLUMN, f.lit(hour_ms // HOUR_MS))


def _check_same_rows(table: TopicTable, old: Iterable[DataFile], new: Iterable[DataFile]) -> None:
    before = _sums(table.hdfs, {file.path: file.size_bytes for file in old})
    after = _sums(table.hdfs, {file.staged: file.size_bytes for file in new})
    if before != after:
        raise LoadError(f"{table.topic}: the rewritten files don't hold the same rows; nothing was committed")


def _sums(hdfs: HdfsClient, sizes: Mapping[str, int]) -> dict[tuple[int, int], tuple[int, int, int]]:
    """Returns rows, first and last offset by partition and hour."""
    found: dict[tuple[int, int], list[GroupCount]] = {}
    for file in count_files(hdfs, sizes):
        for group in file.groups:
            found.setdefault((group.partition, group.timestamp_hour_ms), []).append(group)
    return {
        key: (
            sum(group.rows for group in groups),
            min(group.first_offset for group in groups),
            max(group.last_offset for group in groups),
        )
        for key, groups in found.items()
    }


def _commit(change: Change, old: Iterable[DataFile], new: Sequence[DataFile]) -> Manifest:
    paths = change.table.paths
    removed = tuple(file.path for file in old)

    def rebase(now: TableState) -> Manifest:
        if any(path not in now.files for path in removed):
            raise CommitConflictError(
                f"{paths.topic}: another change removed files that this one was rewriting; nothing changed, "
                "run again"
            )
        files = tuple(
            replace(file, path=paths.data_file(file.hour_ms, now.next_sequence, number))
            for number, file in enumerate(new)
        )
        return replace(change.manifest(now), files=files, removed=removed)

    return change.commit(rebase)
