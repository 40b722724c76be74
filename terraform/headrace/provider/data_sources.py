"""Data sources that read from brokers: a cluster, and a topic with its size and lags."""

from __future__ import annotations

from typing import Final

from headrace.provider import holdings
from headrace.provider.attributes import Attribute, BlockSchema
from headrace.provider.clusters import APPLY_TIMEOUT_S, admin_client, bootstrap_problems
from headrace.provider.problems import Problem, ResourceError, join_some
from headrace.provider.resource import DataSource, ResourceCall
from headrace.provider.topics import BOOTSTRAP_SERVERS, read_topic
from headrace.provider.values import Values

TOPIC_SCHEMA: Final = BlockSchema(
    (
        BOOTSTRAP_SERVERS,
        Attribute(name="name", description="The topic's name."),
        Attribute(name="topic_id", computed=True, description="The topic's id in Kafka."),
        Attribute(name="partitions", type="number", computed=True, description="The number of partitions."),
        Attribute(
            name="replication_factor",
            type="number",
            computed=True,
            description="The number of replicas of each partition.",
        ),
        Attribute(
            name="config", type=["map", "string"], computed=True, description="The topic's own settings."
        ),
        Attribute(
            name="producers",
            computed=True,
            description="Whether its producers report their counts to the audit: reporting or any.",
        ),
        Attribute(name="size_bytes", type="number", computed=True, description="The size of its logs."),
        Attribute(
            name="lags_bytes",
            type=["map", "number"],
            computed=True,
            description="Consumer group → bytes that it has not read yet.",
        ),
    ),
    description="A topic as its brokers describe it.",
)
CLUSTER_SCHEMA: Final = BlockSchema(
    (
        BOOTSTRAP_SERVERS,
        Attribute(name="cluster_id", computed=True, description="The cluster's id."),
        Attribute(
            name="brokers",
            type=["map", "string"],
            computed=True,
            description="Broker id → HOST:PORT, for all live brokers.",
        ),
        Attribute(
            name="topics",
            type=["list", "string"],
            computed=True,
            description="The names of all topics except internal ones, which begin with _.",
        ),
    ),
    description="The brokers and topics of a datacenter.",
)


class TopicData(DataSource):
    """A topic that this Terraform configuration does not manage, or the data in one that it does."""

    type_name = "topic"
    schema = TOPIC_SCHEMA

    def validate(self, config: Values) -> list[Problem]:
        return bootstrap_problems(config)

    def read(self, call: ResourceCall, config: Values) -> Values:
        name = config["name"]
        with admin_client(config["bootstrap_servers"], timeout_s=APPLY_TIMEOUT_S) as admin:
            topic = read_topic(admin, name)
            if topic is None:
                text = f"The brokers at {join_some(config['bootstrap_servers'])} have no topic of this name."
                raise ResourceError(Problem(f"There is no topic {name!r}", text, ("name",)))
            held = holdings.of_topic(admin, name, None)
        return {**config, **topic, "size_bytes": held.size_bytes, "lags_bytes": dict(held.behind)}


class ClusterData(DataSource):
    """The brokers and topics of a datacenter."""

    type_name = "cluster"
    schema = CLUSTER_SCHEMA

    def validate(self, config: Values) -> list[Problem]:
        return bootstrap_problems(config)

    def read(self, call: ResourceCall, config: Values) -> Values:
        with admin_client(config["bootstrap_servers"], timeout_s=APPLY_TIMEOUT_S) as admin:
            cluster = admin.describe_cluster()
            topics = sorted(name for name in admin.topics() if not name.startswith("_"))
        return {
            **config,
            "cluster_id": cluster.cluster_id,
            "brokers": {str(number): str(address) for number, address in sorted(cluster.brokers.items())},
            "topics": topics,
        }
