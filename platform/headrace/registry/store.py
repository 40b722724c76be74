"""The registry's state in ZooKeeper. Any number of registries work on it at once; none keeps anything of
its own.

    /headrace/registry/ids/<id>              {"schema": text}; written by every registration under it, see
    below
    /headrace/registry/subjects/<subject>    {"versions": [[version, id, deleted], …], "last": highest
    version ever given}
    /headrace/registry/settings/<scope>      {"compatibility"?, "normalize"?, "mode"?}; scope "global" or
    "s-<subject>"

Rules that keep it right with several writers:
- a subject's node is written only at the version that was read, so what was decided on it (compatibility,
the next version
  number) still holds when it is written;
- a registration writes the schema's node too (unchanged), in the same transaction: whoever deletes a schema
for good does it at
  the version he read before he looked for its users, so a registration in between makes him look again.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import quote, unquote

from headrace.coordination import documents, znodes
from headrace.coordination.errors import BadVersionError, CorruptNodeError, NodeExistsError, NoNodeError
from headrace.coordination.nodes import Node
from headrace.coordination.session import ZooKeeperSession
from headrace.registry.schemas import parse

IDS: Final = f"{znodes.REGISTRY}/ids"
SUBJECTS: Final = f"{znodes.REGISTRY}/subjects"
SETTINGS: Final = f"{znodes.REGISTRY}/settings"
GLOBAL: Final = "global"

CONFLICT_RETRIES_MAX: Final = 100


class SubjectVersion(NamedTuple):
    version: int
    schema_id: int
    deleted: bool = False


@dataclass(frozen=True, slots=True)
class Subject:
    """All versions in order, soft-deleted ones included. `last`: the highest version number ever given."""

    name: str
    versions: tuple[SubjectVersion, ...] = ()
    last: int = 0

    @property
    def live(self) -> tuple[SubjectVersion, ...]:
        return tuple(each for each in self.versions if not each.deleted)

    def find(self, version: int) -> SubjectVersion | None:
        return next((each for each in self.versions if each.version == version), None)


@dataclass(frozen=True, slots=True)
class Settings:
    compatibility: str | None = None
    normalize: bool | None = None
    mode: str | None = None


class IdCollisionError(Exception):
    """Two different schemas have the same id.

    Astronomically rare; the newcomer has to change (its `doc`, say).
    """


class SchemaStore:
    def __init__(self, session: ZooKeeperSession) -> None:
        self._session = session

    def prepare(self) -> None:
        for path in (IDS, SUBJECTS, SETTINGS):
            self._session.ensure_path(path)

    # reading

    def schema(self, schema_id: int) -> str | None:
        """The text of a schema; None if no subject has it (any more)."""
        return self.schemas([schema_id])[0]

    def schemas(self, schema_ids: list[int]) -> list[str | None]:
        paths = [_id_path(schema_id) for schema_id in schema_ids]
        found = zip(paths, self._session.get_many(paths), strict=True)
        return [None if node is None else _text(path, node) for path, node in found]

    def subject(self, name: str) -> Subject:
        """The subject; one without versions if there is none."""
        return self._read_subject(name)[0]

    def subjects(self) -> list[Subject]:
        names = [unquote(node) for node in self._session.children_or_empty(SUBJECTS)]
        nodes = self._session.get_many(_subject_path(name) for name in names)
        found = [
            _parse_subject(name, node) for name, node in zip(names, nodes, strict=True) if node is not None
        ]
        return sorted((subject for subject in found if subject.versions), key=lambda subject: subject.name)

    def settings(self, subject: str | None) -> Settings:
        """What is set for a subject, or globally (`None`)."""
        path = _settings_path(subject)
        return _parse_settings(path, self._session.get_or_none(path))

    # writing

    def add(
        self, name: str, schema_id: int, text: str, decide: Callable[[Subject], SubjectVersion | None]
    ) -> SubjectVersion:
        """Adds the next version of a subject, unless `decide(subject)` finds it already there. What
        `decide` raises, nothing is changed.

        `decide` is called again whenever somebody else was faster. Raises `IdCollisionError`.
        """

        def attempt() -> SubjectVersion:
            schema = self._session.get_or_none(_id_path(schema_id))
            subject, zk_version = self._read_subject(name)
            present = decide(subject)
            if present is not None:
                return present
            added = SubjectVersion(subject.last + 1, schema_id)
            change = self._session.transaction()
            if schema is None:
                change.create(_id_path(schema_id), documents.encode({"schema": text}))
            elif parse(_text(_id_path(schema_id), schema)).is_same_as(parse(text)):
                change.set(_id_path(schema_id), schema.data, version=schema.stat.version)
            else:
                raise IdCollisionError(f"id {schema_id} belongs to another schema")
            after = replace(subject, versions=(*subject.versions, added), last=added.version)
            self._write_subject(change, after, zk_version)
            change.commit()
            return added

        return _until_undisturbed(attempt)

    def change(self, name: str, decide: Callable[[Subject], Subject]) -> Subject:
        """Replaces a subject by `decide(subject)`; schemas that nobody uses afterwards are deleted with it.

        `decide` is called again whenever somebody else was faster; what it raises, nothing is changed.
        """

        def attempt() -> Subject:
            before, zk_version = self._read_subject(name)
            after = decide(before)
            gone = {each.schema_id for each in before.versions} - {each.schema_id for each in after.versions}
            nodes = {schema_id: self._session.get_or_none(_id_path(schema_id)) for schema_id in sorted(gone)}
            used = {
                each.schema_id for other in self.subjects() if other.name != name for each in other.versions
            }
            change = self._session.transaction()
            self._write_subject(change, after, zk_version)
            for schema_id, node in nodes.items():
                if node is not None and schema_id not in used:
                    change.delete(_id_path(schema_id), version=node.stat.version)
            change.commit()
            return after

        return _until_undisturbed(attempt)

    def set(self, subject: str | None, **changed: Any) -> Settings:
        """Changes some of the settings (`compatibility`, `normalize`, `mode`); None takes one off.

        Answers what was set before.
        """
        path = _settings_path(subject)

        def attempt() -> Settings:
            node = self._session.get_or_none(path)
            before = _parse_settings(path, node)
            after = replace(before, **changed)
            fields = {
                name: getattr(after, name) for name in Settings.__slots__ if getattr(after, name) is not None
            }
            if node is None:
                self._session.create(path, documents.encode(fields), make_parents=True)
            else:
                self._session.set(path, documents.encode(fields), version=node.stat.version)
            return before

        return _until_undisturbed(attempt)

    def _read_subject(self, name: str) -> tuple[Subject, int | None]:
        node = self._session.get_or_none(_subject_path(name))
        if node is None:
            return Subject(name), None
        return _parse_subject(name, node), node.stat.version

    @staticmethod
    def _write_subject(change: Any, subject: Subject, zk_version: int | None) -> None:
        path = _subject_path(subject.name)
        data = documents.encode({"versions": [list(each) for each in subject.versions], "last": subject.last})
        if zk_version is None:
            change.create(path, data)
        elif subject.versions:
            change.set(path, data, version=zk_version)
        else:
            change.delete(path, version=zk_version)


T = TypeVar("T")


def _until_undisturbed(attempt: Callable[[], T]) -> T:
    for _ in range(CONFLICT_RETRIES_MAX):
        try:
            return attempt()
        except (BadVersionError, NodeExistsError, NoNodeError):
            continue
    raise BadVersionError(f"others were faster {CONFLICT_RETRIES_MAX} times in a row; try again")


def _id_path(schema_id: int) -> str:
    return f"{IDS}/{schema_id}"


def _subject_path(name: str) -> str:
    # "." and ".." are no node names, and quote() leaves dots alone.
    quoted = quote(name, safe="")
    return f"{SUBJECTS}/{quoted.replace('.', '%2E') if set(name) == {'.'} else quoted}"


def _settings_path(subject: str | None) -> str:
    return f"{SETTINGS}/{GLOBAL}" if subject is None else f"{SETTINGS}/s-{quote(subject, safe='')}"


def _parse_settings(path: str, node: Node | None) -> Settings:
    if node is None:
        return Settings()
    fields = documents.decode(path, node.data)
    return Settings(fields.get("compatibility"), fields.get("normalize"), fields.get("mode"))


def _text(path: str, node: Node) -> str:
    text = documents.decode(path, node.data).get("schema")
    if not isinstance(text, str):
        raise CorruptNodeError(f"{path}: no schema in {node.data[:80]!r}")
    return text


def _parse_subject(name: str, node: Node) -> Subject:
    path = _subject_path(name)
    fields = documents.decode(path, node.data)
    try:
        versions = tuple(SubjectVersion(int(v), int(i), bool(d)) for v, i, d in fields["versions"])
        return Subject(name, versions, int(fields["last"]))
    except (KeyError, TypeError, ValueError):
        raise CorruptNodeError(f"{path}: not a subject: {node.data[:80]!r}") from None
