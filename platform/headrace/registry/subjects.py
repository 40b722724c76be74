"""A subject's versions, and the names and contents of the registry's znodes. Pure.

    /headrace/registry/ids/<id>            {"schema": text, "guid"?, "crc"?: of the text}
    /headrace/registry/subjects/<subject>  {"versions": [[version, id, deleted], …], "last": highest version}
    /headrace/registry/settings/<scope>    {"compatibility"?, "normalize"?, "mode"?}

`last` is the highest version ever used. A scope is "global" or "s-<subject>". Subjects are quoted as in
URLs, so no name can leave its branch of the tree or its line of a log.
"""

import zlib
from dataclasses import dataclass
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from headrace.coordination import documents, znodes
from headrace.coordination.errors import CorruptNodeError
from headrace.coordination.nodes import Node

IDS: Final = f"{znodes.REGISTRY}/ids"
SUBJECTS: Final = f"{znodes.REGISTRY}/subjects"
SETTINGS: Final = f"{znodes.REGISTRY}/settings"
GLOBAL: Final = "global"

SUBJECT_STORED_MAX_BYTES: Final = 120_000
"""Of a subject's node: it and a schema of `SCHEMA_MAX_BYTES` fit into one transaction."""


class SubjectVersion(NamedTuple):
    version: int
    schema_id: int
    deleted: bool = False


@dataclass(frozen=True, slots=True)
class Subject:
    """All versions in order, soft-deleted ones included. `last`: the highest version number ever used."""

    name: str
    versions: tuple[SubjectVersion, ...] = ()
    last: int = 0

    @property
    def live(self) -> tuple[SubjectVersion, ...]:
        return tuple(version for version in self.versions if not version.deleted)

    @property
    def is_live(self) -> bool:
        return any(not version.deleted for version in self.versions)

    @property
    def schema_ids(self) -> frozenset[int]:
        return frozenset(version.schema_id for version in self.versions)

    @property
    def path(self) -> str:
        return subject_path(self.name)

    def find(self, version: int) -> SubjectVersion | None:
        return next((found for found in self.versions if found.version == version), None)

    def encoded(self) -> bytes:
        return documents.encode({"versions": [list(each) for each in self.versions], "last": self.last})


class StoredSchema(NamedTuple):
    """A schema as it was registered. `guid`: None in nodes of before November 2026."""

    text: str
    guid: str | None = None

    def encoded(self) -> bytes:
        guid = {"guid": self.guid} if self.guid else {}
        return documents.encode({"schema": self.text, "crc": _crc_of(self.text), **guid})


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """The settings of a subject, or the global ones. None: not set."""

    compatibility: str | None = None
    normalize: bool | None = None
    mode: str | None = None


def id_path(schema_id: int) -> str:
    return f"{IDS}/{schema_id}"


def subject_path(name: str) -> str:
    # "." and ".." are not valid node names, and quote() does not escape dots.
    quoted = quote(name, safe="")
    return f"{SUBJECTS}/{quoted.replace('.', '%2E') if set(name) == {'.'} else quoted}"


def subject_name(path: str) -> str:
    return unquote(path.rpartition("/")[2])


def settings_path(subject: str | None) -> str:
    return f"{SETTINGS}/{GLOBAL}" if subject is None else f"{SETTINGS}/s-{quote(subject, safe='')}"


def parse_settings(path: str, node: Node | None) -> StoreSettings:
    if node is None:
        return StoreSettings()
    fields = documents.decode(path, node.data)
    return StoreSettings(fields.get("compatibility"), fields.get("normalize"), fields.get("mode"))


def parse_schema(path: str, node: Node) -> StoredSchema:
    fields = documents.decode(path, node.data)
    text, guid = fields.get("schema"), fields.get("guid")
    if not isinstance(text, str) or not isinstance(guid, str | None):
        raise CorruptNodeError(f"{path}: no schema in {node.data[:80]!r}")
    # A changed letter of a name is a schema, too: nobody would see that it is another one.
    if fields.get("crc", crc := _crc_of(text)) != crc:
        raise CorruptNodeError(
            f"{path}: the schema is not what was registered: its bytes have changed. Delete this node of "
            "ZooKeeper, and register the schema again: its id follows from its content"
        )
    return StoredSchema(text, guid)


def _crc_of(text: str) -> int:
    return zlib.crc32(text.encode(errors="surrogatepass"))


def parse_subject(path: str, node: Node) -> Subject:
    fields = documents.decode(path, node.data)
    try:
        versions = tuple(SubjectVersion(int(v), int(i), bool(d)) for v, i, d in fields["versions"])
        return Subject(subject_name(path), versions, int(fields["last"]))
    except (KeyError, TypeError, ValueError):
        raise CorruptNodeError(f"{path}: not a subject: {node.data[:80]!r}") from None
