"""Plans: whatever the cluster looks like, replicas keep their number, and nothing moves that need not."""

from __future__ import annotations

from collections import Counter

from hypothesis import assume, given
from hypothesis import strategies as st

from fix_plans import Cluster, applied, check_moves, clusters
from headrace.reassignment.balancing import plan_balance
from headrace.reassignment.draining import plan_drain
from headrace.reassignment.model import Assigned, Node, rack_count
from headrace.reassignment.resizing import plan_resize


@given(clusters(), st.sets(st.integers(1, 9), min_size=1, max_size=2))
def test_a_drain_moves_what_is_on_the_brokers_and_nothing_else(cluster: Cluster, leaving: set[int]) -> None:
    nodes, partitions = cluster
    plan = plan_drain(nodes, partitions, leaving)
    check_moves(nodes, partitions, plan.moves)
    held = {part.key for part in partitions if set(part.replicas) & leaving}
    assert {move.key for move in plan.moves} | {each.key for each in plan.stuck} == held
    assert not {move.key for move in plan.moves} & {each.key for each in plan.stuck}
    staying = nodes.keys() - leaving
    for move in plan.moves:
        kept = [each for each in move.before if each not in leaving]
        assert [each for each in move.after if each in move.before] == kept, "the others stay where they are"
        assert not set(move.after) & leaving
        assert all(a == b for a, b in zip(move.before, move.after, strict=True) if b in move.before)
        # Each successor finds a rack that is not used yet, if there is one.
        racks = {nodes[each].rack for each in staying}
        known = [each for each in kept if each in nodes]
        new = len(move.after) - len(kept)
        assert rack_count(nodes, move.after) >= min(rack_count(nodes, known) + new, len(racks))
    for stuck in plan.stuck:
        part = next(part for part in partitions if part.key == stuck.key)
        free = staying - set(part.replicas)
        gone = set(part.replicas) & leaving
        assert part.problem is not None or len(free) < len(gone), "only what has no way out is stuck"
        assert part.name in str(stuck)


@given(clusters(), st.sets(st.integers(1, 9), min_size=1, max_size=2))
def test_a_drain_that_is_begun_again_goes_on_and_ends(cluster: Cluster, leaving: set[int]) -> None:
    nodes, partitions = cluster
    plan = plan_drain(nodes, partitions, leaving)
    half = applied(partitions, plan.moves[::2])
    again = plan_drain(nodes, half, leaving)
    assert {move.key for move in again.moves} == {move.key for move in plan.moves[1::2]}
    assert plan_drain(nodes, applied(half, again.moves), leaving).moves == ()


def movable(partitions: list[Assigned]) -> bool:
    return all(part.problem is None for part in partitions)


@given(clusters(), st.sampled_from([0, 100, 10_000]))
def test_a_balance_keeps_factors_and_racks_and_a_second_one_has_nothing_to_do(
    cluster: Cluster, small_bytes: int
) -> None:
    nodes, partitions = cluster
    plan = plan_balance(nodes, partitions, small_bytes=small_bytes)
    check_moves(nodes, partitions, plan.moves)
    for move in plan.moves:
        assert set(move.before) - nodes.keys() <= set(move.after), "what is elsewhere stays there"
        assert rack_count(nodes, move.after) >= rack_count(nodes, move.before)
    after = applied(partitions, plan.moves)
    racks = len({node.rack for node in nodes.values()})
    for part in after:
        if part.problem is None:
            here = [each for each in part.replicas if each in nodes]
            assert rack_count(nodes, here) == min(len(here), racks), "no shared rack while one is free"
    again = plan_balance(nodes, after, small_bytes=small_bytes)
    assert [move for move in again.moves if move.adding] == []
    assert again.moves == ()


@given(clusters())
def test_a_balance_evens_replicas_and_leaders(cluster: Cluster) -> None:
    nodes, partitions = cluster
    assume(movable(partitions))
    plan = plan_balance(nodes, partitions)
    counts = [load.replicas for load in plan.after.values()]
    squares = sum(count * count for count in counts)
    assert sum(counts) == sum(load.replicas for load in plan.before.values())
    if len({node.rack for node in nodes.values()}) in (1, len(nodes)) and all(
        len(part.replicas) < len(nodes) for part in partitions
    ):
        assert max(counts) - min(counts) <= 1
    fewest = sum(max(0, load.replicas - max(counts)) for load in plan.before.values())
    assert sum(len(move.adding) for move in plan.moves) >= fewest
    assert squares <= sum(load.replicas**2 for load in plan.before.values()) or any(
        rack_count(nodes, move.after) > rack_count(nodes, move.before) for move in plan.moves
    )
    # Nobody can hand a partition to a follower of it that leads two fewer.
    leaders = Counter(part.replicas[0] for part in applied(partitions, plan.moves))
    for part in applied(partitions, plan.moves):
        if part.replicas[0] in nodes:
            followers = [each for each in part.replicas[1:] if each in nodes]
            assert all(leaders[part.replicas[0]] - leaders[each] < 2 for each in followers)


@given(clusters())
def test_what_is_even_stays(cluster: Cluster) -> None:
    nodes, partitions = cluster
    plan = plan_balance(nodes, partitions, small_bytes=10**6)
    before = [load.replicas for load in plan.before.values()]
    racks = len({node.rack for node in nodes.values()})

    def is_spread(part: Assigned) -> bool:
        here = [each for each in part.replicas if each in nodes]
        return rack_count(nodes, here) == min(len(here), racks)

    if max(before) - min(before) <= 1 and all(map(is_spread, partitions)):
        assert not any(move.adding for move in plan.moves)


@given(clusters(sizes=st.sampled_from([0, 1, 10, 1000])))
def test_bytes_come_closer_and_never_further_apart(cluster: Cluster) -> None:
    nodes, partitions = cluster
    plan = plan_balance(nodes, partitions, small_bytes=10**9)
    exchanged = plan_balance(nodes, partitions, small_bytes=0)

    def spread(after: dict[int, int]) -> int:
        return sum(size * size for size in after.values())

    counts_alone = {each: load.size_bytes for each, load in plan.after.items()}
    with_bytes = {each: load.size_bytes for each, load in exchanged.after.items()}
    assert sum(counts_alone.values()) == sum(with_bytes.values())
    assert spread(with_bytes) <= spread(counts_alone)


def test_an_added_broker_gets_its_share_and_nothing_else_moves() -> None:
    nodes = {each: Node(each, f"r{each}", f"h{each}") for each in (1, 2, 3, 4)}
    partitions = [Assigned(("t", n), ((1, 2, 3) * 2)[n % 3 : n % 3 + 3], 100) for n in range(12)]
    plan = plan_balance(nodes, partitions)
    assert [load.replicas for load in plan.before.values()] == [12, 12, 12, 0]
    assert [load.replicas for load in plan.after.values()] == [9, 9, 9, 9]
    assert [load.leaders for load in plan.after.values()] == [3, 3, 3, 3]
    copies = [move for move in plan.moves if move.adding]
    assert len(copies) == 9 and all(move.adding == (4,) for move in copies)


def test_a_large_partition_changes_places_with_a_small_one() -> None:
    nodes = {each: Node(each, f"r{each}", f"h{each}") for each in (1, 2)}
    sizes = {0: 1000, 1: 1000, 2: 10, 3: 10}
    partitions = [Assigned(("t", n), (1 if n < 2 else 2,), size) for n, size in sizes.items()]
    plan = plan_balance(nodes, partitions, small_bytes=0)
    assert [load.size_bytes for load in plan.after.values()] == [1010, 1010]
    assert len(plan.moves) == 2
    assert plan_balance(nodes, partitions, small_bytes=2000).moves == ()


def test_leaders_are_evened_along_a_chain_without_a_copy() -> None:
    nodes = {each: Node(each, f"r{each}", f"h{each}") for each in (1, 2, 3)}
    replicas = [(1, 2), (1, 2), (1, 2), (1, 2), (2, 3), (2, 3)]
    partitions = [Assigned(("t", n), each, 5) for n, each in enumerate(replicas)]
    partitions += [Assigned(("u", n), (3,), 5) for n in range(2)]
    partitions += [Assigned(("v", n), (1,), 5) for n in range(1)]
    plan = plan_balance(nodes, partitions)
    assert [load.replicas for load in plan.before.values()] == [5, 6, 4]
    assert [load.leaders for load in plan.before.values()] == [5, 2, 2]
    assert [load.leaders for load in plan.after.values()] == [3, 3, 3]


def test_a_factor_that_cannot_be_kept_is_named_with_the_way_out() -> None:
    nodes = {each: Node(each, f"r{each}", f"h{each}") for each in (1, 2, 3)}
    plan = plan_drain(nodes, [Assigned(("clicks", 7), (1, 2, 3), 5)], {2})
    (stuck,) = plan.stuck
    assert str(stuck).startswith(
        "clicks-7: its 3 replicas need 1 other broker that is alive and not drained, and there is none: add"
    )
    assert "add a broker" in str(stuck)


# --- another number of replicas ---


@given(clusters(), st.integers(1, 5), st.data())
def test_a_topic_gets_its_number_of_replicas_and_others_stay(
    cluster: Cluster, factor: int, data: st.DataObject
) -> None:
    nodes, partitions = cluster
    in_sync = {
        part.key: data.draw(st.sets(st.sampled_from(part.replicas), min_size=1)) for part in partitions
    }
    others = [Assigned(("u", part.key[1]), part.replicas, 1) for part in partitions]
    plan = plan_resize(nodes, [*partitions, *others], in_sync, "t", factor)
    wanted = {part.key: part for part in partitions if len(part.replicas) != factor}
    assert {move.key for move in plan.moves} | {each.key for each in plan.stuck} == wanted.keys()
    for move in plan.moves:
        part = wanted[move.key]
        assert part.problem is None and move.before == part.replicas
        assert len(move.after) == len(set(move.after)) == factor
        assert set(move.adding) <= nodes.keys()
        kept = [each for each in move.after if each in move.before]
        assert kept == [each for each in move.before if each in kept], "those that stay keep their places"
        assert len(kept) == min(factor, len(move.before)), "no more is copied, or taken away, than needed"
        synced = in_sync[part.key]
        assert set(kept) <= synced or synced <= set(kept), "what is in sync is taken away last"
        if move.before[0] in synced & nodes.keys():
            assert move.after[0] == move.before[0], "the preferred leader stays"
    for stuck in plan.stuck:
        part = wanted[stuck.key]
        able = nodes.keys() | set(part.replicas)
        assert part.problem is not None or len(able) < factor, "only what has no way out is stuck"
        assert part.name in str(stuck)
    resized = applied(partitions, plan.moves)
    again = plan_resize(nodes, [*resized, *others], in_sync, "t", factor)
    assert again.moves == (), "nothing is left to do"


def test_new_replicas_go_to_other_racks_and_shared_racks_go_first() -> None:
    nodes = {1: Node(1, "a", "h1"), 2: Node(2, "a", "h2"), 3: Node(3, "b", "h3"), 4: Node(4, "c", "h4")}
    one = Assigned(("t", 0), (1,), 100)
    (move,) = plan_resize(nodes, [one], {("t", 0): [1]}, "t", 3).moves
    assert move.after == (1, 3, 4) and move.copied_bytes == 200
    three = Assigned(("t", 0), (1, 2, 3), 100)
    (move,) = plan_resize(nodes, [three], {("t", 0): [1, 2, 3]}, "t", 2).moves
    assert move.after == (1, 3)
    # A replica that is out of sync, or on a dead broker, is the first to go.
    (move,) = plan_resize(nodes, [three], {("t", 0): [1, 2]}, "t", 2).moves
    assert move.after == (1, 2)
    (move,) = plan_resize({1: nodes[1], 2: nodes[2]}, [three], {("t", 0): [1, 2, 3]}, "t", 2).moves
    assert move.after == (1, 2)
    (stuck,) = plan_resize(nodes, [three], {}, "t", 5).stuck
    assert str(stuck) == "t-0: it needs 5 brokers that are alive and not drained, and 4 are (1, 2, 3, 4)"
