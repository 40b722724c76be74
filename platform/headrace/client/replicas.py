"""A survey of a cluster's replicas: brokers, assignments, reassignments under way, and what is on which disk.

One broker's view changes while it answers, so reassignments are listed before and after its Metadata: only
where both lists agree is it known which replicas a partition is to have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

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
from headrace.client.calls import Call, Schema, control_call, metadata_call, milliseconds
from headrace.client.cluster import BrokerAddress, Cluster, PartitionInfo, TopicPartition, from_metadata
from headrace.client.errors import NetworkError
from headrace.client.log_dirs import LogDirectory, StoredReplica, log_dirs_call, read_log_dirs
from headrace.client.network import Network
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode

DECIDING_MAX: Final = 2  # brokers that are asked for the assignments; the first that answers counts
SERVER_WAIT_MS: Final = 30_000

Placed = tuple[int, str, int]
"""Broker, topic, partition."""


class Reassignment(NamedTuple):
    """A partition on its way to other replicas: those it gains, and those it will lose."""

    adding: tuple[int, ...]
    removing: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BrokerStanding:
    """A registered broker. `rack`: by which replicas are spread; `epoch`: of its registration, -1 if the
    broker is not one of ours."""

    broker_id: int
    address: BrokerAddress
    rack: str
    epoch: int


class DiskRoom(NamedTuple):
    """The room on a broker's disk. `file_system`: equal for brokers on one disk, "" if that is not known;
    `reserve_bytes`: -1 if the broker does not say what has to stay free."""

    free_bytes: int
    reserve_bytes: int
    file_system: str


@dataclass(frozen=True, slots=True)
class ReplicaSurvey:
    """What the brokers told. `stored`: the replicas on disks of brokers that answer. `unsettled`: partitions
    whose assignment changed while it was read. `drained`: brokers that any one calls drained,
    `drained_for_all` those that all do. `rooms`: without brokers that do not say it.
    """

    brokers: Mapping[int, BrokerStanding]
    partitions: Mapping[TopicPartition, PartitionInfo]
    reassignments: Mapping[TopicPartition, Reassignment]
    unsettled: frozenset[TopicPartition]
    stored: Mapping[Placed, StoredReplica]
    drained: frozenset[int]
    drained_for_all: frozenset[int]
    silent: tuple[SilentBroker, ...]
    rooms: Mapping[int, DiskRoom] = field(default_factory=dict)

    def targets(self, key: TopicPartition) -> tuple[int, ...]:
        """Returns the replicas that a partition is to have once its reassignment has ended."""
        removing = self.reassignments[key].removing if key in self.reassignments else ()
        return tuple(each for each in self.partitions[key].replicas if each not in removing)

    def former(self, key: TopicPartition) -> tuple[int, ...]:
        """Returns the replicas that a partition had before its reassignment began."""
        adding = self.reassignments[key].adding if key in self.reassignments else ()
        return tuple(each for each in self.partitions[key].replicas if each not in adding)

    def size_bytes(self, key: TopicPartition) -> int:
        """Returns the size of a partition: its leader's, or else the largest replica's; 0 if nobody says."""
        topic, number = key
        part = self.partitions[key]
        led = self.stored.get((part.leader, topic, number))
        if led is not None:
            return led.size_bytes
        held = (self.stored.get((each, topic, number)) for each in part.replicas)
        return max((each.size_bytes for each in held if each is not None), default=0)

    def is_size_known(self, key: TopicPartition) -> bool:
        """Whether a broker with a replica says its size, or its leader answers: a log that is not there yet
        is empty."""
        part = self.partitions[key]
        has_answer = part.leader not in {each.broker_id for each in self.silent}
        return has_answer or any((each, *key) in self.stored for each in part.replicas)


def list_reassignments_call(
    topics: Mapping[str, Iterable[int]] | None = None, *, is_optional: bool = False
) -> Call:
    """Requests the reassignments under way of these partitions; None: of all."""

    def build(schema: Schema) -> Any:
        wanted = None
        if topics is not None:
            wanted = tuple(
                schema.make("ListPartitionReassignmentsTopics", name=name, partition_indexes=tuple(indexes))
                for name, indexes in topics.items()
            )
        timeout = milliseconds(SERVER_WAIT_MS)
        return schema.make("ListPartitionReassignmentsRequest", timeout=timeout, topics=wanted)

    return control_call(ApiKey.LIST_PARTITION_REASSIGNMENTS, build, is_optional=is_optional)


def read_reassignments(body: Any) -> dict[TopicPartition, Reassignment]:
    """Reads the response; None, of a broker without this API, has none."""
    return {
        (topic.name, part.partition_index): Reassignment(
            tuple(part.adding_replicas), tuple(part.removing_replicas)
        )
        for topic in (() if body is None else body.topics)
        for part in topic.partitions
    }


def take_replica_survey(
    network: Network,
    refresh: Callable[[list[str] | None, float], Cluster],
    *,
    known: Mapping[int, BrokerAddress],
    clock: Callable[[], float],
    answer_max_s: float = ANSWER_MAX_S,
) -> ReplicaSurvey:
    """Surveys all topics within `answer_max_s`. `known`: see `client.survey`. Raises `NetworkError` if no
    broker tells the assignments."""
    began_s = clock()
    connect_all(network)
    cluster = refresh([], began_s + METADATA_SHARE * answer_max_s)
    calls = everybody(network, cluster)
    order = sorted(cluster.brokers, key=lambda each: (each != cluster.controller_id, each))
    for node_id in order:
        calls[node_id] = [_describe_cluster_call(), log_dirs_call(None)]
    for node_id in order[:DECIDING_MAX]:
        calls[node_id] += [list_reassignments_call(), metadata_call(None, create=False)]
        calls[node_id] += [list_reassignments_call()]
    answers = ask(network, calls, deadline_s=began_s + answer_max_s, clock=clock)
    deciding = next((each for each in order[:DECIDING_MAX] if each in answers.bodies), None)
    if deciding is None:
        raise NetworkError(
            f"brokers {order[:DECIDING_MAX]} do not tell which replicas the partitions have; try again"
        )
    before, metadata, after = answers.bodies[deciding][2:]
    first, last = read_reassignments(before), read_reassignments(after)
    topics = from_metadata(metadata).topics
    partitions = {(name, n): part for name, info in topics.items() for n, part in info.partitions.items()}
    folders = _folders(answers, order)
    drained = [frozenset(getattr(each[0], "drained_brokers", ())) for each in _answered(answers, order)]
    return ReplicaSurvey(
        brokers=_standings(answers.bodies[deciding][0]),
        partitions=partitions,
        reassignments=last,
        unsettled=frozenset(key for key in first | last if first.get(key) != last.get(key)),
        stored={
            (node_id, *name): replica
            for node_id, found in folders.items()
            for folder in found
            for name, replica in folder.replicas.items()
        },
        drained=frozenset().union(*drained),
        drained_for_all=frozenset.intersection(*drained) if drained else frozenset(),
        silent=_silent(network, cluster, answers, known, partitions),
        rooms={
            node_id: room
            for node_id, found in folders.items()
            if (room := room_of_folders(found)) is not None
        },
    )


def _describe_cluster_call() -> Call:
    def build(schema: Schema) -> Any:
        return schema.make("DescribeClusterRequest", include_cluster_authorized_operations=False)

    return control_call(ApiKey.DESCRIBE_CLUSTER, build)


def _answered(answers: Answers, order: Iterable[int]) -> Iterator[list[Any]]:
    return (answers.bodies[each] for each in order if each in answers.bodies)


def _standings(body: Any) -> dict[int, BrokerStanding]:
    return {
        each.broker_id: BrokerStanding(
            each.broker_id,
            BrokerAddress(each.host, each.port),
            getattr(each, "placement_rack", "") or each.rack or each.host,
            getattr(each, "broker_epoch", -1),
        )
        for each in body.brokers
    }


def _folders(answers: Answers, order: Iterable[int]) -> dict[int, list[LogDirectory]]:
    """Returns the log directories of each broker that answers."""
    return {each: read_log_dirs(answers.bodies[each][1]) for each in order if each in answers.bodies}


def room_of_folders(folders: Iterable[LogDirectory]) -> DiskRoom | None:
    """Returns a broker's room; of several log directories the least, since the broker chooses among them;
    None if it does not say what is free in one that is online."""
    online = [each for each in folders if each.error is ErrorCode.NONE]
    if not online or any(each.usable_bytes < 0 for each in online):
        return None
    least = min(online, key=lambda each: each.usable_bytes - max(0, each.reserve_bytes))
    return DiskRoom(least.usable_bytes, least.reserve_bytes, least.file_system)


def _silent(
    network: Network,
    cluster: Cluster,
    answers: Answers,
    known: Mapping[int, BrokerAddress],
    partitions: Mapping[TopicPartition, PartitionInfo],
) -> tuple[SilentBroker, ...]:
    """Returns the brokers that do not answer, those with replicas that are not registered included."""
    silent = silent_brokers(network, cluster, answers, known)
    named = {each.broker_id for each in silent}
    replicas = {broker_id for part in partitions.values() for broker_id in part.replicas}
    return (*silent, *(SilentBroker(each, None) for each in sorted(replicas - named - set(cluster.brokers))))
