"""Offsets of groups that nobody uses are deleted after `offsets.retention.minutes`: those, and no others."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fix_broker import StartCluster
from fix_group_brokers import FIRST, GROUP, KEY, SECOND, GroupBroker, HeldGenerations, HeldJobs, joining
from fix_group_offsets import store_offsets
from fix_zookeeper import ZooKeeperRoom
from headrace.broker.cluster import ClusterView
from headrace.broker.groups import deletion, expiry
from headrace.broker.groups.coordinator import GroupCoordinator
from headrace.broker.groups.expiry import STEPS, Idle, OffsetExpiry, Pace, is_due, longer, look_at, note_use
from headrace.broker.groups.fencing import Coordinator, NotCoordinatorError, guard
from headrace.broker.groups.offset_nodes import Committed
from headrace.broker.settings.config import BrokerConfig
from headrace.client.group_admin import GroupAdmin
from headrace.coordination import documents, znodes
from headrace.coordination.brokers import BrokerRegistry
from headrace.coordination.consumers import GROUP_NAME_MAX_BYTES, ConsumerRegistry, groups
from headrace.coordination.errors import CoordinationError, TooLargeError, ZooKeeperUnavailableError
from headrace.coordination.session import ZooKeeperSession
from headrace.coordination.topics import TopicRegistry
from headrace.wire.topic_names import TOPIC_NAME_LENGTH_MAX

DAY_MS = 24 * 3_600_000
PACE = Pace(retention_ms=7 * DAY_MS, interval_ms=600_000)
BEGAN_MS = 1_790_000_000_000
WAIT_MAX_S = 30.0


# --- how idle time is counted ---


def test_steady_looks_find_a_group_old_after_its_retention_and_not_before() -> None:
    idle, now_ms, writes = longer(None, 5, BEGAN_MS, PACE), BEGAN_MS, 1
    while idle.idle_ms < PACE.retention_ms:
        now_ms += PACE.interval_ms
        if is_due(idle, now_ms, PACE):
            idle = longer(idle, 5, now_ms, PACE)
            writes += 1
        assert idle.idle_ms <= now_ms - BEGAN_MS
    assert PACE.retention_ms <= now_ms - BEGAN_MS <= PACE.retention_ms + 2 * PACE.step_ms
    assert writes <= STEPS + 1


@given(st.lists(st.integers(min_value=-100 * DAY_MS, max_value=100 * DAY_MS), max_size=60))
def test_no_clock_and_no_outage_adds_more_than_two_steps_a_look(jumps_ms: list[int]) -> None:
    idle, now_ms = longer(None, 5, BEGAN_MS, PACE), BEGAN_MS
    for jump_ms in jumps_ms:
        now_ms += jump_ms
        before, idle = idle, longer(idle, 5, now_ms, PACE)
        assert 0 <= idle.idle_ms - before.idle_ms <= 2 * PACE.step_ms
        assert longer(idle, 6, now_ms, PACE) == Idle(0, now_ms, 6)


# --- on ZooKeeper ---


@pytest.fixture
def session(zookeeper: ZooKeeperRoom) -> Iterator[ZooKeeperSession]:
    with zookeeper.session() as made:
        TopicRegistry(made).create("t", uuid.uuid4(), {0: (1,), 1: (1,)})
        yield made


def coordinator_of(session: ZooKeeperSession) -> Coordinator:
    (broker,) = BrokerRegistry(session).live()
    return Coordinator(broker.broker_id, broker.epoch)


def grow_old(
    session: ZooKeeperSession, coordinator: Coordinator, *, steps: int = STEPS, group: str = GROUP
) -> int | None:
    """Looks at the group for so many steps; returns how many offsets were deleted, None for none."""
    looks = (
        look_at(session, group, coordinator, BEGAN_MS + step * PACE.step_ms, PACE)
        for step in range(steps + 1)
    )
    return next((deleted for deleted in looks if deleted is not None), None)


def test_an_unused_group_is_deleted_with_all_that_it_has(session: ZooKeeperSession) -> None:
    store_offsets(session, GROUP, {KEY: Committed(7, "words"), ("t", 1): Committed(8)})
    coordinator = coordinator_of(session)
    assert grow_old(session, coordinator, steps=STEPS - 1) is None
    assert ConsumerRegistry(session, GROUP).all_offsets() == {KEY: 7, ("t", 1): 8}
    after_ms = BEGAN_MS + PACE.retention_ms
    assert look_at(session, GROUP, coordinator, after_ms, PACE) == 2
    assert groups(session) == []


def test_more_offsets_than_one_transaction_takes(
    session: ZooKeeperSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deletion, "OFFSETS_PER_TRANSACTION_MAX", 1)
    store_offsets(session, GROUP, {KEY: Committed(7), ("t", 1): Committed(8, "words")})
    assert grow_old(session, coordinator_of(session)) == 2
    assert groups(session) == []


def test_the_longest_names_fit_into_transactions(session: ZooKeeperSession) -> None:
    """ZooKeeper takes a megabyte at once; each character of this group's id takes three bytes in a path."""
    group, topic = "\x01" * GROUP_NAME_MAX_BYTES, "t" * TOPIC_NAME_LENGTH_MAX
    count = 2 * deletion.OFFSETS_PER_TRANSACTION_MAX
    TopicRegistry(session).create(topic, uuid.uuid4(), dict.fromkeys(range(count), (1,)))
    store_offsets(session, group, {(topic, index): Committed(7, "words") for index in range(count)})
    assert grow_old(session, coordinator_of(session), group=group) == count
    assert groups(session) == []


def test_a_commit_begins_the_count_anew_and_so_does_a_member(session: ZooKeeperSession) -> None:
    store_offsets(session, GROUP, {KEY: Committed(7)})
    coordinator = coordinator_of(session)
    grow_old(session, coordinator, steps=STEPS - 1)
    store_offsets(session, GROUP, {KEY: Committed(7)})  # the same offset
    last_ms = BEGAN_MS + PACE.retention_ms
    assert look_at(session, GROUP, coordinator, last_ms, PACE) is None
    grow_old(session, coordinator, steps=STEPS - 1)
    note_use(session, GROUP)
    note_use(session, GROUP)
    assert look_at(session, GROUP, coordinator, last_ms, PACE) is None
    assert ConsumerRegistry(session, GROUP).all_offsets() == {KEY: 7}


def test_a_clock_that_jumps_years_ahead_expires_nothing(session: ZooKeeperSession) -> None:
    store_offsets(session, GROUP, {KEY: Committed(7)})
    coordinator = coordinator_of(session)
    for now_ms in (BEGAN_MS, BEGAN_MS + 3_650 * DAY_MS, 0, BEGAN_MS + 36_500 * DAY_MS, BEGAN_MS):
        assert look_at(session, GROUP, coordinator, now_ms, PACE) is None
    assert ConsumerRegistry(session, GROUP).all_offsets() == {KEY: 7}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b'{"version":1}',
        b'{"version":1,"idle_ms":true,"looked_ms":1,"newest_zxid":1}',
        b'{"version":1,"idle_ms":9e99,"looked_ms":1,"newest_zxid":1}',
        b'{"version":1,"idle_ms":"604800001","looked_ms":1,"newest_zxid":1}',
        b'{"version":1,"idle_ms":-1,"looked_ms":1,"newest_zxid":1}',
    ],
)
def test_what_cannot_be_read_counts_for_nothing(session: ZooKeeperSession, data: bytes) -> None:
    store_offsets(session, GROUP, {KEY: Committed(7)})
    session.create(znodes.idle(GROUP), data)
    assert look_at(session, GROUP, coordinator_of(session), BEGAN_MS, PACE) is None
    noted = documents.decode("idle", session.get(znodes.idle(GROUP)).data)
    assert (noted["idle_ms"], noted["looked_ms"]) == (0, BEGAN_MS)


def test_groups_of_the_papers_kind_keep_their_offsets(session: ZooKeeperSession) -> None:
    store_offsets(session, GROUP, {KEY: Committed(7)})
    ConsumerRegistry(session, GROUP).join("m", {"t": 1}).release()
    assert grow_old(session, coordinator_of(session), steps=2 * STEPS) is None
    assert session.exists(znodes.idle(GROUP)) is None
    assert ConsumerRegistry(session, GROUP).all_offsets() == {KEY: 7}


def test_a_coordinator_that_was_replaced_deletes_nothing(session: ZooKeeperSession) -> None:
    first, second = GroupBroker(session, FIRST), GroupBroker(session, SECOND)
    first.commit(100)
    first.jobs.run()
    old = Coordinator(FIRST, first.epoch)
    first.held.release()
    with pytest.raises(NotCoordinatorError):
        grow_old(session, old)
    assert second.stored() == 100


def test_a_commit_in_the_moment_of_deletion_stays(
    session: ZooKeeperSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read before is no longer so: nothing at all is deleted."""
    store_offsets(session, GROUP, {KEY: Committed(7, "words"), ("t", 1): Committed(8)})
    coordinator = coordinator_of(session)

    def commits(*arguments: Any) -> Any:
        store_offsets(session, GROUP, {KEY: Committed(9)})
        return guard(*arguments)

    grow_old(session, coordinator, steps=STEPS - 1)
    monkeypatch.setattr(deletion, "guard", commits)
    assert look_at(session, GROUP, coordinator, BEGAN_MS + PACE.retention_ms, PACE) is None
    assert ConsumerRegistry(session, GROUP).all_offsets() == {KEY: 9, ("t", 1): 8}


def test_a_group_that_is_deleted_meanwhile_does_not_come_back(
    session: ZooKeeperSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_offsets(session, GROUP, {KEY: Committed(7)})

    def deletes(*arguments: Any) -> Idle:
        session.delete(znodes.group(GROUP), recursive=True)
        return longer(*arguments)

    monkeypatch.setattr(expiry, "longer", deletes)
    assert look_at(session, GROUP, coordinator_of(session), BEGAN_MS, PACE) is None
    assert groups(session) == []


def test_a_coordinator_that_dies_while_it_deletes_leaves_the_rest_for_later(
    session: ZooKeeperSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deletion, "OFFSETS_PER_TRANSACTION_MAX", 1)
    store_offsets(session, GROUP, {KEY: Committed(7), ("t", 1): Committed(8)})
    coordinator, asked = coordinator_of(session), []

    def dies(*arguments: Any) -> Any:
        asked.append(arguments)
        if len(asked) == 2:
            raise CoordinationError("the session has ended")
        return guard(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(deletion, "guard", dies)
        with pytest.raises(CoordinationError):
            grow_old(session, coordinator)
    assert len(ConsumerRegistry(session, GROUP).all_offsets()) == 1
    assert grow_old(session, coordinator) == 1
    assert groups(session) == []


# --- the broker's part ---


class Loop:
    def __init__(self) -> None:
        self.calls: list[tuple[float, Callable[[], None]]] = []

    def every(self, period_ms: float, call: Callable[[], None]) -> None:
        self.calls.append((period_ms, call))


class Bench:
    """An `OffsetExpiry` whose broker coordinates all groups; `look` does one whole look."""

    def __init__(self, session: ZooKeeperSession) -> None:
        registered = BrokerRegistry(session).live()
        self.now_ms = BEGAN_MS
        self.jobs, self.loop = HeldJobs(), Loop()
        state = SimpleNamespace(
            config=BrokerConfig(),
            broker_id=registered[0].broker_id,
            view=ClusterView().with_brokers(registered),
            loop=self.loop,
            clock_ms=lambda: self.now_ms,
        )
        self.coordinator = GroupCoordinator(
            coordinates=lambda _: True,
            new_member_id=lambda _: "m",
            store=HeldGenerations().store,
            initial_delay_ms=0,
        )
        OffsetExpiry(session, cast(Any, state), self.coordinator, self.jobs).begin()

    def look(self) -> None:
        ((period_ms, call),) = self.loop.calls
        assert period_ms == PACE.interval_ms
        call()
        call()  # the look before still runs
        assert len(self.jobs.jobs) == 1
        while self.jobs.jobs:
            self.jobs.run()
        self.now_ms += PACE.step_ms

    def join(self, group: str) -> None:
        self.coordinator.join(joining(group), 0, lambda _: None)


def test_groups_with_members_keep_their_offsets_and_all_others_go(session: ZooKeeperSession) -> None:
    names = {f"group-{number}" for number in range(expiry.GROUPS_PER_JOB_MAX + 5)}
    for name in sorted(names):
        store_offsets(session, name, {KEY: Committed(7)})
    bench = Bench(session)
    bench.look()
    bench.join("group-3")
    for _ in range(STEPS):
        bench.look()
    assert groups(session) == ["group-3"]
    assert session.exists(znodes.idle("group-3")) is None


def test_one_groups_problem_keeps_no_other_group(
    session: ZooKeeperSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        store_offsets(session, name, {KEY: Committed(7)})

    def fails(session: ZooKeeperSession, group: str, *others: Any) -> int | None:
        if group == "b":
            raise TooLargeError("b: too large")
        return look_at(session, group, *others)

    monkeypatch.setattr(expiry, "look_at", fails)
    bench = Bench(session)
    for _ in range(STEPS + 1):
        bench.look()
    assert groups(session) == ["b"]


def test_looks_go_on_after_zookeeper_was_away(
    session: ZooKeeperSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_offsets(session, GROUP, {KEY: Committed(7)})
    bench = Bench(session)

    def fails(*_: object) -> None:
        raise ZooKeeperUnavailableError("ZooKeeper is away")

    for name in ("groups", "look_at"):
        with monkeypatch.context() as patch:
            patch.setattr(expiry, name, fails)
            bench.look()
    bench.look()
    assert session.exists(znodes.idle(GROUP)) is not None


def test_a_broker_looks_at_its_groups(broker_cluster: StartCluster) -> None:
    config = {"offsets.retention.minutes": "1", "offsets.retention.check.interval.ms": "100"}
    cluster = broker_cluster(1, config=config)
    with cluster.zookeeper.session() as session, GroupAdmin(cluster.bootstrap) as admin:
        TopicRegistry(session).create("t", uuid.uuid4(), {0: (1,)})
        store_offsets(session, GROUP, {KEY: Committed(7)})
        deadline_s = time.monotonic() + WAIT_MAX_S
        idle_ms = 0
        while not idle_ms:
            assert time.monotonic() < deadline_s, "no look has noted that the group is idle"
            time.sleep(0.1)
            node = session.get_or_none(znodes.idle(GROUP))
            idle_ms = 0 if node is None else documents.decode("idle", node.data)["idle_ms"]
        assert idle_ms <= 2 * 600
        admin.delete_group(GROUP)
        assert groups(session) == []
