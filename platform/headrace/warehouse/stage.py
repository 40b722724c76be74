"""Staging: Spark reads ranges, decodes them and writes Parquet into a staging directory.

Owns the Spark jobs of a load. Commits nothing. Rows are counted in the files written, not as planned.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.warehouse.change import TopicTable
from headrace.warehouse.checksums import read_checksum
from headrace.warehouse.counting import FileCount, count_files
from headrace.warehouse.decode import HOUR_COLUMN, decoding_of, table_rows
from headrace.warehouse.hdfs.client import HdfsClient
from headrace.warehouse.hdfs.errors import HdfsMissingError, HdfsNoTargetError, explain, raised_in
from headrace.warehouse.layout import DEAD_HOUR
from headrace.warehouse.plan import PlannedRange, split_count
from headrace.warehouse.read_contents import Contents, together
from headrace.warehouse.schemas import TopicSchemas
from headrace.warehouse.source.metadata import MetadataClient
from headrace.warehouse.source.options import LOAD_COLUMNS, format_offsets, parse
from headrace.warehouse.source.ranges import shares
from headrace.warehouse.source.resolve import resolve_ranges
from headrace.warehouse.staging_task import Decoding, HdfsTarget, StagedTask, StagingTask, run_task

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class StagedFile:
    """One staged file: its hour (`DEAD_HOUR` for rows that could not be decoded), size, counts, checksum."""

    hour_number: int
    size_bytes: int
    count: FileCount
    checksum: str = ""

    @property
    def path(self) -> str:
        return self.count.path

    @property
    def is_dead(self) -> bool:
        return self.hour_number == DEAD_HOUR


@dataclass(frozen=True)
class WrittenHours:
    """What is known of staged files without reading them again.

    `contents`: what the batches hold that were read; None if Spark's own reader did it. `checksums`: by path.
    """

    contents: Contents | None = None
    checksums: Mapping[str, str] = field(default_factory=dict)


def source_frame(
    spark: "SparkSession",
    table: TopicTable,
    ranges: Sequence[PlannedRange],
    *,
    columns: Sequence[str] = LOAD_COLUMNS,
) -> "DataFrame":
    """Returns the records of these ranges, in enough tasks for all cores."""
    options = _source_options(table, ranges, columns, task_count(spark, ranges))
    return spark.read.format("headrace").options(**options).load()


def _source_options(
    table: TopicTable, ranges: Sequence[PlannedRange], columns: Sequence[str], tasks: int
) -> dict[str, str]:
    topic = table.topic
    return {
        "kafka.bootstrap.servers": table.warehouse.bootstrap,
        "assign": json.dumps({topic: [planned.partition for planned in ranges]}),
        "startingOffsets": format_offsets(
            {(topic, planned.partition): planned.from_address for planned in ranges}
        ),
        "endingOffsets": format_offsets(
            {(topic, planned.partition): planned.to_address for planned in ranges}
        ),
        "columns": ",".join(columns),
        "minPartitions": str(tasks),
        "onCorrupt": "keep",
    }


def task_count(spark: "SparkSession", ranges: Iterable[PlannedRange]) -> int:
    return split_count(sum(planned.size for planned in ranges), spark.sparkContext.defaultParallelism)


def stage_load(
    spark: "SparkSession",
    table: TopicTable,
    ranges: Sequence[PlannedRange],
    schemas: TopicSchemas,
    directory: str,
) -> WrittenHours:
    """Writes the events of the ranges below the path `directory`, with a subdirectory for each hour.

    Replaces what is there.
    """
    decoding = decoding_of(schemas)
    if decoding is not None:
        return _stage_by_tasks(spark, table, ranges, decoding, directory)
    rows = table_rows(source_frame(spark, table, ranges), schemas)
    # A task writes a file for each of its hours. In a small load one task reads several partitions.
    write_hours(rows.coalesce(task_count(spark, ranges)), table, directory)
    return WrittenHours()


def _stage_by_tasks(
    spark: "SparkSession",
    table: TopicTable,
    ranges: Sequence[PlannedRange],
    decoding: Decoding,
    directory: str,
) -> WrittenHours:
    """Runs tasks that read, decode and write by themselves; keeps the files of those that Spark counts."""
    table.hdfs.delete(directory)
    warehouse, count = table.warehouse, task_count(spark, ranges)
    options = parse(_source_options(table, ranges, LOAD_COLUMNS, count))
    with MetadataClient(options.bootstrap, options.request_timeout_ms / 1000) as cluster:
        resolved = resolve_ranges(cluster, options)
        leaders = cluster.leaders_of({(each.topic, each.partition) for each in resolved})
    target = HdfsTarget(
        warehouse.webhdfs_url, table.hdfs.user, warehouse.patience_s, f"{directory}-attempts", HOUR_COLUMN
    )
    tasks = [
        StagingTask(
            tuple((range_, leaders.get((range_.topic, range_.partition))) for range_ in share),
            options,
            decoding,
            target,
        )
        for share in shares(resolved, count)
    ]
    done: list[StagedTask] = []
    if tasks:
        try:
            done = spark.sparkContext.parallelize(tasks, len(tasks)).map(run_task).collect()
        except Exception as error:
            raised = raised_in(str(error))
            if raised is not None:
                raise raised from error
            raise
    table.hdfs.makedirs(directory)
    checksums: dict[str, str] = {}
    for number, task in enumerate(done):
        # Only the attempts that Spark reports get here: another attempt of the same task has no effect.
        kept = f"{directory}/task-{number:05d}"
        if task.files and not table.hdfs.rename(task.directory, kept) and table.hdfs.status(kept) is None:
            raise HdfsMissingError(f"{task.directory}, which a task of this load wrote, is gone; repeat")
        checksums.update((f"{kept}/{name}", checksum) for name, checksum in task.checksums.items())
    return WrittenHours(together(task.contents for task in done), checksums)


def write_hours(rows: "DataFrame", table: TopicTable, directory: str) -> None:
    """Writes rows that have an hour column below `directory`, in `_hour=<number>`; replaces what is there."""
    try:
        rows.write.mode("overwrite").partitionBy(HOUR_COLUMN).parquet(table.warehouse.url(directory))
    except Exception as error:
        if isinstance(explain(str(error), directory), HdfsNoTargetError):
            # Spark's error has two possible causes. A write of our own raises an error that names the one.
            table.hdfs.write(f"{directory}/_probe", b"?", overwrite=True)
        raise


def staged_files(
    hdfs: HdfsClient, directory: str, checksums: Mapping[str, str] | None = None
) -> list[StagedFile]:
    """Counts the files below the path `directory`. Reads those whose checksum is not known."""
    sizes = parquet_sizes(hdfs, directory)
    known = checksums or {}
    return [
        StagedFile(
            _hour_number(count.path),
            sizes[count.path],
            count,
            known.get(count.path) or read_checksum(hdfs, count.path, sizes[count.path]),
        )
        for count in count_files(hdfs, sizes)
    ]


def parquet_sizes(hdfs: HdfsClient, directory: str) -> dict[str, int]:
    """Returns the size in bytes of each Parquet file below `directory`, by path."""
    return {path: file.size_bytes for path, file in hdfs.walk(directory) if path.endswith(".parquet")}


def present_schema_ids(spark: "SparkSession", table: TopicTable, ranges: Sequence[PlannedRange]) -> set[int]:
    """Returns the schema ids in these ranges, at the cost of reading them."""
    source = source_frame(spark, table, ranges, columns=("payload", "schemaId"))
    return {row.schemaId for row in source.select("schemaId").distinct().collect()}


def _hour_number(path: str) -> int:
    directory = path.rsplit("/", 2)[-2]
    name, _, number = directory.partition("=")
    assert name == HOUR_COLUMN, path
    return int(number)
