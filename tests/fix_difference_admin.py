"""More cases of tests/clients/test_clients_differences.py: settings, reassignments, elections, log
directories, leader epochs. `CASES` has all of them.
"""

from __future__ import annotations

import time
import uuid
from typing import Any, Final

from fix_difference_cases import case, fresh
from fix_difference_groups import CASES
from fix_differences import Asker, name_of
from headrace.wire.apis import ApiKey

__all__ = ["CASES"]

TOPIC: Final = 2
BROKER: Final = 4
SET, DELETE, APPEND = 0, 1, 2
OF_TOPIC: Final = 1  # a setting's source
DESCRIBED_WAIT_MAX_S: Final = 10.0


def altered(asker: Asker, *resources: tuple[int, str, list[tuple[str, int, str | None]]]) -> Any:
    """The codes of IncrementalAlterConfigs, in the order of the resources."""
    named = [
        {
            "resource_type": kind,
            "resource_name": name,
            "configs": [{"name": n, "config_operation": op, "value": value} for n, op, value in configs],
        }
        for kind, name, configs in resources
    ]
    response = asker.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=named, validate_only=False)
    return [(int(each.resource_type), name_of(each.error_code)) for each in response.responses]


@case("IncrementalAlterConfigs: a null value to set")
def _(asker: Asker) -> Any:
    return altered(asker, (TOPIC, asker.topic(), [("retention.ms", SET, None)]))


@case("IncrementalAlterConfigs: a null value to delete, of a setting that is not set")
def _(asker: Asker) -> Any:
    return altered(asker, (TOPIC, asker.topic(), [("retention.ms", DELETE, None)]))


@case("IncrementalAlterConfigs: an unknown operation")
def _(asker: Asker) -> Any:
    return altered(asker, (TOPIC, asker.topic(), [("retention.ms", 9, "1")]))


@case("IncrementalAlterConfigs: what is no list is appended to")
def _(asker: Asker) -> Any:
    return altered(asker, (TOPIC, asker.topic(), [("retention.ms", APPEND, "1")]))


@case("IncrementalAlterConfigs: a wrong value, an unknown setting")
def _(asker: Asker) -> Any:
    name = asker.topic()
    return [
        altered(asker, (TOPIC, name, [(setting, SET, value)]))
        for setting, value in (
            ("retention.ms", "soon"),
            ("no.such.setting", "1"),
            ("retention.ms", "1e3"),
            ("retention.ms", " 5 "),
            ("retention.ms", "\u0665"),
        )
    ]


@case("IncrementalAlterConfigs: a setting twice")
def _(asker: Asker) -> Any:
    return altered(asker, (TOPIC, asker.topic(), [("retention.ms", SET, "1"), ("retention.ms", SET, "2")]))


@case("IncrementalAlterConfigs: a topic twice")
def _(asker: Asker) -> Any:
    name = asker.topic()
    one: tuple[int, str, list[tuple[str, int, str | None]]] = (TOPIC, name, [("retention.ms", SET, "1")])
    return altered(asker, one, one)


@case("IncrementalAlterConfigs: no settings")
def _(asker: Asker) -> Any:
    return altered(asker, (TOPIC, asker.topic(), []))


@case("IncrementalAlterConfigs: an unknown topic")
def _(asker: Asker) -> Any:
    return altered(asker, (TOPIC, fresh(), [("retention.ms", SET, "1")]))


@case("IncrementalAlterConfigs: impossible names of topics")
def _(asker: Asker) -> Any:
    return [altered(asker, (TOPIC, name, [("retention.ms", SET, "1")])) for name in ("", "a/b", "..")]


@case("IncrementalAlterConfigs: an unknown kind of resource")
def _(asker: Asker) -> Any:
    return [altered(asker, (kind, "x", [("retention.ms", SET, "1")])) for kind in (0, 3, 99)]


@case("IncrementalAlterConfigs: an unknown broker, and what is no number")
def _(asker: Asker) -> Any:
    return [altered(asker, (BROKER, name, [("num.io.threads", SET, "4")])) for name in ("77", "x", "-1")]


@case("IncrementalAlterConfigs: a setting of brokers that needs a restart")
def _(asker: Asker) -> Any:
    return altered(asker, (BROKER, "1", [("broker.rack", SET, "r")]))


@case("AlterConfigs, IncrementalAlterConfigs: described")
def _(asker: Asker) -> Any:
    name, found = asker.topic(), []
    for value in ("70000", "80000", "90000"):
        found += [replaced(asker, name, value), settled(asker, name, value)]
        again = value + "1"
        found += [
            altered(asker, (TOPIC, name, [("retention.ms", SET, again)])),
            settled(asker, name, again),
        ]
    return found


def settled(asker: Asker, topic: str, wanted: str) -> Any:
    """Apache Kafka answers an alteration before its broker describes it: mostly, not always, it is faster
    than the next request. That ours is there at once has its own test (`test_config_changes.py`).
    """
    deadline_s = time.monotonic() + DESCRIBED_WAIT_MAX_S
    while (found := values_of(asker, topic)) != [wanted] and time.monotonic() < deadline_s:
        time.sleep(0.05)
    return found


def values_of(asker: Asker, topic: str) -> Any:
    resource = {"resource_type": TOPIC, "resource_name": topic, "configuration_keys": ["retention.ms"]}
    response = asker.ask(
        ApiKey.DESCRIBE_CONFIGS, 4, resources=[resource], include_synonyms=False, include_documentation=False
    )
    return [config.value for each in response.results for config in each.configs]


@case("AlterConfigs: a null value")
def _(asker: Asker) -> Any:
    return replaced(asker, asker.topic(), None)


@case("AlterConfigs: an unknown topic, a wrong value")
def _(asker: Asker) -> Any:
    return [replaced(asker, fresh(), "1"), replaced(asker, asker.topic(), "soon")]


def replaced(asker: Asker, topic: str, value: str | None) -> Any:
    configs = [{"name": "retention.ms", "value": value}]
    resource = {"resource_type": TOPIC, "resource_name": topic, "configs": configs}
    response = asker.ask(ApiKey.ALTER_CONFIGS, 2, resources=[resource], validate_only=False)
    return [name_of(each.error_code) for each in response.responses]


@case("DescribeConfigs: unknown topics, brokers and kinds, a topic twice")
def _(asker: Asker) -> Any:
    name = asker.topic()
    wanted = (
        (TOPIC, fresh()),
        (TOPIC, "a/b"),
        (TOPIC, ""),
        (BROKER, "77"),
        (99, "x"),
        (TOPIC, name),
        (TOPIC, name),
    )
    return [described(asker, *each) for each in wanted], described(asker, TOPIC, name, ["no.such.setting"])


def described(asker: Asker, kind: int, name: str, keys: list[str] | None = None) -> Any:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": keys or ["retention.ms"]}
    response = asker.ask(
        ApiKey.DESCRIBE_CONFIGS,
        4,
        resources=[resource],
        include_synonyms=False,
        include_documentation=False,
    )
    return [(name_of(each.error_code), [config.name for config in each.configs]) for each in response.results]


@case("DescribeConfigs: where the values of a topic's settings come from, set by it and inherited")
def _(asker: Asker) -> Any:
    name = asker.topic()
    altered(asker, (TOPIC, name, [("max.message.bytes", SET, "70000")]))
    keys = ["max.message.bytes", "retention.bytes", "flush.messages"]
    # Kafka's broker hears of it from its controller a moment later.
    until_s = time.monotonic() + DESCRIBED_WAIT_MAX_S
    while synonyms(asker, name, keys[:1], False) != [(keys[0], OF_TOPIC, [])] and time.monotonic() < until_s:
        time.sleep(0.05)
    return [synonyms(asker, name, keys, wanted) for wanted in (True, False)]


def synonyms(asker: Asker, topic: str, keys: list[str], wanted: bool) -> Any:
    resource = {"resource_type": TOPIC, "resource_name": topic, "configuration_keys": keys}
    response = asker.ask(
        ApiKey.DESCRIBE_CONFIGS,
        4,
        resources=[resource],
        include_synonyms=wanted,
        include_documentation=False,
    )
    return sorted(
        (config.name, config.config_source, [(each.name, each.source) for each in config.synonyms])
        for result in response.results
        for config in result.configs
    )


@case("DescribeLogDirs: an unknown topic, unknown and repeated partitions")
def _(asker: Asker) -> Any:
    name = asker.topic(2)
    wanted = [{"topic": fresh(), "partitions": [0]}, {"topic": name, "partitions": [1, 1, 77, -1]}]
    response = asker.ask(ApiKey.DESCRIBE_LOG_DIRS, 4, topics=wanted)
    return name_of(response.error_code), [
        (
            name_of(each.error_code),
            [[part.partition_index for part in topic.partitions] for topic in each.topics],
        )
        for each in response.results
    ]


def moved(asker: Asker, topic: str, *parts: tuple[int, list[int] | None]) -> Any:
    wanted = [{"partition_index": index, "replicas": replicas} for index, replicas in parts]
    response = asker.ask(
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        0,
        timeout=10_000,
        topics=[{"name": topic, "partitions": wanted}],
    )
    return name_of(response.error_code), sorted(
        (part.partition_index, name_of(part.error_code))
        for each in response.responses
        for part in each.partitions
    )


@case("AlterPartitionReassignments: an unknown topic, unknown and negative partitions")
def _(asker: Asker) -> Any:
    return moved(asker, fresh(), (0, [1])), moved(asker, asker.topic(), (7, [1]), (-1, [1]))


@case("AlterPartitionReassignments: no replicas, one twice, an unknown and a negative one")
def _(asker: Asker) -> Any:
    name = asker.topic()
    return [moved(asker, name, (0, replicas)) for replicas in ([], [1, 1], [99], [1, 99], [-1])]


@case("AlterPartitionReassignments: where it is already, and none to call off")
def _(asker: Asker) -> Any:
    name = asker.topic()
    return moved(asker, name, (0, [1])), moved(asker, name, (0, None))


@case("ListPartitionReassignments: all, an unknown topic, an unknown partition")
def _(asker: Asker) -> Any:
    name = asker.topic()
    wanted = (None, [{"name": fresh(), "partition_indexes": [0]}], [{"name": name, "partition_indexes": [9]}])
    found = [
        asker.ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, timeout=10_000, topics=each) for each in wanted
    ]
    return [(name_of(each.error_code), len(each.topics)) for each in found]


def partitions_of(asker: Asker, names: list[str], most: int, cursor: tuple[str, int] | None = None) -> Any:
    """By topic the partitions of one answer, and where the next one begins; names by their place in order."""
    at = None if cursor is None else {"topic_name": cursor[0], "partition_index": cursor[1]}
    response = asker.ask(
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        0,
        topics=[{"name": name} for name in names],
        response_partition_limit=most,
        cursor=at,
    )
    order = sorted(set(names))
    found = [
        (
            order.index(topic.name),
            name_of(topic.error_code),
            [(part.partition_index, part.eligible_leader_replicas or ()) for part in topic.partitions],
        )
        for topic in response.topics
    ]
    following = response.next_cursor
    return found, following and (order.index(following.topic_name), following.partition_index)


@case("DescribeTopicPartitions: any limit, from any place")
def _(asker: Asker) -> Any:
    names = first, second = [asker.topic(2, prefix="a"), asker.topic(3, prefix="b")]
    return [partitions_of(asker, names[::-1], most) for most in (-1, 0, 1, 2, 3, 4, 5, 9)] + [
        partitions_of(asker, names, most, place)
        for most in (1, 5)
        for place in ((first, 1), (first, 9), (second, 2), (second, 3), (second, -1), (first + "-", 2))
    ]


@case("DescribeTopicPartitions: topics that are not there, and one named twice")
def _(asker: Asker) -> Any:
    name = asker.topic(1, prefix="m")
    return [
        partitions_of(asker, [name, name], 9),
        partitions_of(asker, [fresh("a"), name, fresh("z")], 1),
        partitions_of(asker, ["no/name", name], 9),
        partitions_of(asker, [name], 9, (asker.topic(1, prefix="k"), 0)),
    ]


@case("Metadata, DescribeCluster, DescribeGroups, DescribeTopicPartitions: what the client may do")
def _(asker: Asker) -> Any:
    name, group = asker.topic(), asker.group()
    asker.commit(group, name)
    wanted = [{"name": name, "topic_id": uuid.UUID(int=0)}]
    found: list[Any] = []
    for asks in (True, False):
        flags = {
            "include_topic_authorized_operations": asks,
            "include_cluster_authorized_operations": asks,
        }
        listed = asker.ask(ApiKey.METADATA, 9, topics=wanted, allow_auto_topic_creation=False, **flags)
        found.append((listed.cluster_authorized_operations, listed.topics[0].topic_authorized_operations))
        cluster = asker.ask(ApiKey.DESCRIBE_CLUSTER, 1, endpoint_type=1, **flags)
        found.append(cluster.cluster_authorized_operations)
        groups = asker.ask(ApiKey.DESCRIBE_GROUPS, 5, groups=[group], include_authorized_operations=asks)
        found.append(groups.groups[0].authorized_operations)
    response = asker.ask(
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        0,
        topics=[{"name": name}],
        response_partition_limit=9,
        cursor=None,
    )
    return [*found, response.topics[0].topic_authorized_operations]


def elected(asker: Asker, kind: int, topic: str, partitions: list[int]) -> Any:
    response = asker.ask(
        ApiKey.ELECT_LEADERS,
        2,
        election_type=kind,
        topic_partitions=[{"topic": topic, "partitions": partitions}],
        timeout=10_000,
    )
    return name_of(response.error_code), sorted(
        (part.partition_id, name_of(part.error_code))
        for each in response.replica_election_results
        for part in each.partition_result
    )


@case("ElectLeaders: needless ones of both kinds")
def _(asker: Asker) -> Any:
    name = asker.topic()
    return [elected(asker, kind, name, [0]) for kind in (0, 1)]


@case("ElectLeaders: an unknown topic, unknown and negative partitions")
def _(asker: Asker) -> Any:
    return [
        elected(asker, kind, *each) for kind in (0, 1) for each in ((fresh(), [0]), (asker.topic(), [7, -1]))
    ]


@case("OffsetForLeaderEpoch: unknown topic, unknown partition, epochs of nobody")
def _(asker: Asker) -> Any:
    name = asker.topic()
    places = ((fresh(), 0, -1, 0), (name, 7, -1, 0), (name, 0, -1, -1), (name, 0, -1, 99), (name, 0, 99, 0))
    found = []
    for topic, partition, current, epoch in places:
        part = {"partition": partition, "current_leader_epoch": current, "leader_epoch": epoch}
        response = asker.ask(
            ApiKey.OFFSET_FOR_LEADER_EPOCH,
            4,
            replica_id=-1,
            topics=[{"topic": topic, "partitions": [part]}],
        )
        ((answer,),) = [each.partitions for each in response.topics]
        found.append((name_of(answer.error_code), answer.leader_epoch, answer.end_offset))
    return found
