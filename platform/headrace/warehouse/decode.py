"""From framed bytes to the table's columns: the choice of a decoder, and Spark's own.

A program of our own (`source.program`) decodes nearly all events, in the task that writes them, so that they
never enter the JVM. Schemas that it does not handle are decoded by Spark's `from_avro`.

Owns the Spark expressions: a branch of `from_avro` per writer schema, all with the newest schema as reader
schema. `from_avro` does not notice when it misreads a record. So the source appends an end mark to every
payload, and the schemas here have it as their last field: a record is decoded only if it ends exactly at its
mark. Other records go to the hour `DEAD_HOUR` instead of failing the whole load.
"""

import hashlib
import json
import logging
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow as pa

from headrace.warehouse.layout import DEAD_HOUR, HOUR_MS, HOUR_NUMBER_MAX, TIME_MAX_US, TIME_MIN_US
from headrace.warehouse.reader_for_java import reader_for
from headrace.warehouse.schema_bounds import can_nest, is_shallow
from headrace.warehouse.schemas import TopicSchemas, has_event_time
from headrace.warehouse.soundness import is_showable
from headrace.warehouse.source.columns import END_MARK
from headrace.warehouse.source.program import NoProgramError, compile_program
from headrace.warehouse.staging_task import Decoding
from headrace.warehouse.types import arrow_fields, commented

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

HOUR_COLUMN: Final = "_hour"
PARTITION_COLUMN: Final = "_partition"
OFFSET_COLUMN: Final = "_offset"
TIMESTAMP_COLUMN: Final = "_timestamp"
SCHEMA_ID_COLUMN: Final = "_schema_id"
ADDRESS_COLUMNS: Final = (PARTITION_COLUMN, OFFSET_COLUMN, TIMESTAMP_COLUMN, SCHEMA_ID_COLUMN)
"""The columns with a row's origin, which follow the event's own columns."""

ADDRESS_FIELDS: Final = (
    pa.field(PARTITION_COLUMN, pa.int32()),
    pa.field(OFFSET_COLUMN, pa.int64()),
    pa.field(TIMESTAMP_COLUMN, pa.timestamp("us", "UTC")),
    pa.field(SCHEMA_ID_COLUMN, pa.int32()),
)
"""Their Arrow types."""
_JAVA_STRING: Final = "avro.java.string"
_NO_SPARK_TYPE: Final = ("time-millis", "time-micros", "timestamp-nanos", "local-timestamp-nanos")
_log = logging.getLogger(__name__)


def decoding_of(schemas: TopicSchemas) -> Decoding | None:
    """Returns how the tasks of a load decode these schemas; None if `from_avro` must."""
    if find_spec("numba") is None:
        return None
    try:
        program = compile_program(
            schemas.reader.text, {writer.schema_id: writer.text for writer in schemas.writers}
        )
    except NoProgramError as error:
        _log.info("subject %s is decoded by from_avro: %s", schemas.subject, error)
        return None
    schema = pa.schema([*program.fields, *ADDRESS_FIELDS])
    if len({name.lower() for name in (*schema.names, HOUR_COLUMN)}) <= len(schema.names):
        # A field has the name of one of our columns: `schemas` refuses such a reader.
        return None
    # Imported here because commands without Spark import this module, too.
    from pyspark.sql.pandas.types import from_arrow_schema

    is_timed = has_event_time(schemas.reader.text)
    spark_schema = commented(from_arrow_schema(schema).jsonValue(), arrow_fields(schemas.reader.text))
    return Decoding(program, is_timed, schema, json.dumps(spark_schema, separators=(",", ":")))


def table_rows(source: "DataFrame", schemas: TopicSchemas) -> "DataFrame":
    """Returns the events' columns, addresses and hours. `source` has `options.LOAD_COLUMNS`.

    A row that can't be decoded has `DEAD_HOUR`, and nulls for the event.
    """
    # Imported here because commands without Spark import this module, too.
    from pyspark.sql import functions as f

    decoded = source.select(
        decoded_event(schemas).alias("decoded"),
        f.col("partition").alias(PARTITION_COLUMN),
        f.col("offset").alias(OFFSET_COLUMN),
        f.col("timestamp").alias(TIMESTAMP_COLUMN),
        f.col("schemaId").alias(SCHEMA_ID_COLUMN),
    )
    hour = event_hour_or_dead(decoded, schemas)
    rows = decoded.select("decoded.event.*", *ADDRESS_COLUMNS, hour.alias(HOUR_COLUMN))
    return with_comments(rows, commented(rows.schema.jsonValue(), arrow_fields(schemas.reader.text)))


def with_comments(rows: "DataFrame", columns: dict[str, Any]) -> "DataFrame":
    """Returns the rows with these columns, a struct in Spark's JSON, and its comments at every depth.

    A column that the rows lack is null. The comments survive a write.
    """
    # Imported here because commands without Spark import this module, too.
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructType

    target = StructType.fromJson(columns)
    # `to` sets the metadata of members; its own of a column would be lost when the rows are written.
    return rows.to(target).select(
        *(f.col(each.name).alias(each.name, metadata=each.metadata or None) for each in target)
    )


def decoded_event(schemas: TopicSchemas) -> "Column":
    """Returns a struct of `event` and `end`; null, or with a wrong `end`, if decoding failed."""
    # Imported here because commands without Spark import this module, too.
    from pyspark.sql import functions as f
    from pyspark.sql.avro.functions import from_avro

    # No schema can have types of these names: they follow from all of their texts.
    texts = "\n".join([schemas.reader.text, *(writer.text for writer in schemas.writers)])
    mark = hashlib.sha256(texts.encode()).hexdigest()[:16]
    branches: Column | None = None
    for writer in schemas.writers:
        chosen = f.col("schemaId") == writer.schema_id
        payload = f.col("payload")
        if can_nest(writer.text):
            payload = _shallow(f.when(chosen, payload), writer.text)
        reader = reader_for(schemas.reader.text, writer.text)
        options = {"avroSchema": _with_end(reader, mark), "mode": "PERMISSIVE"}
        event = from_avro(payload, _with_end(json.loads(writer.text), mark), options)
        branches = f.when(chosen, event) if branches is None else branches.when(chosen, event)
    assert branches is not None
    return branches


def _shallow(payload: "Column", text: str) -> "Column":
    """Returns null for values that nest too deep by this schema: they would end the JVM, as no error does."""
    # Imported here because commands without Spark import this module, too.
    from pyspark.sql import functions as f

    # Without type hints, in which Spark looks for kinds of functions of its own.
    checked = f.udf(lambda value: value if value and is_shallow(bytes(value), text) else None, "binary")
    return cast("Column", checked(payload))


def event_hour_or_dead(decoded: "DataFrame", schemas: TopicSchemas) -> "Column":
    """Returns hours since the epoch, by `header.time`, else the Kafka timestamp; or `DEAD_HOUR`.

    `decoded` has the column `decoded`, as `decoded_event` makes it.
    """
    # Imported here because commands without Spark import this module, too.
    from pyspark.sql import functions as f

    timed = has_event_time(schemas.reader.text)
    time = f.col("decoded.event.header.time") if timed else f.col(TIMESTAMP_COLUMN)
    hour = f.floor(f.unix_millis(time) / HOUR_MS).cast("int")
    is_sound = f.col("decoded.end").eqNullSafe(f.lit(bytearray(END_MARK))) & hour.between(0, HOUR_NUMBER_MAX)
    is_storable = f.unix_micros(f.col(TIMESTAMP_COLUMN)).between(TIME_MIN_US, TIME_MAX_US)
    envelope = cast("StructType", decoded.schema["decoded"].dataType)
    showable = is_showable(f.col("decoded.event"), envelope["event"].dataType)
    if showable is not None:
        is_storable &= showable
    return f.when(is_sound & is_storable, hour).otherwise(DEAD_HOUR)


def _with_end(schema: Any, mark: str) -> str:
    event: Any = _for_spark(schema)
    return json.dumps(
        {
            "type": "record",
            "name": f"HeadraceEnvelope_{mark}",
            "fields": [
                {"name": "event", "type": event},
                {
                    "name": "end",
                    "type": {"type": "fixed", "name": f"HeadraceEnd_{mark}", "size": len(END_MARK)},
                },
            ],
        }
    )


def _for_spark(schema: Any) -> Any:
    """Returns the schema without what would make Spark change a value, or refuse the whole load.

    Java's choice of a string class: `String` replaces invalid UTF-8. Logical types for which Spark's
    tables have no type: their values stay numbers, as the compiled decoder leaves them.
    """
    if isinstance(schema, list):
        return [_for_spark(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: value for key, value in schema.items() if key != _JAVA_STRING}
    if kept.get("logicalType") in _NO_SPARK_TYPE:
        del kept["logicalType"]
    inner = kept.keys() & {"type", "items", "values", "fields"}
    return kept | {key: _for_spark(kept[key]) for key in inner}
