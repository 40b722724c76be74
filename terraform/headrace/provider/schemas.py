"""Schemas as resources: the newest version of a registry's subject.

Owns what a plan of a schema refuses: text that is not JSON or no Avro schema, and a schema that is
incompatible with earlier versions. A change registers a new version; older versions stay, because data refers
to them.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from tf.types import Unknown

from headrace.provider.attributes import Attribute, BlockSchema
from headrace.provider.planning import ResourceChange, ResourcePlan, replaces_of
from headrace.provider.problems import Problem, ResourceError
from headrace.provider.resource import Resource, ResourceCall
from headrace.provider.values import Values, is_known
from headrace.registry.errors import (
    INCOMPATIBLE,
    INVALID_LEVEL,
    INVALID_SCHEMA,
    INVALID_SUBJECT,
    SUBJECT_NOT_FOUND,
    SUBJECT_SOFT_DELETED,
    RegistryError,
    RegistryUnavailableError,
)
from headrace.registry.urls import parse_urls

if TYPE_CHECKING:
    from headrace.registry.client import SchemaRegistryClient

TIMEOUT_S: Final = 10.0
LEVELS: Final = (
    *("BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE"),
    *("FULL", "FULL_TRANSITIVE", "NONE"),
)

SCHEMA: Final = BlockSchema(
    (
        Attribute(
            name="registry_url",
            description="The registry's URL, http://HOST:PORT; commas separate several registries of one "
            "datacenter.",
        ),
        Attribute(
            name="subject",
            replaces=True,
            description="The subject. The subject of the values of topic T is T-value.",
        ),
        Attribute(name="schema", description="The Avro schema as JSON: file(…) or jsonencode(…)."),
        Attribute(
            name="compatibility",
            optional=True,
            description=f"The subject's own level: {', '.join(LEVELS)}. Default: the registry's level.",
        ),
        Attribute(name="id", computed=True, description="The subject."),
        Attribute(
            name="schema_id",
            type="number",
            computed=True,
            description="The schema's id, with which framed values refer to it.",
        ),
        Attribute(name="version", type="number", computed=True, description="The subject's newest version."),
    ),
    description="The newest schema of a subject.",
)


class SchemaResource(Resource):
    """One subject."""

    type_name = "schema"
    schema = SCHEMA
    import_id = "`REGISTRY_URL/SUBJECT`, such as `http://127.1.0.3:8081/page-view-value`"

    def validate(self, config: Values) -> list[Problem]:
        problems = []
        text, level, urls = (config.get(name) for name in ("schema", "compatibility", "registry_url"))
        if isinstance(text, str) and (error := _json_error(text)):
            problems.append(Problem("Not an Avro schema", f"It is not JSON: {error}.", ("schema",)))
        if isinstance(level, str) and level not in LEVELS:
            detail = f"compatibility is {level!r}; expected one of {', '.join(LEVELS)}."
            problems.append(Problem("Unknown compatibility level", detail, ("compatibility",)))
        if isinstance(urls, str) and not _are_registries(urls):
            detail = f"registry_url is {urls!r}; expected a URL such as http://127.1.0.3:8081."
            problems.append(Problem("Not a registry URL", detail, ("registry_url",)))
        return problems

    # --- planning ---

    def plan(self, call: ResourceCall, change: ResourceChange) -> ResourcePlan:
        planned, prior = dict(change.planned), change.prior
        if problems := self.validate(planned):
            raise ResourceError(*problems)
        replaces = replaces_of(SCHEMA, change)
        is_new = prior is None or bool(replaces) or not _is_same(prior["schema"], planned["schema"])
        # Another registry may give the version another number: Terraform refuses what was not planned.
        is_new = is_new or "registry_url" in change.changed
        planned["id"] = planned["subject"]
        for name in ("schema_id", "version"):
            planned[name] = Unknown if prior is None or is_new else prior[name]
        if is_new and all(is_known(planned[name]) for name in ("registry_url", "subject", "schema")):
            self._dry_run(planned)
        return ResourcePlan(planned, replaces)

    def _dry_run(self, planned: Values) -> None:
        """Raises `ResourceError` if the registry would refuse the schema; not if it cannot be reached yet."""
        try:
            with _registry(planned, retry_rounds=1) as registry:
                _check_newest(registry, planned)
                incompatibilities = _incompatibilities(registry, planned)
        except RegistryUnavailableError:
            # The registry may be created by this same apply.
            return
        except RegistryError as error:
            raise ResourceError(_refused(error)) from error
        if incompatibilities:
            raise ResourceError(_incompatible(planned, incompatibilities))

    def plan_deletion(self, call: ResourceCall, prior: Values) -> None:
        self.context.deleted_subjects.add(prior["subject"])

    # --- reading and applying ---

    def read(self, call: ResourceCall, state: Values) -> Values | None:
        try:
            subject = _read_subject(state)
        except RegistryUnavailableError as error:
            call.warn_unreachable(f"Subject {state['subject']}", error)
            return state
        if subject is not None and _is_same(state["schema"], subject["schema"]):
            subject["schema"] = state["schema"]
        return None if subject is None else {**state, **subject}

    def create(self, call: ResourceCall, planned: Values) -> Values:
        return self._register(planned, None)

    def update(self, call: ResourceCall, prior: Values, planned: Values) -> Values:
        return self._register(planned, prior)

    def _register(self, planned: Values, prior: Values | None) -> Values:
        subject, level = planned["subject"], planned["compatibility"]
        with _registry(planned) as registry:
            try:
                level_before = _level_before(registry, planned, prior)
                if level is not None and level_before != level:
                    registry.set_config(level, subject)
                if level is None and level_before is not None:
                    registry.delete_config(subject)
                schema_id = registry.register(subject, planned["schema"])
                version = registry.lookup(subject, planned["schema"]).version
            except RegistryError as error:
                if error.error_code == INCOMPATIBLE:
                    raise ResourceError(_incompatible(planned, [error.message]), state=prior) from error
                raise ResourceError(_refused(error), state=prior) from error
        return {**planned, "schema_id": schema_id, "version": version}

    def delete(self, call: ResourceCall, prior: Values) -> None:
        with _registry(prior) as registry:
            try:
                registry.delete_subject(prior["subject"])
            except RegistryError as error:
                if error.error_code not in (SUBJECT_NOT_FOUND, SUBJECT_SOFT_DELETED):
                    raise ResourceError(_refused(error)) from error

    def import_(self, call: ResourceCall, identity: str) -> Values:
        url, subject = self.split_import_id(identity)
        if not _are_registries(url):
            raise self.invalid_import_id(identity)
        inputs = {"registry_url": url, "subject": subject, "id": subject}
        found = _read_subject(inputs)
        if found is None:
            text = f"The registry at {url} has no subject of this name."
            raise ResourceError(Problem(f"There is no subject {subject!r}", text))
        return {**inputs, **found}


def _check_newest(registry: SchemaRegistryClient, planned: Values) -> None:
    """Raises `ResourceError` if the schema is an older version: a registry does not return to those."""
    subject = planned["subject"]
    try:
        found, newest = registry.lookup(subject, planned["schema"]), registry.latest(subject)
    except RegistryError as error:
        if error.status == 404:
            return
        raise
    if found.version != newest.version:
        raise ResourceError(
            Problem(
                f"This is version {found.version} of {subject}, and {newest.version} is the newest",
                "A registry cannot return to an older version. Use the newest schema, or delete the versions "
                "after this one.",
                ("schema",),
            )
        )


def _incompatibilities(registry: SchemaRegistryClient, planned: Values) -> list[str]:
    """Returns why the schema is incompatible with earlier versions, by the level in force."""
    subject, text = planned["subject"], planned["schema"]
    level = registry.config(subject)
    if planned["compatibility"] not in (None, level):
        # The apply sets the new level first, and a registry cannot check by a level that is not in force.
        return []
    if not level.endswith("_TRANSITIVE"):
        return registry.check_compatibility(subject, text)
    try:
        versions = registry.versions(subject)
    except RegistryError as error:
        if error.error_code != SUBJECT_NOT_FOUND:
            raise
        versions = []
    found = [
        message
        for version in versions
        for message in registry.check_compatibility(subject, text, version=version)
    ]
    # A subject without versions accepts any schema, but only a valid one.
    return found or registry.check_compatibility(subject, text)


def _registry(values: Values, *, retry_rounds: int = 3) -> SchemaRegistryClient:
    # Imported here because the import is slow, and only schemas need it.
    from headrace.registry.client import SchemaRegistryClient

    return SchemaRegistryClient(values["registry_url"], timeout_s=TIMEOUT_S, retry_rounds=retry_rounds)


def _level_before(registry: SchemaRegistryClient, planned: Values, prior: Values | None) -> str | None:
    """Returns the subject's own level before the change. Another registry knows nothing of the state's."""
    if prior is None:
        return None
    if prior["registry_url"] == planned["registry_url"]:
        level: str | None = prior["compatibility"]
        return level
    return registry.own_config(planned["subject"])


def _read_subject(state: Values) -> dict[str, Any] | None:
    """Returns the subject's attributes as the registry reports them; None if it has no version."""
    with _registry(state, retry_rounds=1) as registry:
        try:
            latest = registry.latest(state["subject"])
        except RegistryError as error:
            if error.error_code in (SUBJECT_NOT_FOUND, SUBJECT_SOFT_DELETED):
                return None
            raise
        level = registry.own_config(state["subject"])
    return {
        "schema": latest.schema,
        "schema_id": latest.schema_id,
        "version": latest.version,
        "compatibility": level,
    }


def _are_registries(urls: str) -> bool:
    """Whether these are URLs, separated by commas, as the registry's client takes them."""
    try:
        parse_urls(urls)
    except ValueError:
        return False
    return all(url.startswith(("http://", "https://")) for url in urls.split(","))


def _is_same(one: object, other: object) -> bool:
    """Whether two texts are the same JSON: as the registry does, 0, 0.0 and false are distinguished."""
    if not isinstance(one, str) or not isinstance(other, str):
        return False
    try:
        return _normal(one) == _normal(other)
    except (ValueError, RecursionError):
        return one == other


def _normal(text: str) -> str:
    return json.dumps(json.loads(text), sort_keys=True)


def _json_error(text: str) -> Exception | None:
    try:
        json.loads(text)
    except (ValueError, RecursionError) as error:
        return error
    return None


def _incompatible(planned: Values, incompatibilities: list[str]) -> Problem:
    lines = "\n".join(f"- {line}" for line in incompatibilities)
    return Problem(
        f"The schema is incompatible with earlier versions of {planned['subject']}",
        f"{lines}\n\nConsumers with one version could not read data written with the other. Give new "
        "fields a default, keep required fields as they are, or use another subject.",
        ("schema",),
    )


def _refused(error: Exception) -> Problem:
    attributes = {INVALID_SCHEMA: "schema", INVALID_LEVEL: "compatibility", INVALID_SUBJECT: "subject"}
    name = attributes.get(getattr(error, "error_code", 0))
    return Problem("The registry refuses the request", f"{error}.", (name,) if name else ())
