"""A real broker, frame by frame: topics and their settings, and the cluster that it describes."""

import pytest
from kio.schema.create_partitions.v3.request import CreatePartitionsRequest, CreatePartitionsTopic
from kio.schema.delete_topics.v5.request import DeleteTopicsRequest
from kio.schema.describe_cluster.v1.request import DescribeClusterRequest
from kio.schema.describe_configs.v4.request import DescribeConfigsRequest, DescribeConfigsResource
from kio.schema.describe_log_dirs.v4.request import DescribableLogDirTopic, DescribeLogDirsRequest
from kio.schema.incremental_alter_configs.v1.request import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kio.schema.metadata.v12.request import MetadataRequest, MetadataRequestTopic
from kio.schema.types import TopicName
from kio.static.primitive import i8, i32

from fix_broker import BrokerCluster, RawClient, StartCluster
from fix_one_broker import FIVE_S, batch, wait_until
from headrace.wire.errors import ErrorCode


def test_topics_come_and_go(broker_cluster: StartCluster) -> None:
    cluster = broker_cluster(count=2, config={"auto.create.topics.enable": "false"})

    def metadata(client: RawClient, *names: str, create: bool = True) -> dict[str, tuple[str, int]]:
        topics = tuple(MetadataRequestTopic(topic_id=None, name=TopicName(name)) for name in names)
        request = MetadataRequest(
            topics=topics, allow_auto_topic_creation=create, include_topic_authorized_operations=False
        )
        answer = client.call(request)
        return {each.name: (each.error_code.name, len(each.partitions)) for each in answer.topics}

    with RawClient(cluster[1].address) as client, RawClient(cluster[2].address) as other:
        both = {1: client, 2: other}
        assert metadata(client, "t") == {"t": ("unknown_topic_or_partition", 0)}
        assert metadata(client, "no/such") == {"no/such": ("invalid_topic_exception", 0)}
        result = client.create_topic("t", partitions=3)
        assert (result.num_partitions, result.replication_factor) == (3, 1)
        assert metadata(client, "t") == {"t": ("none", 3)}
        with pytest.raises(AssertionError, match="topic_already_exists"):
            client.create_topic("t")
        for partition in range(3):
            produced = [both[number].produce("t", partition, batch()).error_code for number in (1, 2)]
            assert sorted(produced) == [0, ErrorCode.NOT_LEADER_OR_FOLLOWER], "led by one broker alone"
        grow = CreatePartitionsTopic(name=TopicName("t"), count=i32(5), assignments=None)
        answer = client.call(CreatePartitionsRequest(topics=(grow,), timeout=FIVE_S, validate_only=False))
        assert answer.results[0].error_code.name == "none", answer.results[0].error_message
        assert metadata(client, "t") == {"t": ("none", 5)}
        answer = client.call(
            DeleteTopicsRequest(topic_names=(TopicName("t"), TopicName("u")), timeout=FIVE_S)
        )
        assert [each.error_code.name for each in answer.responses] == ["none", "unknown_topic_or_partition"]
        assert metadata(client, "t") == {"t": ("unknown_topic_or_partition", 0)}
        wait_until(lambda: not [p for b in cluster.brokers for p in b.data_dir.glob("t-*")])
        client.create_topic("t")
        (leader,) = [n for n in (1, 2) if both[n].produce("t", 0, batch()).error_code == 0]
        assert both[leader].list_offset("t", 0, -2)[0] == 0, "a new topic of the same name is empty"


def test_metadata_requests_create_topics_if_configured(broker_cluster: StartCluster) -> None:
    cluster = broker_cluster(count=2, config={"num.partitions": "3", "auto.create.topics.enable": "true"})
    with RawClient(cluster.bootstrap.partition(",")[0]) as client:
        request = MetadataRequest(
            topics=(MetadataRequestTopic(topic_id=None, name=TopicName("wanted")),),
            allow_auto_topic_creation=True,
            include_topic_authorized_operations=False,
        )
        (found,) = client.call(request).topics
        assert (found.error_code.name, len(found.partitions)) == ("none", 3)
        assert {each.leader_id for each in found.partitions} == {1, 2}


def test_settings_are_described_and_changed(client: RawClient, topic: str) -> None:
    def described() -> dict[str, tuple[str, int]]:
        resource = DescribeConfigsResource(resource_type=i8(2), resource_name=topic, configuration_keys=None)
        (result,) = client.call(DescribeConfigsRequest(resources=(resource,))).results
        return {each.name: (each.value, each.config_source) for each in result.configs}

    def change(operation: int, name: str, value: str | None) -> str:
        resource = AlterConfigsResource(
            resource_type=i8(2),
            resource_name=topic,
            configs=(AlterableConfig(name=name, config_operation=i8(operation), value=value),),
        )
        (result,) = client.call(
            IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False)
        ).responses
        name_of_code: str = result.error_code.name
        return name_of_code

    assert described()["retention.ms"] == ("604800000", 5)
    assert change(0, "max.message.bytes", "100") == "none"
    wait_until(lambda: described()["max.message.bytes"] == ("100", 1))
    assert client.produce(topic, 0, batch(bytes(200))).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert change(0, "max.message.bytes", "many") == "invalid_config"
    assert change(1, "max.message.bytes", None) == "none"
    wait_until(lambda: described()["max.message.bytes"][1] == 5)
    assert client.produce(topic, 0, batch(bytes(200))).error_code == 0


def test_the_cluster_is_described(client: RawClient, one_broker: BrokerCluster) -> None:
    answer = client.call(DescribeClusterRequest(include_cluster_authorized_operations=False))
    assert answer.cluster_id == "headrace-test"
    assert [(each.broker_id, each.port, each.rack) for each in answer.brokers] == [
        (1, one_broker[1].port, "test")
    ]


def test_log_directories_of_a_topic_that_is_named_twice(client: RawClient) -> None:
    """As in Apache Kafka; before, only the partitions of the last one were described."""
    client.create_topic("named-twice", partitions=3)
    named = tuple(
        DescribableLogDirTopic(topic=TopicName("named-twice"), partitions=(i32(index),)) for index in (2, 0)
    )
    answer = client.call(DescribeLogDirsRequest(topics=named))
    found = [part.partition_index for topic in answer.results[0].topics for part in topic.partitions]
    assert sorted(found) == [0, 2]
