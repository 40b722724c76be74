"""A kind of unit as Terraform knows it: its attributes, and how they become the agent's configuration.

Owns `UnitKind`, derived from the kind's model in `agent.configuration`. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from pydantic import ValidationError

from headrace.agent.configuration import NAME_LENGTH_MAX, NAME_PATTERN, Configuration
from headrace.provider.attributes import Attribute, BlockSchema, attributes_of
from headrace.provider.holdings import ALLOW_DATA_LOSS
from headrace.provider.problems import Problem
from headrace.provider.values import Values, is_known, to_json, without_nulls

_HOST: Final = Attribute(
    name="host", replaces=True, description="The host: a key of the provider's `agents`."
)
_NAME: Final = Attribute(name="name", replaces=True, description="The unit's name, unique on its host.")
# What an agent reports. Plans want `ready` and no `drift`, so a deviation appears as a change.
_REPORTED: Final = (
    Attribute(name="id", computed=True, description="`host/name`: also the import id."),
    Attribute(
        name="listens",
        type=["list", "string"],
        computed=True,
        description="The addresses that the unit listens on.",
    ),
    Attribute(name="version", computed=True, description="The version of its software on the host."),
    Attribute(
        name="ready", type="bool", computed=True, description="Whether it is ready by its own protocol."
    ),
    Attribute(
        name="drift",
        type=["list", "string"],
        computed=True,
        description="How the host differs from what was applied; an apply repairs it.",
    ),
)
# The fields of Airflow's connections. `extra` holds those of a connection type, as strings.
_CONNECTIONS: Final = Attribute(
    name="connections",
    nesting="map",
    default={},
    description="Airflow's connections by id, for the api-server only.",
    type=(
        Attribute(name="conn_type", description="The connection type: headrace, spark, …"),
        Attribute(name="description", optional=True, description="A description for people."),
        Attribute(name="host", optional=True, description="The server's host."),
        Attribute(name="port", type="number", optional=True, description="The server's port."),
        Attribute(name="login", optional=True, description="The user name."),
        Attribute(name="password", optional=True, sensitive=True, description="The password."),
        Attribute(name="schema", optional=True, description="The database on the server, or the like."),
        Attribute(
            name="extra",
            type=["map", "string"],
            optional=True,
            description="Further fields of this connection type.",
        ),
    ),
)
_COMMON_DESCRIPTIONS: Final = {
    "datacenter": "The datacenter that the unit belongs to.",
    "requires": "Units of the same host that must be ready before this unit is first started.",
    "data_dir": "An absolute path on the host. Default: below the agent's home, by the unit's name.",
    "zookeeper": "The datacenter's ZooKeeper: HOST:PORT, several separated by commas, and an optional path.",
    "listen": "HOST:PORT where it listens.",
    "status": "HOST:PORT of its status page.",
}
_UNIT_NAME_RULE: Final = (
    f"expected 1 to {NAME_LENGTH_MAX} lowercase letters, digits and hyphens, beginning with a letter."
)


@dataclass(frozen=True, kw_only=True)
class UnitKind:
    """One kind of unit.

    `model` is its configuration at the agent; `descriptions`: field → description, unless it is a common one.
    `renamed`: field → attribute, where Terraform uses the field's name itself. `replaces`: fields whose
    change requires replacement. `listens_at`: fields that decide where the unit listens.
    `one_at_a_time`: units of the kind in one datacenter are not restarted together. `own`: attributes that
    the agent does not know.
    """

    model: type[Configuration]
    descriptions: Mapping[str, str] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)
    replaces: tuple[str, ...] = ()
    listens_at: tuple[str, ...] = ("listen",)
    holds_data: bool = False
    one_at_a_time: bool = False
    own: tuple[Attribute, ...] = ()

    @cached_property
    def name(self) -> str:
        return str(self.model.model_fields["kind"].default)

    @cached_property
    def schema(self) -> BlockSchema:
        own = attributes_of(
            self.model.model_json_schema(),
            renamed=self.renamed,
            describe=self._describe,
            replaces=("datacenter", *self.replaces),
            special={"connections": _CONNECTIONS},
        )
        data = (ALLOW_DATA_LOSS,) if self.holds_data else ()
        summary = " ".join((self.model.__doc__ or "").split()).partition(". ")[0].rstrip(".") + "."
        return BlockSchema((_HOST, _NAME, *own, *self.own, *data, *_REPORTED), summary)

    @cached_property
    def attribute_names(self) -> dict[str, str]:
        """The configuration's field → the attribute."""
        fields = (name for name in self.model.model_fields if name != "kind")
        return {name: self.renamed.get(name, name) for name in fields}

    @cached_property
    def listen_attributes(self) -> frozenset[str]:
        return frozenset(self.attribute_names[name] for name in self.listens_at)

    def configuration(self, values: Values) -> dict[str, Any]:
        """Returns the configuration for the agent, without values that are null or not known yet."""
        configuration: dict[str, Any] = {"kind": self.name}
        for name, attribute in self.attribute_names.items():
            value = values.get(attribute)
            if value is not None and is_known(value):
                configuration[name] = to_json(_without_nulls(value))
        return configuration

    def is_complete(self, values: Values) -> bool:
        """Whether all of the configuration is known."""
        return all(is_known(values.get(name)) for name in self.attribute_names.values())

    def canonical(self, values: Values) -> dict[str, Any] | None:
        """Returns the configuration as the agent would return it; None if it is invalid."""
        try:
            return self.model.model_validate(self.configuration(values)).model_dump(mode="json")
        except ValidationError:
            return None

    def values_of(self, configuration: Mapping[str, Any], before: Values) -> Values:
        """Returns an agent's configuration as attributes; equivalent values are spelled as in `before`."""
        known = self.canonical(before) or {}
        values = {}
        for name, attribute in self.attribute_names.items():
            value = configuration.get(name)
            if name in known and known[name] == value and before.get(attribute) is not None:
                values[attribute] = before[attribute]
            else:
                values[attribute] = _connections(value) if name == "connections" else value
        return values

    def problems(self, values: Values) -> list[Problem]:
        """Returns the problems of the values that are known."""
        problems = []
        if isinstance(name := values.get("name"), str) and not re.fullmatch(NAME_PATTERN, name):
            problems.append(Problem("Invalid unit name", f"name is {name!r}; {_UNIT_NAME_RULE}", ("name",)))
        if isinstance(connections := values.get("connections"), Mapping):
            nulls = [conn_id for conn_id, fields in connections.items() if fields is None]
            problems += [
                self.invalid("connections", "", f"{conn_id} is null: leave it out") for conn_id in nulls
            ]
        unknown = {
            name for name, attribute in self.attribute_names.items() if not is_known(values.get(attribute))
        }
        try:
            self.model.model_validate(self.configuration(values))
        except ValidationError as error:
            for detail in error.errors():
                location = ".".join(map(str, detail["loc"]))
                message = detail["msg"].removeprefix("Value error, ")
                # While values are unknown, an error of the whole configuration may come from one of them.
                if (detail["loc"][0] not in unknown) if detail["loc"] else not unknown:
                    problems.append(self.invalid(location, repr(detail["input"]), message))
        return problems

    def invalid(self, location: str, value: str, message: str) -> Problem:
        """Returns the problem of a field (or `field.element`); "" stands for the whole configuration."""
        name = self.attribute_names.get(location.partition(".")[0])
        if name is None:
            return Problem(f"Invalid configuration of a {self.name}", f"{message}.")
        # An error must not show a password.
        shown = "" if name in self._secrets else f"Got {value}: "
        if element := location.partition(".")[2]:
            shown = f"{element}: {shown}"
        return Problem(f"Invalid {name}", f"{shown}{message}.", (name,))

    def _describe(self, name: str) -> str:
        return self.descriptions.get(name) or _COMMON_DESCRIPTIONS.get(name, "")

    @cached_property
    def _secrets(self) -> set[str]:
        attributes = self.schema.attributes
        return {attribute.name for attribute in attributes if attribute.sensitive or attribute.nesting}


def _without_nulls(value: Any) -> Any:
    """Returns a value whose maps have no nulls, at any depth: an agent takes none."""
    if not isinstance(value, Mapping):
        return value
    return {name: _without_nulls(element) for name, element in without_nulls(value).items()}


def _connections(reported: Mapping[str, Mapping[str, Any]] | None) -> dict[str, dict[str, Any]]:
    """Returns an agent's connections with the schema's fields; Terraform does not manage others."""
    connections = {}
    for conn_id, fields in (reported or {}).items():
        values = {attribute.name: fields.get(attribute.name) for attribute in _CONNECTIONS.type}
        if isinstance(extra := values["extra"], Mapping):
            values["extra"] = {
                name: value if isinstance(value, str) else json.dumps(value) for name, value in extra.items()
            }
        connections[conn_id] = values
    return connections
