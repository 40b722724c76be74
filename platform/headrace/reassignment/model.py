"""What a plan is made from and what it is: brokers, partitions with their replicas, moves. Pure values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

Key = tuple[str, int]
"""Topic and partition."""


@dataclass(frozen=True, slots=True)
class Node:
    """A broker that can take replicas: it is alive and not drained. Replicas are spread over racks, then
    hosts."""

    broker_id: int
    rack: str
    host: str


@dataclass(frozen=True, slots=True)
class Assigned:
    """A partition. `replicas`: those that it is to have, the preferred leader first. `problem`: why it cannot
    move now; None if it can."""

    key: Key
    replicas: tuple[int, ...]
    size_bytes: int
    problem: str | None = None

    @property
    def name(self) -> str:
        return named(self.key)


@dataclass(frozen=True, slots=True)
class Move:
    """New replicas of a partition. If only their order changes, another one becomes the preferred leader."""

    key: Key
    before: tuple[int, ...]
    after: tuple[int, ...]
    size_bytes: int

    @property
    def name(self) -> str:
        return named(self.key)

    @property
    def adding(self) -> tuple[int, ...]:
        return tuple(each for each in self.after if each not in self.before)

    @property
    def copied_bytes(self) -> int:
        """What has to be copied for it."""
        return self.size_bytes * len(self.adding)


@dataclass(frozen=True, slots=True)
class Load:
    """What a broker holds: replicas, partitions that it should lead, bytes."""

    replicas: int
    leaders: int
    size_bytes: int


def named(key: Key) -> str:
    return f"{key[0]}-{key[1]}"


def loads(brokers: Iterable[int], partitions: Iterable[Assigned]) -> dict[int, Load]:
    """Returns what each of these brokers holds."""
    replicas: Counter[int] = Counter()
    leaders: Counter[int] = Counter()
    sizes: Counter[int] = Counter()
    for part in partitions:
        leaders.update(part.replicas[:1])
        for each in part.replicas:
            replicas[each] += 1
            sizes[each] += part.size_bytes
    return {each: Load(replicas[each], leaders[each], sizes[each]) for each in brokers}


def racks_of(nodes: Mapping[int, Node], replicas: Iterable[int]) -> list[str]:
    """Returns the racks of those replicas whose rack is known: a dead broker's is not."""
    return [nodes[each].rack for each in replicas if each in nodes]


def rack_count(nodes: Mapping[int, Node], replicas: Iterable[int]) -> int:
    return len(set(racks_of(nodes, replicas)))


def shared(nodes: Mapping[int, Node], broker_id: int, others: Sequence[int]) -> tuple[int, int]:
    """Returns how many of the others are on this broker's rack, and on its host."""
    mine = nodes[broker_id]
    known = [nodes[each] for each in others if each in nodes]
    return sum(each.rack == mine.rack for each in known), sum(each.host == mine.host for each in known)
