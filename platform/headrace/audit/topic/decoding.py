"""From framed bytes to audit records: by the schemas of the registry, and into ours.

Owns which writer schemas are believed. Anybody may register a schema and write values, so a writer's schema
is read into ours of that name (fields and types are then ours), its size is bounded, and unknown ids cost a
bounded number of requests.
"""

from __future__ import annotations

import io
import json
import math
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import fastavro
import fastavro.schema

from headrace.audit.topic.acceptances import AcceptanceRecord
from headrace.audit.topic.avro_times import to_ms
from headrace.audit.topic.declarations import TopicDeclaration
from headrace.audit.topic.doubled import DoubledRecord
from headrace.audit.topic.drills import DrillRecord
from headrace.audit.topic.load_report import LoadReport
from headrace.audit.topic.records import (
    AnyAuditRecord,
    CorruptRecord,
    GapRecord,
    HeartbeatRecord,
    ProducerReport,
    RangeTally,
    ReceivedRecord,
)
from headrace.audit.topic.recounts import RecountRecord
from headrace.audit.topic.resent import ResentRecord
from headrace.audit.topic.said_of_tables import VerifiedRecord
from headrace.events.schemas import AUDIT_PRODUCER_SCHEMA, read_schema
from headrace.registry.client import SchemaRegistryClient
from headrace.registry.errors import RegistryError
from headrace.registry.framing import split
from headrace.registry.value_reading import endless, refers_to_itself

SCHEMA_FILES: Final = (
    *(kind.schema_file for kind in (RangeTally, HeartbeatRecord, GapRecord, CorruptRecord, LoadReport)),
    TopicDeclaration.schema_file,
    RecountRecord.schema_file,
    ResentRecord.schema_file,
    AcceptanceRecord.schema_file,
    VerifiedRecord.schema_file,
    DoubledRecord.schema_file,
    DrillRecord.schema_file,
    AUDIT_PRODUCER_SCHEMA,
)
SCHEMA_MAX_CHARS: Final = 64 * 1024
WRITERS_MAX: Final = 1_000  # schema ids whose answer is kept; as many whose values are refused
UNKNOWN_KEPT_S: Final = 60.0  # then an unknown id is looked up again: it may be registered by now
LOOKUPS_MAX: Final = 100  # unknown ids that are looked up at once, then again each `LOOKUPS_PAUSE_S`
LOOKUPS_PAUSE_S: Final = 10.0

_READERS: Final[dict[str, Callable[[Mapping[str, Any]], AnyAuditRecord]]] = {
    "headrace.audit.RangeTally": RangeTally.from_avro,
    "headrace.audit.Positions": HeartbeatRecord.from_avro,
    "headrace.audit.Gap": GapRecord.from_avro,
    "headrace.audit.Corrupt": CorruptRecord.from_avro,
    "headrace.audit.Load": LoadReport.from_avro,
    "headrace.audit.ProducerReport": ProducerReport.from_avro,
    "headrace.audit.Topic": TopicDeclaration.from_avro,
    "headrace.audit.Recount": RecountRecord.from_avro,
    "headrace.audit.Resent": ResentRecord.from_avro,
    "headrace.audit.Acceptance": AcceptanceRecord.from_avro,
    "headrace.audit.Verified": VerifiedRecord.from_avro,
    "headrace.audit.Doubled": DoubledRecord.from_avro,
    "headrace.audit.Drill": DrillRecord.from_avro,
}


class NotAnAuditRecordError(ValueError):
    """The value cannot be read as an audit record; the message says why."""


class _Writer(NamedTuple):
    """A writer's schema, ready to read with; `problem` if values of it are no audit records.

    `again_s`: when to look the id up again.
    """

    name: str
    schema: Any
    reader: Any
    problem: str = ""
    again_s: float = math.inf


class AuditDecoder:
    """Decodes values of the audit topics. For one thread."""

    def __init__(self, registry: SchemaRegistryClient, clock: Callable[[], float] = time.monotonic) -> None:
        self._registry = registry
        self._clock = clock
        self._ours = {}
        for file_name in SCHEMA_FILES:
            schema = _plain(json.loads(read_schema(file_name)))
            self._ours[_name_of(schema)] = fastavro.schema.parse_schema(schema)
        # Apart, so that a stranger's ids without end never displace those of honest records.
        self._own: dict[int, _Writer] = {}
        self._writers: dict[int, _Writer] = {}
        self._refused: dict[int, _Writer] = {}
        self._lookups_left = LOOKUPS_MAX
        self._lookups_again_s = 0.0

    def learn_own(self, ids: Mapping[str, int]) -> None:
        """Takes the ids of our own schemas, by file: they need none of the lookups that strangers use up."""
        for file_name, schema_id in ids.items():
            self._own[schema_id] = self._believed(schema_id, read_schema(file_name))

    def decode(self, value: bytes) -> ReceivedRecord:
        """Returns the record. Raises `NotAnAuditRecordError`, or `RegistryUnavailableError`."""
        try:
            schema_id, payload = split(value)
        except ValueError as error:
            raise NotAnAuditRecordError(str(error)) from None
        writer = self._writer(schema_id)
        if writer.problem:
            raise NotAnAuditRecordError(writer.problem)
        buffer = io.BytesIO(payload)
        try:
            data: Any = fastavro.schemaless_reader(buffer, writer.schema, writer.reader)
            if left_bytes := len(payload) - buffer.tell():
                raise NotAnAuditRecordError(f"{left_bytes} bytes follow the record of schema {schema_id}")
            header = data["header"]
            names = (header["datacenter"], header["service"], header["server"])
            return ReceivedRecord(_READERS[writer.name](data), *names, to_ms(header["time"]))
        except NotAnAuditRecordError:
            raise
        except Exception as error:
            # Reading an invalid payload can raise anything in fastavro.
            problem = f"{type(error).__name__}: {error}"
            raise NotAnAuditRecordError(f"it does not fit schema {schema_id}: {problem}") from None

    def _writer(self, schema_id: int) -> _Writer:
        writer = self._own.get(schema_id) or self._writers.get(schema_id) or self._refused.get(schema_id)
        if writer is None or self._clock() >= writer.again_s:
            writer = self._look_up(schema_id)
            self._refused.pop(schema_id, None)
            kept = self._refused if writer.problem else self._writers
            if len(kept) >= WRITERS_MAX:
                kept.pop(next(iter(kept)))
            kept[schema_id] = writer
        return writer

    def _look_up(self, schema_id: int) -> _Writer:
        now_s = self._clock()
        if now_s >= self._lookups_again_s:
            self._lookups_left, self._lookups_again_s = LOOKUPS_MAX, now_s + LOOKUPS_PAUSE_S
        if self._lookups_left <= 0:
            raise NotAnAuditRecordError(
                f"schema {schema_id} is unknown, and {LOOKUPS_MAX} unknown ids were looked up within "
                f"{LOOKUPS_PAUSE_S:g} s"
            )
        self._lookups_left -= 1
        try:
            text = self._registry.get_by_id(schema_id)
        except RegistryError as error:
            return _refused(f"no schema {schema_id}: {error}", now_s + UNKNOWN_KEPT_S)
        try:
            return self._believed(schema_id, text)
        except Exception as error:
            # A stranger's schema can raise anything in json and fastavro.
            return _refused(f"schema {schema_id} cannot be used: {type(error).__name__}: {error}")

    def _believed(self, schema_id: int, text: str) -> _Writer:
        if len(text) > SCHEMA_MAX_CHARS:
            return _refused(f"schema {schema_id} has {len(text)} characters")
        schema = _plain(json.loads(text))
        name = _name_of(schema)
        if name not in _READERS:
            return _refused(f"schema {schema_id} is not one of an audit record")
        parsed = fastavro.schema.parse_schema(schema)
        ours = self._ours[name]
        if parsed == ours:
            return _Writer(name, ours, None)
        if refers_to_itself(parsed):
            # fastavro descends in C, and checks no depth: such a value of a megabyte ends the process.
            return _refused(f"schema {schema_id} refers to itself, as no audit record does")
        if problem := endless(parsed):
            return _refused(f"schema {schema_id} has {problem}")
        return _Writer(name, parsed, ours)


def _refused(problem: str, again_s: float = math.inf) -> _Writer:
    return _Writer("", None, None, problem, again_s)


def _name_of(schema: Any) -> str:
    if not isinstance(schema, dict):
        return str(schema)
    name, namespace = str(schema.get("name", schema.get("type"))), schema.get("namespace")
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _plain(schema: Any) -> Any:
    """Returns the schema without logical types: times are then numbers, and none is out of a calendar."""
    if isinstance(schema, list):
        return [_plain(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: value if key == "default" else _plain(value)
        for key, value in schema.items()
        if key != "logicalType"
    }
