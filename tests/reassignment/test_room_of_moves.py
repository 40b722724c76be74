"""The room that a survey tells, and moves that begin when it has changed since their plan was made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

import pytest

from headrace.client.asking import SilentBroker
from headrace.client.cluster import BrokerAddress, PartitionInfo
from headrace.client.log_dirs import StoredReplica
from headrace.client.replica_admin import ReplicaAdmin
from headrace.client.replicas import BrokerStanding, DiskRoom, Reassignment, ReplicaSurvey
from headrace.reassignment.model import Key
from headrace.reassignment.moving import AT_ONCE_MAX, ReassignmentError
from headrace.reassignment.operations import (
    CannotDrainError,
    Moved,
    balance,
    drain,
    plan_of_balance,
    plan_of_drain,
)
from headrace.reassignment.reading import RESERVE_DEFAULT_BYTES, room_of
from headrace.reassignment.resizing import CannotResizeError, resize

RESERVE = 1_000


class Cluster:
    """Brokers with disks of their own. A move takes two looks; `grow` is called at each look."""

    def __init__(
        self, partitions: Mapping[Key, tuple[int, ...]], disks: Mapping[int, int], size: int
    ) -> None:
        self.partitions = dict(partitions)
        self.disks = dict(disks)
        self.sizes = dict.fromkeys(partitions, size)
        self.moving: dict[Key, tuple[tuple[int, ...], tuple[int, ...], int]] = {}
        self.drained: set[int] = set()
        self.late: set[Key] = set()  # moves that no broker has heard of for the first 4 s
        self.grow: Callable[[], None] = lambda: None
        self.now_s = 0.0
        self.least: dict[int, int] = {}

    def free_bytes(self, broker_id: int) -> int:
        held = sum(self.sizes[key] for key, replicas in self.partitions.items() if broker_id in replicas)
        come = sum(self.sizes[key] for key, (_, new, _) in self.moving.items() if broker_id in new)
        return self.disks[broker_id] - held - come

    def replicas(self) -> ReplicaSurvey:
        self.grow()
        for key, (old, new, looks) in list(self.moving.items()):
            self.moving[key] = (old, new, looks + 1)
            if looks == 2:
                self.partitions[key] = new
                del self.moving[key]
        told, moving, stored = {}, {}, {}
        for key, replicas in self.partitions.items():
            full = replicas
            if key in self.moving:
                old, new, _ = self.moving[key]
                removing = tuple(each for each in old if each not in new)
                moving[key] = Reassignment(tuple(each for each in new if each not in old), removing)
                full = (*new, *removing)
            told[key] = PartitionInfo(key[1], replicas[0], 0, full, replicas)
            for each in full:
                stored[(each, *key)] = StoredReplica(self.sizes[key])
        for each in self.disks:
            self.least[each] = min(self.least.get(each, self.free_bytes(each)), self.free_bytes(each))
        drained = frozenset(self.drained)
        return ReplicaSurvey(
            brokers={n: BrokerStanding(n, BrokerAddress("h", n), f"rack-{n}", 1) for n in self.disks},
            partitions=told,
            reassignments=moving,
            unsettled=frozenset(),
            stored=stored,
            drained=drained,
            drained_for_all=drained,
            silent=(),
            rooms={n: DiskRoom(self.free_bytes(n), RESERVE, f"disk-{n}") for n in self.disks},
        )

    def reassign(self, targets: Mapping[Key, Any]) -> dict[Key, Any]:
        for key, new in targets.items():
            if key in self.late and self.now_s < 4:
                continue
            if key not in self.moving and self.partitions[key] != tuple(new):
                self.moving[key] = (self.partitions[key], tuple(new), 0)
        return {}

    def alter_broker_configs(self, broker_id: int, changes: Mapping[str, str | None]) -> None:
        if "headrace.drained" in changes:
            self.drained.add(broker_id)

    def topic_settings(self, topics: Any, _names: Any) -> dict[str, dict[str, str]]:
        return {topic: {} for topic in topics}

    def alter_configs(self, _topic: str, _changes: Any) -> None: ...

    def append_configs(self, _topic: str, _words: Any) -> None: ...

    def elect_preferred(self, _keys: Any) -> dict[Key, Any]:
        return {}

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    @property
    def admin(self) -> ReplicaAdmin:
        return cast(ReplicaAdmin, self)

    def drain(self, broker_id: int, *, ignore_room: bool = False) -> Moved:
        return drain(self.admin, broker_id, ignore_room=ignore_room, clock=self.clock, sleep=self.sleep)


def many(count: int, replicas: tuple[int, ...]) -> dict[Key, tuple[int, ...]]:
    return {("t", number): replicas for number in range(count)}


def test_a_drain_without_room_changes_nothing_and_says_what_is_short() -> None:
    cluster = Cluster(many(10, (1,)), {1: 10_000, 2: 6_000, 3: 5_000}, 900)
    with pytest.raises(CannotDrainError) as refused:
        cluster.drain(1)
    assert not cluster.moving and not cluster.drained
    text = str(refused.value)
    assert "t-9: none of brokers 2, 3 has room for its 900 bytes" in text
    assert "need 9,900 bytes (9,000 that they hold, and a tenth for what arrives meanwhile)" in text
    assert "broker 2 has room for 5,000 bytes (6,000 are free, of which 1,000 are its reserve)" in text
    assert "headrace brokers drain 1 --ignore-room" in text
    # An operator who knows better.
    assert cluster.drain(1, ignore_room=True).partitions == 10


def test_a_drain_that_fits_keeps_every_reserve() -> None:
    cluster = Cluster(many(60, (1,)), {1: 100_000, 2: 40_000, 3: 25_000}, 900)
    assert cluster.drain(1).partitions == 60
    assert cluster.least[2] >= RESERVE and cluster.least[3] >= RESERVE


def test_logs_that_grow_meanwhile_go_where_there_is_room_by_then_or_stay() -> None:
    cluster = Cluster(many(3 * AT_ONCE_MAX, (1,)), {1: 10**6, 2: 75_000, 3: 75_000}, 1_000)
    assert not plan_of_drain(cluster.replicas(), 1).stuck

    def grow() -> None:
        for key in cluster.sizes:
            cluster.sizes[key] += 300

    cluster.grow = grow
    with pytest.raises(ReassignmentError) as refused:
        cluster.drain(1)
    assert "room for its" in str(refused.value) and "--ignore-room" in str(refused.value)
    assert 0 < sum(replicas == (1,) for replicas in cluster.partitions.values()) < 3 * AT_ONCE_MAX
    assert cluster.now_s < 60, "it does not wait for room"
    begun = 3 * AT_ONCE_MAX - sum(replicas == (1,) for replicas in cluster.partitions.values())
    assert begun >= AT_ONCE_MAX


def test_a_balance_that_finds_a_disk_full_by_then_leaves_the_rest_where_it_is() -> None:
    cluster = Cluster(many(90, (1,)), {1: 10**6, 2: 10**5}, 1_000)
    plan = plan_of_balance(cluster.replicas(), small_bytes=0)
    assert len(plan.moves) == 45 and not plan.shortage
    looks = 0

    def grow() -> None:
        nonlocal looks
        looks += 1
        if looks == 3:
            cluster.disks[2] -= 60_000  # somebody else writes there

    cluster.grow = grow
    _, refused = balance(cluster.admin, plan, clock=cluster.clock, sleep=cluster.sleep)
    assert len(refused) > 0 and cluster.least[2] >= RESERVE
    assert all("broker 2, to which it was to move, has no room by now" in each for each in refused.values())


def test_moves_that_no_broker_shows_yet_take_their_room() -> None:
    cluster = Cluster(many(60, (1,)), {1: 10**6, 2: 22_500}, 1_000)
    plan = plan_of_balance(cluster.replicas(), small_bytes=0, ignore_room=True)
    assert len(plan.moves) == 30
    cluster.late = {move.key for move in plan.moves[:10]}
    moved, refused = balance(cluster.admin, plan, clock=cluster.clock, sleep=cluster.sleep)
    assert (moved.partitions, len(refused)) == (21, 9) and cluster.least[2] >= RESERVE


def test_what_a_plan_keeps_for_growth_is_used_by_it() -> None:
    cluster = Cluster(many(40, (1,)), {1: 10**6, 2: RESERVE + 20 * 990}, 900)
    plan = plan_of_balance(cluster.replicas(), small_bytes=0)
    assert len(plan.moves) == 20
    cluster.sizes = dict.fromkeys(cluster.sizes, 980)
    moved, refused = balance(cluster.admin, plan, clock=cluster.clock, sleep=cluster.sleep)
    assert moved.partitions == 20 and not refused and cluster.least[2] >= RESERVE


def test_what_was_begun_already_is_not_counted_again() -> None:
    cluster = Cluster(many(1, (1,)), {1: 10**6, 2: RESERVE + 1_000}, 1_000)
    cluster.moving["t", 0] = ((1,), (2,), 0)
    assert cluster.drain(1).partitions == 1
    assert cluster.partitions["t", 0] == (2,)


def test_a_balance_gives_a_small_disk_less_than_its_share_and_says_so() -> None:
    cluster = Cluster(many(30, (1,)), {1: 10**6, 2: 6_500}, 1_000)
    plan = plan_of_balance(cluster.replicas(), small_bytes=0)
    assert len(plan.moves) == 5 and "broker 2 has room for 5,500 bytes" in plan.shortage
    assert len(plan_of_balance(cluster.replicas(), small_bytes=0, ignore_room=True).moves) == 15


def test_more_replicas_than_there_is_room_for_are_refused() -> None:
    cluster = Cluster(many(4, (1,)), {1: 10**6, 2: 4_000}, 1_000)
    with pytest.raises(CannotResizeError, match=r"t-2: broker 2 has no room for its 1,000 bytes.*Free space"):
        resize(cluster.admin, "t", 2, timeout_s=60, clock=cluster.clock, sleep=cluster.sleep)
    assert not cluster.moving


def survey(**changes: Any) -> ReplicaSurvey:
    """Broker 1 has 500 bytes of a partition that moves to 3, which has 200 of them; 2 has 450."""
    base = ReplicaSurvey(
        brokers={n: BrokerStanding(n, BrokerAddress("h", n), f"rack-{n}", 1) for n in (1, 2, 3)},
        partitions={("t", 0): PartitionInfo(0, 1, 0, (3, 2, 1), (1, 2))},
        reassignments={("t", 0): Reassignment((3,), (1,))},
        unsettled=frozenset(),
        stored={
            (1, "t", 0): StoredReplica(500),
            (2, "t", 0): StoredReplica(450),
            (3, "t", 0): StoredReplica(200),
        },
        drained=frozenset(),
        drained_for_all=frozenset(),
        silent=(),
        rooms={n: DiskRoom(10_000, RESERVE, f"disk-{n}") for n in (1, 2, 3)},
    )
    return replace(base, **changes)


def left_of(found: ReplicaSurvey) -> dict[int, int]:
    return {each: room_of(found).left_bytes(each) for each in (1, 2, 3)}


def test_moves_of_before_and_replicas_that_catch_up_still_take_room() -> None:
    assert left_of(survey()) == {1: 9_000, 2: 8_950, 3: 8_700}
    # Broker 3 is dead, so that the move cannot end: nothing is kept for it.
    alive = {n: BrokerStanding(n, BrokerAddress("h", n), f"rack-{n}", 1) for n in (1, 2)}
    assert left_of(survey(brokers=alive))[3] == 9_000


def test_brokers_on_one_disk_share_its_room_and_those_that_do_not_say_which_may() -> None:
    one = {n: DiskRoom(10_000, RESERVE, "disk") for n in (1, 2)} | {3: DiskRoom(5_000, 0, "other")}
    assert left_of(survey(rooms=one)) == {1: 8_950, 2: 8_950, 3: 4_700}
    differing = {1: DiskRoom(10_000, RESERVE, "disk"), 2: DiskRoom(9_900, RESERVE + 7, "disk")}
    assert left_of(survey(rooms=differing))[1] == 9_900 - RESERVE - 7 - 50
    free = 2 * RESERVE_DEFAULT_BYTES
    unknown = {n: DiskRoom(free, -1, "") for n in (1, 2)}
    assert left_of(survey(rooms=unknown)) == {1: free // 2 - 50, 2: free // 2 - 50, 3: 0}


def test_a_broker_that_does_not_say_what_is_free_gets_nothing_and_is_named() -> None:
    found = survey(rooms={1: DiskRoom(10_000, RESERVE, "a")}, reassignments={})
    alone = {("t", 0): PartitionInfo(0, 1, 0, (1,), (1,)), ("empty", 0): PartitionInfo(0, 1, 0, (1,), (1,))}
    plan = plan_of_drain(replace(found, partitions=alone), 1)
    assert [move.name for move in plan.moves] == ["empty-0"]
    assert [str(each) for each in plan.stuck] == ["t-0: none of brokers 2, 3 has room for its 500 bytes"]
    assert "broker 2 does not say how much is free on its disk; broker 3 does not" in plan.shortage


def test_a_partition_of_unknown_size_stays() -> None:
    silent = SilentBroker(1, BrokerAddress("h", 1))
    alone = {("t", 0): PartitionInfo(0, 1, 0, (1, 2), (1, 2))}
    found = survey(partitions=alone, reassignments={}, stored={}, silent=(silent,))
    (stuck,) = plan_of_drain(found, 2).stuck
    assert "how large it is is not known, because broker 1, which leads it, does not answer" in str(stuck)
    known = replace(found, stored={(2, "t", 0): StoredReplica(10)})
    assert not plan_of_drain(known, 2).stuck
