"""Records to framed Avro and back, by fastavro. Each schema is requested only once. Thread-safe."""

import io
import json
import threading
from collections.abc import Callable, Mapping
from typing import Any

import fastavro
import fastavro.schema

from headrace.registry.client import SchemaRegistryClient
from headrace.registry.decimals import without_invalid_decimals
from headrace.registry.default_values import with_default_values
from headrace.registry.framing import FramingError, prefix, split
from headrace.registry.json_values import JsonForm
from headrace.registry.schemas import record_name
from headrace.registry.strict_json import shown
from headrace.registry.value_reading import EndlessSchemaError, ValueReader
from headrace.registry.value_validation import SerializationError, explain, value_guard

__all__ = [
    "AvroDeserializer",
    "AvroSerializer",
    "DeserializationError",
    "FramingError",
    "SerializationError",
    "record_name_subject",
    "topic_name",
]

SubjectStrategy = Callable[[str, str], str]
"""(topic, schema text) → subject."""


class DeserializationError(ValueError):
    """The value is framed, but its payload does not fit the schema that its id names, or that is none."""


def topic_name(topic: str, schema: str) -> str:
    """Returns "<topic>-value", Confluent's default: one schema per topic."""
    return f"{topic}-value"


def record_name_subject(topic: str, schema: str) -> str:
    """Returns the record's full name: for topics with several types of records."""
    return record_name(schema)


class AvroSerializer:
    """Serializes records of one schema; registers it on first use under the subject that `strategy` returns.

    With `register=False` the schema must be registered already (`RegistryError` 40403 otherwise).
    """

    def __init__(
        self,
        client: SchemaRegistryClient,
        schema: str | Mapping[str, Any],
        *,
        strategy: SubjectStrategy = topic_name,
        register: bool = True,
    ) -> None:
        self.schema_text = schema if isinstance(schema, str) else json.dumps(schema)
        self._client = client
        self._strategy = strategy
        self._register = register
        self._parsed = with_default_values(fastavro.schema.parse_schema(json.loads(self.schema_text)))
        self._guard = value_guard(self._parsed)
        self._prefixes: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def schema_id(self, topic: str) -> int:
        """Returns the schema id for values of this topic; requests it from the registry the first time."""
        return split(self._prefix(topic))[0]

    def serialize(self, topic: str, record: Any) -> bytes:
        """Returns the framed value. Raises `SerializationError`, or the errors of the registry's client."""
        payload = self.encode(record)
        return self._prefix(topic) + payload

    def encode(self, record: Any) -> bytes:
        """Returns a record's Avro binary without a frame. Raises `SerializationError`."""
        buffer = io.BytesIO()
        try:
            fastavro.schemaless_writer(buffer, self._parsed, record, strict_allow_default=True)
            if self._guard is not None:
                self._guard(record)
        except SerializationError:
            raise
        except Exception as error:
            # fastavro's own error does not name the field: `explain` checks the record again.
            raise SerializationError(explain(self._parsed, record) or f"{error}") from None
        return buffer.getvalue()

    def _prefix(self, topic: str) -> bytes:
        known = self._prefixes.get(topic)
        if known is not None:
            return known
        with self._lock:
            subject = self._strategy(topic, self.schema_text)
            if self._register:
                schema_id = self._client.register(subject, self.schema_text)
            else:
                schema_id = self._client.lookup(subject, self.schema_text).schema_id
            self._prefixes[topic] = prefix(schema_id)
        return self._prefixes[topic]


class AvroDeserializer:
    """Reads framed values by their writers' schemas; resolves them into `reader_schema` if given."""

    def __init__(
        self, client: SchemaRegistryClient, *, reader_schema: str | Mapping[str, Any] | None = None
    ) -> None:
        self._client = client
        if isinstance(reader_schema, str):
            reader_schema = json.loads(reader_schema)
        self._reader: Any = None
        if reader_schema is not None:
            self._reader = fastavro.schema.parse_schema(without_invalid_decimals(reader_schema))
        self._writers: dict[int, ValueReader] = {}
        self._forms: dict[int, JsonForm] = {}
        """By the identity of a parsed schema, which `_writers` or `_reader` keeps."""

    def deserialize(self, value: bytes) -> Any:
        """Returns the record. Raises `FramingError`, `DeserializationError`, or the client's errors."""
        return self.read(value)[1]

    def read(self, value: bytes) -> tuple[str, Any]:
        """Returns (the written record's full name, the record): for topics with several types of records."""
        schema, record = self._read(value)
        name = schema.get("name", schema.get("type")) if isinstance(schema, dict) else str(schema)
        return str(name), record

    def knows_schema_of(self, value: bytes) -> bool:
        """Whether the value is read without asking the registry. Raises `FramingError`."""
        return split(value)[0] in self._writers

    def as_json(self, value: bytes) -> Any:
        """Returns the record in the form of `registry.json_values`. Raises as `read` does."""
        # Of two records with the same fields, only the branch's name tells what their numbers mean.
        schema, record = self._read(value, with_names=self._reader is None)
        if self._reader is not None:
            schema = self._reader
        form = self._forms.get(id(schema))
        if form is None:
            form = self._forms[id(schema)] = JsonForm(schema)
        return form.to_json(record)

    def _read(self, value: bytes, *, with_names: bool = False) -> tuple[Any, Any]:
        """Returns the parsed schema by which a value was written, and the record."""
        schema_id, payload = split(value)
        writer = self._writer(schema_id)
        try:
            record, left = writer.read(payload, with_names=with_names)
        except Exception as error:
            # Reading an invalid payload can raise anything in fastavro.
            problem = f"{type(error).__name__}: {error}"
            raise DeserializationError(
                f"the value does not fit its schema (id {schema_id}): {problem}"
            ) from None
        if left:
            raise DeserializationError(f"{left} bytes left after the record of schema {schema_id}")
        return writer.schema, record

    def _writer(self, schema_id: int) -> ValueReader:
        writer = self._writers.get(schema_id)
        if writer is None:
            text = self._client.get_by_id(schema_id)
            try:
                writer = ValueReader(text, self._reader)
            except EndlessSchemaError as error:
                raise DeserializationError(f"the schema (id {schema_id}) is not read by: {error}") from None
            except Exception as error:
                # Of what is no schema, the libraries may raise anything.
                problem = f"{type(error).__name__}: {shown(str(error))}"
                raise DeserializationError(f"the schema (id {schema_id}) cannot be read: {problem}") from None
            self._writers[schema_id] = writer
        return writer
