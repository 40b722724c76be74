"""The state of a partition: who leads it, in which epoch, who is in sync; and its documents in ZooKeeper.

Pure, except for the reading of topics' documents. `partition_states` changes states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any, Final
from uuid import UUID

from headrace.coordination import documents, znodes
from headrace.coordination.errors import CorruptNodeError
from headrace.coordination.nodes import Node
from headrace.coordination.session import ZooKeeperSession

NO_LEADER: Final = -1
DOCUMENTS_PER_REQUEST_MAX: Final = 20
"""Of topics and of their settings. A topic of 2,000 partitions takes some 50 kB, and none more than 1 MiB."""


@dataclass(frozen=True, slots=True)
class PartitionState:
    """`leader`: a broker id, or NO_LEADER. `replicas[0]`: the preferred leader. `isr`: in-sync replicas.

    `adding` and `removing`: the replicas that a reassignment adds and will drop; both are in `replicas`.
    `elr`: eligible leader replicas (KIP-966): not in sync any more, and yet they have all below the high
    watermark, which stands still as long as there are any.
    `created_zxid`: the transaction that created the partition, which tells it from one that was made again
    under its name, and `created_ms` when that was, by ZooKeeper's clock; 0 where the state was not read from
    ZooKeeper.
    """

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    elr: tuple[int, ...] = ()
    created_zxid: int = field(default=0, compare=False, repr=False)
    created_ms: int = field(default=0, compare=False, repr=False)

    @property
    def creation(self) -> str:
        """Returns what no other partition has, in no other ZooKeeper either; nothing if it was not read."""
        return f"{self.created_zxid}@{self.created_ms}" if self.created_zxid else ""

    @property
    def settled_count(self) -> int:
        """How many replicas it has, without those that a reassignment adds."""
        return len(set(self.replicas) - set(self.adding))

    def with_isr(
        self, isr: tuple[int, ...], elr_below: ElrBelow, unfit: Set[int] = frozenset()
    ) -> PartitionState:
        """Returns the state with other in-sync replicas, and the eligible leader replicas that go with them:
        while fewer than `elr_below` are in sync, those that left the set, without the `unfit`. With enough in
        sync there are none: the high watermark rises again, and those that left fall behind.
        """
        left = dict.fromkeys((*self.elr, *self.isr))
        elr = tuple(r for r in left if r in self.replicas and r not in isr and r not in unfit)
        return replace(self, isr=isr, elr=elr if elr and len(isr) < elr_below(self) else ())


ElrBelow = Callable[[PartitionState], int]
"""Returns below how many in-sync replicas those that leave a partition's set are eligible to lead it."""


def new_partition(replicas: Iterable[int], stopping: Set[int], dead: Set[int]) -> PartitionState:
    """Returns the first state of a partition: its first replica leads, and all are in sync, but not those of
    `dead` brokers, and of the `stopping` ones only where there is no other.
    """
    chosen = tuple(replicas)
    live = tuple(each for each in chosen if each not in dead) or chosen
    in_sync = tuple(each for each in live if each not in stopping) or live
    return PartitionState(leader=in_sync[0], leader_epoch=0, replicas=chosen, isr=in_sync)


def topic_document(topic_id: UUID, partitions: Mapping[int, PartitionState]) -> bytes:
    """Returns the bytes of `/brokers/topics/<t>`: what is known of replicas."""

    def by_partition(name: str) -> dict[str, list[int]]:
        lists = {str(p): list(getattr(state, name)) for p, state in partitions.items()}
        return {p: brokers for p, brokers in lists.items() if brokers}

    fields: dict[str, Any] = {"topic_id": str(topic_id), "partitions": by_partition("replicas")}
    for field_name, name in (("adding_replicas", "adding"), ("removing_replicas", "removing")):
        if changing := by_partition(name):
            fields[field_name] = changing
    return documents.encode(fields)


def read_documents(session: ZooKeeperSession, names: Iterable[str]) -> list[Node | None]:
    """Reads the nodes of topics, which list their replicas; None where there is no such topic."""
    return session.get_many_small(map(znodes.topic, names), per_request_max=DOCUMENTS_PER_REQUEST_MAX)


def present_node(path: str, node: Node | None) -> Node:
    """Returns a node of a topic that is registered. Raises `CorruptNodeError` if it is missing: a topic's
    nodes are deleted all in one transaction.
    """
    if node is None:
        raise CorruptNodeError(
            f"{path}: the node is missing, and its topic was not deleted: put it back, as in a backup of "
            "ZooKeeper or as another topic has it"
        )
    return node


def parse_topic(path: str, data: bytes) -> tuple[UUID, dict[int, PartitionState]]:
    """Returns a topic's id and, by partition, a state with its replicas and no leader. Raises
    `CorruptNodeError`."""
    fields = documents.decode(path, data)

    def by_partition(found: dict[str, list[object]]) -> dict[int, tuple[int, ...]]:
        return {documents.int32(p): tuple(map(documents.int32, brokers)) for p, brokers in found.items()}

    try:
        adding = by_partition(fields.get("adding_replicas", {}))
        removing = by_partition(fields.get("removing_replicas", {}))
        listed = fields["partitions"]
        if listed.keys() != {str(number) for number in range(len(listed))}:
            raise ValueError("partitions are numbered from 0 on")
        return UUID(fields["topic_id"]), {
            p: PartitionState(NO_LEADER, 0, brokers, (), adding.get(p, ()), removing.get(p, ()))
            for p, brokers in by_partition(listed).items()
        }
    except (KeyError, ValueError, TypeError, AttributeError):
        raise CorruptNodeError(f"{path}: not a topic's document: {data[:80]!r}") from None


def state_document(state: PartitionState) -> bytes:
    fields = {"leader": state.leader, "leader_epoch": state.leader_epoch, "isr": list(state.isr)}
    return documents.encode(fields | ({"elr": list(state.elr)} if state.elr else {}))


def parse_state(path: str, node: Node, listed: PartitionState) -> PartitionState:
    """Returns a partition's state; `listed` has its replicas. Raises `CorruptNodeError`."""
    fields = documents.decode(path, node.data)
    try:
        leader, epoch = documents.int32(fields["leader"]), documents.int32(fields["leader_epoch"])
        isr = tuple(map(documents.int32, fields["isr"]))
        elr = tuple(map(documents.int32, fields.get("elr", ())))
    except (KeyError, ValueError, TypeError):
        raise CorruptNodeError(f"{path}: not a partition's state: {node.data[:80]!r}") from None
    stored = replace(listed, leader=leader, leader_epoch=epoch, isr=isr, elr=elr)
    return replace(stored, created_zxid=node.stat.created_zxid, created_ms=node.stat.created_ms)
