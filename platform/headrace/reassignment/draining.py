"""Which replicas go where when brokers are drained. Pure.

Each replica on a drained broker goes to one other broker whose disk has room for it: on a rack, then a host,
that the partition does not use yet, if there is one; among such brokers to the one with the fewest replicas.
Nothing else moves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from headrace.reassignment.model import Assigned, Key, Move, Node, named, shared
from headrace.reassignment.room import Room, shortage


class Stuck(NamedTuple):
    """A partition that cannot leave, and the way out."""

    key: Key
    problem: str

    def __str__(self) -> str:
        return f"{named(self.key)}: {self.problem}"


class DrainPlan(NamedTuple):
    """`stuck`: partitions without a move although one is needed. `shortage`: what some of them need and what
    is free, if the disks have no room for them."""

    moves: tuple[Move, ...]
    stuck: tuple[Stuck, ...]
    shortage: str = ""


def plan_drain(
    nodes: Mapping[int, Node],
    partitions: Iterable[Assigned],
    leaving: Collection[int],
    room: Room | None = None,
) -> DrainPlan:
    """Returns the moves after which none of the `leaving` brokers has a replica; `nodes` may take them, as
    far as there is `room`.

    A partition keeps as many replicas as it has, and a replica's successor its place in the list. What cannot
    be done is stuck. If there is no room for something, the largest partitions are placed first, on the disks
    with the most room, and the better of the two plans is returned. Deterministic.
    """
    wanted = sorted(partitions, key=lambda part: part.key)
    candidates = {each: node for each, node in nodes.items() if each not in leaving}
    room = room or Room()
    first = _Planner(candidates, wanted, leaving, room.copy()).plan(wanted)
    if not first.shortage:
        return first
    largest_first = sorted(wanted, key=lambda part: (-part.size_bytes, part.key))
    second = _Planner(candidates, wanted, leaving, room.copy(), by_room=True).plan(largest_first)
    return second if len(second.stuck) < len(first.stuck) else first


class _Planner:
    """One attempt. `by_room`: among equally good racks and hosts the one with the most room is chosen."""

    def __init__(
        self,
        nodes: Mapping[int, Node],
        partitions: Iterable[Assigned],
        leaving: Collection[int],
        room: Room,
        *,
        by_room: bool = False,
    ) -> None:
        self._nodes = nodes
        self._leaving = leaving
        self._room = room
        self._by_room = by_room
        self._load = _Load(partitions)

    def plan(self, order: Iterable[Assigned]) -> DrainPlan:
        moves: list[Move] = []
        stuck: list[Stuck] = []
        needed: list[int] = []
        is_short = False
        for part in order:
            gone = [each for each in part.replicas if each in self._leaving]
            if not gone:
                continue
            needed += [part.size_bytes] * len(gone)
            if part.problem is not None:
                stuck.append(Stuck(part.key, part.problem))
            elif (after := self._replaced(part)) is not None:
                self._load.moved(part, after)
                moves.append(Move(part.key, part.replicas, after, part.size_bytes))
            elif len(self._free(part.replicas)) < len(gone):
                stuck.append(Stuck(part.key, _too_few(self._nodes, part, self._leaving)))
            else:
                is_short = True
                stuck.append(Stuck(part.key, no_room(part, self._free(part.replicas))))
        told = shortage(self._room, self._nodes, needed) if is_short else ""
        return DrainPlan(tuple(sorted(moves, key=_key)), tuple(sorted(stuck, key=_key)), told)

    def _replaced(self, part: Assigned) -> tuple[int, ...] | None:
        """Returns the replicas of a partition without the leaving ones; None if there are too few brokers, or
        too little room."""
        after = list(part.replicas)
        got: list[int] = []
        for at, replica in enumerate(part.replicas):
            if replica not in self._leaving:
                continue
            free = [each for each in self._free(after) if self._room.fits(each, part.size_bytes)]
            if not free:
                for each in got:
                    self._room.take_back(each, part.size_bytes)
                return None
            others = [each for each in after if each not in self._leaving]
            after[at] = min(self._worth(each, others, is_leader=at == 0) for each in free)[-1]
            self._room.put(after[at], part.size_bytes)
            got.append(after[at])
        return tuple(after)

    def _free(self, replicas: Collection[int]) -> list[int]:
        return [each for each in self._nodes if each not in replicas]

    def _worth(self, broker_id: int, others: list[int], *, is_leader: bool) -> tuple[int, ...]:
        """The least is chosen; the last value is the broker's id."""
        load = self._load
        return (
            *shared(self._nodes, broker_id, others),
            -self._room.left_bytes(broker_id) if self._by_room else 0,
            load.leaders[broker_id] if is_leader else load.replicas[broker_id],
            load.replicas[broker_id],
            load.size_bytes[broker_id],
            broker_id,
        )


def _key(each: Move | Stuck) -> Key:
    return each.key


class _Load:
    """How many replicas, first replicas and bytes each broker has, as the plan grows."""

    def __init__(self, partitions: Iterable[Assigned]) -> None:
        self.replicas: Counter[int] = Counter()
        self.leaders: Counter[int] = Counter()
        self.size_bytes: Counter[int] = Counter()
        for part in partitions:
            self._add(part.replicas, part.size_bytes, 1)

    def moved(self, part: Assigned, after: tuple[int, ...]) -> None:
        self._add(part.replicas, part.size_bytes, -1)
        self._add(after, part.size_bytes, 1)

    def _add(self, replicas: tuple[int, ...], size_bytes: int, sign: int) -> None:
        self.leaders[replicas[0]] += sign
        for each in replicas:
            self.replicas[each] += sign
            self.size_bytes[each] += sign * size_bytes


def _too_few(nodes: Mapping[int, Node], part: Assigned, leaving: Collection[int]) -> str:
    factor = len(part.replicas)
    staying = [each for each in part.replicas if each not in leaving]
    free = sorted(each for each in nodes if each not in staying)
    needed = factor - len(staying)
    there = f"there are {len(free)} ({', '.join(map(str, free))})" if free else "there is none"
    others = "1 other broker that is" if needed == 1 else f"{needed} other brokers that are"
    return (
        f"its {factor} replicas need {others} alive and not drained, and {there}: add a broker (or `headrace "
        "brokers undrain` one), delete the topic, or give it fewer replicas by kafka-reassign-partitions"
    )


def no_room(part: Assigned, free: Collection[int]) -> str:
    """Returns why a partition stays for which none of these brokers has room."""
    ids, size = ", ".join(map(str, sorted(free))), f"{part.size_bytes:,}"
    if len(free) == 1:
        return f"broker {ids} has no room for its {size} bytes"
    return f"none of brokers {ids} has room for its {size} bytes"
