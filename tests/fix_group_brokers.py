"""Brokers that coordinate a group, without the brokers: each one's registration, and its store of offsets."""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Any, cast

from headrace.broker.groups.coordinator import coordinator_for
from headrace.broker.groups.fencing import Coordinator
from headrace.broker.groups.generations import StoredGeneration
from headrace.broker.groups.group import Stored
from headrace.broker.groups.offset_nodes import Committed, Offsets
from headrace.broker.groups.store import GroupStore
from headrace.broker.groups.types import Join, MemberProtocol
from headrace.coordination.brokers import BrokerRegistration, BrokerRegistry
from headrace.coordination.session import ZooKeeperSession
from headrace.coordination.standing import HeldNode

GROUP = "g"
KEY = ("t", 0)
FIRST, SECOND = sorted((1, 2), key=lambda each: coordinator_for(GROUP, (1, 2)) != each)
"""The group's coordinator while both brokers live, and the other one."""


SUBSCRIPTION = bytes.fromhex("0000000000010001") + b"t" + bytes.fromhex("ffffffff")
"""A consumer's subscription to topic "t": version 0, its topics, no user data."""


class HeldJobs:
    """Threads that do nothing until `run`: their process is stopped."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Callable[[], Any], Callable[[Any, Exception | None], None]]] = []

    def submit(self, job: Callable[[], Any], done: Callable[[Any, Exception | None], None]) -> None:
        self.jobs.append((job, done))

    def run_last(self) -> None:
        """Runs one job: the one that was submitted last, as if its thread were the fastest."""
        earlier, self.jobs = self.jobs[:-1], self.jobs[-1:]
        self.run()
        self.jobs = earlier + self.jobs

    def run(self) -> None:
        jobs, self.jobs = self.jobs, []
        for job, done in jobs:
            try:
                done(job(), None)
            except Exception as error:
                done(None, error)


class GroupBroker:
    """What a broker has of a group: its registration, and the store of offsets."""

    def __init__(self, session: ZooKeeperSession, broker_id: int) -> None:
        self.broker_id = broker_id
        self.jobs = HeldJobs()
        self._registry = BrokerRegistry(session)
        self.held: HeldNode
        self.epoch = 0
        self.store = GroupStore(
            session, cast(Any, self.jobs), lambda: Coordinator(self.broker_id, self.epoch)
        )
        self.register()

    def register(self) -> None:
        self.held = self._registry.register(BrokerRegistration(self.broker_id, "127.0.0.1", 9092, "east"))
        (self.epoch,) = [each.epoch for each in self._registry.live() if each.broker_id == self.broker_id]

    def commit(self, offset: int) -> list[Exception | None]:
        outcomes: list[Exception | None] = []
        self.store.commit(GROUP, {KEY: Committed(offset)}).then(outcomes.append)
        return outcomes

    def delete(self) -> list[bool | Exception]:
        outcomes: list[bool | Exception] = []
        self.store.delete(GROUP).then(outcomes.append)
        return outcomes

    def delete_offsets(self, keys: Set[tuple[str, int]]) -> list[Set[str] | Exception]:
        outcomes: list[Set[str] | Exception] = []
        self.store.delete_offsets(GROUP, sorted(keys)).then(outcomes.append)
        return outcomes

    def stored(self) -> int:
        found: list[Offsets | Exception] = []
        self.store.read(GROUP, [KEY]).then(found.append)
        self.jobs.run()
        (offsets,) = found
        assert isinstance(offsets, dict)
        return offsets[KEY].offset


class HeldGenerations:
    """Stores generations at once, or as soon as `release` is called: `store` is that of a coordinator.

    `stored`: the last one of each group; None without members.
    """

    def __init__(self, now_ms: Callable[[], int] = lambda: 0) -> None:
        self._now_ms = now_ms
        self.is_held = False
        self.stored: dict[str, StoredGeneration | None] = {}
        self._waiting: list[Callable[[], None]] = []

    def store(self, group: str, generation: StoredGeneration | None, then: Stored) -> None:
        def write() -> None:
            self.stored[group] = generation
            then(self._now_ms())

        self._waiting.append(write)
        if not self.is_held:
            self.release()

    def release(self) -> None:
        waiting, self._waiting = self._waiting, []
        for write in waiting:
            write()


def joining(group: str, *, instance_id: str | None = None, member_id: str = "") -> Join:
    """Returns a member's JoinGroup; the first one of a new member has no id."""
    return Join(
        group_id=group,
        member_id=member_id,
        group_instance_id=instance_id,
        client_id="c",
        client_host="/127.0.0.1",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=(MemberProtocol("range", SUBSCRIPTION),),
        requires_known_member=False,
    )
