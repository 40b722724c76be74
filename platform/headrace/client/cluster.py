"""The cluster as Metadata responses describe it: brokers, topics, leaders. Immutable snapshots, no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple
from uuid import UUID

from headrace.wire.errors import ErrorCode
from headrace.wire.primitives import NO_UUID
from headrace.wire.topic_names import TopicPartition as TopicPartition

NO_LEADER: Final = -1
DEFAULT_PORT: Final = 9092
TOPIC_NAME_MAX_BYTES: Final = 32_767  # that a request can hold; brokers allow 249


class BrokerAddress(NamedTuple):
    """A broker's host (name or IP address) and TCP port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_bootstrap(bootstrap: str | Iterable[str]) -> list[BrokerAddress]:
    """Parses `"host:port,host:port"`, or a list of `"host:port"`; the port may be omitted (9092).

    Raises `ValueError` naming the invalid part.
    """
    parts = bootstrap.split(",") if isinstance(bootstrap, str) else list(bootstrap)
    addresses = [_parse_address(part.strip()) for part in parts if part.strip()]
    if not addresses:
        raise ValueError(f"no broker address in {bootstrap!r}; give host:port, several separated by commas")
    return addresses


def _parse_address(text: str) -> BrokerAddress:
    if text.startswith("["):
        host, _, port = text[1:].partition("]")
        port = port.removeprefix(":")
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    else:
        host, port = text, ""
    is_port = not port or (port.isdecimal() and 0 < int(port) < 65_536)
    if not is_port or not _is_host(host):
        raise ValueError(f"{text!r} is not a broker address; give host:port")
    return BrokerAddress(host, int(port) if port else DEFAULT_PORT)


def _is_host(host: str) -> bool:
    """Whether sockets take it as a host's name: `getaddrinfo` encodes it like this."""
    try:
        return bool(host.encode("idna")) and "\0" not in host
    except UnicodeError:
        return False


def check_topic(topic: object) -> None:
    """Raises `TypeError` or `ValueError` for what no request can name as a topic: a client finds its error
    where it is, and not in all its later requests for metadata.
    """
    if not isinstance(topic, str):
        raise TypeError(f"the name of a topic must be a str, not {type(topic).__name__}")
    try:
        size_bytes = len(topic.encode())
    except UnicodeEncodeError as error:
        raise ValueError(f"{topic!r} is not the name of a topic: {error.reason}") from None
    if size_bytes > TOPIC_NAME_MAX_BYTES:
        raise ValueError(
            f"{topic[:40]!r}… is not the name of a topic: it has {size_bytes} bytes, at most "
            f"{TOPIC_NAME_MAX_BYTES} are allowed"
        )


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """One partition's leader, a broker id or NO_LEADER, and its replicas."""

    partition: int
    leader: int
    leader_epoch: int = -1
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """One topic. `error` says why it cannot be used now; NONE if it can."""

    name: str
    partitions: dict[int, PartitionInfo]
    error: ErrorCode = ErrorCode.NONE
    topic_id: UUID = NO_UUID
    is_internal: bool = False


@dataclass(frozen=True, slots=True)
class Cluster:
    """One snapshot. Brokers by id; topics by name, only the requested ones."""

    brokers: Mapping[int, BrokerAddress] = field(default_factory=dict)
    topics: Mapping[str, TopicInfo] = field(default_factory=dict)
    controller_id: int = -1
    cluster_id: str | None = None
    partition_counts: Mapping[str, int] = field(init=False)
    """By topic: the producer looks it up for every record."""

    def __post_init__(self) -> None:
        counts = {name: len(info.partitions) for name, info in self.topics.items()}
        object.__setattr__(self, "partition_counts", counts)

    def partition_count(self, topic: str) -> int:
        """Returns how many partitions the topic has; 0 while that is unknown."""
        return self.partition_counts.get(topic, 0)

    def leader(self, topic: str, partition: int) -> int | None:
        """Returns the leader's broker id if the leader and its address are known."""
        info = self.topics.get(topic)
        found = info.partitions.get(partition) if info is not None else None
        if found is None or found.leader not in self.brokers:
            return None
        return found.leader

    def topic_id(self, topic: str) -> UUID:
        """Returns the topic's id (KIP-516); the zero id while that is unknown."""
        info = self.topics.get(topic)
        return NO_UUID if info is None else info.topic_id

    @property
    def is_incomplete(self) -> bool:
        """Whether a topic is not there yet, or a partition has no leader: a later answer may know more."""
        return any(
            topic.error in _TRANSIENT_ERRORS or any(p.leader < 0 for p in topic.partitions.values())
            for topic in self.topics.values()
        )

    def led_partitions(self, topic: str) -> list[int]:
        """Returns the partitions that have a leader now."""
        info = self.topics.get(topic)
        if info is None:
            return []
        return [part.partition for part in info.partitions.values() if part.leader in self.brokers]

    def updated(self, newer: Cluster) -> Cluster:
        """Returns `newer` plus those topics of this snapshot that `newer` lacks. Leaders of an older epoch
        than is known are left out: the broker that told of them was cut off, and is behind (KIP-320).
        """
        topics = {
            name: _with_later_leaders(self.topics.get(name), info) for name, info in newer.topics.items()
        }
        return replace(newer, topics={**self.topics, **topics})


def _with_later_leaders(known: TopicInfo | None, newer: TopicInfo) -> TopicInfo:
    if known is None or known.topic_id != newer.topic_id:
        return newer
    later = {
        index: before
        for index, before in known.partitions.items()
        if index in newer.partitions and 0 <= newer.partitions[index].leader_epoch < before.leader_epoch
    }
    return replace(newer, partitions={**newer.partitions, **later}) if later else newer


def from_metadata(body: Any) -> Cluster:
    """Returns the snapshot in a Metadata response (kio's, any version from 4)."""
    topics = {}
    for topic in body.topics:
        if topic.name is None:
            continue
        partitions = {
            part.partition_index: PartitionInfo(
                partition=part.partition_index,
                leader=part.leader_id if part.error_code in _USABLE else NO_LEADER,
                leader_epoch=getattr(part, "leader_epoch", -1),
                replicas=tuple(part.replica_nodes),
                isr=tuple(part.isr_nodes),
            )
            for part in topic.partitions
        }
        topics[topic.name] = TopicInfo(
            name=topic.name,
            partitions=dict(sorted(partitions.items())),
            error=ErrorCode(topic.error_code),
            topic_id=getattr(topic, "topic_id", None) or NO_UUID,
            is_internal=topic.is_internal,
        )
    return Cluster(
        brokers={broker.node_id: BrokerAddress(broker.host, broker.port) for broker in body.brokers},
        topics=topics,
        controller_id=body.controller_id,
        cluster_id=body.cluster_id,
    )


_TRANSIENT_ERRORS: Final = frozenset(
    {ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID}
)
_USABLE: Final = (ErrorCode.NONE, ErrorCode.REPLICA_NOT_AVAILABLE)
