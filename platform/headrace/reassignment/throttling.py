"""How fast replicas are copied while they move: Apache Kafka's settings of brokers and topics (KIP-73).

Kafka's own tools set and remove the same ones. What they mean is the brokers' (`replication.throttling`):
replicas in sync are never slowed down.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from headrace.client.errors import BrokerError
from headrace.client.replica_admin import ReplicaAdmin
from headrace.reassignment.model import Move
from headrace.wire.errors import ErrorCode

LEADER_RATE: Final = "leader.replication.throttled.rate"
FOLLOWER_RATE: Final = "follower.replication.throttled.rate"
LEADER_REPLICAS: Final = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS: Final = "follower.replication.throttled.replicas"
EVERY_REPLICA: Final = "*"


class Throttle:
    """Throttles moves, each broker to `bytes_per_s` of sending and of fetching. With None it sets nothing,
    and `end` still removes what a command that was interrupted, or another tool, has left.
    """

    def __init__(self, admin: ReplicaAdmin, bytes_per_s: int | None) -> None:
        self._admin = admin
        self._bytes_per_s = bytes_per_s
        self._brokers: set[int] = set()  # whose rate is set
        self._topics: set[str] = set()  # whose replicas are
        self._leaders: dict[str, set[tuple[int, int]]] = {}  # by topic
        self._followers: dict[str, set[tuple[int, int]]] = {}

    def begin(self, moves: Iterable[Move]) -> None:
        """Called before moves begin. Raises `ClientError`."""
        changed: dict[str, None] = {}
        brokers: set[int] = set()
        for move in moves:
            topic, partition = move.key
            if not move.adding:
                continue
            changed[topic] = None
            brokers |= {*move.before, *move.adding}
            self._leaders.setdefault(topic, set()).update((partition, each) for each in move.before)
            self._followers.setdefault(topic, set()).update((partition, each) for each in move.adding)
        if self._bytes_per_s is None:
            return
        rate = str(self._bytes_per_s)
        for broker_id in sorted(brokers):  # again, too: another command that ended may have taken it away
            self._admin.alter_broker_configs(broker_id, {LEADER_RATE: rate, FOLLOWER_RATE: rate})
            self._brokers.add(broker_id)
        present = self._admin.topic_settings(sorted(changed), (LEADER_REPLICAS, FOLLOWER_REPLICAS))
        for topic in changed:
            wanted = {LEADER_REPLICAS: self._leaders[topic], FOLLOWER_REPLICAS: self._followers[topic]}
            before = present.get(topic, {})
            words = {n: _text(pairs) for n, pairs in wanted.items() if before.get(n) != EVERY_REPLICA}
            # Other commands, also at the same time, may throttle more of these topics.
            if words:
                self._topics.add(topic)
                with _unless_deleted():
                    self._admin.append_configs(topic, words)

    def lift(self, topic: str) -> None:
        """Removes what an interrupted command has left on a topic that now moves without a bound."""
        if self._bytes_per_s is None:
            self._remove(topic)

    def end(self) -> None:
        """Removes the throttles of all brokers and topics, also what others have left, unless some partition
        still moves. Raises `ClientError`."""
        survey = self._admin.replicas()
        if survey.reassignments or survey.unsettled:
            return
        wanted = (LEADER_REPLICAS, FOLLOWER_REPLICAS)
        found = self._admin.topic_settings(sorted({topic for topic, _ in survey.partitions}), wanted)
        # A broker may not have heard of this command's own settings yet.
        left = {topic for topic, values in found.items() if any(values.values())}
        for topic in sorted(left | self._topics):
            self._remove(topic)
        for broker_id in sorted({*survey.brokers, *self._brokers}):
            self._admin.alter_broker_configs(broker_id, {LEADER_RATE: None, FOLLOWER_RATE: None})

    def _remove(self, topic: str) -> None:
        with _unless_deleted():
            self._admin.alter_configs(topic, {LEADER_REPLICAS: None, FOLLOWER_REPLICAS: None})


@contextmanager
def _unless_deleted() -> Iterator[None]:
    """Ignores that the topic of a change is not there any more."""
    try:
        yield
    except BrokerError as error:
        if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise


def _text(pairs: set[tuple[int, int]]) -> str:
    return ",".join(f"{partition}:{broker_id}" for partition, broker_id in sorted(pairs))
