"""The batch reader, and the read of a task's range. Owns the Spark types of the columns.

Spark runs `partitions` in a helper process of the driver, `read` on executors; each opens its own sockets.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from headrace.warehouse.source.columns import record_batches
from headrace.warehouse.source.connection import Address
from headrace.warehouse.source.errors import SourceError
from headrace.warehouse.source.options import PROBLEM_COLUMN, SourceOptions
from headrace.warehouse.source.plain_errors import plain_errors
from headrace.warehouse.source.ranges import Range, split
from headrace.warehouse.source.reading import read_batches
from headrace.warehouse.source.resolve import resolve_ranges

if TYPE_CHECKING:
    from headrace.warehouse.source.metadata import MetadataClient

_TYPES: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": ArrayType(
        StructType([StructField("key", StringType()), StructField("value", BinaryType())]), containsNull=True
    ),
    "payload": BinaryType(),
    "schemaId": IntegerType(),
    PROBLEM_COLUMN: StringType(),
}


def spark_schema(options: SourceOptions) -> StructType:
    """Returns the Spark schema of a read; in Avro mode from the registry."""
    types = dict(_TYPES)
    if options.value_format == "avro":
        # Imported here because only the Avro mode needs fastavro and the registry's client.
        from headrace.warehouse.source.avro import reader_schema, spark_type

        types["value"] = spark_type(reader_schema(options))
    return StructType([StructField(name, types[name]) for name in options.columns])


@dataclass
class RangeTask(InputPartition):  # type: ignore[misc]
    """Spark's partition: one task's range, None if there is nothing to read, and its leader at planning."""

    range_: Range | None
    leader: Address | None

    def __init__(self, range_: Range | None, leader: Address | None = None) -> None:
        super().__init__(range_)
        self.range_ = range_
        self.leader = leader


class BatchReader(DataSourceReader):  # type: ignore[misc]
    """One batch read."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self.options = options
        self.schema = schema

    def partitions(self) -> list[InputPartition]:
        # Imported here because executors do not need it.
        from headrace.warehouse.source.metadata import MetadataClient

        timeout_s = self.options.request_timeout_ms / 1000
        with (
            plain_errors(is_debug=self.options.is_debug),
            MetadataClient(self.options.bootstrap, timeout_s) as cluster,
        ):
            ranges = resolve_ranges(cluster, self.options)
            planned = plan_tasks(cluster, ranges, self.options)
        # Spark would turn an empty list into one partition of None.
        return planned or [RangeTask(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangeTask)
        return read_range(partition, self.options, self.schema)


def plan_tasks(
    cluster: "MetadataClient", ranges: Sequence[Range], options: SourceOptions
) -> list[InputPartition]:
    """Cuts the ranges into one range per task; returns them, each with its leader."""
    planned = split(ranges, options.min_partitions or 1)
    leaders = cluster.leaders_of({(each.topic, each.partition) for each in planned}) if planned else {}
    return [RangeTask(range_, leaders.get((range_.topic, range_.partition))) for range_ in planned]


def read_range(partition: RangeTask, options: SourceOptions, schema: StructType) -> Iterator[pa.RecordBatch]:
    """Yields the Arrow batches of one range."""
    with plain_errors(is_debug=options.is_debug):
        yield from _read_range(partition, options, schema)


def _read_range(partition: RangeTask, options: SourceOptions, schema: StructType) -> Iterator[pa.RecordBatch]:
    range_ = partition.range_
    if range_ is None:
        return iter(())
    arrow: Any = to_arrow_schema(schema, timezone="UTC")
    decode = None
    if options.value_format == "avro":
        # Imported here for the same reason as in `spark_schema`.
        from headrace.warehouse.source.avro import decoder, reader_schema, spark_type

        newest = reader_schema(options)
        if spark_type(newest) != schema["value"].dataType:
            raise SourceError("a newer schema was registered since this read was planned; load() it again")
        decode = decoder(options, newest)
    return record_batches(
        read_batches(range_, options, partition.leader), range_, arrow, decode, on_corrupt=options.on_corrupt
    )
