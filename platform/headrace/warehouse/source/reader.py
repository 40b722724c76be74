"""The batch reader, and what a task does with its range. Owns the Spark schema of every column.

Sockets are opened where Spark runs the code: `partitions` in the driver's helper process, `read` on
executors; nothing that is pickled holds one.
"""

import json
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
from headrace.warehouse.source.options import SourceOptions
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
}


def spark_schema(options: SourceOptions) -> StructType:
    """The Spark schema of a read. Asks the registry in Avro mode."""
    types = dict(_TYPES)
    if options.value_format == "avro":
        from headrace.warehouse.source.avro import reader_schema, spark_type

        types["value"] = spark_type(json.loads(reader_schema(options)))
    return StructType([StructField(name, types[name]) for name in options.columns])


@dataclass
class RangePartition(InputPartition):  # type: ignore[misc]
    """One task's share, and where its leader was when it was planned; no range when there is nothing to
    read.
    """

    part: Range | None
    leader: Address | None

    def __init__(self, part: Range | None, leader: Address | None = None) -> None:
        super().__init__(part)
        self.part = part
        self.leader = leader


class BatchReader(DataSourceReader):  # type: ignore[misc]
    """One batch read."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self.options = options
        self.schema = schema

    def partitions(self) -> list[InputPartition]:
        # What plans a read is not what executors import.
        from headrace.warehouse.source.metadata import MetadataClient

        with MetadataClient(self.options.bootstrap, self.options.request_timeout_ms / 1000) as cluster:
            ranges = resolve_ranges(cluster, self.options)
            planned = plan_parts(cluster, ranges, self.options)
        # An empty list would become one partition of None, which read() could not tell from a mistake.
        return planned or [RangePartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangePartition)
        return read_range(partition, self.options, self.schema)


def plan_parts(
    cluster: "MetadataClient", ranges: Sequence[Range], options: SourceOptions
) -> list[InputPartition]:
    """The ranges cut into tasks, each with its leader."""
    parts = split(ranges, options.min_partitions or 1)
    leaders = cluster.leaders({part.topic for part in parts}) if parts else {}
    return [RangePartition(part, leaders.get((part.topic, part.partition))) for part in parts]


def read_range(
    partition: RangePartition, options: SourceOptions, schema: StructType
) -> Iterator[pa.RecordBatch]:
    """The Arrow batches of one range."""
    part = partition.part
    if part is None:
        return iter(())
    arrow: Any = to_arrow_schema(schema, timezone="UTC")
    decode = None
    if options.value_format == "avro":
        from headrace.warehouse.source.avro import decoder, reader_schema, spark_type

        newest = reader_schema(options)
        if spark_type(json.loads(newest)) != schema["value"].dataType:
            raise SourceError("a newer schema was registered since this read was planned; load() it again")
        decode = decoder(options, newest)
    return record_batches(read_batches(part, options, partition.leader), part, arrow, decode)
