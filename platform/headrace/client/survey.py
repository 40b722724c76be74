"""A survey of a cluster: its topics, where each partition's log begins and ends, and who does not answer.

Unlike `Admin.list_offsets`, it returns what it knows when some brokers are silent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from headrace.client.asking import (
    ANSWER_MAX_S,
    METADATA_MAX_S,
    Answers,
    SilentBroker,
    ask,
    everybody,
    silent_brokers,
)
from headrace.client.calls import EARLIEST, LATEST, list_offsets_call
from headrace.client.cluster import BrokerAddress, Cluster, PartitionInfo, TopicInfo, TopicPartition
from headrace.client.errors import BrokerError, UnknownTopicError
from headrace.client.network import Network
from headrace.wire.errors import ErrorCode


class LogRange(NamedTuple):
    """Where a partition's log begins and ends."""

    start: int
    end: int

    @property
    def size_bytes(self) -> int:
        """The bytes of the log of a headrace broker, whose offsets are byte addresses."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Survey:
    """What the brokers told. A partition has a range, or a problem that says why not."""

    topics: Mapping[str, TopicInfo]
    ranges: Mapping[TopicPartition, LogRange]
    problems: Mapping[TopicPartition, str]
    silent: tuple[SilentBroker, ...]
    answering: tuple[BrokerAddress, ...]

    def topic(self, name: str) -> TopicInfo:
        """Returns one topic. Raises `UnknownTopicError`."""
        info = self.topics.get(name)
        if info is None or info.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise UnknownTopicError(f"there is no topic {name!r}")
        if info.error is not ErrorCode.NONE:
            raise BrokerError(info.error, f"topic {name!r}")
        return info

    def ranges_of(self, topic: str) -> dict[int, LogRange]:
        return {partition: found for (name, partition), found in self.ranges.items() if name == topic}

    def problems_of(self, topic: str) -> dict[int, str]:
        return {partition: problem for (name, partition), problem in self.problems.items() if name == topic}


def take_survey(
    network: Network,
    topics: Iterable[str] | None,
    refresh: Callable[[list[str] | None, float], Cluster],
    *,
    known: Mapping[int, BrokerAddress],
    clock: Callable[[], float],
) -> Survey:
    """Surveys the topics (None: all) within `ANSWER_MAX_S`.

    `known`: the brokers that should be there, for their names. Raises `NetworkError` if none answers.
    """
    began_s = clock()
    cluster = refresh(None if topics is None else sorted(set(topics)), began_s + METADATA_MAX_S)
    calls = everybody(network, cluster)
    for node_id, led in _by_leader(cluster).items():
        calls[node_id] = [
            list_offsets_call({topic: dict.fromkeys(partitions, when) for topic, partitions in led.items()})
            for when in (EARLIEST, LATEST)
        ]
    answers = ask(network, calls, deadline_s=began_s + ANSWER_MAX_S, clock=clock)
    silent = silent_brokers(network, cluster, answers, known)
    named = {each.broker_id for each in silent}
    replicas = {broker_id for _, part in _partitions(cluster) for broker_id in part.replicas}
    silent += [SilentBroker(each, None) for each in sorted(replicas - named - cluster.brokers.keys())]
    ranges, problems = _ranges(cluster, answers, {each.broker_id: str(each) for each in silent})
    heard = [network.bootstrap.get(node_id) or cluster.brokers[node_id] for node_id in answers.bodies]
    return Survey(dict(cluster.topics), ranges, problems, tuple(silent), tuple(heard))


def _partitions(cluster: Cluster) -> Iterator[tuple[str, PartitionInfo]]:
    for name, info in cluster.topics.items():
        for part in info.partitions.values():
            yield name, part


def _by_leader(cluster: Cluster) -> dict[int, dict[str, list[int]]]:
    """Returns the partitions that each registered broker leads."""
    led: dict[int, dict[str, list[int]]] = {}
    for name, part in _partitions(cluster):
        if part.leader in cluster.brokers:
            led.setdefault(part.leader, {}).setdefault(name, []).append(part.partition)
    return led


def _ranges(
    cluster: Cluster, answers: Answers, silent: Mapping[int | None, str]
) -> tuple[dict[TopicPartition, LogRange], dict[TopicPartition, str]]:
    starts: dict[TopicPartition, int] = {}
    ends: dict[TopicPartition, int] = {}
    refusals: dict[TopicPartition, str] = {}
    for bodies in answers.bodies.values():
        for body, into in zip(bodies, (starts, ends), strict=False):
            for key, result in _results(body):
                if result.error_code == ErrorCode.NONE:
                    into[key] = result.offset
                else:
                    refusals[key] = str(BrokerError(result.error_code, f"{key[0]}-{key[1]}"))
    ranges: dict[TopicPartition, LogRange] = {}
    problems: dict[TopicPartition, str] = {}
    for name, part in _partitions(cluster):
        key = (name, part.partition)
        if key in starts and key in ends:
            ranges[key] = LogRange(starts[key], ends[key])
        elif key in refusals:
            problems[key] = refusals[key]
        else:
            causes = [silent[broker_id] for broker_id in part.replicas if broker_id in silent]
            problems[key] = causes[0] if causes else "it has no leader: its log is offline"
    return ranges, problems


def _results(body: Any) -> Iterator[tuple[TopicPartition, Any]]:
    for topic in body.topics:
        for part in topic.partitions:
            yield (topic.name, part.partition_index), part
