"""CreateTopics, DeleteGroups, AlterConfigs with much in one request: what is refused, with which error."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from kio.schema.alter_configs.v1 import request as v1
from kio.schema.alter_configs.v2 import request as v2
from kio.schema.create_topics.v7.request import CreatableTopic, CreateTopicsRequest
from kio.schema.delete_groups.v2.request import DeleteGroupsRequest
from kio.schema.types import GroupId, TopicName
from kio.static.primitive import i8, i16, i32, i32Timedelta

from fix_broker import BrokerCluster, RawClient
from headrace.broker.handlers.topics import PARTITIONS_PER_REQUEST_MAX
from headrace.broker.topics import PARTITIONS_MAX
from headrace.wire.topic_names import TOPIC_NAME_LENGTH_MAX


@pytest.fixture
def client(one_broker: BrokerCluster) -> Iterator[RawClient]:
    with RawClient(one_broker.bootstrap) as made:
        yield made


def named(start: str = "bounds") -> str:
    return f"{start}-{uuid.uuid4().hex[:8]}"


def new(name: str, partitions: int = 1) -> CreatableTopic:
    return CreatableTopic(
        name=TopicName(name),
        num_partitions=i32(partitions),
        replication_factor=i16(1),
        assignments=(),
        configs=(),
    )


def create(
    client: RawClient, *topics: CreatableTopic, timeout_ms: int = 30_000, validate_only: bool = False
) -> list[str]:
    request = CreateTopicsRequest(
        topics=topics,
        timeout=i32Timedelta.parse(datetime.timedelta(milliseconds=timeout_ms)),
        validate_only=validate_only,
    )
    return [result.error_code.name for result in client.call(request).topics]


def test_a_topic_may_have_so_many_partitions(client: RawClient) -> None:
    for count in (0, PARTITIONS_MAX + 1, PARTITIONS_PER_REQUEST_MAX):
        assert create(client, new(named(), count)) == ["invalid_partitions"]
    assert create(client, new(named(), PARTITIONS_MAX), validate_only=True) == ["none"]


def test_a_request_may_ask_for_so_many_partitions(client: RawClient) -> None:
    """As in Apache Kafka: POLICY_VIOLATION for all topics of the request."""
    topics = [new(named(), 1_500) for _ in range(PARTITIONS_PER_REQUEST_MAX // 1_500)]
    assert create(client, *topics, validate_only=True) == ["none"] * len(topics)
    topics.append(new(named(), 1_500))
    assert create(client, *topics, validate_only=True) == ["policy_violation"] * len(topics)
    assert create(client, new(named(), 2**31 - 1)) == ["policy_violation"]


def test_topics_that_are_named_twice_are_refused_and_others_created(client: RawClient) -> None:
    twice, once = named("twice"), named("once")
    assert create(client, new(twice), new(once), new(twice)) == ["invalid_request", "none"]


def test_the_timeout_is_that_of_the_whole_request(client: RawClient) -> None:
    """The first topic is always tried; those that are not reached in time are not created."""
    topics = [new(named("late")) for _ in range(3)]
    first, *others = create(client, *topics, timeout_ms=0)
    assert first in ("none", "request_timed_out")
    assert others == ["request_timed_out"] * 2
    assert create(client, *topics) == ["topic_already_exists", "none", "none"]


def test_each_group_is_deleted_once_in_the_order_of_the_request(client: RawClient) -> None:
    groups = [named("g") for _ in range(5)]
    request = DeleteGroupsRequest(groups_names=tuple(GroupId(each) for each in (*groups, groups[0])))
    results = client.call(request).results
    assert [each.group_id for each in results] == groups
    assert {each.error_code.name for each in results} == {"group_id_not_found"}


def test_a_topic_that_zookeeper_cannot_take_at_once_is_refused(client: RawClient) -> None:
    name = named().ljust(TOPIC_NAME_LENGTH_MAX, "x")
    assert create(client, new(name, PARTITIONS_MAX)) == ["policy_violation"]
    assert create(client, new(name)) == ["none"]


@pytest.mark.parametrize(
    ("kio", "value", "error"),
    [
        (v1, "\x01" * 20_000, "invalid_config"),
        (v2, "\x01" * 500_000, "invalid_config"),
        (v2, " " * 300_000 + "5", "policy_violation"),
        (v2, "5", "none"),
    ],
    ids=["old request", "no number", "long number", "number"],
)
def test_long_values_are_refused_by_a_short_answer(
    client: RawClient, kio: Any, value: str, error: str
) -> None:
    """In an old request an answer's text may have 32,767 bytes."""
    name = named()
    assert create(client, new(name)) == ["none"]
    setting = kio.AlterableConfig(name="retention.ms", value=value)
    resource = kio.AlterConfigsResource(resource_type=i8(2), resource_name=name, configs=(setting,))
    [result] = client.call(kio.AlterConfigsRequest(resources=(resource,), validate_only=False)).responses
    assert result.error_code.name == error
    assert len(result.error_message or "") < 5_000
