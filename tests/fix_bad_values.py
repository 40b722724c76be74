"""Avro values that a schema's own serializer would refuse: strings of any bytes, times of any number."""

from __future__ import annotations

import io
from typing import Any

import fastavro


def as_written(schema: Any) -> Any:
    """Returns the schema with bytes for strings and without logical types: the same format, unchecked."""
    if isinstance(schema, list):
        return [as_written(each) for each in schema]
    if isinstance(schema, dict):
        kept = {key: as_written(value) for key, value in schema.items() if key != "logicalType"}
        return kept | {key: schema[key] for key in kept.keys() & {"name", "symbols", "namespace", "default"}}
    return {"string": "bytes"}.get(schema, schema)


def framed_unchecked(schema_id: int, schema: dict[str, Any], event: dict[str, Any]) -> bytes:
    """Returns a Kafka value with this event, whose strings are bytes and whose times are numbers."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(as_written(schema)), event)
    return b"\0" + schema_id.to_bytes(4, "big") + out.getvalue()
