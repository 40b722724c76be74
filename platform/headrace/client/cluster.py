"""What the brokers told us of the cluster: brokers, topics, who leads what. Immutable snapshots, no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple
from uuid import UUID

from headrace.wire.errors import ErrorCode
from headrace.wire.primitives import NO_UUID

NO_LEADER: Final = -1
DEFAULT_PORT: Final = 9092


class Address(NamedTuple):
    """A host (name or number) and a TCP port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_bootstrap(bootstrap: str | Iterable[str]) -> list[Address]:
    """Addresses from `"host:port,host:port"` or a list of such; the port may be left out (9092).

    Raises `ValueError` naming the part that is no address.
    """
    parts = bootstrap.split(",") if isinstance(bootstrap, str) else list(bootstrap)
    addresses = [_parse_address(part.strip()) for part in parts if part.strip()]
    if not addresses:
        raise ValueError(f"no broker address in {bootstrap!r}; give host:port, several separated by commas")
    return addresses


def _parse_address(text: str) -> Address:
    if text.startswith("["):
        host, _, port = text[1:].partition("]")
        port = port.removeprefix(":")
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    else:
        host, port = text, ""
    if not host or (port and not port.isdecimal()) or (port and not 0 < int(port) < 65_536):
        raise ValueError(f"{text!r} is no broker address; give host:port")
    return Address(host, int(port) if port else DEFAULT_PORT)


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """`leader` is a broker id or NO_LEADER."""

    partition: int
    leader: int
    leader_epoch: int = -1
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """`error` is the broker's reason why the topic cannot be used now, NONE if it can."""

    name: str
    partitions: dict[int, PartitionInfo]
    error: ErrorCode = ErrorCode.NONE
    topic_id: UUID = NO_UUID
    is_internal: bool = False


@dataclass(frozen=True, slots=True)
class Cluster:
    """One snapshot. Brokers by id; topics by name, only those somebody asked for."""

    brokers: Mapping[int, Address] = field(default_factory=dict)
    topics: Mapping[str, TopicInfo] = field(default_factory=dict)
    controller_id: int = -1
    cluster_id: str | None = None

    def partition_count(self, topic: str) -> int:
        """How many partitions the topic has; 0 while that is unknown."""
        info = self.topics.get(topic)
        return len(info.partitions) if info is not None else 0

    def leader(self, topic: str, partition: int) -> int | None:
        """The id of the broker that leads, if it is known and its address too."""
        info = self.topics.get(topic)
        found = info.partitions.get(partition) if info is not None else None
        if found is None or found.leader not in self.brokers:
            return None
        return found.leader

    def led_partitions(self, topic: str) -> list[int]:
        """The partitions that have a leader now."""
        info = self.topics.get(topic)
        if info is None:
            return []
        return [part.partition for part in info.partitions.values() if part.leader in self.brokers]

    def updated(self, newer: Cluster) -> Cluster:
        """This snapshot with all that `newer` knows; topics it was not asked about stay."""
        return replace(newer, topics={**self.topics, **newer.topics})


def from_metadata(body: Any) -> Cluster:
    """The snapshot in a Metadata response (kio's, any version from 4)."""
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
        brokers={broker.node_id: Address(broker.host, broker.port) for broker in body.brokers},
        topics=topics,
        controller_id=body.controller_id,
        cluster_id=body.cluster_id,
    )


_USABLE: Final = (ErrorCode.NONE, ErrorCode.REPLICA_NOT_AVAILABLE)
