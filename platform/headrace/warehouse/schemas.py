"""Which schemas a topic's records were written with, and with which one they are read.

Owns the choice of the reader schema and the refusal of writers that it can't read. Asks schema registries
(their ids are the same everywhere: made of the schema's content), so that mirrored records can be read
with the schemas of where they came from.
"""

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Self, TypeVar

from headrace.registry.client import RegisteredSchema, SchemaRegistryClient
from headrace.registry.errors import (
    SCHEMA_NOT_FOUND,
    SUBJECT_NOT_FOUND,
    VERSION_NOT_FOUND,
    RegistryError,
    RegistryUnavailableError,
)
from headrace.registry.rules import Level, incompatibilities

_PLACE: Final = re.compile(r"/fields/\d+[\w/]*")
_NAMED_TYPES: Final = ("record", "enum", "fixed", "error")
NOT_FOUND: Final = (SUBJECT_NOT_FOUND, VERSION_NOT_FOUND, SCHEMA_NOT_FOUND)


_T = TypeVar("_T")


class SchemasError(Exception):
    """The topic's records can't be read as a table: no schema, or schemas that don't go together."""


class IncompatibleSchemaError(SchemasError):
    """Records in the range were written with a schema that the newest one can't read. Nothing is written."""


@dataclass(frozen=True)
class WriterSchema:
    """One schema that records may have been written with.

    `version` is None where no registry has it in the subject.
    """

    schema_id: int
    version: int | None
    text: str


@dataclass(frozen=True)
class TopicSchemas:
    """All schemas of a topic. `reader` is the newest: it names the table's columns."""

    subject: str
    reader: WriterSchema
    writers: tuple[WriterSchema, ...]
    """Those that the reader can read, itself among them."""
    refused: tuple[tuple[WriterSchema, str], ...] = ()
    """Those it can't, each with what is wrong."""

    def refuse(self, schema_ids: Iterable[int]) -> None:
        """Raise `IncompatibleSchemaError` if one of these ids is refused."""
        present = set(schema_ids)
        for writer, problem in self.refused:
            if writer.schema_id in present:
                raise IncompatibleSchemaError(
                    f"subject {self.subject}: version {self.reader.version} can't read what version "
                    f"{writer.version} "
                    f"(schema id {writer.schema_id}) wrote: {problem}. Nothing is loaded; register a "
                    "version that can "
                    "read both"
                )


def subject_of(topic: str) -> str:
    """The subject of a topic's values, by the usual naming strategy."""
    return f"{topic}-value"


class Registries:
    """Several schema registries, asked one by one: each may know versions that the others lack.

    One that doesn't answer is passed over as long as the others know what is wanted; `check_all_answered`
    then says so.
    """

    def __init__(self, urls: str, *, retry_rounds: int = 3) -> None:
        listed = [url.strip() for url in urls.split(",") if url.strip()]
        self._clients = [SchemaRegistryClient(url, retry_rounds=retry_rounds) for url in listed]
        self._silent: RegistryUnavailableError | None = None

    def close(self) -> None:
        for client in self._clients:
            client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def check_all_answered(self) -> None:
        """Raise `RegistryUnavailableError` if one of the registries was passed over."""
        if self._silent is not None:
            raise self._silent

    def versions(self, subject: str) -> list[list[RegisteredSchema]]:
        """The versions of a subject at each registry that has it, in order."""
        found = self._ask(
            lambda client: [client.version(subject, each) for each in sorted(client.versions(subject))]
        )
        return [versions for versions in found if versions]

    def text(self, schema_id: int) -> str | None:
        """The schema of an id; None if no registry knows it."""
        return next(iter(self._ask(lambda client: client.get_by_id(schema_id))), None)

    def _ask(self, question: Callable[[SchemaRegistryClient], _T]) -> list[_T]:
        answers: list[_T] = []
        silent: list[RegistryUnavailableError] = []
        for client in self._clients:
            try:
                answers.append(question(client))
            except RegistryError as error:
                if error.error_code not in NOT_FOUND:
                    raise
            except RegistryUnavailableError as error:
                silent.append(error)
        if silent:
            self._silent = silent[0]
            if not answers:
                raise silent[0]
        return answers


def topic_schemas(subject: str, registries: Registries) -> TopicSchemas:
    """Every version of the subject that any of the registries has, sorted into readable and refused.

    The reader is the last version at the registry with the most versions. Raises `SchemasError` where none
    has the subject, `RegistryUnavailableError` where none has it and one doesn't answer.
    """
    by_registry = sorted(registries.versions(subject), key=len, reverse=True)
    if not by_registry:
        raise SchemasError(
            f"no registry has the subject {subject}; register the topic's schema, or load it with "
            "another subject"
        )
    known: dict[int, WriterSchema] = {}
    for versions in by_registry:
        for each in versions:
            known.setdefault(each.schema_id, WriterSchema(each.schema_id, each.version, each.schema))
    return _sorted(subject, known[by_registry[0][-1].schema_id], known.values())


def with_writers(schemas: TopicSchemas, schema_ids: Iterable[int], registries: Registries) -> TopicSchemas:
    """`schemas` and what the registries know by id beyond the subject; ids that nobody knows are left out."""
    known = {each.schema_id: each for each in schemas.writers}
    known.update((each.schema_id, each) for each, _ in schemas.refused)
    for schema_id in set(schema_ids) - known.keys():
        text = registries.text(schema_id)
        if text is not None:
            known[schema_id] = WriterSchema(schema_id, None, text)
    return _sorted(schemas.subject, schemas.reader, known.values())


def has_event_time(schema: str) -> bool:
    """Whether records of this schema carry `header.time` as a timestamp."""
    header = _field(json.loads(schema), "header")
    time = _field(header, "time") if header is not None else None
    return isinstance(time, dict) and time.get("logicalType") in ("timestamp-millis", "timestamp-micros")


def aliases(schema: str) -> dict[str, tuple[str, ...]]:
    """The aliases of the top-level fields, by present name."""
    parsed = json.loads(schema)
    fields = parsed.get("fields", []) if isinstance(parsed, dict) else []
    return {field["name"]: tuple(field.get("aliases", ())) for field in fields}


def in_field_names(problem: str, schema: str) -> str:
    """The problem with its places (`/fields/1/type`) as names of the schema's fields. Pure."""
    return _PLACE.sub(lambda found: _place(found[0], json.loads(schema)), problem)


def _place(pointer: str, schema: Any) -> str:
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


def _sorted(subject: str, reader: WriterSchema, known: Iterable[WriterSchema]) -> TopicSchemas:
    writers: list[WriterSchema] = []
    refused: list[tuple[WriterSchema, str]] = []
    for writer in sorted(known, key=lambda each: (each.version is None, each.version, each.schema_id)):
        problems = (
            []
            if writer.schema_id == reader.schema_id
            else incompatibilities(Level.BACKWARD, reader.text, [(writer.version or 0, writer.text)])
        )
        if problems:
            refused.append((writer, in_field_names(problems[0].partition(": ")[2], reader.text)))
        else:
            writers.append(writer)
    return TopicSchemas(subject, reader, tuple(writers), tuple(refused))
