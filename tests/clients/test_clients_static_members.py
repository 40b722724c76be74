"""Static members (KIP-345) of real clients that restart, beside Apache Kafka: nobody else is to notice it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from fix_java import JavaPeer

pytestmark = pytest.mark.real_client

WAIT_MAX_S = 30.0
QUIET_S = 3.0
"""Several heartbeats: members hear of a rebalance with the next one."""
SETTINGS = {"heartbeat.interval.ms": 300, "session.timeout.ms": 30_000, "auto.offset.reset": "earliest"}


class StaticGroup:
    """Members of one group, by their instance ids; `told` has what each one's callbacks were told."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.topic = self.group = f"static-{uuid.uuid4().hex[:8]}"
        self.told: list[tuple[str, str]] = []
        self.members: dict[str, confluent_kafka.Consumer] = {}
        self.also: Callable[[], bool] = bool  # polls a member of another kind
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic(self.topic, 3, 1)])[self.topic].result(timeout=WAIT_MAX_S)

    def join(self, name: str, strategy: str) -> None:
        """Waits until the member, and each before it, has a partition."""
        settings = {
            "bootstrap.servers": self.bootstrap,
            "group.id": self.group,
            "group.instance.id": name,
            "partition.assignment.strategy": strategy,
            **SETTINGS,
        }
        consumer = self.members[name] = confluent_kafka.Consumer(settings)
        consumer.subscribe(
            [self.topic],
            on_assign=lambda _consumer, _partitions: self.told.append((name, "assigned")),
            on_revoke=lambda _consumer, _partitions: self.told.append((name, "revoked")),
        )
        self.until(lambda: all(each.assignment() for each in self.members.values()))
        self.poll(QUIET_S)

    def restart(self, name: str, strategy: str) -> None:
        self.members.pop(name).close()
        self.told.clear()
        self.join(name, strategy)

    def poll(self, span_s: float) -> None:
        end_s = time.monotonic() + span_s
        while time.monotonic() < end_s:
            for consumer in self.members.values():
                consumer.poll(0.05)
            self.also()

    def until(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_MAX_S
        while not holds():
            assert time.monotonic() < deadline, f"waited too long; {self.told}"
            self.poll(0.1)

    def close(self) -> None:
        for consumer in self.members.values():
            consumer.close()


@pytest.fixture(params=["datacenter", "apache_kafka"])
def group(request: pytest.FixtureRequest) -> Iterator[StaticGroup]:
    made = StaticGroup(request.getfixturevalue(request.param).bootstrap)
    yield made
    made.close()


def test_a_member_that_has_rebalanced_restarts_unnoticed(group: StaticGroup) -> None:
    """It says anew what it owns, and in which generation: nothing. That was taken for another member."""
    strategy = "cooperative-sticky"
    for name in ("first", "second", "third"):
        group.join(name, strategy)
    group.restart("second", strategy)
    assert {name for name, _ in group.told} == {"second"}


def test_a_leader_restarts_unnoticed(group: StaticGroup, java_peer: JavaPeer) -> None:
    """KIP-814: a client that knows it is told that it leads, and need not assign anew."""
    settings = {
        "bootstrap.servers": group.bootstrap,
        "group.id": group.group,
        "group.instance.id": "leader",
        "partition.assignment.strategy": "org.apache.kafka.clients.consumer.RangeAssignor",
        **SETTINGS,
    }

    def lead() -> bool:
        said = java_peer("poll", member=group.group, records="/dev/null", wait_ms=100)
        return bool(said["assigned"])

    java_peer("join", settings, member=group.group, topic=group.topic)
    group.also = lead
    group.until(lead)
    for name in ("second", "third"):
        group.join(name, "range")
    java_peer("leave", member=group.group)  # a static member sends no LeaveGroup
    group.told.clear()
    java_peer("join", settings, member=group.group, topic=group.topic)
    group.until(lead)
    group.poll(QUIET_S)
    java_peer("leave", member=group.group)
    group.also = bool
    assert not group.told
