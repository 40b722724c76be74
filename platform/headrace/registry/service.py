"""The requests of Confluent's REST interface, without HTTP, over the store.

Raises `RegistryError` with Confluent's codes. Every method may run in several threads and processes at once.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

from headrace.registry import errors
from headrace.registry.compatibility import Level
from headrace.registry.errors import RegistryError
from headrace.registry.levels import Levels
from headrace.registry.requests import (
    AVRO,
    check_new_name,
    check_writable,
    schema_text,
    subject_not_found,
    too_large,
    version_not_found,
)
from headrace.registry.schemas import InvalidSchemaError, ParsedSchema, id_of_guid
from headrace.registry.sources import Sources
from headrace.registry.store import READ_AT_ONCE_MAX, IdTakenError, SchemaStore, SubjectTooLargeError
from headrace.registry.strict_json import shown
from headrace.registry.subjects import StoredSchema, Subject, SubjectVersion
from headrace.registry.workers import Workers

VERSION_MAX: Final = 2**31 - 1
LATEST: Final = ("latest", "-1")


COMPARED_MAX_BYTES: Final = 8 << 20
"""Of the earlier versions that one compatibility check reads."""
PAGE_MAX: Final = 1_000
"""Schemas with their texts that one response lists, as in Confluent's; `offset` gives the next ones."""
PAGE_MAX_BYTES: Final = 64 << 20


class SchemaRegistry:
    """The schema registry's operations. Settings with the subject `None` are the global ones."""

    def __init__(self, store: SchemaStore, workers: Workers, sources: Sources | None = None) -> None:
        self._store = store
        self._sources = sources or Sources(())
        self._levels = Levels(store)
        self._workers = workers

    # --- subjects and versions ---

    def subjects(self, *, prefix: str = "", deleted: bool = False, deleted_only: bool = False) -> list[str]:
        def listed(subject: Subject) -> bool:
            if deleted_only:
                return not subject.is_live
            return deleted or subject.is_live

        return [s.name for s in self._store.subjects() if s.name.startswith(prefix) and listed(s)]

    def versions(self, name: str, *, deleted: bool = False, deleted_only: bool = False) -> list[int]:
        subject = self._store.subject(name)
        found = [
            v.version for v in subject.versions if (v.deleted if deleted_only else deleted or not v.deleted)
        ]
        if not found:
            raise subject_not_found(name)
        return found

    def version(self, name: str, version: str, *, deleted: bool = False) -> dict[str, Any]:
        """`version` is a number, "latest" or "-1"."""
        subject = self._store.subject(name)
        found = self._pick(subject, version, deleted=deleted)
        return self._described(name, found)

    def register(self, name: str, body: dict[str, Any], *, normalize: bool) -> dict[str, Any]:
        """Registers a schema as the next version unless it is registered; returns id, version and schema."""
        check_new_name(name)
        schema = self._read(name, body)
        # Clients that copy a registry send the id. Here it follows from the schema and cannot be chosen.
        if body.get("id") not in (None, -1, schema.schema_id):
            raise RegistryError(
                errors.INVALID_SCHEMA, f"This schema's id is {schema.schema_id}, not {shown(body['id'])}"
            )
        level, normalize_set = self._levels.enforced(name)
        text = schema.normal_text if normalize or normalize_set else schema.text
        mode = self._levels.mode_of(name)

        def decide(subject: Subject) -> SubjectVersion | None:
            present = [v for v in subject.live if v.schema_id == schema.schema_id]
            if present:
                return present[-1]
            check_writable(name, mode)
            _check_names(name, schema)
            self._check_compatible(level, schema, subject)
            return None

        try:
            added = self._store.add(
                name,
                schema.schema_id,
                StoredSchema(text, schema.guid),
                is_same=lambda stored: self._is_same(schema, stored),
                decide=decide,
            )
        except IdTakenError:
            raise self._id_taken(name, schema) from None
        except SubjectTooLargeError:
            raise too_large(name) from None
        return self._described(name, added)

    def lookup(self, name: str, body: dict[str, Any], *, deleted: bool = False) -> dict[str, Any]:
        """Returns the version of the subject that has this schema."""
        subject = self._store.subject(name)
        versions = subject.versions if deleted else subject.live
        if not versions:
            raise subject_not_found(name)
        schema = self._read(name, body)
        found = [version for version in versions if version.schema_id == schema.schema_id]
        if not found or not self._is_same(schema, self.schema(schema.schema_id).text):
            raise RegistryError(errors.SCHEMA_NOT_FOUND, f"Schema not found in subject '{name}'")
        return self._described(name, found[-1])

    def delete_subject(self, name: str, *, permanent: bool) -> list[int]:
        """Marks all versions as deleted; with `permanent`, removes a subject that was marked before.

        Returns the version numbers.
        """
        mode = self._levels.mode_of(name)
        deleted: list[int] = []

        def decide(subject: Subject) -> Subject:
            check_writable(name, mode)
            if not subject.versions:
                raise subject_not_found(name)
            if permanent and subject.live:
                message = f"Subject '{name}' was not deleted first before being permanently deleted"
                raise RegistryError(errors.SUBJECT_NOT_SOFT_DELETED, message)
            if not permanent and not subject.live:
                message = f"Subject '{name}' was soft deleted. Set permanent=true to delete permanently"
                raise RegistryError(errors.SUBJECT_SOFT_DELETED, message)
            deleted[:] = [v.version for v in (subject.versions if permanent else subject.live)]
            left = () if permanent else tuple(v._replace(deleted=True) for v in subject.versions)
            return replace(subject, versions=left)

        self._store.change(name, decide, ends_settings=permanent)
        return deleted

    def delete_version(self, name: str, version: str, *, permanent: bool) -> int:
        """Like `delete_subject`, for one version."""
        mode = self._levels.mode_of(name)
        deleted: list[int] = []

        def decide(subject: Subject) -> Subject:
            check_writable(name, mode)
            target = self._pick(subject, version, deleted=True)
            what = f"Subject '{name}' Version {target.version}"
            if permanent and not target.deleted:
                message = f"{what} was not deleted first before being permanently deleted"
                raise RegistryError(errors.VERSION_NOT_SOFT_DELETED, message)
            if not permanent and target.deleted:
                message = f"{what} was soft deleted. Set permanent=true to delete permanently"
                raise RegistryError(errors.VERSION_SOFT_DELETED, message)
            deleted[:] = [target.version]
            if permanent:
                return replace(subject, versions=tuple(v for v in subject.versions if v != target))
            marked = tuple(v._replace(deleted=True) if v == target else v for v in subject.versions)
            return replace(subject, versions=marked)

        self._store.change(name, decide)
        return deleted[0]

    # --- schemas ---

    def known_schema(self, schema_id: int) -> StoredSchema | None:
        """Returns a schema if it is in memory. Never waits."""
        return None if self._sources.contradicts(schema_id) else self._store.known_schema(schema_id)

    def schema(self, schema_id: int, *, local: bool = False) -> StoredSchema:
        """Returns a schema, from another datacenter's registry if need be, unless `local`.

        Raises `SchemaConflictError` if two datacenters have different schemas for the id.
        """
        schema = self._store.schema(schema_id)
        if local or (schema is not None and not self._sources.contradicts(schema_id)):
            found = None
        else:
            found = self._sources.find(schema_id, None if schema is None else schema.text)
        if schema is None and found is not None:
            return StoredSchema(found)
        if schema is None:
            raise RegistryError(errors.SCHEMA_NOT_FOUND, f"Schema {shown(schema_id)} not found")
        return schema

    def schema_of_guid(self, guid: str) -> StoredSchema:
        schema_id = id_of_guid(guid)
        schema = None if schema_id is None else self._store.schema(schema_id)
        if schema is None or (schema.guid or self._parsed(schema.text).guid) != guid.lower():
            raise RegistryError(errors.SCHEMA_NOT_FOUND, f"Schema {shown(guid)} not found")
        return schema

    def ids_of_guid(self, guid: str) -> list[dict[str, Any]]:
        """Returns the id of a GUID's schema in each context: there is one context here."""
        self.schema_of_guid(guid)
        return [{"context": ".", "id": id_of_guid(guid)}]

    def uses(
        self, schema_id: int, *, subject: str | None = None, deleted: bool = False
    ) -> list[dict[str, Any]]:
        """Returns every subject and version that has the schema."""
        self.schema(schema_id)
        return [
            {"subject": user.name, "version": v.version}
            for user in self._store.users(schema_id)
            if subject in (None, user.name)
            for v in (user.versions if deleted else user.live)
            if v.schema_id == schema_id
        ]

    def all_schemas(
        self, *, prefix: str, deleted: bool, latest_only: bool, part: slice
    ) -> list[dict[str, Any]]:
        """Returns a part of all versions, sorted by subject."""
        listed: list[tuple[str, SubjectVersion]] = []
        for subject in self._store.subjects():
            if subject.name.startswith(prefix):
                versions = subject.versions if deleted else subject.live
                listed += [(subject.name, v) for v in (versions[-1:] if latest_only else versions)]
        listed = listed[part][:PAGE_MAX]
        described: list[dict[str, Any]] = []
        size_bytes = 0
        for start in range(0, len(listed), READ_AT_ONCE_MAX):
            some = listed[start : start + READ_AT_ONCE_MAX]
            schemas = self._store.schemas(v.schema_id for _, v in some)
            described += [
                _description(name, v, schemas[v.schema_id]) for name, v in some if v.schema_id in schemas
            ]
            size_bytes += sum(len(schema.text) for schema in schemas.values())
            if size_bytes > PAGE_MAX_BYTES:
                raise RegistryError(
                    422,
                    f"The schemas of this list have more than {PAGE_MAX_BYTES} bytes: ask for fewer, with "
                    f"?limit={max(1, len(described) // 2)}&offset=…",
                )
        return described

    # --- compatibility ---

    def check(self, name: str, version: str | None, body: dict[str, Any]) -> list[str]:
        """Returns the schema's incompatibilities with `version`; None: with those that `register` checks.

        Any schema is compatible with a subject that has no version yet.
        """
        schema = self._read(name, body)
        subject = self._store.subject(name)
        if all(each.schema_id != schema.schema_id for each in subject.live):
            _check_names(name, schema)
        level, _ = self._levels.enforced(name)
        if version is None:
            return self._incompatibilities(name, level, schema, subject.live)
        if version in LATEST and not subject.live:
            return []
        return self._incompatibilities(name, level, schema, [self._pick(subject, version)])

    # --- details ---

    def _read(self, name: str, body: dict[str, Any]) -> ParsedSchema:
        """Returns the schema that a request sends for a subject."""
        try:
            return self._workers.parse(schema_text(body))
        except InvalidSchemaError as error:
            raise RegistryError(
                errors.INVALID_SCHEMA, f"Invalid schema for subject '{name}': {error}"
            ) from None

    def _parsed(self, stored: str) -> ParsedSchema:
        try:
            return self._workers.parse(stored)
        except InvalidSchemaError as error:
            raise RegistryError(errors.STORE_FAILED, f"A stored schema can't be read: {error}") from None

    def _is_same(self, schema: ParsedSchema, stored: str) -> bool:
        return stored == schema.text or self._parsed(stored).is_same_as(schema)

    def _id_taken(self, name: str, schema: ParsedSchema) -> RegistryError:
        users = [user.name for user in self._store.users(schema.schema_id)]
        where = f"of subject '{users[0]}'" if users else "that no subject uses any more"
        return RegistryError(
            errors.ID_TAKEN,
            f"The schema for subject '{name}' can't be registered: the id that follows from its content, "
            f"{schema.schema_id}, belongs to another schema, {where}. Change the schema in any way, for "
            "example its doc, and register it again",
        )

    def _check_compatible(self, level: Level, schema: ParsedSchema, subject: Subject) -> None:
        problems = self._incompatibilities(subject.name, level, schema, subject.live)
        if problems:
            raise RegistryError(
                errors.INCOMPATIBLE,
                "Schema being registered is incompatible with an earlier schema "
                f"for subject '{subject.name}', details: {problems}",
            )

    def _incompatibilities(
        self, name: str, level: Level, schema: ParsedSchema, versions: Iterable[SubjectVersion]
    ) -> list[str]:
        if level is Level.NONE:
            return []
        needed = list(versions) if level.transitive else list(versions)[-1:]
        earlier: list[tuple[int, str]] = []
        size_bytes = 0
        for version in needed:
            stored = self._store.schema(version.schema_id)
            if stored is None:
                continue
            earlier.append((version.version, stored.text))
            size_bytes += len(stored.text)
            if size_bytes > COMPARED_MAX_BYTES:
                raise RegistryError(
                    errors.INVALID_SCHEMA,
                    f"The {len(needed)} versions of subject '{name}' have more than {COMPARED_MAX_BYTES} "
                    f"bytes, too many to compare at level {level.value}: delete old versions, or use a "
                    "level that compares with the newest one alone",
                )
        try:
            return self._workers.incompatibilities(level, schema, earlier)
        except InvalidSchemaError as error:
            raise RegistryError(
                errors.INVALID_SCHEMA, f"Invalid schema for subject '{name}': {error}"
            ) from None

    def _pick(self, subject: Subject, version: str, *, deleted: bool = False) -> SubjectVersion:
        versions = subject.versions if deleted else subject.live
        if version in LATEST:
            candidates = subject.live or versions
            if not candidates:
                raise subject_not_found(subject.name)
            return candidates[-1]
        digits = version.isascii() and version.isdecimal() and len(version) <= len(str(VERSION_MAX))
        if not digits or not 1 <= int(version) <= VERSION_MAX:
            raise RegistryError(
                errors.INVALID_VERSION,
                f"The specified version {shown(version)} is not a valid version id. "
                'Allowed values are between [1, 2^31-1] and the string "latest"',
            )
        if not versions:
            raise subject_not_found(subject.name)
        found = subject.find(int(version))
        if found is None or found not in versions:
            raise version_not_found(version)
        return found

    def _described(self, name: str, found: SubjectVersion) -> dict[str, Any]:
        return _description(name, found, self.schema(found.schema_id))


def _check_names(name: str, schema: ParsedSchema) -> None:
    """Refuses a new schema that Java's Avro does not read. Those that are registered stay registered."""
    if schema.illegal_name:
        raise RegistryError(
            errors.INVALID_SCHEMA, f"Invalid schema for subject '{name}': {schema.illegal_name}"
        )


def _description(name: str, found: SubjectVersion, schema: StoredSchema) -> dict[str, Any]:
    return {
        "subject": name,
        "version": found.version,
        "id": found.schema_id,
        **({"guid": schema.guid} if schema.guid else {}),
        "schemaType": AVRO,
        "schema": schema.text,
    }
