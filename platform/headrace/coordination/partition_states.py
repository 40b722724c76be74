"""Changes of partitions' states in ZooKeeper, by compare-and-set alone.

The whole state that the caller has seen is compared with what ZooKeeper holds, and the node's version that
was read with it guards the write. Does not decide who leads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from headrace.coordination import znodes
from headrace.coordination.errors import (
    BadVersionError,
    CoordinationError,
    CorruptNodeError,
    NoNodeError,
    TopicNotRegisteredError,
)
from headrace.coordination.errors import GuardError as GuardError
from headrace.coordination.handled_brokers import parse_handled
from headrace.coordination.partition_state import (
    NO_LEADER,
    PartitionState,
    parse_state,
    parse_topic,
    present_node,
    read_documents,
    state_document,
    topic_document,
)
from headrace.coordination.session import ZooKeeperSession

# One transaction must fit ZooKeeper's request limit (1 MiB). A state takes up to 500 bytes of it; a topic's
# lists of replicas took up to a quarter when it was made, and three times as much while all are reassigned.
CHANGES_PER_TRANSACTION_MAX: Final = 500
REASSIGNED_PER_TRANSACTION_MAX: Final = 10
ATTEMPTS_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class PartitionChange:
    """A new state of a partition, to be stored if the present one is `expected`.

    `joining`: by broker id, the broker epoch in which a new member of the in-sync set was seen to be in sync,
    or a new leader was known; nothing is stored if it has registered again since, or is gone (KIP-903). Nor
    if a new member that is not elected says that it stops (KIP-841).
    `handled_only`: who leads in a new epoch must be registered, and a controller must have handled this
    registration. Until then it may have come back with an empty disk, and still be in the in-sync set. So may
    the others of that set, which are relied on where a replica is taken away.
    """

    topic: str
    partition: int
    expected: PartitionState
    new: PartitionState
    joining: Mapping[int, int] = field(default_factory=dict)
    handled_only: bool = False

    @property
    def unproven_leader(self) -> int | None:
        """The leader of a new epoch whose registration must have been handled, if there is one. A leader may
        stay, and its followers cut their logs to its own all the same.
        """
        leads = self.new.leader != NO_LEADER and self.new.leader_epoch != self.expected.leader_epoch
        return self.new.leader if self.handled_only and leads else None

    @property
    def unproven_followers(self) -> frozenset[int]:
        """The brokers whose registrations, if there are any, must have been handled."""
        gone = set(self.expected.replicas) - set(self.new.replicas)
        return frozenset(self.new.isr) if self.handled_only and gone else frozenset()

    @property
    def relied_on(self) -> frozenset[int]:
        """The brokers that must still be registered as they were when this was decided."""
        leader = self.unproven_leader
        return frozenset(self.joining if leader is None else (*self.joining, leader))

    @property
    def taken_in(self) -> frozenset[int]:
        """The new followers in the in-sync set whose broker epochs are known."""
        return frozenset(self.joining).difference(self.expected.isr, (self.new.leader,))

    @property
    def reassigns(self) -> bool:
        """Whether the topic's list of replicas changes, too."""
        lists = [(each.replicas, each.adding, each.removing) for each in (self.expected, self.new)]
        return lists[0] != lists[1]


class StaleStateError(BadVersionError):
    """The partition's state is not the expected one. `found`: what it is. Decide again before you retry."""

    def __init__(self, change: PartitionChange, found: PartitionState) -> None:
        super().__init__(
            f"{change.topic}-{change.partition}: its state is {found}, expected {change.expected}"
        )
        self.found = found


NOT_HANDLED: Final = "has registered again, and no controller has seen that yet: its log may be empty; retry"
STOPS: Final = "stops, and is not taken into in-sync sets any more"


class StaleBrokerError(CoordinationError):
    """A new member of the in-sync set is no longer registered as the one that was seen to be in sync, or
    stops; or no controller has handled the registration of a new leader yet. `broker_id`: which broker.
    """

    def __init__(self, broker_id: int, problem: str) -> None:
        super().__init__(f"broker {broker_id} {problem}")
        self.broker_id = broker_id


def check_changes(changes: Sequence[PartitionChange]) -> None:
    """Raises `ValueError` for a batch that names a partition twice, or that changes a state to itself."""
    names = [(change.topic, change.partition) for change in changes]
    if len(set(names)) != len(names):
        raise ValueError("a batch of changes names a partition twice")
    for change in changes:
        if change.new == change.expected:
            raise ValueError(f"{change.topic}-{change.partition}: the new state is the expected one")


def in_transactions(changes: Sequence[PartitionChange]) -> Iterator[list[PartitionChange]]:
    """Yields the changes in groups, each small enough for one transaction.

    Those that reassign are apart: any change of any topic interrupts them, and elections must not wait. One
    topic's only, since each topic's lists of replicas are written, too.
    """
    group: list[PartitionChange] = []
    for change in changes:
        most = REASSIGNED_PER_TRANSACTION_MAX if change.reassigns else CHANGES_PER_TRANSACTION_MAX
        is_apart = bool(group) and (
            change.reassigns != group[0].reassigns or (change.reassigns and change.topic != group[0].topic)
        )
        if is_apart or len(group) == most:
            yield group
            group = []
        group.append(change)
    if group:
        yield group


def write(
    session: ZooKeeperSession, changes: Sequence[PartitionChange], guard: Mapping[str, int]
) -> list[CoordinationError | None]:
    """Stores the changes of one group, those whose expected state is the present one in one transaction.

    Returns the error of each change, None where it was stored. `guard`: nodes (path, version; -1: any) that
    must exist in this version; else raises `GuardError`, and nothing was stored.
    """
    results: list[CoordinationError | None] = [None] * len(changes)
    left = list(range(len(changes)))
    for attempt in range(ATTEMPTS_MAX):
        present = _Present(session, [changes[at] for at in left], guard)
        to_store: list[int] = []
        for at in left:
            problem, is_done = present.judge(changes[at], again=attempt > 0)
            results[at] = problem
            if problem is None and not is_done:
                to_store.append(at)
        left = to_store
        if not left:
            return results
        try:
            present.store([changes[at] for at in left])
        except (BadVersionError, NoNodeError):
            continue  # something changed since it was read; what it was, the next reading tells
        return results
    for at in left:
        results[at] = BadVersionError(
            f"{changes[at].topic}-{changes[at].partition}: others changed it {ATTEMPTS_MAX} times meanwhile"
        )
    return results


class _Present:
    """What ZooKeeper holds of some partitions, read in an order that makes the versions guard it all.

    States come before the topics' documents, which list the replicas: a reassignment writes both, so a state
    that is still of its version belongs to the document that was read after it. In the same way a broker's
    count of registrations comes before its registration, and before the node by which it says that it stops.
    """

    def __init__(
        self, session: ZooKeeperSession, changes: Sequence[PartitionChange], guard: Mapping[str, int]
    ) -> None:
        self._session = session
        self._guard = guard
        # Another topic's document, written over that of one that has been made again under its name, would
        # end that one: the versions of its nodes begin at 0 again, so the node of all topics is the guard.
        reassigns = any(change.reassigns for change in changes)
        all_topics = session.exists(znodes.TOPICS) if reassigns else None
        self._topics_version = -1 if all_topics is None else all_topics.version
        topics = sorted({change.topic for change in changes})
        states = [znodes.partition_state(change.topic, change.partition) for change in changes]
        self._nodes = dict(zip(states, session.get_many_small(states), strict=True))
        documents = read_documents(session, topics)
        self._nodes |= zip(map(znodes.topic, topics), documents, strict=True)
        self._topics = {name: self._parsed(name) for name in topics}
        brokers = sorted(
            {each for change in changes for each in (*change.relied_on, *change.unproven_followers)}
        )
        held = [*map(znodes.registrations, brokers), *map(znodes.broker, brokers), *guard]
        held += {znodes.stopping(each) for change in changes for each in change.taken_in}
        self._stats = dict(zip(held, session.stat_many(held), strict=True))
        unproven = {leader for change in changes if (leader := change.unproven_leader) is not None}
        unproven.update(*(change.unproven_followers for change in changes))
        handled = session.get_many(znodes.handled_broker(broker) for broker in sorted(unproven))
        self._handled = {
            broker: parse_handled(node)[0] for broker, node in zip(sorted(unproven), handled, strict=True)
        }
        for path, version in guard.items():
            stat = self._stats[path]
            if stat is None or version not in (-1, stat.version):
                raise GuardError(f"{path} is {'gone' if stat is None else 'no longer the same'}")

    def _parsed(self, name: str) -> tuple[UUID, dict[int, PartitionState]] | CorruptNodeError | None:
        node = self._nodes[znodes.topic(name)]
        try:
            return None if node is None else parse_topic(znodes.topic(name), node.data)
        except CorruptNodeError as error:
            return error

    def judge(self, change: PartitionChange, *, again: bool) -> tuple[CoordinationError | None, bool]:
        """Returns why this change cannot be stored, and whether it has been: a transaction that is repeated
        after a lost connection may find its own state."""
        path = znodes.partition_state(change.topic, change.partition)
        node, topic = self._nodes[path], self._topics[change.topic]
        if isinstance(topic, CorruptNodeError):
            return topic, False
        listed = None if topic is None else topic[1].get(change.partition)
        if listed is None:
            return TopicNotRegisteredError(f"there is no partition {change.topic}-{change.partition}"), False
        try:
            found = parse_state(path, present_node(path, node), listed)
        except CorruptNodeError as error:
            return error, False
        if change.expected.created_zxid not in (0, found.created_zxid):
            again_under = f"{change.topic}-{change.partition} was deleted, and made again under its name"
            return TopicNotRegisteredError(again_under), False
        if found != change.expected:
            if again and found == change.new:
                return None, True
            return StaleStateError(change, found), False
        return self._stale_broker(change), False

    def _stale_broker(self, change: PartitionChange) -> StaleBrokerError | None:
        """Returns which broker is not what the change relies on, if one is not."""
        for broker in sorted(change.relied_on):
            stat = self._stats[znodes.broker(broker)]
            if stat is None or self._stats[znodes.registrations(broker)] is None:
                return StaleBrokerError(broker, "is not registered")
            epoch = change.joining.get(broker, stat.created_zxid)
            if epoch != stat.created_zxid:
                now = f"is registered in broker epoch {stat.created_zxid}, expected {epoch}"
                return StaleBrokerError(broker, now)
            if self._handled.get(broker, epoch) != epoch:
                return StaleBrokerError(broker, NOT_HANDLED)
            said = self._stats[znodes.stopping(broker)] if broker in change.taken_in else None
            if said is not None and said.owner_session == stat.owner_session:
                return StaleBrokerError(broker, STOPS)
        for broker in sorted(change.unproven_followers):
            stat = self._stats[znodes.broker(broker)]
            if stat is not None and self._handled[broker] != stat.created_zxid:
                return StaleBrokerError(broker, NOT_HANDLED)
        return None

    def store(self, changes: Sequence[PartitionChange]) -> None:
        """Writes all states, or none. Raises `BadVersionError` or `NoNodeError` if a node has changed."""
        transaction = self._session.transaction()
        for path, version in self._guard.items():
            transaction.check(path, version=version)
        relied_on = {broker for change in changes for broker in change.relied_on}
        doubted = {broker for change in changes for broker in change.unproven_followers}
        for broker in sorted(relied_on | doubted):
            count = self._stats[znodes.registrations(broker)]
            assert count is not None or broker not in relied_on
            if count is not None:
                transaction.check(znodes.registrations(broker), version=count.version)
            if broker in relied_on:
                transaction.check(znodes.broker(broker))
        for topic in sorted({change.topic for change in changes}):
            reassigned = {
                change.partition: change.new
                for change in changes
                if change.topic == topic and change.reassigns
            }
            if reassigned:
                node, parsed = self._nodes[znodes.topic(topic)], self._topics[topic]
                assert node is not None and isinstance(parsed, tuple)
                document = topic_document(parsed[0], parsed[1] | reassigned)
                transaction.set(znodes.topic(topic), document, version=node.stat.version)
            transaction.set(znodes.partitions(topic), b"")
        for change in changes:
            path = znodes.partition_state(change.topic, change.partition)
            node = self._nodes[path]
            assert node is not None
            transaction.set(path, state_document(change.new), version=node.stat.version)
        transaction.set(znodes.TOPICS, b"", version=self._topics_version).commit()
