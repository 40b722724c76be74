"""The registry's state in ZooKeeper (`registry.subjects` spells it). Several registries may write it at once.

Rules that keep it consistent with several writers:
- A subject's node is written only at the version that was read, so decisions based on it (compatibility, the
  next version number) still hold.
- A registration also writes the schema's node, unchanged, in the same transaction. A permanent deletion reads
  that node before it looks for other users of the schema, and deletes it only at the version read: a
  registration in between makes it start again.
- What an instance keeps in memory never decides what is written: texts of schemas, which never change, and a
  copy of the subjects for listings (`registry.view`).
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from typing import Any, Final, TypeVar

from headrace.coordination import documents
from headrace.coordination.errors import (
    BadVersionError,
    CoordinationError,
    NodeExistsError,
    NoNodeError,
    ZooKeeperUnavailableError,
)
from headrace.coordination.session import SessionState, ZooKeeperSession
from headrace.registry.bounded_cache import BoundedCache
from headrace.registry.subjects import (
    IDS,
    SETTINGS,
    SUBJECT_STORED_MAX_BYTES,
    SUBJECTS,
    StoredSchema,
    StoreSettings,
    Subject,
    SubjectVersion,
    id_path,
    parse_schema,
    parse_settings,
    parse_subject,
    settings_path,
    subject_path,
)
from headrace.registry.view import Copy, SubjectsView

logger = logging.getLogger(__name__)

CONFLICT_RETRIES_MAX: Final = 100
TEXTS_MAX_BYTES: Final = 64 << 20
"""Of schemas that are kept in memory, for reads by id without ZooKeeper."""
READ_AT_ONCE_MAX: Final = 50
"""Schemas, of which each may have 900 kB."""


class IdTakenError(Exception):
    """Another schema has the id that follows from this schema's content."""


class SubjectTooLargeError(Exception):
    """The subject has so many versions that its node would not fit into a transaction."""


class SchemaStore:
    """Reads and writes the state over a started session."""

    def __init__(self, session: ZooKeeperSession) -> None:
        self._session = session
        self._texts: BoundedCache[int, StoredSchema] = BoundedCache(TEXTS_MAX_BYTES)
        self._view = SubjectsView(session, self._read_ahead)

    def prepare(self) -> None:
        """Creates the parent nodes."""
        for path in (IDS, SUBJECTS, SETTINGS):
            self._session.ensure_path(path)

    def follow(self) -> None:
        """Begins to keep subjects and schemas in memory."""
        self._view.start()

    # --- reading ---

    def known_schema(self, schema_id: int) -> StoredSchema | None:
        """Returns the schema from memory, without waiting for anything; None if it must be read.

        A schema that no known subject uses may have been deleted: ZooKeeper knows, if it is there.
        """
        schema = self._texts.get(schema_id)
        if schema is None or self._session.state is not SessionState.CONNECTED:
            return schema
        known = self._view.known()
        return schema if known is not None and schema_id in known.users else None

    def schema(self, schema_id: int) -> StoredSchema | None:
        """Returns a schema; None if no subject has it."""
        known = self.known_schema(schema_id)
        if known is not None:
            return known
        path = id_path(schema_id)
        try:
            node = self._session.get_or_none(path)
        except ZooKeeperUnavailableError:
            kept = self._texts.get(schema_id)
            if kept is None:
                raise
            return kept
        if node is None:
            return None
        return self._keep(schema_id, parse_schema(path, node))

    def schemas(self, schema_ids: Iterable[int]) -> dict[int, StoredSchema]:
        """Returns those that exist."""
        wanted = list(dict.fromkeys(schema_ids))
        found = {
            schema_id: known for schema_id in wanted if (known := self.known_schema(schema_id)) is not None
        }
        missing = [schema_id for schema_id in wanted if schema_id not in found]
        for start in range(0, len(missing), READ_AT_ONCE_MAX):
            part = missing[start : start + READ_AT_ONCE_MAX]
            nodes = self._session.get_many(id_path(schema_id) for schema_id in part)
            for schema_id, node in zip(part, nodes, strict=True):
                if node is not None:
                    found[schema_id] = self._keep(schema_id, parse_schema(id_path(schema_id), node))
        return found

    def subject(self, name: str) -> Subject:
        """Returns the subject, without ZooKeeper as last known; one without versions if it does not exist."""
        known = self._view.known()
        if known is None or self._session.state is SessionState.CONNECTED:
            try:
                return self._read_subject(name)[0]
            except ZooKeeperUnavailableError:
                if known is None:
                    raise
        return known.by_name.get(name, Subject(name))

    def subjects(self) -> tuple[Subject, ...]:
        return self._view.current().subjects

    def known_subjects(self) -> tuple[Subject, ...] | None:
        """Returns the subjects from memory, without waiting for anything; None before the first copy."""
        known = self._view.known()
        return None if known is None else known.subjects

    def users(self, schema_id: int) -> list[Subject]:
        """Returns the subjects that have a schema, sorted by name."""
        copy = self._view.current()
        return [copy.by_name[name] for name in sorted(copy.users.get(schema_id, ()))]

    def settings(self, subject: str | None) -> StoreSettings:
        """Returns the settings of a subject, or the global ones (`None`)."""
        path = settings_path(subject)
        return parse_settings(path, self._session.get_or_none(path))

    # --- writing ---

    def add(
        self,
        name: str,
        schema_id: int,
        schema: StoredSchema,
        *,
        is_same: Callable[[str], bool],
        decide: Callable[[Subject], SubjectVersion | None],
    ) -> SubjectVersion:
        """Adds the next version of a subject, unless `decide(subject)` returns an existing one.

        `decide` is called again after a concurrent change; if it raises, nothing is changed. `is_same` says
        whether a stored text is this schema: an id alone proves nothing. Raises `IdTakenError`.
        """

        def attempt() -> SubjectVersion:
            path = id_path(schema_id)
            node = self._session.get_or_none(path)
            stored = schema if node is None else parse_schema(path, node)
            if node is not None and not is_same(stored.text):
                raise IdTakenError
            subject, zk_version = self._read_subject(name)
            existing = decide(subject)
            if existing is not None:
                return existing
            added = SubjectVersion(subject.last + 1, schema_id)
            change = self._session.transaction()
            if node is None:
                change.create(path, stored.encoded())
            else:
                change.set(path, node.data, version=node.stat.version)
            after = replace(subject, versions=(*subject.versions, added), last=added.version)
            if len(after.encoded()) > SUBJECT_STORED_MAX_BYTES:
                raise SubjectTooLargeError
            _write_subject(change, after, zk_version)
            change.commit()
            self._keep(schema_id, stored)
            return added

        return _retry_conflicts(attempt)

    def change(
        self, name: str, decide: Callable[[Subject], Subject], *, ends_settings: bool = False
    ) -> Subject:
        """Replaces a subject by `decide(subject)`, and deletes schemas that no subject uses any more.

        `decide` is called again after a concurrent change; if it raises, nothing is changed. `ends_settings`:
        deletes the subject's settings, too.
        """

        def attempt() -> Subject:
            before, zk_version = self._read_subject(name)
            after = decide(before)
            removed = sorted(before.schema_ids - after.schema_ids)
            nodes = {schema_id: self._session.get_or_none(id_path(schema_id)) for schema_id in removed}
            # After the schemas' nodes: this copy shows every registration that these nodes show.
            used = self._used_elsewhere(name, removed) if removed else frozenset()
            change = self._session.transaction()
            _write_subject(change, after, zk_version)
            for schema_id, node in nodes.items():
                if node is not None and schema_id not in used:
                    change.delete(id_path(schema_id), version=node.stat.version)
            settings = self._session.get_or_none(settings_path(name)) if ends_settings else None
            if settings is not None:
                change.delete(settings_path(name), version=settings.stat.version)
            change.commit()
            for schema_id in removed:
                self._texts.drop(schema_id)
            self._delete_unused(used.intersection(removed))
            return after

        return _retry_conflicts(attempt)

    def set(self, subject: str | None, **changed: Any) -> None:
        """Changes some of the settings (`compatibility`, `normalize`, `mode`); None removes one."""
        path = settings_path(subject)

        def attempt() -> None:
            node = self._session.get_or_none(path)
            after = asdict(replace(parse_settings(path, node), **changed))
            left = {name: value for name, value in after.items() if value is not None}
            if node is not None and not left:
                self._session.delete(path, version=node.stat.version)
            elif node is not None:
                self._session.set(path, documents.encode(left), version=node.stat.version)
            elif left:
                self._session.create(path, documents.encode(left), make_parents=True)

        _retry_conflicts(attempt)

    # --- inside ---

    def _delete_unused(self, schema_ids: Iterable[int]) -> None:
        """Deletes those that no subject has: two deletions at once each left a schema to the other's subject.

        The caller's change is complete: what cannot be deleted now stays, and harms nothing.
        """
        try:
            for schema_id in schema_ids:
                if self._is_used(schema_id):
                    continue
                node = self._session.get_or_none(id_path(schema_id))
                # After the schema's node, as above.
                if node is not None and not self._is_used(schema_id):
                    self._session.delete(id_path(schema_id), version=node.stat.version)
        except CoordinationError as error:
            logger.info("a schema that no subject has any more was not deleted: %s", error)

    def _used_elsewhere(self, name: str, schema_ids: Iterable[int]) -> frozenset[int]:
        """Returns those of the schemas that other subjects have, or may have."""
        copy = self._view.present()
        may_be = bool(copy.unreadable - {name})
        return frozenset(each for each in schema_ids if may_be or copy.users.get(each, frozenset()) - {name})

    def _is_used(self, schema_id: int) -> bool:
        """Whether a subject has a schema, or may have it: its node may be there again."""
        copy = self._view.present()
        return bool(copy.unreadable) or schema_id in copy.users

    def _read_subject(self, name: str) -> tuple[Subject, int | None]:
        path = subject_path(name)
        node = self._session.get_or_none(path)
        if node is None:
            return Subject(name), None
        return parse_subject(path, node), node.stat.version

    def _keep(self, schema_id: int, schema: StoredSchema) -> StoredSchema:
        # Four bytes a character at most, as Python stores them.
        self._texts.put(schema_id, schema, 4 * len(schema.text) + 400)
        return schema

    def _read_ahead(self, copy: Copy) -> None:
        """Fills the memory for texts by half, so that a registry can read without ZooKeeper soon."""
        missing = [schema_id for schema_id in copy.users if schema_id not in self._texts]
        for start in range(0, len(missing), READ_AT_ONCE_MAX):
            if self._texts.bytes_now > TEXTS_MAX_BYTES // 2:
                return
            try:
                self.schemas(missing[start : start + READ_AT_ONCE_MAX])
            except CoordinationError:
                return


def _write_subject(change: Any, subject: Subject, zk_version: int | None) -> None:
    if zk_version is None:
        change.create(subject.path, subject.encoded())
    elif subject.versions:
        change.set(subject.path, subject.encoded(), version=zk_version)
    else:
        change.delete(subject.path, version=zk_version)


T = TypeVar("T")


def _retry_conflicts(attempt: Callable[[], T]) -> T:
    """Repeats `attempt` while other registries change the same nodes."""
    for _ in range(CONFLICT_RETRIES_MAX):
        try:
            return attempt()
        except (BadVersionError, NodeExistsError, NoNodeError):
            continue
    raise BadVersionError(f"{CONFLICT_RETRIES_MAX} attempts in a row met concurrent changes; retry")
