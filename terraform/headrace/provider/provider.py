"""The provider itself: its configuration, and the list of all it offers.

Owns the provider block. What a resource does is its own file's.
"""

from __future__ import annotations

from typing import Any, Final

from headrace.provider.agents import Agents, check
from headrace.provider.attributes import Attribute, Schema
from headrace.provider.audits import AuditVerdict
from headrace.provider.data_sources import ClusterData, TopicData
from headrace.provider.loads import Load
from headrace.provider.resource import DataSource, Resource
from headrace.provider.schemas import SchemaResource
from headrace.provider.topics import Topic
from headrace.provider.turns import Turns
from headrace.provider.units import UNIT_RESOURCES
from headrace.provider.values import Trouble, Values, is_known

ADDRESS: Final = "headrace.local/headrace/headrace"
READY_TIMEOUT_S: Final = 180.0
READY_TIMEOUT_MAX_S: Final = 3600.0

SCHEMA: Final = Schema(
    (
        Attribute(
            name="agents",
            nesting="map",
            optional=True,
            description="The hosts' agents, by the names that `host` of a resource uses. Left out: one host, "
            "`local`, the agent that keeps `home` on this machine.",
            type=(
                Attribute(name="url", description="Where it listens, such as https://10.0.0.5:8084."),
                Attribute(name="token", optional=True, sensitive=True, description="Its token."),
                Attribute(name="token_file", optional=True, description="A file that holds its token."),
                Attribute(
                    name="certificate_file",
                    optional=True,
                    description="The certificate (PEM) that it answers with; left out, the machine's "
                    "authorities are asked.",
                ),
            ),
        ),
        Attribute(
            name="home",
            optional=True,
            description="The home of this machine's agent, for who says no `agents`; default $HEADRACE_HOME, "
            "else .headrace of the working directory.",
        ),
        Attribute(
            name="ready_timeout_s",
            type="number",
            optional=True,
            description=f"How long an apply waits for a unit to be ready; default {READY_TIMEOUT_S:g}.",
        ),
    ),
    description="Datacenters of headrace, by their hosts' agents.",
)


class HeadraceProvider:
    """One configuration, used by many threads once it is configured."""

    def __init__(self) -> None:
        self.agents = Agents({})
        self.ready_timeout_s = READY_TIMEOUT_S
        self.turns = Turns()
        self._ours: set[str] = set()
        self.going: set[str] = set()
        """The ids of topics that this plan lets go: what is on them need not be kept."""

    def full_name(self) -> str:
        return ADDRESS

    def get_model_prefix(self) -> str:
        return "headrace_"

    def get_provider_schema(self, diagnostics: object) -> Schema:
        return SCHEMA

    def get_resources(self) -> list[type[Resource]]:
        return [*UNIT_RESOURCES, Topic, SchemaResource, Load]

    def get_data_sources(self) -> list[type[DataSource]]:
        return [ClusterData, TopicData, AuditVerdict]

    def get_functions(self) -> list[Any]:
        return []

    def new_resource(self, kind: type[Resource]) -> Resource:
        return kind(self)

    def new_data_source(self, kind: type[DataSource]) -> DataSource:
        return kind(self)

    def validate(self, config: Values) -> list[Trouble]:
        troubles = check(config)
        timeout_s = config.get("ready_timeout_s")
        if timeout_s is not None and is_known(timeout_s) and not 0 < timeout_s <= READY_TIMEOUT_MAX_S:
            text = f"It says {timeout_s}; expected seconds, above 0 and up to {READY_TIMEOUT_MAX_S:g}."
            troubles.append(Trouble("This is no time to wait for a unit", text, ("ready_timeout_s",)))
        return troubles

    def configure(self, config: Values) -> None:
        self.agents = Agents({name: value for name, value in config.items() if value is not None})
        timeout_s = config.get("ready_timeout_s")
        if timeout_s is not None and is_known(timeout_s):
            self.ready_timeout_s = float(timeout_s)

    def note_ours(self, identity: str) -> None:
        """That a resource of this state is this thing."""
        self._ours.add(identity)

    def is_ours(self, identity: str) -> bool:
        return identity in self._ours

    def close(self) -> None:
        self.agents.close()
