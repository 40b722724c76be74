"""The broker that a run kills: which one, and what the screen says of who took over."""

from __future__ import annotations

import pytest

from headrace.client.cluster import PartitionInfo, TopicInfo
from headrace.demo.killing import SHOWN_MAX, Kill, Led, Takeover, lines_of, victim_of
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
