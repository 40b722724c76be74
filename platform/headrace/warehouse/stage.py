"""Staging: Spark reads ranges, decodes them and writes Parquet where no reader looks; then what was
written is counted.

Owns the Spark jobs of a load. Commits nothing. What is counted are the files, not the intention.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.warehouse.counting import FileCount, count_files
from headrace.warehouse.decode import HOUR_COLUMN, table_rows
from headrace.warehouse.hdfs.client import HdfsClient
from headrace.warehouse.hdfs.errors import HdfsNoTargetError, explain
from headrace.warehouse.layout import DEAD_HOUR
from headrace.warehouse.options import WarehouseOptions
from headrace.warehouse.plan import PlannedRange, split_count
from headrace.warehouse.schemas import TopicSchemas
from headrace.warehouse.source.options import LOAD_COLUMNS, format_offsets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class StagedFile:
    """One staged file: its hour (`DEAD_HOUR` for rows that couldn't be decoded), its size, what it holds."""

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
    bootstrap: str,
    topic: str,
    ranges: Iterable[PlannedRange],
    *,
    columns: Sequence[str] = LOAD_COLUMNS,
    parts: int = 1,
) -> "DataFrame":
    """The records of these ranges, in `parts` tasks or more."""
    ranges = list(ranges)
    return (
        spark.read.format("headrace")
        .options(
            **{
                "kafka.bootstrap.servers": bootstrap,
                "assign": _assignment(topic, ranges),
                "startingOffsets": format_offsets(
                    {(topic, each.partition): each.from_address for each in ranges}
                ),
                "endingOffsets": format_offsets(
                    {(topic, each.partition): each.to_address for each in ranges}
                ),
                "columns": ",".join(columns),
                "minPartitions": str(parts),
            }
        )
        .load()
    )


def stage_load(
    spark: "SparkSession",
    warehouse: WarehouseOptions,
    hdfs: HdfsClient,
    topic: str,
    ranges: Sequence[PlannedRange],
    schemas: TopicSchemas,
    directory: str,
) -> None:
    """Write the ranges' events below the path `directory`, in one directory an hour (`_hour=<number>`)."""
    parts = split_count(sum(each.size for each in ranges), spark.sparkContext.defaultParallelism)
    source = source_frame(spark, warehouse.bootstrap, topic, ranges, parts=parts)
    # Each task writes a file for each of its hours: where there is little to load, one task reads several
    # partitions.
    write_hours(table_rows(source, schemas).coalesce(parts), warehouse, hdfs, directory)


def write_hours(rows: "DataFrame", warehouse: WarehouseOptions, hdfs: HdfsClient, directory: str) -> None:
    """Write rows with an hour column below `directory`, one directory an hour; what was there is replaced."""
    try:
        rows.write.mode("overwrite").partitionBy(HOUR_COLUMN).parquet(warehouse.url(directory))
    except Exception as error:
        if isinstance(explain(str(error), directory), HdfsNoTargetError):
            # What Spark was told could mean two things: our own write is told which.
            hdfs.write(f"{directory}/_probe", b"?", overwrite=True)
        raise


def staged_files(hdfs: HdfsClient, directory: str) -> list[StagedFile]:
    """What lies in the path `directory` that `write_hours` wrote, counted from the files themselves."""
    sizes = {path: entry.size_bytes for path, entry in hdfs.walk(directory) if path.endswith(".parquet")}
    return [
        StagedFile(_hour_number(count.path), sizes[count.path], count) for count in count_files(hdfs, sizes)
    ]


def present_schema_ids(
    spark: "SparkSession", bootstrap: str, topic: str, ranges: Sequence[PlannedRange]
) -> set[int]:
    """The schema ids in these ranges; costs a read of them."""
    parts = split_count(sum(each.size for each in ranges), spark.sparkContext.defaultParallelism)
    source = source_frame(spark, bootstrap, topic, ranges, columns=("payload", "schemaId"), parts=parts)
    return {row.schemaId for row in source.select("schemaId").distinct().collect()}


def _assignment(topic: str, ranges: Iterable[PlannedRange]) -> str:
    data: Any = {topic: [each.partition for each in ranges]}
    return json.dumps(data)


def _hour_number(path: str) -> int:
    directory = path.rsplit("/", 2)[-2]
    name, _, number = directory.partition("=")
    assert name == HOUR_COLUMN, path
    return int(number)
