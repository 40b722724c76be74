"""The broker that a run kills: which one, and what the screen says of who took over."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.client.cluster import PartitionInfo, TopicInfo
from headrace.demo import killing
from headrace.demo.killing import SHOWN_MAX, Kill, Killing, Led, Takeover, lines_of, victim_of
from headrace.demo.plan import TOPIC
from headrace.site.errors import SiteError


def topic(name: str, *partitions: tuple[int, tuple[int, ...]]) -> TopicInfo:
    """Partitions by their leader and their in-sync replicas."""
    return TopicInfo(
        name,
        {
            number: PartitionInfo(number, leader, 0, isr, isr)
            for number, (leader, isr) in enumerate(partitions)
        },
    )


def test_the_leader_of_the_first_partition_is_killed() -> None:
    topics = {
        TOPIC: topic(TOPIC, (2, (2, 3, 1)), (3, (3, 1, 2)), (2, (2, 1))),
        "_audit": topic("_audit", (1, (1, 2, 3))),
        "clicks": topic("clicks", (2, (3, 2))),
    }
    assert victim_of(topics) == (2, [Led("clicks", 0), Led(TOPIC, 0), Led(TOPIC, 2)])


def test_a_broker_that_nobody_can_follow_is_not_killed() -> None:
    topics = {TOPIC: topic(TOPIC, (2, (2, 3))), "old": topic("old", (2, (2,)))}
    with pytest.raises(SiteError, match="nobody could take over old-0 from broker 2: its replicas are"):
        victim_of(topics)


def test_the_screen_names_who_took_over_those_that_were_written_to_first() -> None:
    kill = Kill(2, 4711, {Led("a", 0): Takeover(1, 0.44), Led(TOPIC, 0): Takeover(3, 0.41, 10, 1.26)})
    assert lines_of(kill, "east") == [
        "killed for good: broker 2 of east (SIGKILL, process 4711) led page-view-0, a-0",
        "page-view-0: broker 3 took over after 0.4 s, and acknowledged the first write after 1.3 s",
        "a-0: broker 1 took over after 0.4 s",
    ]
    kill = Kill(2, 4711, {Led("a", number): Takeover(1, number / 10) for number in range(SHOWN_MAX + 3)})
    lines = lines_of(kill, "east")
    assert len(lines) == SHOWN_MAX + 2
    assert lines[0].endswith("a-5 and 3 more") and lines[-1] == "the others have new leaders after 0.8 s"


class Cluster:
    """Stands for an `Admin` of three brokers: broker 2 leads until it is killed, then broker 3."""

    def __init__(self) -> None:
        self.killed = threading.Event()
        self.end_address = 10

    def __call__(self, *_: object, **__: object) -> Cluster:
        return self

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def topics(self) -> dict[str, TopicInfo]:
        return {TOPIC: topic(TOPIC, (3 if self.killed.is_set() else 2, (2, 3)))}

    def list_offsets(self, name: str, partitions: list[int]) -> dict[int, SimpleNamespace]:
        return {partition: SimpleNamespace(offset=self.end_address) for partition in partitions}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()

    def kill(*_: object) -> int:
        made.killed.set()
        return 4711

    monkeypatch.setattr(killing, "Admin", made)
    monkeypatch.setattr(killing, "kill_for_good", kill)
    return made


def a_killing(published: Callable[[], int]) -> Killing:
    east = SimpleNamespace(name="east", bootstrap="127.0.0.1:1")
    plan = SimpleNamespace(real_time=east, site=SimpleNamespace(home=None))
    return Killing(cast(Any, plan), 5, published)


class Lines:
    """A screen."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def print(self, line: str) -> None:
        self.lines.append(line)


def test_a_broker_is_killed_while_the_flow_waits_for_something_else(cluster: Cluster) -> None:
    published = 4
    with a_killing(lambda: published) as begun:
        assert not cluster.killed.wait(0.1)
        published = 5
        assert cluster.killed.wait(10), "nobody polls meanwhile"
        for _ in range(500):
            cluster.end_address += 1
            begun._thread.join(0.02)
            if not begun._thread.is_alive():
                break
        screen = Lines()
        begun.poll(cast(Any, screen))
    assert screen.lines[0] == "killed for good: broker 2 of east (SIGKILL, process 4711) led page-view-0"
    assert "broker 3 took over after 0." in screen.lines[1]
    assert "acknowledged the first write after" in screen.lines[1]


def test_nobody_waits_for_a_write_once_no_more_events_come(cluster: Cluster) -> None:
    screen = Lines()
    with a_killing(lambda: 5) as begun:
        assert cluster.killed.wait(10)
        began_s = time.monotonic()
        begun.end(cast(Any, screen))
    assert time.monotonic() - began_s < killing.TAKEOVER_MAX_S / 2
    assert len(screen.lines) == 2 and "first write" not in screen.lines[1]


def test_a_flow_that_ends_before_kills_nothing_and_says_so(cluster: Cluster) -> None:
    with a_killing(lambda: 4) as begun, pytest.raises(SiteError, match="no broker of east was killed"):
        begun.end(cast(Any, Lines()))
    begun._thread.join(10)
    assert not begun._thread.is_alive() and not cluster.killed.is_set()


def test_a_flow_that_fails_kills_nothing_afterwards(cluster: Cluster) -> None:
    published = 4
    begun = a_killing(lambda: published)
    with pytest.raises(SiteError), begun:
        raise SiteError("a service has failed")
    begun._thread.join(10)
    published = 5
    assert not begun._thread.is_alive() and not cluster.killed.is_set()
