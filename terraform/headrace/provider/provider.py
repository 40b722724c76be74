"""The provider: its configuration block, and the list of all resources and data sources."""

from __future__ import annotations

from typing import Any, Final

from headrace.provider.agents import Agents, problems_of
from headrace.provider.attributes import Attribute, BlockSchema
from headrace.provider.audits import AuditVerdictData
from headrace.provider.data_sources import ClusterData, TopicData
from headrace.provider.loads import LoadResource
from headrace.provider.problems import Problem
from headrace.provider.resource import READY_TIMEOUT_DEFAULT_S, Context, DataSource, Resource
from headrace.provider.schemas import SchemaResource
from headrace.provider.topics import TopicResource
from headrace.provider.units import UNIT_RESOURCES
from headrace.provider.values import Values, is_known

ADDRESS: Final = "headrace.local/headrace/headrace"
READY_TIMEOUT_MAX_S: Final = 3600.0

SCHEMA: Final = BlockSchema(
    (
        Attribute(
            name="agents",
            nesting="map",
            optional=True,
            description="The hosts' agents, by the names that resources use as `host`. Default: one host, "
            "`local`, with the agent that runs for `home` on this machine.",
            type=(
                Attribute(name="url", description="The agent's URL, such as https://10.0.0.5:8084."),
                Attribute(name="token", optional=True, sensitive=True, description="The agent's token."),
                Attribute(
                    name="token_file", optional=True, description="A file with the token, instead of `token`."
                ),
                Attribute(
                    name="certificate_file",
                    optional=True,
                    description="The agent's certificate (PEM). Default: one that the machine's certificate "
                    "authorities vouch for.",
                ),
            ),
        ),
        Attribute(
            name="home",
            optional=True,
            description="The home of this machine's agent, if `agents` is left out. Default: "
            "$HEADRACE_HOME, else .headrace in the working directory.",
        ),
        Attribute(
            name="ready_timeout_s",
            type="number",
            optional=True,
            description="How long an apply waits until a unit is ready, in seconds. Default: "
            f"{READY_TIMEOUT_DEFAULT_S:g}.",
        ),
    ),
    description="Manages headrace datacenters through the agents of their hosts.",
)


class HeadraceProvider:
    """The provider with one configuration; `tf` prescribes the methods' names. Many threads use it."""

    def __init__(self) -> None:
        self.context = Context()

    def full_name(self) -> str:
        return ADDRESS

    def get_model_prefix(self) -> str:
        return "headrace_"

    def get_provider_schema(self, diagnostics: object) -> BlockSchema:
        return SCHEMA

    def get_resources(self) -> list[type[Resource]]:
        return [*UNIT_RESOURCES, TopicResource, SchemaResource, LoadResource]

    def get_data_sources(self) -> list[type[DataSource]]:
        return [ClusterData, TopicData, AuditVerdictData]

    def get_functions(self) -> list[Any]:
        return []

    def new_resource(self, kind: type[Resource]) -> Resource:
        return kind(self.context)

    def new_data_source(self, kind: type[DataSource]) -> DataSource:
        return kind(self.context)

    def validate(self, config: Values) -> list[Problem]:
        problems = problems_of(config)
        timeout_s = config.get("ready_timeout_s")
        if timeout_s is not None and is_known(timeout_s) and not 0 < timeout_s <= READY_TIMEOUT_MAX_S:
            text = f"It is {timeout_s}; expected seconds, above 0 and up to {READY_TIMEOUT_MAX_S:g}."
            problems.append(Problem("Invalid ready_timeout_s", text, ("ready_timeout_s",)))
        return problems

    def configure(self, config: Values) -> None:
        self.context.agents = Agents({name: value for name, value in config.items() if value is not None})
        timeout_s = config.get("ready_timeout_s")
        if timeout_s is not None and is_known(timeout_s):
            self.context.ready_timeout_s = float(timeout_s)

    def close(self) -> None:
        self.context.agents.close()
