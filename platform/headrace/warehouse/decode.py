"""From framed bytes to the table's columns, by Spark's own Avro decoder.

Owns the Spark expressions: a branch of `from_avro` per writer schema, all with the newest schema as reader
schema. The decoder does not notice when it misreads a record. So the source appends an end mark to every
payload, and the schemas here have it as their last field: a record is decoded only if it ends exactly at its
mark. Other records go to the hour `DEAD_HOUR` instead of failing the whole load.
"""

import json
from typing import TYPE_CHECKING, Any, Final

from headrace.warehouse.layout import DEAD_HOUR, HOUR_MS, HOUR_NUMBER_MAX
from headrace.warehouse.schemas import TopicSchemas, WriterSchema, has_event_time
from headrace.warehouse.source.columns import END_MARK

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

HOUR_COLUMN: Final = "_hour"
PARTITION_COLUMN: Final = "_partition"
OFFSET_COLUMN: Final = "_offset"
TIMESTAMP_COLUMN: Final = "_timestamp"
SCHEMA_ID_COLUMN: Final = "_schema_id"
ADDRESS_COLUMNS: Final = (PARTITION_COLUMN, OFFSET_COLUMN, TIMESTAMP_COLUMN, SCHEMA_ID_COLUMN)
"""The columns with a row's origin, which follow the event's own columns."""


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
    return decoded.select("decoded.event.*", *ADDRESS_COLUMNS, event_hour_or_dead(schemas).alias(HOUR_COLUMN))


def decoded_event(schemas: TopicSchemas) -> "Column":
    """Returns a struct of `event` and `end`; null, or with a wrong `end`, if decoding failed."""
    # Imported here because commands without Spark import this module, too.
    from pyspark.sql import functions as f
    from pyspark.sql.avro.functions import from_avro

    reader = _with_end(schemas.reader)
    options = {"avroSchema": reader, "mode": "PERMISSIVE"}
    branches: Column | None = None
    for writer in schemas.writers:
        event = from_avro(f.col("payload"), _with_end(writer), options)
        chosen = f.col("schemaId") == writer.schema_id
        branches = f.when(chosen, event) if branches is None else branches.when(chosen, event)
    assert branches is not None
    return branches


def event_hour_or_dead(schemas: TopicSchemas) -> "Column":
    """Returns hours since the epoch, by `header.time`, else the Kafka timestamp; or `DEAD_HOUR`."""
    # Imported here because commands without Spark import this module, too.
    from pyspark.sql import functions as f

    timed = has_event_time(schemas.reader.text)
    time = f.col("decoded.event.header.time") if timed else f.col(TIMESTAMP_COLUMN)
    hour = f.floor(f.unix_millis(time) / HOUR_MS).cast("int")
    is_sound = f.col("decoded.end").eqNullSafe(f.lit(bytearray(END_MARK))) & hour.between(0, HOUR_NUMBER_MAX)
    return f.when(is_sound, hour).otherwise(DEAD_HOUR)


def _with_end(schema: WriterSchema) -> str:
    event: Any = json.loads(schema.text)
    return json.dumps(
        {
            "type": "record",
            "name": "HeadraceEnvelope",
            "fields": [
                {"name": "event", "type": event},
                {"name": "end", "type": {"type": "fixed", "name": "HeadraceEnd", "size": len(END_MARK)}},
            ],
        }
    )
