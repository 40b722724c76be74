"""The schemas that a topic's records were written with, and the one to read them with.

Owns the choice of the reader schema, and the refusal of writer schemas that it can't read: those of the
subject stop a load, those of strangers only make their own records dead letters. Looks schemas up in several
registries: a schema's id, made from its content, is the same in all of them, so mirrored records are read
with the schemas of their source datacenter. Where two registries have different schemas for one id, the
records' source datacenter says which one it is; if that is not known, nothing is read.
"""

import json
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self, TypeVar

from headrace.registry.client import (
    RegisteredSchema,
    SchemaConflictError,
    SchemaRegistryClient,
    same_schema,
)
from headrace.registry.compatibility import Level, incompatibilities
from headrace.registry.errors import (
    SCHEMA_NOT_FOUND,
    SUBJECT_NOT_FOUND,
    VERSION_NOT_FOUND,
    RegistryError,
    RegistryUnavailableError,
)
from headrace.registry.urls import NamedUrl, parse_urls
from headrace.registry.workers import TASK_MAX_S, Lane, TooLongError
from headrace.warehouse.schema_bounds import no_table, unusable

FOREIGN_MAX: Final = 200
"""Ids of other subjects' schemas that one load looks up."""
FOREIGN_MAX_S: Final = 60.0
"""For comparing them with the table's schema."""

_POINTER: Final = re.compile(r"/fields/\d+[\w/]*")
_NAMED_TYPES: Final = ("record", "enum", "fixed", "error")
NOT_FOUND: Final = (SUBJECT_NOT_FOUND, VERSION_NOT_FOUND, SCHEMA_NOT_FOUND)

_T = TypeVar("_T")


class SchemasError(Exception):
    """The topic's records can't be read as a table: they have no schema, or incompatible ones."""


class IncompatibleSchemaError(SchemasError):
    """The range has records of a schema that the newest one can't read. Nothing was written."""


@dataclass(frozen=True)
class WriterSchema:
    """A schema that records may have been written with. `version` is None if it is not of the subject.

    `datacenter`: whose registry means this schema by the id, where another one means another schema.
    """

    schema_id: int
    version: int | None
    text: str
    datacenter: str | None = None


@dataclass(frozen=True)
class TopicSchemas:
    """All schemas of a topic. `reader` is the newest one, which names the table's columns."""

    subject: str
    reader: WriterSchema
    writers: tuple[WriterSchema, ...]
    """The schemas that the reader can read, itself included."""
    refused: tuple[tuple[WriterSchema, str], ...] = ()
    """The schemas that it can't, each with the problem."""

    def refuse(self, schema_ids: Iterable[int]) -> None:
        """Raises `IncompatibleSchemaError` if one of these ids is of a refused version of the subject.

        Any client can put another schema's id before a value: such records are dead letters.
        """
        present = set(schema_ids)
        for writer, problem in self.refused:
            if writer.schema_id in present and writer.version is not None:
                raise IncompatibleSchemaError(
                    f"subject {self.subject}: version {self.reader.version} can't read what version "
                    f"{writer.version} (schema id {writer.schema_id}) wrote: {problem}. Nothing is loaded; "
                    "register a version that can read both"
                )


def subject_of(topic: str) -> str:
    """Returns the subject of a topic's values, by the usual naming strategy."""
    return f"{topic}-value"


class Registries:
    """Several schema registries, each of which may have versions that the others lack.

    Skips a registry that does not answer as long as another one has the schema, unless `needs_all`; see
    `check_all_answered`.
    """

    def __init__(self, urls: str, *, retry_rounds: int = 3, needs_all: bool = False) -> None:
        self._named = parse_urls(urls)
        self._needs_all = needs_all
        self._clients = [SchemaRegistryClient(each.url, retry_rounds=retry_rounds) for each in self._named]
        self._unavailable: RegistryUnavailableError | None = None

    def close(self) -> None:
        for client in self._clients:
            client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def check_all_answered(self) -> None:
        """Raises `RegistryUnavailableError` if one of the registries was skipped."""
        if self._unavailable is not None:
            raise self._unavailable

    def versions(self, subject: str) -> list[tuple[NamedUrl, list[RegisteredSchema]]]:
        """Returns the versions of a subject, in order, at each registry that has it."""
        found = self._ask(
            lambda client: [client.version(subject, number) for number in sorted(client.versions(subject))]
        )
        return [(where, versions) for where, versions in found if versions]

    def text(self, schema_id: int) -> str | None:
        """Returns the schema with this id; None if no registry has it. Raises `SchemaConflictError`."""
        found = self.texts(schema_id)
        for where, text in found[1:]:
            check_same(schema_id, found[0], (where, text))
        return found[0][1] if found else None

    def texts(self, schema_id: int) -> list[tuple[NamedUrl, str]]:
        """Returns what each registry that knows this id means by it."""
        return self._ask(lambda client: client.get_by_id(schema_id))

    def of_datacenter(self, name: str) -> "Registries":
        """Returns one datacenter's registries alone. Raises `SchemasError` if none is named so."""
        urls = [each.url for each in self._named if each.datacenter == name]
        if not urls:
            raise SchemasError(
                f"no registry is named as datacenter {name}'s; write it as {name}=http://HOST:PORT"
            )
        return Registries(",".join(urls))

    def _ask(self, request: Callable[[SchemaRegistryClient], _T]) -> list[tuple[NamedUrl, _T]]:
        """Sends a request to each registry; returns the responses of those that have what it asks for."""
        found: list[tuple[NamedUrl, _T]] = []
        unavailable: list[RegistryUnavailableError] = []
        for where, client in zip(self._named, self._clients, strict=True):
            try:
                found.append((where, request(client)))
            except RegistryError as error:
                if error.error_code not in NOT_FOUND:
                    raise
            except RegistryUnavailableError as error:
                unavailable.append(error)
        if unavailable:
            self._unavailable = unavailable[0]
            if self._needs_all or not found:
                raise unavailable[0]
        return found


def check_same(schema_id: int, one: tuple[NamedUrl, str], other: tuple[NamedUrl, str]) -> None:
    """Raises `SchemaConflictError` if two registries have different schemas for one id."""
    if not same_schema(one[1], other[1]):
        raise SchemaConflictError(schema_id, one, other)


def topic_schemas(subject: str, registries: Registries) -> TopicSchemas:
    """Returns every version of the subject in any registry, divided into readable and refused ones.

    The reader is the last version at the registry with the most versions. Raises `SchemasError` if no
    registry has the subject, `RegistryUnavailableError` if in addition one does not answer,
    `SchemaConflictError` if two registries have different schemas for one id.
    """
    by_registry = sorted(registries.versions(subject), key=lambda found: len(found[1]), reverse=True)
    if not by_registry:
        raise SchemasError(
            f"no registry has the subject {subject}; register the topic's schema, or load it with "
            "another subject"
        )
    known: dict[int, WriterSchema] = {}
    places: dict[int, NamedUrl] = {}
    for where, versions in by_registry:
        for found in versions:
            first = known.setdefault(
                found.schema_id, WriterSchema(found.schema_id, found.version, found.schema)
            )
            here = places.setdefault(found.schema_id, where)
            check_same(found.schema_id, (here, first.text), (where, found.schema))
    return _divided(subject, known[by_registry[0][1][-1].schema_id], known.values())


def with_writers(schemas: TopicSchemas, schema_ids: Sequence[int], registries: Registries) -> TopicSchemas:
    """Returns `schemas` with those of other subjects that the registries have under these ids.

    `schema_ids`: the most frequent one first. Looks up no more than `FOREIGN_MAX`.
    """
    known = {writer.schema_id for writer in schemas.writers}
    known.update(writer.schema_id for writer, _ in schemas.refused)
    wanted = [schema_id for schema_id in dict.fromkeys(schema_ids) if schema_id not in known]
    found: list[WriterSchema] = []
    refused = list(schemas.refused)
    for schema_id in wanted[:FOREIGN_MAX]:
        text = registries.text(schema_id)
        if text is not None:
            found.append(WriterSchema(schema_id, None, text))
    if len(wanted) > FOREIGN_MAX:
        problem = f"it was not looked up, since this load has more than {FOREIGN_MAX} ids of other subjects"
        refused += [(WriterSchema(each, None, ""), problem) for each in wanted[FOREIGN_MAX:]]
    readable, unreadable = _foreign(schemas.reader, sorted(found, key=_order))
    return replace(schemas, writers=(*schemas.writers, *readable), refused=(*refused, *unreadable))


def _foreign(
    reader: WriterSchema, found: Sequence[WriterSchema]
) -> tuple[list[WriterSchema], list[tuple[WriterSchema, str]]]:
    """Divides schemas that anybody may have registered. To compare two can take for ever: a process of its
    own does, and is ended at a deadline.
    """
    readable: list[WriterSchema] = []
    refused: list[tuple[WriterSchema, str]] = []
    lane = Lane("load")
    deadline_s = time.monotonic() + FOREIGN_MAX_S
    try:
        for writer in found:
            problem = unusable(writer.text) or _compared(lane, reader, writer, deadline_s)
            if problem:
                refused.append((writer, problem))
            else:
                readable.append(writer)
    finally:
        lane.close()
    return readable, refused


def _compared(lane: Lane, reader: WriterSchema, writer: WriterSchema, deadline_s: float) -> str:
    """Returns why the reader can't read what this schema writes; "" if it can."""
    if time.monotonic() > deadline_s:
        return f"it was not compared: comparing others had taken {FOREIGN_MAX_S:g} s"
    task = {"do": "compare", "level": Level.BACKWARD, "new": reader.text, "earlier": [(0, writer.text)]}
    try:
        answer = lane.run(task)
    except TooLongError:
        return f"to compare it with the table's schema takes more than {TASK_MAX_S:g} s"
    if "invalid" in answer:
        return str(answer["invalid"])
    problems: list[str] = answer["problems"]
    return in_field_names(problems[0].partition(": ")[2], reader.text) if problems else ""


def with_reader(schemas: TopicSchemas, reader: WriterSchema) -> TopicSchemas:
    """Returns `schemas`, read by another datacenter's newest schema."""
    known = [*schemas.writers, *(writer for writer, _ in schemas.refused)]
    return _divided(schemas.subject, reader, known)


def has_event_time(schema: str) -> bool:
    """Returns whether records of this schema have `header.time` as a timestamp."""
    header = _field(json.loads(schema), "header")
    time = _field(header, "time") if header is not None else None
    return isinstance(time, dict) and time.get("logicalType") in ("timestamp-millis", "timestamp-micros")


def in_field_names(problem: str, schema: str) -> str:
    """Returns the problem with field names instead of pointers into the schema (`/fields/1/type`). Pure."""
    return _POINTER.sub(lambda found: _field_name(found[0], json.loads(schema)), problem)


def _field_name(pointer: str, schema: Any) -> str:
    names: list[str] = []
    at = schema
    for step in pointer.strip("/").split("/"):
        if isinstance(at, list) and step.isdigit() and int(step) < len(at):
            at = at[int(step)]
        elif isinstance(at, dict) and step in at:
            at = at[step]
        else:
            break
        if isinstance(at, dict) and "name" in at and "type" in at and at.get("type") not in _NAMED_TYPES:
            names.append(at["name"])
    return f"field {'.'.join(names)}" if names else pointer


def _field(schema: Any, name: str) -> Any:
    if isinstance(schema, dict) and schema.get("type") == "record":
        for field in schema["fields"]:
            if field["name"] == name:
                return field["type"]
    return None


def _order(writer: WriterSchema) -> tuple[bool, int, int]:
    return writer.version is None, writer.version or 0, writer.schema_id


def _divided(subject: str, reader: WriterSchema, known: Iterable[WriterSchema]) -> TopicSchemas:
    """Raises `SchemasError` for a reader that makes no table."""
    if problem := unusable(reader.text) or no_table(reader.text):
        raise SchemasError(
            f"subject {subject}: version {reader.version} makes no table: {problem}. Register a version "
            "without it, or delete that version"
        )
    writers: list[WriterSchema] = []
    refused: list[tuple[WriterSchema, str]] = []
    for writer in sorted(known, key=_order):
        if (writer.schema_id, writer.text) == (reader.schema_id, reader.text):
            writers.append(writer)
        elif problem := unusable(writer.text):
            refused.append((writer, problem))
        elif problems := incompatibilities(Level.BACKWARD, reader.text, [(writer.version or 0, writer.text)]):
            refused.append((writer, in_field_names(problems[0].partition(": ")[2], reader.text)))
        else:
            writers.append(writer)
    return TopicSchemas(subject, reader, tuple(writers), tuple(refused))
