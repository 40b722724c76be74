"""What a broker has in sync: noted before its restart, and waited for after it; what others lack of it.

Owns the rule by which a restarted broker is back: each partition that it had in sync it has in sync again,
unless it leads it, or nobody does; and who lacks what a broker has that is to be taken away. How the cluster
is asked, how often, and for how long, the caller says.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple

from headrace.client.cluster import TopicInfo, TopicPartition
from headrace.client.replicas import ReplicaSurvey

LOOKS: Final = 2
"""So often in a row a broker must be in sync: the first look may be older than its restart."""
NAMED_MAX: Final = 3


def in_sync_of(broker_id: int, topics: Mapping[str, TopicInfo]) -> frozenset[TopicPartition]:
    """Returns the partitions of which the broker is a replica in sync, as metadata tells them."""
    return frozenset(
        (name, number)
        for name, topic in topics.items()
        for number, partition in topic.partitions.items()
        if broker_id in partition.isr
    )


def behind(
    broker_id: int, topics: Mapping[str, TopicInfo], before: Collection[TopicPartition] | None = None
) -> list[TopicPartition]:
    """Returns those partitions of `before` (None: of all) that the broker still has to fetch, in order.

    One that was deleted or moved to others meanwhile is none of them, nor is one without a leader: there is
    nothing to fetch from.
    """
    return sorted(
        (name, number)
        for name, topic in topics.items()
        for number, partition in topic.partitions.items()
        if (before is None or (name, number) in before)
        and partition.leader >= 0
        and broker_id in partition.replicas
        and broker_id not in partition.isr
    )


class Lack(NamedTuple):
    """By partition, the other brokers that lack what one has in sync. `gone`: those that are not
    registered."""

    partitions: Mapping[TopicPartition, Collection[int]]
    brokers: tuple[int, ...]
    gone: tuple[int, ...]


def lack_of(survey: ReplicaSurvey, broker_id: int, without: Collection[str] = ()) -> Lack:
    """Returns who lacks what a live broker has in sync, but for the topics `without`. Replicas that a
    reassignment adds are not due before they have arrived.
    """
    found: dict[TopicPartition, Collection[int]] = {}
    for key, part in survey.partitions.items():
        if broker_id not in survey.brokers or broker_id not in part.isr or key[0] in without:
            continue
        there = set(part.isr) & survey.brokers.keys()
        if lacking := [each for each in survey.former(key) if each != broker_id and each not in there]:
            found[key] = lacking
    brokers = tuple(sorted({each for lacking in found.values() for each in lacking}))
    return Lack(found, brokers, tuple(each for each in brokers if each not in survey.brokers))


class CatchUp:
    """A restarted broker's return to what it had in sync `before`, as one look after another shows it."""

    def __init__(self, broker_id: int, before: Collection[TopicPartition]) -> None:
        self._broker_id = broker_id
        self._before = before
        self._looks = 0

    def look(self, topics: Mapping[str, TopicInfo] | str) -> str | None:
        """Returns None once the broker is back, or what it lacks. `topics`: all, or why they are unknown."""
        problem = _lacks(self._broker_id, topics, self._before)
        self._looks = 0 if problem else self._looks + 1
        return problem or (None if self._looks >= LOOKS else "whether it is in sync again was not seen yet")


def wait_until_back(
    broker: CatchUp,
    topics: Callable[[], Mapping[str, TopicInfo] | str],
    pause: Callable[[], bool],
    timeout_s: float,
) -> str | None:
    """Returns None once the broker is back, or what it lacks: after `timeout_s`, or when `pause`, which waits
    between two looks, says that the wait is over.
    """
    deadline_s = time.monotonic() + timeout_s
    while (problem := broker.look(topics())) is not None:
        if time.monotonic() >= deadline_s or pause():
            return problem
    return None


def _lacks(
    broker_id: int, topics: Mapping[str, TopicInfo] | str, before: Collection[TopicPartition]
) -> str | None:
    if isinstance(topics, str):
        return f"what it has in sync is not known: {topics}"
    late = behind(broker_id, topics, before)
    if not late:
        return None
    return f"it still fetches {len(late)} of its partitions ({some_of(late)})"


def some_of(partitions: Sequence[TopicPartition]) -> str:
    """Returns the names of the first ones."""
    some = ", ".join(f"{topic}-{number}" for topic, number in partitions[:NAMED_MAX])
    return some + (", …" if len(partitions) > NAMED_MAX else "")
