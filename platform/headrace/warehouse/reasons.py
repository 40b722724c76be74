"""Why a record became a dead letter, in words for an operator. Pure.

Decides nothing: the decoder refused the record already. fastavro reads it again, with strings as they are
(invalid bytes as lone surrogates) and times as plain numbers, to name the first value that cannot be shown.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

import fastavro
import pyarrow as pa

from headrace.registry.value_reading import ValueReader
from headrace.warehouse.layout import TIME_MAX_US, TIME_MIN_US
from headrace.warehouse.schema_bounds import (
    DEPTH_MAX,
    SCHEMAS_KEPT_MAX,
    can_nest,
    is_shallow,
    without_logical_types,
)
from headrace.warehouse.source.columns import FRAMING_SIZE_BYTES
from headrace.warehouse.source.options import PROBLEM_COLUMN

REASON_SIZE_MAX: Final = 500
SHOWN_MAX_BYTES: Final = 40
"""Of a string that is not UTF-8."""

_UNITS_US: Final = {
    "timestamp-millis": 1000,
    "timestamp-micros": 1,
    "local-timestamp-millis": 1000,
    "local-timestamp-micros": 1,
    "date": 86_400_000_000,
}


def with_reasons(
    batches: Iterable[pa.RecordBatch],
    texts: Mapping[int, str],
    reader: str,
    refused: Mapping[int, str],
    names: Sequence[str],
) -> Iterator[pa.RecordBatch]:
    """Yields dead letters as they are stored: seven columns with these names, the fifth of them the reason.

    `batches` have the raw columns of a record, its schema id, and the problem of its batch if that has one.
    Executors run this, and have neither the registry's client nor its compatibility rules.
    """
    for batch in batches:
        columns: dict[str, Any] = {name: batch.column(name) for name in batch.schema.names}
        reasons = [
            problem or reason(value, schema_id, time_us, texts, reader, refused)
            for value, schema_id, time_us, problem in zip(
                columns["value"].to_pylist(),
                columns["schemaId"].to_pylist(),
                columns["timestamp"].cast(pa.int64()).to_pylist(),
                columns[PROBLEM_COLUMN].to_pylist(),
                strict=True,
            )
        ]
        address = [columns[name] for name in ("partition", "offset", "timestamp", "schemaId")]
        kept = [*address, pa.array(reasons, pa.string()), columns["key"], columns["value"]]
        yield pa.RecordBatch.from_arrays(kept, names=list(names))


def reason(
    value: bytes | None,
    schema_id: int,
    time_us: int,
    texts: Mapping[int, str],
    reader: str | None = None,
    refused: Mapping[int, str] = MappingProxyType({}),
) -> str:
    """Returns why a value can't become a row. `texts` has the writer schemas by id, `reader` the table's;
    `refused` says why values of other schemas are not read.
    """
    if value is None:
        return "the value is null"
    if len(value) < FRAMING_SIZE_BYTES or value[0] != 0:
        start = value[:FRAMING_SIZE_BYTES].hex(" ") or "nothing"
        return f"no schema id: the value begins with {start}, not with 00"
    if schema_id not in texts:
        if schema_id in refused:
            return f"schema {schema_id}, not of this subject, can't be read: {refused[schema_id]}"[
                :REASON_SIZE_MAX
            ]
        return f"no registry knows schema id {schema_id}"
    try:
        values, schema = _parsed(texts[schema_id], reader or texts[schema_id])
        event, left = values.read(value[FRAMING_SIZE_BYTES:], unicode_errors="surrogateescape")
    except Exception as error:
        # The decoder may raise any error for arbitrary bytes.
        problem = f"the bytes aren't what schema {schema_id} says: {type(error).__name__}: {error}"
        return problem[:REASON_SIZE_MAX]
    if can_nest(texts[schema_id]) and not is_shallow(value[FRAMING_SIZE_BYTES:], texts[schema_id]):
        return f"the value nests more than {DEPTH_MAX} deep by schema {schema_id}, which refers to itself"
    if left:
        return f"{left} bytes are left after the record of schema {schema_id}"
    for problem in _unshowable(event, schema, "", {}):
        return problem[:REASON_SIZE_MAX]
    if not TIME_MIN_US <= time_us <= TIME_MAX_US:
        return (
            f"the Kafka timestamp is {time_us // 1000} ms, before the year 1 or after 9999; did the producer "
            "send microseconds for milliseconds?"
        )
    return "the event has no time, or one before 1970 or after 9999"


@lru_cache(SCHEMAS_KEPT_MAX)
def _parsed(writer: str, reader: str) -> tuple[ValueReader, Any]:
    """Returns a reader of values by both schemas without logical types, and the reader's schema as it is."""
    schema = json.loads(reader)
    parsed = fastavro.parse_schema(without_logical_types(schema))
    return ValueReader(without_logical_types(json.loads(writer)), parsed), schema


def _unshowable(value: Any, schema: Any, path: str, named: dict[str, Any]) -> Iterator[str]:
    """Yields what no reader of the table could show, by field."""
    if isinstance(schema, str):
        schema = named.get(schema.rsplit(".", 1)[-1], schema)
    if isinstance(schema, list):
        for branch in schema:
            yield from _unshowable(value, branch, path, named)
    elif isinstance(value, str):
        if shown := _invalid_text(value):
            yield f"field {path}: the string {shown} is not UTF-8"
    elif not isinstance(schema, dict):
        return
    elif isinstance(schema["type"], dict | list):
        yield from _unshowable(value, schema["type"], path, named)
    elif isinstance(value, dict):
        yield from _unshowable_members(value, schema, path, named)
    elif isinstance(value, list) and schema["type"] == "array":
        for each in value:
            yield from _unshowable(each, schema["items"], f"{path}[]", named)
    elif isinstance(value, int):
        yield from _impossible_time(value, schema.get("logicalType"), path)


def _unshowable_members(
    value: dict[str, Any], schema: Any, path: str, named: dict[str, Any]
) -> Iterator[str]:
    if schema["type"] == "record":
        named[schema["name"].rsplit(".", 1)[-1]] = schema
        for field in schema["fields"]:
            inner = f"{path}.{field['name']}" if path else field["name"]
            yield from _unshowable(value.get(field["name"]), field["type"], inner, named)
    elif schema["type"] == "map":
        for key, each in value.items():
            if shown := _invalid_text(key):
                yield f"field {path}: the map key {shown} is not UTF-8"
            yield from _unshowable(each, schema["values"], f"{path}[]", named)


def _invalid_text(text: str) -> str:
    """Returns the first bytes of a text as people write them; "" if it is UTF-8."""
    data = text.encode("utf-8", "surrogateescape")
    try:
        data.decode()
    except UnicodeDecodeError:
        return f"{data[:SHOWN_MAX_BYTES]!r}{'…' if len(data) > SHOWN_MAX_BYTES else ''}"
    return ""


def _impossible_time(value: int, logical_type: str | None, path: str) -> Iterator[str]:
    unit_us = _UNITS_US.get(str(logical_type))
    if unit_us is not None and not TIME_MIN_US <= value * unit_us <= TIME_MAX_US:
        yield (
            f"field {path}: {value} ({logical_type}) is before the year 1 or after 9999; are the units right?"
        )
