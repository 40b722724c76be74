"""The kinds of unit as Terraform knows them: attributes, and the way from them to what an agent is told.

Owns `UnitKind`, made of the one description of a kind, its model in `agent.configuration`. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property, partial
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from headrace.agent import configuration as said
from headrace.provider.attributes import Attribute, Schema, attributes_of
from headrace.provider.descriptions import description_of
from headrace.provider.values import (
    Trouble,
    Values,
    is_known,
    plain,
)

# What a unit says of itself. A plan wants it ready and without drift: what is not so is shown as a change.
LIFE: Final = (
    Attribute(name="id", computed=True, description="`host/name`, which `terraform import` takes, too."),
    Attribute(
        name="listens", type=["list", "string"], computed=True, description="The addresses it listens on."
    ),
    Attribute(name="version", computed=True, description="The version of its software on that host."),
    Attribute(
        name="ready", type="bool", computed=True, description="Whether it is ready by its own protocol."
    ),
    Attribute(
        name="drift",
        type=["list", "string"],
        computed=True,
        description="In what the host differs from what was applied; an apply takes it away.",
    ),
)
ALLOW_DATA_LOSS: Final = Attribute(
    name="allow_data_loss",
    type="bool",
    default=False,
    description="Whether it may be destroyed or replaced while it holds data. What was applied last counts.",
)
# What Airflow knows of a connection; `extra` holds what a provider adds, all of it texts.
_CONNECTIONS: Final = Attribute(
    name="connections",
    nesting="map",
    default={},
    description="Airflow's connections, by id; the api-server's alone.",
    type=(
        Attribute(name="conn_type", description="The kind of connection: headrace, spark, …"),
        Attribute(name="description", optional=True, description="For people."),
        Attribute(name="host", optional=True, description="Where it is."),
        Attribute(name="port", type="number", optional=True, description="Its port."),
        Attribute(name="login", optional=True, description="Who logs in there."),
        Attribute(name="password", optional=True, sensitive=True, description="With this."),
        Attribute(name="schema", optional=True, description="Which of its databases, or the like."),
        Attribute(
            name="extra",
            type=["map", "string"],
            optional=True,
            description="What this kind of connection has beside them.",
        ),
    ),
)
_NAME: Final = TypeAdapter(said.UnitName)
_UNIT_NAME_RULE: Final = (
    f"A unit's name has at most {said.NAME_LENGTH_MAX} small letters, digits and hyphens, a letter first."
)


class UnitKind:
    """One kind. `renamed`: the agent's field → the attribute, where Terraform needs the name itself;
    `replaces`: fields of which another value means another unit, or loses data; `stands_in`: for others of
    its kind in its datacenter, so that they are not restarted together.
    """

    def __init__(
        self,
        model: type[said.Configuration],
        *,
        renamed: Mapping[str, str] | None = None,
        replaces: tuple[str, ...] = (),
        holds_data: bool = False,
        stands_in: bool = False,
    ) -> None:
        self.model = model
        self.kind: str = model.model_fields["kind"].default
        self.holds_data = holds_data
        self.stands_in = stands_in
        self._renamed = dict(renamed or {})
        self._replaces = ("datacenter", *replaces)

    @cached_property
    def schema(self) -> Schema:
        own = attributes_of(
            self.model.model_json_schema(),
            renamed=self._renamed,
            described=partial(description_of, self.kind),
            replaces=self._replaces,
            special={"connections": _CONNECTIONS},
        )
        host = Attribute(
            name="host", replaces=True, description="The host: a key of the provider's `agents`."
        )
        name = Attribute(name="name", replaces=True, description="The unit's name, the only one on its host.")
        data = (ALLOW_DATA_LOSS,) if self.holds_data else ()
        summary = " ".join((self.model.__doc__ or "").split()).partition(". ")[0].rstrip(".") + "."
        return Schema((host, name, *own, *data, *LIFE), summary)

    @cached_property
    def attribute_names(self) -> dict[str, str]:
        """The agent's field → the attribute."""
        fields = (field for field in self.model.model_fields if field != "kind")
        return {field: self._renamed.get(field, field) for field in fields}

    def told(self, values: Values) -> dict[str, Any]:
        """What the agent is told; what is null, or not yet known, is left out."""
        told: dict[str, Any] = {"kind": self.kind}
        for field, name in self.attribute_names.items():
            value = values.get(name)
            if value is not None and is_known(value):
                told[field] = plain(_without_nulls(value) if field == "connections" else value)
        return told

    def knows_all(self, values: Values) -> bool:
        """Whether nothing of the configuration is still to be known."""
        return all(is_known(values.get(name)) for name in self.attribute_names.values())

    def canonical(self, values: Values) -> dict[str, Any] | None:
        """The configuration as the agent would give it back; None for one that cannot be."""
        try:
            return self.model.model_validate(self.told(values)).model_dump(mode="json")
        except ValidationError:
            return None

    def values_of(self, configuration: Mapping[str, Any], before: Values) -> Values:
        """The agent's configuration as attributes, spelled as before where it means the same."""
        spelled = self.canonical(before) or {}
        values = {}
        for field, name in self.attribute_names.items():
            now = configuration.get(field)
            if field in spelled and spelled[field] == now and before.get(name) is not None:
                values[name] = before[name]
            else:
                values[name] = _connections(now) if field == "connections" else now
        return values

    def problems(self, values: Values) -> list[Trouble]:
        """What is wrong with what is known of it."""
        troubles = []
        if isinstance(name := values.get("name"), str) and not _is_unit_name(name):
            troubles.append(
                Trouble("This is no name of a unit", f"It says {name!r}. {_UNIT_NAME_RULE}", ("name",))
            )
        unknown = {field for field, name in self.attribute_names.items() if not is_known(values.get(name))}
        try:
            self.model.model_validate(self.told(values))
        except ValidationError as error:
            for each in error.errors():
                location = each["loc"]
                if (location and location[0] not in unknown) or (not location and not unknown):
                    troubles.append(self._trouble(dict(each)))
        return troubles

    def cannot_be(self, field: str, value: str, reason: str) -> Trouble:
        """What is wrong with an agent's field, which may name an element after a dot; "" is the whole."""
        name = self.attribute_names.get(field.partition(".")[0])
        if name is None:
            return Trouble("This unit cannot be so", f"{reason}.")
        # A password is no better off in an error than in a plan.
        shown = "" if name in self._secrets else f"It says {value}: "
        return Trouble(f"{name} cannot be so", f"{shown}{reason}.", (name,))

    @cached_property
    def _secrets(self) -> set[str]:
        return {each.name for each in self.schema.attributes if each.sensitive or each.nesting}

    def _trouble(self, error: Mapping[str, Any]) -> Trouble:
        field = ".".join(map(str, error["loc"]))
        return self.cannot_be(field, repr(error["input"]), error["msg"].removeprefix("Value error, "))


def _is_unit_name(name: str) -> bool:
    try:
        _NAME.validate_python(name)
    except ValidationError:
        return False
    return True


def _without_nulls(connections: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    return {
        key: {name: value for name, value in each.items() if value is not None}
        for key, each in connections.items()
    }


def _connections(found: Mapping[str, Mapping[str, Any]] | None) -> dict[str, dict[str, Any]]:
    """Connections as the schema has them; what it has no attribute for is not Terraform's."""
    made = {}
    for key, each in (found or {}).items():
        values = {attribute.name: each.get(attribute.name) for attribute in _CONNECTIONS.type}
        if isinstance(values["extra"], Mapping):
            values["extra"] = {name: _text(value) for name, value in values["extra"].items()}
        made[key] = values
    return made


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


ZOOKEEPER: Final = UnitKind(
    said.ZooKeeperConfiguration, replaces=("data_dir",), holds_data=True, stands_in=True
)
BROKER: Final = UnitKind(
    said.BrokerConfiguration, replaces=("broker_id", "zookeeper", "data_dir"), holds_data=True, stands_in=True
)
BALANCER: Final = UnitKind(said.BalancerConfiguration, stands_in=True)
REGISTRY: Final = UnitKind(said.RegistryConfiguration, stands_in=True)
MIRROR: Final = UnitKind(said.MirrorConfiguration)
AUDITOR: Final = UnitKind(said.AuditorConfiguration)
WAREHOUSE: Final = UnitKind(
    said.HdfsConfiguration, renamed={"host": "listen_host"}, replaces=("data_dir",), holds_data=True
)
AIRFLOW: Final = UnitKind(said.AirflowConfiguration, replaces=("component", "home"))
