"""Staging: Spark reads ranges, decodes them and writes Parquet into a staging directory.

Owns the Spark jobs of a load. Commits nothing. Rows are counted in the files written, not as planned.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.warehouse.change import TopicTable
from headrace.warehouse.counting import FileCount, count_files
from headrace.warehouse.decode import HOUR_COLUMN, table_rows
from headrace.warehouse.hdfs.client import HdfsClient
from headrace.warehouse.hdfs.errors import HdfsNoTargetError, explain
from headrace.warehouse.layout import DEAD_HOUR
from headrace.warehouse.plan import PlannedRange, split_count
from headrace.warehouse.schemas import TopicSchemas
from headrace.warehouse.source.options import LOAD_COLUMNS, format_offsets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class StagedFile:
    """One staged file: its hour (`DEAD_HOUR` for rows that could not be decoded), size and counts."""

    hour_number: int
    size_bytes: int
    count: FileCount

    @property
    def path(self) -> str:
        return self.count.path

    @property
    def is_dead(self) -> bool:
        return self.hour_number == DEAD_HOUR


def source_frame(
    spark: "SparkSession",
    table: TopicTable,
    ranges: Sequence[PlannedRange],
    *,
    columns: Sequence[str] = LOAD_COLUMNS,
) -> "DataFrame":
    """Returns the records of these ranges, in enough tasks for all cores."""
    topic = table.topic
    options = {
        "kafka.bootstrap.servers": table.warehouse.bootstrap,
        "assign": json.dumps({topic: [planned.partition for planned in ranges]}),
        "startingOffsets": format_offsets(
            {(topic, planned.partition): planned.from_address for planned in ranges}
        ),
        "endingOffsets": format_offsets(
            {(topic, planned.partition): planned.to_address for planned in ranges}
        ),
        "columns": ",".join(columns),
        "minPartitions": str(task_count(spark, ranges)),
    }
    return spark.read.format("headrace").options(**options).load()


def task_count(spark: "SparkSession", ranges: Iterable[PlannedRange]) -> int:
    return split_count(sum(planned.size for planned in ranges), spark.sparkContext.defaultParallelism)


def stage_load(
    spark: "SparkSession",
    table: TopicTable,
    ranges: Sequence[PlannedRange],
    schemas: TopicSchemas,
    directory: str,
) -> None:
    """Writes the events of the ranges below the path `directory`, one subdirectory per hour."""
    rows = table_rows(source_frame(spark, table, ranges), schemas)
    # A task writes a file for each of its hours. In a small load one task reads several partitions.
    write_hours(rows.coalesce(task_count(spark, ranges)), table, directory)


def write_hours(rows: "DataFrame", table: TopicTable, directory: str) -> None:
    """Writes rows that have an hour column below `directory`, in `_hour=<number>`; replaces what is there."""
    try:
        rows.write.mode("overwrite").partitionBy(HOUR_COLUMN).parquet(table.warehouse.url(directory))
    except Exception as error:
        if isinstance(explain(str(error), directory), HdfsNoTargetError):
            # Spark's error has two possible causes. A write of our own raises an error that names the one.
            table.hdfs.write(f"{directory}/_probe", b"?", overwrite=True)
        raise


def staged_files(hdfs: HdfsClient, directory: str) -> list[StagedFile]:
    """Counts the files that `write_hours` wrote below the path `directory`."""
    sizes = parquet_sizes(hdfs, directory)
    return [
        StagedFile(_hour_number(count.path), sizes[count.path], count) for count in count_files(hdfs, sizes)
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
