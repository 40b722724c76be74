"""The registry's state in ZooKeeper. Several registries may write it at once; none has state of its own.

    /headrace/registry/ids/<id>            {"schema": text}
    /headrace/registry/subjects/<subject>  {"versions": [[version, id, deleted], …], "last": highest version}
    /headrace/registry/settings/<scope>    {"compatibility"?, "normalize"?, "mode"?}

`last` is the highest version ever used. A scope is "global" or "s-<subject>".

Rules that keep it consistent with several writers:
- A subject's node is written only at the version that was read, so decisions based on it (compatibility, the
  next version number) still hold.
- A registration also writes the schema's node, unchanged, in the same transaction. A permanent deletion reads
  that node before it looks for other users of the schema, and deletes it only at the version read: a
  registration in between makes it start again.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
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
    """All versions in order, soft-deleted ones included. `last`: the highest version number ever used."""

    name: str
    versions: tuple[SubjectVersion, ...] = ()
    last: int = 0

    @property
    def live(self) -> tuple[SubjectVersion, ...]:
        return tuple(version for version in self.versions if not version.deleted)

    def find(self, version: int) -> SubjectVersion | None:
        return next((found for found in self.versions if found.version == version), None)


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """The settings of a subject, or the global ones. None: not set."""

    compatibility: str | None = None
    normalize: bool | None = None
    mode: str | None = None


class IdCollisionError(Exception):
    """Two different schemas have the same id (extremely rare). Change the new one, for example its `doc`."""


class SchemaStore:
    """Reads and writes the state over a started session."""

    def __init__(self, session: ZooKeeperSession) -> None:
        self._session = session

    def prepare(self) -> None:
        """Creates the parent nodes."""
        for path in (IDS, SUBJECTS, SETTINGS):
            self._session.ensure_path(path)

    # --- reading ---

    def schema(self, schema_id: int) -> str | None:
        """Returns the text of a schema; None if no subject has it."""
        return self.schemas([schema_id])[0]

    def schemas(self, schema_ids: list[int]) -> list[str | None]:
        paths = [_id_path(schema_id) for schema_id in schema_ids]
        found = zip(paths, self._session.get_many(paths), strict=True)
        return [None if node is None else _text(path, node) for path, node in found]

    def subject(self, name: str) -> Subject:
        """Returns the subject; one without versions if it does not exist."""
        return self._read_subject(name)[0]

    def subjects(self) -> list[Subject]:
        names = [unquote(node) for node in self._session.children_or_empty(SUBJECTS)]
        nodes = self._session.get_many(_subject_path(name) for name in names)
        found = [
            _parse_subject(name, node) for name, node in zip(names, nodes, strict=True) if node is not None
        ]
        return sorted((subject for subject in found if subject.versions), key=lambda subject: subject.name)

    def settings(self, subject: str | None) -> StoreSettings:
        """Returns the settings of a subject, or the global ones (`None`)."""
        path = _settings_path(subject)
        return _parse_settings(path, self._session.get_or_none(path))

    # --- writing ---

    def add(
        self, name: str, schema_id: int, text: str, decide: Callable[[Subject], SubjectVersion | None]
    ) -> SubjectVersion:
        """Adds the next version of a subject, unless `decide(subject)` returns an existing one.

        `decide` is called again after a concurrent change; if it raises, nothing is changed. Raises
        `IdCollisionError`.
        """

        def attempt() -> SubjectVersion:
            schema = self._session.get_or_none(_id_path(schema_id))
            subject, zk_version = self._read_subject(name)
            existing = decide(subject)
            if existing is not None:
                return existing
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

        return _retry_conflicts(attempt)

    def change(self, name: str, decide: Callable[[Subject], Subject]) -> Subject:
        """Replaces a subject by `decide(subject)`, and deletes schemas that no subject uses any more.

        `decide` is called again after a concurrent change; if it raises, nothing is changed.
        """

        def attempt() -> Subject:
            before, zk_version = self._read_subject(name)
            after = decide(before)
            removed = {v.schema_id for v in before.versions} - {v.schema_id for v in after.versions}
            nodes = {
                schema_id: self._session.get_or_none(_id_path(schema_id)) for schema_id in sorted(removed)
            }
            used = {v.schema_id for other in self.subjects() if other.name != name for v in other.versions}
            change = self._session.transaction()
            self._write_subject(change, after, zk_version)
            for schema_id, node in nodes.items():
                if node is not None and schema_id not in used:
                    change.delete(_id_path(schema_id), version=node.stat.version)
            change.commit()
            return after

        return _retry_conflicts(attempt)

    def set(self, subject: str | None, **changed: Any) -> None:
        """Changes some of the settings (`compatibility`, `normalize`, `mode`); None removes one."""
        path = _settings_path(subject)

        def attempt() -> None:
            node = self._session.get_or_none(path)
            after = asdict(replace(_parse_settings(path, node), **changed))
            data = documents.encode({name: value for name, value in after.items() if value is not None})
            if node is None:
                self._session.create(path, data, make_parents=True)
            else:
                self._session.set(path, data, version=node.stat.version)

        _retry_conflicts(attempt)

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


def _retry_conflicts(attempt: Callable[[], T]) -> T:
    """Repeats `attempt` while other registries change the same nodes."""
    for _ in range(CONFLICT_RETRIES_MAX):
        try:
            return attempt()
        except (BadVersionError, NodeExistsError, NoNodeError):
            continue
    raise BadVersionError(f"{CONFLICT_RETRIES_MAX} attempts in a row met concurrent changes; retry")


def _id_path(schema_id: int) -> str:
    return f"{IDS}/{schema_id}"


def _subject_path(name: str) -> str:
    # "." and ".." are not valid node names, and quote() does not escape dots.
    quoted = quote(name, safe="")
    return f"{SUBJECTS}/{quoted.replace('.', '%2E') if set(name) == {'.'} else quoted}"


def _settings_path(subject: str | None) -> str:
    return f"{SETTINGS}/{GLOBAL}" if subject is None else f"{SETTINGS}/s-{quote(subject, safe='')}"


def _parse_settings(path: str, node: Node | None) -> StoreSettings:
    if node is None:
        return StoreSettings()
    fields = documents.decode(path, node.data)
    return StoreSettings(fields.get("compatibility"), fields.get("normalize"), fields.get("mode"))


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
