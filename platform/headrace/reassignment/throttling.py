"""How fast replicas are copied while they move: Apache Kafka's settings of brokers and topics (KIP-73).

Kafka's own tools set and remove the same ones. What they mean is the brokers' (`replication.throttling`):
replicas in sync are never slowed down.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
        # Other commands, also those that were interrupted, may have throttled more of these topics.
        present = self._admin.topic_settings(sorted(changed), (LEADER_REPLICAS, FOLLOWER_REPLICAS))
        for topic in changed:
            wanted = {LEADER_REPLICAS: self._leaders[topic], FOLLOWER_REPLICAS: self._followers[topic]}
            before = present.get(topic, {})
            self._alter(topic, {name: _text(pairs, before.get(name, "")) for name, pairs in wanted.items()})

    def lift(self, topic: str) -> None:
        """Removes what an interrupted command has left on a topic that now moves without a bound."""
        if self._bytes_per_s is None:
            self._alter(topic, {LEADER_REPLICAS: None, FOLLOWER_REPLICAS: None})

    def end(self) -> None:
        """Removes the throttles of all brokers and topics, also what others have left, unless some partition
        still moves. Raises `ClientError`."""
        survey = self._admin.replicas()
        if survey.reassignments or survey.unsettled:
            return
        wanted = (LEADER_REPLICAS, FOLLOWER_REPLICAS)
        found = self._admin.topic_settings(sorted({topic for topic, _ in survey.partitions}), wanted)
        for topic, values in found.items():
            if any(values.values()):
                self._alter(topic, dict.fromkeys(wanted))
        for broker_id in sorted({*survey.brokers, *self._brokers}):
            self._admin.alter_broker_configs(broker_id, {LEADER_RATE: None, FOLLOWER_RATE: None})

    def _alter(self, topic: str, changes: Mapping[str, str | None]) -> None:
        try:
            self._admin.alter_configs(topic, changes)
        except BrokerError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:  # deleted meanwhile
                raise


def _text(pairs: set[tuple[int, int]], before: str) -> str:
    """Returns these replicas and those that a setting names already."""
    if before == EVERY_REPLICA:
        return before
    words = [f"{partition}:{broker_id}" for partition, broker_id in sorted(pairs)]
    return ",".join(dict.fromkeys([*filter(None, before.split(",")), *words]))
