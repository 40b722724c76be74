"""Plans where disks are small: a plan puts nowhere more than there is room for, and says what was short."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from fix_plans import Cluster, check_moves, clusters
from headrace.reassignment.balancing import _Work, plan_balance
from headrace.reassignment.draining import plan_drain
from headrace.reassignment.model import Assigned, Move, Node
from headrace.reassignment.resizing import plan_resize
from headrace.reassignment.room import Disk, Room, uses

PLENTY = 10**9


@st.composite
def rooms(draw: st.DrawFn) -> Room:
    """Brokers 1 to 7 on up to five disks; those that get none do not say what is free."""
    by_disk: dict[int, list[int]] = {}
    for broker in range(1, 8):
        by_disk.setdefault(draw(st.integers(0, 5)), []).append(broker)
    by_disk.pop(5, None)
    return Room(
        Disk(
            tuple(brokers),
            draw(st.integers(0, 6000)),
            draw(st.sampled_from([0, 100, 1000])),
            draw(st.sampled_from([0, 0, 500])),
        )
        for brokers in by_disk.values()
    )


def check_room(room: Room, moves: Iterable[Move]) -> None:
    assert room.disks is not None
    listed = list(moves)
    known = {each for disk in room.disks for each in disk.brokers}
    full = {each for disk in room.disks if disk.is_full for each in disk.brokers}
    for use in uses(room, ((each, move.size_bytes) for move in listed for each in move.adding)):
        assert use.needed_bytes <= use.disk.room_bytes, "no more than there is room for"
    for move in listed:
        assert not set(move.adding) & full, "who refuses appends gets nothing"
        assert move.size_bytes == 0 or set(move.adding) <= known, "who says nothing gets no bytes"


def after(room: Room, moves: Iterable[Move]) -> Room:
    left = room.copy()
    for move in moves:
        for each in move.adding:
            left.put(each, move.size_bytes)
    return left


@given(clusters(), rooms(), st.sets(st.integers(1, 9), min_size=1, max_size=2))
def test_a_drain_fills_no_disk_and_gives_up_only_what_has_no_place(
    cluster: Cluster, room: Room, leaving: set[int]
) -> None:
    nodes, partitions = cluster
    plan = plan_drain(nodes, partitions, leaving, room)
    check_moves(nodes, partitions, plan.moves)
    check_room(room, plan.moves)
    due = {part.key for part in partitions if set(part.replicas) & leaving}
    assert {move.key for move in plan.moves} | {each.key for each in plan.stuck} == due
    left = after(room, plan.moves)
    short = False
    for stuck in plan.stuck:
        part = next(part for part in partitions if part.key == stuck.key)
        gone = set(part.replicas) & leaving
        free = nodes.keys() - leaving - set(part.replicas)
        if part.problem is None and len(free) >= len(gone):
            short = True
            assert "room for its" in stuck.problem
            if len(gone) == 1:
                assert not [each for each in free if left.fits(each, part.size_bytes)]
    assert bool(plan.shortage) == short
    assert {move.key for move in plan.moves} <= {
        move.key for move in plan_drain(nodes, partitions, leaving).moves
    }, "room takes possibilities away, and adds none"


@given(clusters(), st.sets(st.integers(1, 9), min_size=1, max_size=2))
def test_with_plenty_of_room_plans_are_as_without_a_look_at_it(cluster: Cluster, leaving: set[int]) -> None:
    nodes, partitions = cluster
    room = Room(Disk((each,), PLENTY, 1) for each in range(1, 8))
    assert plan_drain(nodes, partitions, leaving, room) == plan_drain(nodes, partitions, leaving)
    assert plan_balance(nodes, partitions, room, small_bytes=0) == plan_balance(
        nodes, partitions, small_bytes=0
    )
    assert plan_resize(nodes, partitions, {}, "t", 3, room) == plan_resize(nodes, partitions, {}, "t", 3)


@given(clusters(sizes=st.sampled_from([0, 1, 100, 1000])), rooms(), st.sampled_from([0, 100, 10_000]))
def test_a_balance_fills_no_disk(cluster: Cluster, room: Room, small_bytes: int) -> None:
    nodes, partitions = cluster
    plan = plan_balance(nodes, partitions, room, small_bytes=small_bytes)
    check_moves(nodes, partitions, plan.moves)
    check_room(room, plan.moves)
    unbounded = plan_balance(nodes, partitions, small_bytes=small_bytes)
    assert plan.shortage or plan == unbounded, "it says why it does less"


@given(clusters(), rooms(), st.integers(1, 5))
def test_more_replicas_fill_no_disk(cluster: Cluster, room: Room, factor: int) -> None:
    nodes, partitions = cluster
    plan = plan_resize(nodes, partitions, {}, "t", factor, room)
    check_room(room, plan.moves)
    wanted = {part.key for part in partitions if len(part.replicas) != factor}
    assert {move.key for move in plan.moves} | {each.key for each in plan.stuck} == wanted
    assert bool(plan.shortage) == any("room for its" in each.problem for each in plan.stuck)


def nodes_of(*brokers: int) -> dict[int, Node]:
    return {each: Node(each, f"r{each}", f"h{each}") for each in brokers}


def test_what_does_not_fit_is_said_with_bytes_and_reserve() -> None:
    room = Room([Disk((1,), 1_500, 1_000, 100), Disk((2, 3), 50_000, 1_000), Disk((4,), 900, 1_000)])
    partitions = [Assigned(("t", 0), (3,), 10_000), Assigned(("t", 1), (3, 2), 300)]
    partitions += [Assigned(("t", 2), (3, 2), 600)]
    plan = plan_drain(nodes_of(1, 2, 4, 5), partitions, {3}, room)
    assert [(move.key[1], move.after) for move in plan.moves] == [(0, (2,)), (1, (1, 2))]
    assert [str(each) for each in plan.stuck] == ["t-2: none of brokers 1, 4, 5 has room for its 600 bytes"]
    assert plan.shortage == (
        "The replicas that have to be copied need 11,990 bytes (10,900 that they hold, and a tenth for what "
        "arrives meanwhile): brokers 2, 3, on one disk, have room for 49,000 bytes (50,000 are free, of "
        "which 1,000 are its reserve); broker 1 has room for 400 bytes (1,500 are free, of which 1,000 are "
        "its reserve and 100 are for replicas on their way); broker 4 has room for 0 bytes (900 are free, "
        "of which 1,000 are its reserve); broker 5 does not say how much is free on its disk"
    )


def test_the_largest_are_placed_first_if_there_is_no_room_otherwise() -> None:
    """By their names, the small ones would fill the only disk that can take the large one."""
    room = Room([Disk((1,), 1_100, 0), Disk((2,), 220, 0)])
    sizes = {0: 100, 1: 100, 2: 1_000}
    partitions = [Assigned(("t", number), (3,), size) for number, size in sizes.items()]
    plan = plan_drain(nodes_of(1, 2), partitions, {3}, room)
    assert not plan.stuck and not plan.shortage
    assert {move.key[1]: move.after for move in plan.moves} == {0: (2,), 1: (2,), 2: (1,)}


def test_racks_stay_apart_where_there_is_room_and_give_way_where_there_is_none() -> None:
    nodes = {1: Node(1, "a", "h1"), 2: Node(2, "a", "h2"), 3: Node(3, "b", "h3")}
    partitions = [Assigned(("t", number), (1, 9), 100) for number in range(3)]
    small = [Disk((1,), PLENTY, 0), Disk((2,), PLENTY, 0), Disk((3,), 250, 0)]
    plan = plan_drain(nodes, partitions, {9}, Room(small))
    assert Counter(move.after for move in plan.moves) == {(1, 3): 2, (1, 2): 1}


def test_two_brokers_on_one_disk_exchange_only_what_both_have_room_for() -> None:
    sizes = {0: 1000, 1: 1000, 2: 10, 3: 10}
    partitions = [Assigned(("t", n), (1 if n < 2 else 2,), size) for n, size in sizes.items()]
    for free_bytes, count in ((1_111, 2), (1_110, 0)):
        plan = plan_balance(nodes_of(1, 2), partitions, Room([Disk((1, 2), free_bytes, 0)]), small_bytes=0)
        assert len(plan.moves) == count and bool(plan.shortage) == (count == 0)


def test_what_a_partition_cannot_use_is_left_to_others() -> None:
    """A partition that needs two brokers, of which one has room, takes no room."""
    room = Room([Disk((1,), 110, 0), Disk((2,), 0, 0)])
    two, one = Assigned(("t", 0), (8, 9), 100), Assigned(("t", 1), (8,), 100)
    plan = plan_drain(nodes_of(1, 2), [two, one], {8, 9}, room)
    assert [(move.key[1], move.after) for move in plan.moves] == [(1, (1,))]
    one = Assigned(("t", 1), (3, 2), 100)
    more = plan_resize(nodes_of(1, 2, 3), [Assigned(("t", 0), (3,), 100), one], {}, "t", 3, room)
    assert [(move.key[1], move.after) for move in more.moves] == [(1, (3, 2, 1))]
    left = room.copy()
    assert left.put_all([1, 2], 100) == 2 and left.put_all([1], 100) is None


@given(clusters(), rooms(), st.data())
def test_a_balance_that_moves_replicas_to_and_fro_takes_the_room_of_where_they_end(
    cluster: Cluster, room: Room, data: st.DataObject
) -> None:
    nodes, partitions = cluster
    work = _Work(nodes, partitions, room.copy())
    for _ in range(data.draw(st.integers(0, 10))):
        held = [(key, each) for each in work.order for key in sorted(work.held[each])]
        if not held:
            break
        key, source = data.draw(st.sampled_from(held))
        targets = [each for each in work.order if key not in work.held[each]]
        if targets:
            work.move(key, source, data.draw(st.sampled_from(targets)))
    moves = [
        Move(part.key, part.replicas, tuple(work.replicas[part.key]), part.size_bytes) for part in partitions
    ]
    left = after(room, moves)
    assert [work.room.left_bytes(each) for each in work.order] == [
        left.left_bytes(each) for each in work.order
    ]
