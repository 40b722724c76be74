"""The Avro mode: with `valueFormat=avro` the column `value` is the decoded record.

Owns the Spark types of an Avro schema, which are those of Spark's own Avro reader, and the decoding of a
value by fastavro. For notebooks; a load decodes by a compiled `program`, which is forty times as fast.
"""

import contextlib
import json
from collections.abc import Callable
from typing import Any, Final

import fastavro
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from headrace.registry.client import SchemaRegistryClient
from headrace.registry.decimals import is_decimal
from headrace.registry.errors import SCHEMA_NOT_FOUND, RegistryError, RegistryUnavailableError
from headrace.registry.value_reading import ValueReader
from headrace.warehouse.source.errors import SourceError
from headrace.warehouse.source.options import SourceOptions
from headrace.warehouse.types import DECIMAL_DIGITS_MAX, LOGICAL
from headrace.warehouse.written_out import TypeUnknownError, written_out

FRAMING_SIZE_BYTES: Final = 5

_PRIMITIVES: Final[dict[str, DataType]] = {
    "null": NullType(),
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "bytes": BinaryType(),
    "string": StringType(),
}
_LOGICAL: Final[dict[str, DataType]] = {
    "date": DateType(),
    "timestamp-millis": TimestampType(),
    "timestamp-micros": TimestampType(),
    "local-timestamp-millis": TimestampNTZType(),
    "local-timestamp-micros": TimestampNTZType(),
}

Decode = Callable[[bytes | None, int], Any]
"""Decodes a value to a dict, None if it is null or undecodable; the offset is for error messages."""


class UnsupportedSchemaError(SourceError):
    """The Avro mode has no Spark type for this schema. Decode the binary values with `from_avro` instead."""


def subject(options: SourceOptions) -> str:
    """Returns the subject whose schemas a read uses: the option, else `<topic>-value`."""
    if options.subject is not None:
        return options.subject
    if len(options.topics) != 1:
        raise SourceError("valueFormat avro reads one topic; set the option 'subject' for several")
    return f"{options.topics[0]}-value"


def reader_schema(options: SourceOptions) -> str:
    """Returns the text of the subject's newest schema, to which a read decodes all values."""
    assert options.registry_url is not None
    with SchemaRegistryClient(options.registry_url) as registry:
        try:
            return registry.latest(subject(options)).schema
        except RegistryError as error:
            raise SourceError(f"no schema for subject {subject(options)}: {error}") from error


def spark_type(text: str) -> DataType:
    """Returns the Spark type of an Avro schema. Raises `UnsupportedSchemaError`."""
    try:
        return _spark_type(written_out(text))
    except TypeUnknownError as error:
        raise UnsupportedSchemaError(f"{error}") from None


def _spark_type(schema: Any) -> DataType:
    if isinstance(schema, list):
        return _union_type(schema)
    if isinstance(schema, str):
        if schema not in _PRIMITIVES:
            raise UnsupportedSchemaError(f"the schema has a type {schema!r} that refers to itself")
        return _PRIMITIVES[schema]
    kind = schema["type"]
    if isinstance(kind, list | dict):
        return _spark_type(kind)
    if (logical := _logical(schema)) is not None:
        return logical
    if kind == "record":
        fields = [
            StructField(field["name"], _spark_type(field["type"]), nullable=True)
            for field in schema["fields"]
        ]
        return StructType(fields)
    if kind == "array":
        return ArrayType(_spark_type(schema["items"]))
    if kind == "map":
        return MapType(StringType(), _spark_type(schema["values"]))
    if kind in ("enum", "fixed"):
        return StringType() if kind == "enum" else BinaryType()
    return _spark_type(kind)


def _logical(schema: dict[str, Any]) -> DataType | None:
    """Returns the Spark type of a valid logical type; None if there is none."""
    if is_decimal(schema):
        if schema["precision"] > DECIMAL_DIGITS_MAX:
            raise UnsupportedSchemaError(
                f"the schema has a decimal of {schema['precision']} digits; Spark's have {DECIMAL_DIGITS_MAX}"
            )
        return DecimalType(schema["precision"], schema.get("scale", 0))
    logical: Any = schema.get("logicalType")
    return _LOGICAL[logical] if (schema["type"], logical) in LOGICAL else None


def decoder(options: SourceOptions, reader: str) -> Decode:
    """Returns a decoder of a read's values to the schema `reader`. It looks up writer schemas by id."""
    assert options.registry_url is not None
    registry = SchemaRegistryClient(options.registry_url)
    reader_parsed = fastavro.parse_schema(_without_other_logical_types(json.loads(reader)))
    writers: dict[int, ValueReader | str] = {}

    def writer_of(schema_id: int) -> ValueReader:
        if schema_id not in writers:
            try:
                text = json.loads(_looked_up(registry, schema_id))
                writers[schema_id] = ValueReader(_without_other_logical_types(text), reader_parsed)
            except RegistryUnavailableError as error:
                # Nobody knows whether the value can be decoded: it is not read as null.
                raise SourceError(f"no schema {schema_id} for a value: {error}") from error
            except Exception as error:
                writers[schema_id] = f"{type(error).__name__}: {error}"
        found = writers[schema_id]
        if isinstance(found, str):
            raise ValueError(f"schema {schema_id}: {found}")
        return found

    def decode(value: bytes | None, offset: int) -> Any:
        if value is None:
            return None
        try:
            if len(value) < FRAMING_SIZE_BYTES or value[0] != 0:
                raise ValueError("the value has no schema id")
            writer = writer_of(int.from_bytes(value[1:FRAMING_SIZE_BYTES], "big"))
            record, left = writer.read(value[FRAMING_SIZE_BYTES:])
            if left:
                raise ValueError("bytes are left after the record")
        except SourceError:
            raise
        except Exception as error:
            # The decoder may raise any error for arbitrary bytes.
            if options.fail_fast:
                raise SourceError(
                    f"the value at offset {offset} can't be decoded ({type(error).__name__}: {error}); "
                    "mode PERMISSIVE reads such values as null"
                ) from error
            return None
        return record

    return decode


def _looked_up(registry: SchemaRegistryClient, schema_id: int) -> str:
    """Returns the schema's text. Raises `RegistryUnavailableError` if none of several registries has it and
    one of them does not answer: that one may know it.
    """
    try:
        return registry.get_by_id(schema_id)
    except RegistryError as error:
        if error.error_code != SCHEMA_NOT_FOUND or len(registry.urls) == 1:
            raise
        for url in list(registry.urls):
            with SchemaRegistryClient(url) as alone, contextlib.suppress(RegistryError):
                return alone.get_by_id(schema_id)
        raise


def _union_type(branches: list[Any]) -> DataType:
    others = [branch for branch in branches if branch != "null"]
    if len(others) == 1:
        return _spark_type(others[0])
    if set(map(str, others)) == {"int", "long"}:
        return LongType()
    if set(map(str, others)) == {"float", "double"}:
        return DoubleType()
    raise UnsupportedSchemaError(
        f"the schema has a union of {len(others)} types; valueFormat avro reads unions of one type and null"
    )


def _without_other_logical_types(schema: Any) -> Any:
    """Drops logical types that Spark does not have, so that their values stay numbers and strings."""
    if isinstance(schema, list):
        return [_without_other_logical_types(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {
        key: _without_other_logical_types(value) if key in ("type", "items", "values", "fields") else value
        for key, value in schema.items()
    }
    is_known = isinstance(kept["type"], str) and (kept["type"], kept.get("logicalType")) in LOGICAL
    if not is_known and not is_decimal(kept):
        kept.pop("logicalType", None)
    return kept
