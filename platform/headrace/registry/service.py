"""The requests of Confluent's REST interface, without HTTP, over the store.

Raises `RegistryError` with Confluent's codes. Every method may run in several threads and processes at once.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

from headrace.registry import errors
from headrace.registry.compatibility import DEFAULT_LEVEL, Level, incompatibilities
from headrace.registry.errors import RegistryError
from headrace.registry.schemas import InvalidSchemaError, ParsedSchema, parse
from headrace.registry.store import IdCollisionError, SchemaStore, Subject, SubjectVersion

AVRO: Final = "AVRO"
READWRITE: Final = "READWRITE"
READONLY: Final = "READONLY"
MODES: Final = (READWRITE, READONLY)
VERSION_MAX: Final = 2**31 - 1


def read_schema(body: dict[str, Any]) -> ParsedSchema:
    """Returns the schema in a request's body: only Avro, and only without references."""
    kind = body.get("schemaType", AVRO)
    if kind != AVRO:
        raise RegistryError(
            errors.INVALID_SCHEMA, f"Invalid schema type {kind}: this registry supports only AVRO"
        )
    if body.get("references"):
        raise RegistryError(
            errors.INVALID_SCHEMA,
            "Schema references are not supported: include the referenced types in the schema itself",
        )
    for name in ("metadata", "ruleSet"):
        if body.get(name):
            raise RegistryError(errors.INVALID_SCHEMA, f"'{name}' is not supported by this registry")
    text = body.get("schema")
    if not isinstance(text, str) or not text.strip():
        raise RegistryError(errors.INVALID_SCHEMA, 'Empty schema: the body must have a string "schema"')
    try:
        return parse(text)
    except InvalidSchemaError as error:
        raise RegistryError(errors.INVALID_SCHEMA, f"Invalid schema: {error}") from None


class SchemaRegistry:
    """The schema registry's operations. Settings with the subject `None` are the global ones."""

    def __init__(self, store: SchemaStore) -> None:
        self._store = store

    # --- subjects and versions ---

    def subjects(self, *, prefix: str = "", deleted: bool = False, deleted_only: bool = False) -> list[str]:
        def listed(subject: Subject) -> bool:
            if deleted_only:
                return not subject.live
            return deleted or bool(subject.live)

        return [s.name for s in self._store.subjects() if s.name.startswith(prefix) and listed(s)]

    def versions(self, name: str, *, deleted: bool = False, deleted_only: bool = False) -> list[int]:
        subject = self._store.subject(name)
        found = [
            v.version for v in subject.versions if (v.deleted if deleted_only else deleted or not v.deleted)
        ]
        if not found:
            raise _subject_not_found(name)
        return found

    def version(self, name: str, version: str, *, deleted: bool = False) -> dict[str, Any]:
        """`version` is a number, "latest" or "-1"."""
        subject = self._store.subject(name)
        found = self._pick(subject, version, deleted=deleted)
        return self._described(name, found)

    def register(self, name: str, body: dict[str, Any], *, normalize: bool) -> dict[str, Any]:
        """Registers a schema as the next version unless it is registered; returns id, version and schema."""
        _check_subject(name)
        schema = read_schema(body)
        # Clients that copy a registry send the id. Here it follows from the schema and cannot be chosen.
        if body.get("id") not in (None, -1, schema.schema_id):
            raise RegistryError(
                errors.INVALID_SCHEMA, f"This schema's id is {schema.schema_id}, not {body['id']}"
            )
        level, normalize_set = self._level(name)
        text = schema.normal_text if normalize or normalize_set else schema.text
        mode = self._mode(name)

        def decide(subject: Subject) -> SubjectVersion | None:
            present = [v for v in subject.live if v.schema_id == schema.schema_id]
            if present:
                return present[-1]
            _check_writable(name, mode)
            self._check_compatible(level, schema, subject)
            return None

        try:
            added = self._store.add(name, schema.schema_id, text, decide)
        except IdCollisionError as error:
            raise RegistryError(
                errors.INVALID_SCHEMA, f"{error}; change the schema, for example its doc"
            ) from None
        return self._described(name, added)

    def lookup(self, name: str, body: dict[str, Any], *, deleted: bool = False) -> dict[str, Any]:
        """Returns the version of the subject that has this schema."""
        subject = self._store.subject(name)
        versions = subject.versions if deleted else subject.live
        if not versions:
            raise _subject_not_found(name)
        schema = read_schema(body)
        found = [version for version in versions if version.schema_id == schema.schema_id]
        if not found:
            raise RegistryError(errors.SCHEMA_NOT_FOUND, f"Schema not found in subject '{name}'")
        return self._described(name, found[-1])

    def delete_subject(self, name: str, *, permanent: bool) -> list[int]:
        """Marks all versions as deleted; with `permanent`, removes a subject that was marked before.

        Returns the version numbers.
        """
        mode = self._mode(name)
        deleted: list[int] = []

        def decide(subject: Subject) -> Subject:
            _check_writable(name, mode)
            if not subject.versions:
                raise _subject_not_found(name)
            if permanent and subject.live:
                message = f"Subject '{name}' was not deleted first before being permanently deleted"
                raise RegistryError(errors.SUBJECT_NOT_SOFT_DELETED, message)
            if not permanent and not subject.live:
                message = f"Subject '{name}' was soft deleted. Set permanent=true to delete permanently"
                raise RegistryError(errors.SUBJECT_SOFT_DELETED, message)
            deleted[:] = [v.version for v in (subject.versions if permanent else subject.live)]
            left = () if permanent else tuple(v._replace(deleted=True) for v in subject.versions)
            return replace(subject, versions=left)

        self._store.change(name, decide)
        if permanent:
            self._store.set(name, compatibility=None, normalize=None, mode=None)
        return deleted

    def delete_version(self, name: str, version: str, *, permanent: bool) -> int:
        """Like `delete_subject`, for one version."""
        mode = self._mode(name)
        deleted: list[int] = []

        def decide(subject: Subject) -> Subject:
            _check_writable(name, mode)
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

    def schema(self, schema_id: int) -> str:
        text = self._store.schema(schema_id)
        if text is None:
            raise RegistryError(errors.SCHEMA_NOT_FOUND, f"Schema {schema_id} not found")
        return text

    def uses(
        self, schema_id: int, *, subject: str | None = None, deleted: bool = False
    ) -> list[dict[str, Any]]:
        """Returns every subject and version that has the schema."""
        self.schema(schema_id)
        return [
            {"subject": user.name, "version": v.version}
            for user in self._store.subjects()
            if subject in (None, user.name)
            for v in (user.versions if deleted else user.live)
            if v.schema_id == schema_id
        ]

    def all_schemas(self, *, prefix: str, deleted: bool, latest_only: bool) -> list[dict[str, Any]]:
        listed: list[tuple[str, SubjectVersion]] = []
        for subject in self._store.subjects():
            if subject.name.startswith(prefix):
                versions = subject.versions if deleted else subject.live
                listed += [(subject.name, v) for v in (versions[-1:] if latest_only else versions)]
        texts = self._store.schemas([v.schema_id for _, v in listed])
        pairs = zip(listed, texts, strict=True)
        return [_description(name, version, text) for (name, version), text in pairs if text is not None]

    # --- compatibility ---

    def check(self, name: str, version: str | None, body: dict[str, Any]) -> list[str]:
        """Returns the schema's incompatibilities with `version`; None: with those that `register` checks."""
        schema = read_schema(body)
        subject = self._store.subject(name)
        level, _ = self._level(name)
        if version is None:
            return incompatibilities(level, schema.text, self._texts(level, subject.live))
        return incompatibilities(level, schema.text, self._texts(level, [self._pick(subject, version)]))

    # --- settings ---

    def level(self, name: str | None, *, default_to_global: bool = True) -> dict[str, Any]:
        settings = self._store.settings(name)
        if name is not None and settings.compatibility is None and settings.normalize is None:
            if not default_to_global:
                message = f"Subject '{name}' does not have subject-level compatibility configured"
                raise RegistryError(errors.SUBJECT_LEVEL_NOT_CONFIGURED, message)
            settings = self._store.settings(None)
        level: dict[str, Any] = {"compatibilityLevel": settings.compatibility or DEFAULT_LEVEL.value}
        return level if settings.normalize is None else {**level, "normalize": settings.normalize}

    def set_level(self, name: str | None, body: dict[str, Any]) -> dict[str, Any]:
        changed: dict[str, Any] = {}
        level = body.get("compatibility")
        if level is not None:
            if not isinstance(level, str) or level.upper() not in Level.__members__:
                raise RegistryError(
                    errors.INVALID_LEVEL,
                    f"Invalid compatibility level {level!r}. Valid values are {', '.join(Level.__members__)}",
                )
            changed["compatibility"] = level.upper()
        if isinstance(body.get("normalize"), bool):
            changed["normalize"] = body["normalize"]
        unknown = [key for key, value in body.items() if value is not None and key not in changed]
        if unknown or not changed:
            problem = f"cannot set {', '.join(sorted(unknown))}" if unknown else "nothing to set"
            raise RegistryError(
                errors.INVALID_LEVEL, f"Invalid config: {problem}; supported are compatibility and normalize"
            )
        _check_writable(name or "", self._mode(name))
        self._store.set(name, **changed)
        return changed

    def delete_level(self, name: str | None) -> dict[str, Any]:
        """Resets the level to the default; for a subject, to the global level. Returns the level before."""
        before = self.level(name, default_to_global=False)
        _check_writable(name or "", self._mode(name))
        self._store.set(name, compatibility=None, normalize=None)
        return before

    def mode(self, name: str | None, *, default_to_global: bool = True) -> dict[str, str]:
        mode = self._store.settings(name).mode
        if mode is None and name is not None and not default_to_global:
            message = f"Subject '{name}' does not have subject-level mode configured"
            raise RegistryError(errors.SUBJECT_MODE_NOT_CONFIGURED, message)
        return {"mode": self._mode(name)}

    def set_mode(self, name: str | None, body: dict[str, Any]) -> dict[str, str]:
        mode = body.get("mode")
        if not isinstance(mode, str) or mode.upper() not in MODES:
            raise RegistryError(
                errors.INVALID_MODE, f"Invalid mode {mode!r}. Valid values are {', '.join(MODES)}"
            )
        self._store.set(name, mode=mode.upper())
        return {"mode": mode.upper()}

    def delete_mode(self, name: str | None) -> dict[str, str]:
        before = self.mode(name, default_to_global=False)
        self._store.set(name, mode=None)
        return before

    # --- details ---

    def _level(self, name: str) -> tuple[Level, bool]:
        """Returns the level that applies and whether schemas are normalized."""
        own, default = self._store.settings(name), self._store.settings(None)
        level = own.compatibility or default.compatibility or DEFAULT_LEVEL.value
        return Level(level), bool(own.normalize if own.normalize is not None else default.normalize)

    def _mode(self, name: str | None) -> str:
        own = None if name is None else self._store.settings(name).mode
        return own or self._store.settings(None).mode or READWRITE

    def _check_compatible(self, level: Level, schema: ParsedSchema, subject: Subject) -> None:
        problems = incompatibilities(level, schema.text, self._texts(level, subject.live))
        if problems:
            raise RegistryError(
                errors.INCOMPATIBLE,
                "Schema being registered is incompatible with an earlier schema "
                f"for subject '{subject.name}', details: {problems}",
            )

    def _texts(self, level: Level, versions: Iterable[SubjectVersion]) -> list[tuple[int, str]]:
        needed = list(versions) if level.transitive else list(versions)[-1:]
        texts = self._store.schemas([v.schema_id for v in needed])
        return [(v.version, text) for v, text in zip(needed, texts, strict=True) if text is not None]

    def _pick(self, subject: Subject, version: str, *, deleted: bool = False) -> SubjectVersion:
        versions = subject.versions if deleted else subject.live
        if version in {"latest", "-1"}:
            candidates = subject.live or versions
            if not candidates:
                raise _subject_not_found(subject.name)
            return candidates[-1]
        if not version.isascii() or not version.isdecimal() or not 1 <= int(version) <= VERSION_MAX:
            raise RegistryError(
                errors.INVALID_VERSION,
                f"The specified version '{version}' is not a valid version id. "
                'Allowed values are between [1, 2^31-1] and the string "latest"',
            )
        if not versions:
            raise _subject_not_found(subject.name)
        found = subject.find(int(version))
        if found is None or found not in versions:
            raise _version_not_found(version)
        return found

    def _described(self, name: str, found: SubjectVersion) -> dict[str, Any]:
        return _description(name, found, self.schema(found.schema_id))


def _description(name: str, found: SubjectVersion, text: str) -> dict[str, Any]:
    return {
        "subject": name,
        "version": found.version,
        "id": found.schema_id,
        "schemaType": AVRO,
        "schema": text,
    }


def _subject_not_found(name: str) -> RegistryError:
    return RegistryError(errors.SUBJECT_NOT_FOUND, f"Subject '{name}' not found.")


def _version_not_found(version: str) -> RegistryError:
    return RegistryError(errors.VERSION_NOT_FOUND, f"Version {version} not found.")


def _check_subject(name: str) -> None:
    if not name or name.startswith(":.") or any(ord(c) < 32 for c in name):
        raise RegistryError(
            errors.INVALID_SUBJECT,
            f"The specified subject '{name}' is not a valid subject: it must not be empty, "
            "contain control characters or name a context (:.name:)",
        )


def _check_writable(name: str, mode: str) -> None:
    if mode == READONLY:
        scope = f"Subject '{name}'" if name else "The registry"
        raise RegistryError(errors.NOT_PERMITTED, f"{scope} is in read-only mode")
