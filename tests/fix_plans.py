"""Clusters of any shape for tests of plans, and what is true of every plan's moves."""

from __future__ import annotations

from hypothesis import strategies as st

from headrace.reassignment.model import Assigned, Move, Node

Cluster = tuple[dict[int, Node], list[Assigned]]


@st.composite
def clusters(draw: st.DrawFn, *, sizes: st.SearchStrategy[int] | None = None) -> Cluster:
    """Up to seven live brokers on up to four racks, brokers 8 and 9 that are dead, up to 20 partitions."""
    brokers = draw(st.lists(st.integers(1, 7), min_size=1, max_size=7, unique=True))
    nodes = {
        each: Node(each, f"r{draw(st.integers(0, 3))}", f"h{draw(st.integers(0, 5))}") for each in brokers
    }
    everybody = [*brokers, *draw(st.sampled_from([(), (), (8,), (8, 9)]))]
    partitions = []
    for number in range(draw(st.integers(0, 20))):
        factor = draw(st.integers(1, min(3, len(everybody))))
        replicas = tuple(draw(st.permutations(everybody))[:factor])
        problem = draw(st.sampled_from([None, None, None, None, "it is on its way"]))
        partitions.append(
            Assigned(("t", number), replicas, draw(st.integers(0, 1000) if sizes is None else sizes), problem)
        )
    return nodes, partitions


def applied(partitions: list[Assigned], moves: tuple[Move, ...]) -> list[Assigned]:
    after = {move.key: move.after for move in moves}
    return [
        Assigned(part.key, after.get(part.key, part.replicas), part.size_bytes, part.problem)
        for part in partitions
    ]


def check_moves(nodes: dict[int, Node], partitions: list[Assigned], moves: tuple[Move, ...]) -> None:
    by_key = {part.key: part for part in partitions}
    assert len({move.key for move in moves}) == len(moves), "each partition once"
    for move in moves:
        part = by_key[move.key]
        assert part.problem is None and move.before == part.replicas
        assert len(move.after) == len(set(move.after)) == len(move.before), "the factor stays"
        assert set(move.adding) <= nodes.keys(), "only live brokers that are not drained get replicas"
        assert set(move.after) != set(move.before) or move.after[0] != move.before[0], "it changes something"
