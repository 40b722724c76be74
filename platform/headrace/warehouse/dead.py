"""Dead letters: records that could not be decoded, kept whole, with address, schema id and reason.

A batch that could not be read has a letter for each record that it claims, so that the audit's counts stay
exact. The first of them has the batch's bytes as its value.

Owns the dead-letter files. If a load's first read finds such records, a second read of the addresses from
the first to the last of them writes the files.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from headrace.warehouse.change import TopicTable
from headrace.warehouse.counting import count_files
from headrace.warehouse.decode import (
    OFFSET_COLUMN,
    PARTITION_COLUMN,
    SCHEMA_ID_COLUMN,
    TIMESTAMP_COLUMN,
    decoded_event,
    decoding_of,
    event_hour_or_dead,
)
from headrace.warehouse.hdfs.client import HdfsClient
from headrace.warehouse.layout import DEAD_HOUR
from headrace.warehouse.plan import PlannedRange
from headrace.warehouse.reasons import with_reasons
from headrace.warehouse.schemas import TopicSchemas
from headrace.warehouse.source.columns import END_MARK, FRAMING_SIZE_BYTES, NO_SCHEMA_ID
from headrace.warehouse.source.options import PROBLEM_COLUMN
from headrace.warehouse.stage import StagedFile, parquet_sizes, source_frame
from headrace.warehouse.staging_task import Decoding

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RAW_COLUMNS: Final = ("key", "value", "partition", "offset", "timestamp", PROBLEM_COLUMN)
DEAD_COLUMNS: Final = (
    *(PARTITION_COLUMN, OFFSET_COLUMN, TIMESTAMP_COLUMN, SCHEMA_ID_COLUMN),
    *("reason", "key", "value"),
)
DEAD_SCHEMA: Final = (
    f"{PARTITION_COLUMN} int, {OFFSET_COLUMN} bigint, {TIMESTAMP_COLUMN} timestamp, {SCHEMA_ID_COLUMN} int, "
    "reason string, key binary, value binary"
)


class DeadLettersError(Exception):
    """Two reads of the same addresses disagree about what can be decoded; nothing was committed."""


def stage_dead(
    spark: "SparkSession",
    table: TopicTable,
    staged: Sequence[StagedFile],
    schemas: TopicSchemas,
    staging: str,
) -> list[StagedFile]:
    """Writes the records that could not be decoded below `staging`, and returns their files."""
    dead = [file for file in staged if file.is_dead]
    wanted = sum(file.count.rows for file in dead)
    if wanted == 0:
        return []
    raw = source_frame(spark, table, _spans(dead), columns=RAW_COLUMNS)
    directory = f"{staging}/dead"
    decoding = decoding_of(schemas)
    # The same decoder as in the first read has to judge.
    letters = undecodable(raw, schemas) if decoding is None else _undecodable_by(raw, decoding)
    write_dead(letters, schemas, table.warehouse.url(directory))
    return dead_files(table.hdfs, directory, wanted, table.topic)


def dead_files(hdfs: HdfsClient, directory: str, wanted: int, topic: str) -> list[StagedFile]:
    """Returns the dead-letter files in `directory`, which must hold `wanted` rows together."""
    sizes = parquet_sizes(hdfs, directory)
    found = [StagedFile(DEAD_HOUR, sizes[count.path], count) for count in count_files(hdfs, sizes)]
    rows = sum(file.count.rows for file in found)
    if rows != wanted:
        raise DeadLettersError(
            f"{topic}: {wanted} records could not be decoded, but a second read finds {rows}; "
            "nothing was committed, repeat the load"
        )
    return [file for file in found if file.count.rows]


def undecodable(raw: "DataFrame", schemas: TopicSchemas) -> "DataFrame":
    """Returns those of the raw records (`RAW_COLUMNS`) that the table's decoder refuses."""
    # Imported here because commands without Spark import this module, too.
    from pyspark.sql import functions as f

    framed = unframed(raw)
    decoded = framed.withColumn("decoded", decoded_event(schemas)).withColumn(
        TIMESTAMP_COLUMN, f.col("timestamp")
    )
    return decoded.where(event_hour_or_dead(decoded, schemas) == DEAD_HOUR).select(*RAW_COLUMNS, "schemaId")


def _undecodable_by(raw: "DataFrame", decoding: Decoding) -> "DataFrame":
    """Returns those of the raw records (`RAW_COLUMNS`) that the tasks of a load refuse."""

    def refused(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.filter(pa.array(decoding.rows(batch)[1] == DEAD_HOUR))

    columns = [*raw.columns, "payload", "schemaId"]
    framed = unframed(raw).select(*columns)
    return framed.mapInArrow(refused, framed.schema).select(*RAW_COLUMNS, "schemaId")


def unframed(raw: "DataFrame") -> "DataFrame":
    """Adds `payload` and `schemaId` to the raw records, as the source gives them in a load."""
    # Imported here because commands without Spark import this module, too.
    from pyspark.sql import functions as f

    value = f.col("value")
    framed = (f.length(value) >= FRAMING_SIZE_BYTES) & (f.substring(value, 1, 1) == f.lit(bytearray(b"\0")))
    framed = framed & f.col(PROBLEM_COLUMN).isNull()
    schema_id = f.conv(f.hex(f.substring(value, 2, 4)), 16, 10).cast("bigint").cast("int")
    payload = f.concat(f.substring(value, FRAMING_SIZE_BYTES + 1, 1 << 30), f.lit(bytearray(END_MARK)))
    return raw.withColumns(
        {"schemaId": f.when(framed, schema_id).otherwise(NO_SCHEMA_ID), "payload": f.when(framed, payload)}
    )


def write_dead(dead: "DataFrame", schemas: TopicSchemas, target: str) -> None:
    """Writes undecodable records, each with its reason, below the URL `target`."""
    texts = {writer.schema_id: writer.text for writer in schemas.writers}
    refused = {writer.schema_id: problem for writer, problem in schemas.refused}
    reader = schemas.reader.text

    def add_reasons(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return with_reasons(batches, texts, reader, refused, DEAD_COLUMNS)

    dead.repartition(1).mapInArrow(add_reasons, DEAD_SCHEMA).write.mode("overwrite").parquet(target)


def _spans(dead: Sequence[StagedFile]) -> list[PlannedRange]:
    """Returns the addresses from the first to the last dead row of each partition."""
    spans: dict[int, tuple[int, int]] = {}
    for group in (group for file in dead for group in file.count.groups):
        first, end = spans.get(group.partition, (group.first_offset, group.last_offset + 1))
        spans[group.partition] = (min(first, group.first_offset), max(end, group.last_offset + 1))
    return [PlannedRange(partition, *span) for partition, span in sorted(spans.items())]
