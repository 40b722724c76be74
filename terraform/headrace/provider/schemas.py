"""Schemas as resources: a subject of a registry, and the schema that is its newest version.

Owns what a plan of a schema refuses: what is no Avro schema, and what may not follow the version before. A
change registers a new version; older ones stay, since what was written with them does.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from tf.types import Unknown

from headrace.provider.attributes import Attribute, Schema
from headrace.provider.planning import Change, Plan, replaces_of
from headrace.provider.resource import Call, Resource
from headrace.provider.values import (
    ResourceError,
    Trouble,
    Values,
    is_known,
)

if TYPE_CHECKING:
    from headrace.registry.client import SchemaRegistryClient

TIMEOUT_S: Final = 10.0
LEVELS: Final = (
    *("BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE"),
    *("FULL", "FULL_TRANSITIVE", "NONE"),
)

SCHEMA: Final = Schema(
    (
        Attribute(
            name="registry_url",
            description="The registry, http://HOST:PORT; several of one datacenter with commas.",
        ),
        Attribute(
            name="subject", replaces=True, description="The subject; the values' of topic t is t-value."
        ),
        Attribute(name="schema", description="The Avro schema, JSON: file(…) or jsonencode(…)."),
        Attribute(
            name="compatibility",
            optional=True,
            description=f"The subject's own level, {', '.join(LEVELS)}; left out, the registry's.",
        ),
        Attribute(name="id", computed=True, description="The subject."),
        Attribute(name="schema_id", type="number", computed=True, description="The id in each framed value."),
        Attribute(name="version", type="number", computed=True, description="The subject's newest version."),
    ),
    description="The newest schema of a subject.",
)


class SchemaResource(Resource):
    """One subject."""

    type_name = "schema"

    @classmethod
    def get_schema(cls) -> Schema:
        return SCHEMA

    def validate(self, config: Values) -> list[Trouble]:
        troubles = []
        text, level, url = config.get("schema"), config.get("compatibility"), config.get("registry_url")
        if isinstance(text, str) and (reason := _is_no_json(text)):
            troubles.append(Trouble("This is no Avro schema", reason, ("schema",)))
        if isinstance(level, str) and level not in LEVELS:
            reason = f"It says {level!r}; there are {', '.join(LEVELS)}."
            troubles.append(Trouble("This is no level of compatibility", reason, ("compatibility",)))
        if isinstance(url, str) and not all(
            each.startswith(("http://", "https://")) for each in url.split(",")
        ):
            reason = f"It says {url!r}; expected such as http://127.1.0.3:8081."
            troubles.append(Trouble("This is no URL of a registry", reason, ("registry_url",)))
        return troubles

    # plan

    def plan(self, call: Call, change: Change) -> Plan:
        planned, prior = dict(change.planned), change.prior
        if troubles := self.validate(planned):
            raise ResourceError(*troubles)
        replaces = replaces_of(SCHEMA, change)
        is_new = prior is None or bool(replaces) or not _is_same(prior["schema"], planned["schema"])
        planned["id"] = planned["subject"]
        for name in ("schema_id", "version"):
            planned[name] = Unknown if prior is None or is_new else prior[name]
        if is_new and all(is_known(planned[name]) for name in ("registry_url", "subject", "schema")):
            self._check(planned)
        return Plan(planned, replaces)

    def _check(self, planned: Values) -> None:
        """Raises `ResourceError` for what the registry would refuse, if it can be asked already."""
        from headrace.registry.errors import RegistryError, RegistryUnavailableError

        try:
            with _registry(planned, retry_rounds=1) as registry:
                _check_newest(registry, planned)
                reasons = _reasons_against(registry, planned)
        except RegistryUnavailableError:
            # It may be made by this very apply.
            return
        except RegistryError as error:
            raise ResourceError(_refused(error)) from error
        if reasons:
            raise ResourceError(_incompatible(planned, reasons))

    # life

    def read(self, call: Call, state: Values) -> Values | None:
        from headrace.registry.errors import RegistryUnavailableError

        try:
            found = _found(state)
        except RegistryUnavailableError as error:
            # Else a registry that stands still could not be mended: no plan without all that it reads.
            text = f"The plan takes it as it was last seen: {error}."
            call.warn(f"Subject {state['subject']} could not be looked at", text)
            return state
        if found is not None and _is_same(state["schema"], found["schema"]):
            found["schema"] = state["schema"]
        return None if found is None else {**state, **found}

    def create(self, call: Call, planned: Values) -> Values:
        return self._register(planned, None)

    def update(self, call: Call, prior: Values, planned: Values) -> Values:
        return self._register(planned, prior)

    def _register(self, planned: Values, prior: Values | None) -> Values:
        from headrace.registry.errors import INCOMPATIBLE, RegistryError

        subject, level = planned["subject"], planned["compatibility"]
        with _registry(planned) as registry:
            try:
                if level is not None and (prior is None or prior["compatibility"] != level):
                    registry.set_config(level, subject)
                if level is None and prior is not None and prior["compatibility"] is not None:
                    registry.delete_config(subject)
                schema_id = registry.register(subject, planned["schema"])
                version = registry.lookup(subject, planned["schema"]).version
            except RegistryError as error:
                if error.error_code == INCOMPATIBLE:
                    raise ResourceError(_incompatible(planned, [error.message]), state=prior) from error
                raise ResourceError(_refused(error), state=prior) from error
        return {**planned, "schema_id": schema_id, "version": version}

    def delete(self, call: Call, prior: Values) -> None:
        from headrace.registry.errors import SUBJECT_NOT_FOUND, SUBJECT_SOFT_DELETED, RegistryError

        with _registry(prior) as registry:
            try:
                registry.delete_subject(prior["subject"])
            except RegistryError as error:
                if error.error_code not in (SUBJECT_NOT_FOUND, SUBJECT_SOFT_DELETED):
                    raise ResourceError(_refused(error)) from error

    def import_(self, call: Call, identity: str) -> Values:
        url, slash, subject = identity.rpartition("/")
        if not slash or not subject or not url.startswith(("http://", "https://")):
            text = "The import id of a schema is URL/SUBJECT, such as http://127.1.0.3:8081/page-view-value."
            raise ResourceError(Trouble(f"{identity!r} names no subject", text))
        state = {"registry_url": url, "subject": subject, "id": subject}
        found = _found(state)
        if found is None:
            raise ResourceError(
                Trouble(f"There is no subject {subject!r}", f"The registry at {url} says so.")
            )
        return {**state, **found}


def _check_newest(registry: SchemaRegistryClient, planned: Values) -> None:
    """Raises `ResourceError` for a schema that is an older version: a registry does not go back."""
    from headrace.registry.errors import RegistryError

    subject = planned["subject"]
    try:
        found, newest = registry.lookup(subject, planned["schema"]), registry.latest(subject)
    except RegistryError as error:
        if error.status == 404:
            return
        raise
    if found.version != newest.version:
        raise ResourceError(
            Trouble(
                f"This is version {found.version} of {subject}, and {newest.version} is the newest",
                "A registry does not go back to an older version. Let the HCL have the newest, or delete the "
                "versions after this one.",
                ("schema",),
            )
        )


def _reasons_against(registry: SchemaRegistryClient, planned: Values) -> list[str]:
    """Why the schema may not follow, by the level in force."""
    from headrace.registry.errors import SUBJECT_NOT_FOUND, RegistryError

    subject, text = planned["subject"], planned["schema"]
    level = registry.config(subject)
    if planned["compatibility"] not in (None, level):
        # The new level comes first, and no registry tells what another one would say.
        return []
    if not level.endswith("_TRANSITIVE"):
        return registry.check_compatibility(subject, text)
    try:
        versions = registry.versions(subject)
    except RegistryError as error:
        if error.error_code == SUBJECT_NOT_FOUND:
            versions = []
        else:
            raise
    found = [registry.check_compatibility(subject, text, version=each) for each in versions]
    # A subject without versions takes any schema, but it must be one.
    return [reason for each in found for reason in each] or registry.check_compatibility(subject, text)


def _registry(values: Values, *, retry_rounds: int = 3) -> SchemaRegistryClient:
    from headrace.registry.client import SchemaRegistryClient

    return SchemaRegistryClient(values["registry_url"], timeout_s=TIMEOUT_S, retry_rounds=retry_rounds)


def _found(state: Values) -> dict[str, Any] | None:
    """The subject as the registry knows it; None when it has no version."""
    from headrace.registry.errors import SUBJECT_NOT_FOUND, SUBJECT_SOFT_DELETED, RegistryError

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


def _is_same(one: object, other: object) -> bool:
    """Whether two texts are the same JSON."""
    if not isinstance(one, str) or not isinstance(other, str):
        return False
    try:
        return bool(json.loads(one) == json.loads(other))
    except ValueError:
        return one == other


def _is_no_json(text: str) -> str | None:
    try:
        json.loads(text)
    except ValueError as error:
        return f"It is not JSON: {error}."
    return None


def _incompatible(planned: Values, reasons: list[str]) -> Trouble:
    said = "\n".join(f"- {reason}" for reason in reasons)
    return Trouble(
        f"The schema may not follow the versions of {planned['subject']}",
        f"{said}\n\nConsumers that have the one could not read what was written with the other. Give a new "
        "field a default, leave required ones as they are, or make another subject.",
        ("schema",),
    )


def _refused(error: Exception) -> Trouble:
    from headrace.registry.errors import INVALID_LEVEL, INVALID_SCHEMA, INVALID_SUBJECT

    about = {INVALID_SCHEMA: "schema", INVALID_LEVEL: "compatibility", INVALID_SUBJECT: "subject"}
    name = about.get(getattr(error, "error_code", 0))
    return Trouble("The registry refuses it", f"{error}.", (name,) if name else ())
