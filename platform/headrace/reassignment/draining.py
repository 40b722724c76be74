"""Which replicas go where when brokers are drained. Pure.

Each replica on a drained broker goes to one other broker: on a rack, then a host, that the partition does not
use yet, if there is one; among such brokers to the one with the fewest replicas. Nothing else moves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from headrace.reassignment.model import Assigned, Key, Move, Node, named, shared


class Stuck(NamedTuple):
    """A partition that cannot leave, and the way out."""

    key: Key
    problem: str

    def __str__(self) -> str:
        return f"{named(self.key)}: {self.problem}"


class DrainPlan(NamedTuple):
    """`stuck`: partitions without a move although one is needed."""

    moves: tuple[Move, ...]
    stuck: tuple[Stuck, ...]


def plan_drain(
    nodes: Mapping[int, Node], partitions: Iterable[Assigned], leaving: Collection[int]
) -> DrainPlan:
    """Returns the moves after which none of the `leaving` brokers has a replica; `nodes` may take them.

    A partition keeps as many replicas as it has, and a replica's successor its place in the list. What cannot
    be done is stuck. Deterministic.
    """
    wanted = sorted(partitions, key=lambda part: part.key)
    candidates = {each: node for each, node in nodes.items() if each not in leaving}
    load = _Load(wanted)
    moves: list[Move] = []
    stuck: list[Stuck] = []
    for part in wanted:
        if not set(part.replicas) & set(leaving):
            continue
        if part.problem is not None:
            stuck.append(Stuck(part.key, part.problem))
            continue
        after = _replaced(candidates, part, leaving, load)
        if after is None:
            stuck.append(Stuck(part.key, _too_few(candidates, part, leaving)))
        else:
            load.moved(part, after)
            moves.append(Move(part.key, part.replicas, after, part.size_bytes))
    return DrainPlan(tuple(moves), tuple(stuck))


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


def _replaced(
    nodes: Mapping[int, Node], part: Assigned, leaving: Collection[int], load: _Load
) -> tuple[int, ...] | None:
    """Returns the replicas of a partition without the leaving ones; None if there are too few brokers."""
    after = list(part.replicas)
    for at, replica in enumerate(part.replicas):
        if replica not in leaving:
            continue
        others = [each for each in after if each not in leaving]
        free = [each for each in nodes if each not in after]
        if not free:
            return None
        taken = load.leaders if at == 0 else load.replicas
        after[at] = min(
            free,
            key=lambda each: (
                *shared(nodes, each, others),
                taken[each],
                load.replicas[each],
                load.size_bytes[each],
                each,
            ),
        )
    return tuple(after)


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
