"""What is there, for HCL that needs to know it: a cluster, a topic.

Owns the two data sources that ask brokers; the audit's is in `audits`.
"""

from __future__ import annotations

from typing import Final

from headrace.provider import holdings
from headrace.provider.attributes import Attribute, Schema
from headrace.provider.clusters import APPLY_TIMEOUT_S, administered
from headrace.provider.resource import Call, DataSource
from headrace.provider.topics import BOOTSTRAP_SERVERS, bootstrap_problems, found_topic
from headrace.provider.values import (
    ResourceError,
    Trouble,
    Values,
    listed,
)


class TopicData(DataSource):
    """A topic that somebody else makes, and how much it holds."""

    type_name = "topic"

    @classmethod
    def get_schema(cls) -> Schema:
        return DATA_SCHEMA

    def validate(self, config: Values) -> list[Trouble]:
        return bootstrap_problems(config)

    def read(self, call: Call, config: Values) -> Values:
        name = config["name"]
        with administered(config["bootstrap_servers"], timeout_s=APPLY_TIMEOUT_S) as admin:
            found = found_topic(admin, name)
            if found is None:
                text = f"The brokers at {listed(config['bootstrap_servers'])} have none of that name."
                raise ResourceError(Trouble(f"There is no topic {name!r}", text, ("name",)))
            held = holdings.of_topic(admin, name, None)
        return {**config, **found, "size_bytes": held.size_bytes, "lags_bytes": dict(held.behind)}


DATA_SCHEMA: Final = Schema(
    (
        BOOTSTRAP_SERVERS,
        Attribute(name="name", description="The topic's name."),
        Attribute(name="topic_id", computed=True, description="Kafka's id of it."),
        Attribute(name="partitions", type="number", computed=True, description="How many."),
        Attribute(name="replication_factor", type="number", computed=True, description="Copies of each."),
        Attribute(name="config", type=["map", "string"], computed=True, description="Its own settings."),
        Attribute(name="size_bytes", type="number", computed=True, description="What its logs hold."),
        Attribute(
            name="lags_bytes",
            type=["map", "number"],
            computed=True,
            description="Consumer group → bytes that it has still to read.",
        ),
    ),
    description="A topic as the brokers know it.",
)


class ClusterData(DataSource):
    """The brokers of a datacenter."""

    type_name = "cluster"

    @classmethod
    def get_schema(cls) -> Schema:
        return CLUSTER_SCHEMA

    def validate(self, config: Values) -> list[Trouble]:
        return bootstrap_problems(config)

    def read(self, call: Call, config: Values) -> Values:
        with administered(config["bootstrap_servers"], timeout_s=APPLY_TIMEOUT_S) as admin:
            found = admin.describe_cluster()
            topics = sorted(name for name in admin.topics() if not name.startswith("_"))
        return {
            **config,
            "cluster_id": found.cluster_id,
            "brokers": {str(number): str(address) for number, address in sorted(found.brokers.items())},
            "topics": topics,
        }


CLUSTER_SCHEMA: Final = Schema(
    (
        BOOTSTRAP_SERVERS,
        Attribute(name="cluster_id", computed=True, description="The cluster's id."),
        Attribute(
            name="brokers",
            type=["map", "string"],
            computed=True,
            description="Broker id → HOST:PORT, of those alive.",
        ),
        Attribute(
            name="topics",
            type=["list", "string"],
            computed=True,
            description="The topics' names, without internal ones (those that begin with _).",
        ),
    ),
    description="The brokers of a datacenter, as they know each other.",
)
