"""A survey of a cluster: its topics, where each partition's log begins and ends, and who does not answer.

Unlike `Admin.list_offsets`, it returns what it knows when some brokers are silent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any, NamedTuple

from headrace.client.asking import (
    ANSWER_MAX_S,
    METADATA_SHARE,
    Answers,
    SilentBroker,
    ask,
    connect_all,
    everybody,
    silent_brokers,
)
from headrace.client.calls import EARLIEST, ITEMS_AT_ONCE_MAX, LATEST, in_parts, list_offsets_call
from headrace.client.cluster import BrokerAddress, Cluster, PartitionInfo, TopicInfo, TopicPartition
from headrace.client.errors import BrokerError, UnknownTopicError
from headrace.client.log_dirs import UNKNOWN, StoredReplica, log_dirs_call, read_log_dirs
from headrace.client.network import Network
from headrace.client.replicas import Placed, Reassignment, list_reassignments_call, read_reassignments
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
    """What the brokers told. A partition has a range, or a problem that says why not.

    `reassignments`: what is on its way to other replicas. `stored`: the replicas on disks, if they were asked
    for.
    """

    topics: Mapping[str, TopicInfo]
    ranges: Mapping[TopicPartition, LogRange]
    problems: Mapping[TopicPartition, str]
    silent: tuple[SilentBroker, ...]
    answering: tuple[BrokerAddress, ...]
    reassignments: Mapping[TopicPartition, Reassignment] = field(default_factory=dict)
    stored: Mapping[Placed, StoredReplica] = field(default_factory=dict)

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

    def under_replicated(self, topic: str) -> list[int]:
        """Returns the partitions that have fewer replicas in sync than they should; one that is gained in a
        reassignment is none of those yet."""
        found = []
        for number, part in self.topics[topic].partitions.items():
            moving = self.reassignments.get((topic, number))
            due = set(part.replicas) - set(moving.adding if moving else ())
            if due - set(part.isr):
                found.append(number)
        return found

    def lag_bytes(self, topic: str, part: PartitionInfo) -> dict[int, int | None]:
        """Returns how many bytes of the leader's log each other replica lacks; None where that is unknown."""
        led = self.stored.get((part.leader, topic, part.partition))
        lags: dict[int, int | None] = {}
        for each in part.replicas:
            held = self.stored.get((each, topic, part.partition))
            if each == part.leader:
                continue
            if led is None or held is None:
                lags[each] = None
            elif led.end_address == UNKNOWN:
                lags[each] = held.behind_bytes
            elif held.end_address == UNKNOWN:
                lags[each] = None
            else:
                lags[each] = max(0, led.end_address - held.end_address)
        return lags

    def problems_of(self, topic: str) -> dict[int, str]:
        return {partition: problem for (name, partition), problem in self.problems.items() if name == topic}


def take_survey(
    network: Network,
    topics: Iterable[str] | None,
    refresh: Callable[[list[str] | None, float], Cluster],
    *,
    known: Mapping[int, BrokerAddress],
    clock: Callable[[], float],
    answer_max_s: float = ANSWER_MAX_S,
    with_replicas: bool = False,
) -> Survey:
    """Surveys the topics (None: all) within `answer_max_s`.

    `known`: the brokers that should be there, for their names. `with_replicas`: asks what is on their disks,
    too. Raises `NetworkError` if none answers.
    """
    began_s = clock()
    connect_all(network)
    wanted = None if topics is None else sorted(set(topics))
    cluster = refresh(wanted, began_s + METADATA_SHARE * answer_max_s)
    calls = everybody(network, cluster)
    for node_id, led in _by_leader(cluster).items():
        calls[node_id] = [
            list_offsets_call({topic: dict.fromkeys(some[topic], when) for topic in some})
            for some in in_parts({topic: dict.fromkeys(partitions, 0) for topic, partitions in led.items()})
            for when in (EARLIEST, LATEST)
        ]
    extras = [list_reassignments_call(is_optional=True)]
    if with_replicas:
        every: dict[str, list[int]] | None = {
            name: list(info.partitions) for name, info in cluster.topics.items()
        }
        if sum(1 + len(info.partitions) for info in cluster.topics.values()) > ITEMS_AT_ONCE_MAX:
            every = None  # of all topics: too many to name
        extras.append(log_dirs_call(every, is_optional=True))
    for node_id in cluster.brokers:
        calls[node_id] = [*extras, *calls[node_id]]
    answers = ask(network, calls, deadline_s=began_s + answer_max_s, clock=clock)
    silent = silent_brokers(network, cluster, answers, known)
    named = {each.broker_id for each in silent}
    replicas = {broker_id for _, part in _partitions(cluster) for broker_id in part.replicas}
    silent += [SilentBroker(each, None) for each in sorted(replicas - named - cluster.brokers.keys())]
    ranges, problems = _ranges(cluster, answers, len(extras), {each.broker_id: str(each) for each in silent})
    heard = [network.bootstrap.get(node_id) or cluster.brokers[node_id] for node_id in answers.bodies]
    told = {each: bodies for each, bodies in answers.bodies.items() if each in cluster.brokers}
    return Survey(
        dict(cluster.topics),
        ranges,
        problems,
        tuple(silent),
        tuple(heard),
        {key: each for bodies in told.values() for key, each in read_reassignments(bodies[0]).items()},
        {
            (node_id, *name): replica
            for node_id, bodies in told.items()
            if with_replicas and bodies[1] is not None
            for folder in read_log_dirs(bodies[1])
            for name, replica in folder.replicas.items()
        },
    )


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
    cluster: Cluster, answers: Answers, extras: int, silent: Mapping[int | None, str]
) -> tuple[dict[TopicPartition, LogRange], dict[TopicPartition, str]]:
    starts: dict[TopicPartition, int] = {}
    ends: dict[TopicPartition, int] = {}
    refusals: dict[TopicPartition, str] = {}
    for bodies in answers.bodies.values():
        for body, into in zip(bodies[extras:], cycle((starts, ends)), strict=False):
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
