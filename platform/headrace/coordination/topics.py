"""The topics of a datacenter: their partitions, replicas, leaders and configuration.

Owns `/brokers/topics/<t>` (replicas), `…/partitions/<p>/state` (leader, in-sync set), `/config/topics/<t>`.
Every change is one transaction that also writes `/brokers/topics`, and the topic's node or (a change of
leaders and in-sync sets, which several brokers make at once) its `partitions`: one watch on the first covers
everything, and a topic is read again only if the modified-zxid of one of the others changed.
"""

import logging
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Final
from uuid import UUID

from headrace.coordination import documents, znodes
from headrace.coordination.errors import (
    BadVersionError,
    CoordinationError,
    CorruptNodeError,
    InvalidTopicError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    TooLargeError,
    TopicExistsError,
    TopicNotRegisteredError,
)
from headrace.coordination.partition_state import NO_LEADER as NO_LEADER
from headrace.coordination.partition_state import ElrBelow as ElrBelow
from headrace.coordination.partition_state import PartitionState as PartitionState
from headrace.coordination.partition_state import (
    new_partition,
    parse_topic,
    read_documents,
    state_document,
    topic_document,
)
from headrace.coordination.partition_states import PartitionChange, check_changes, in_transactions, write
from headrace.coordination.session import SessionState, ZooKeeperSession
from headrace.coordination.standing import Watch
from headrace.coordination.topic_reads import (
    Problem,
    TopicRead,
    UnreadSettingsError,
    parse_config,
    read_topics,
)
from headrace.coordination.topic_reads import TopicState as TopicState
from headrace.coordination.transaction import Transaction
from headrace.wire.topic_names import TOPIC_NAME_RULE, is_topic_name

logger = logging.getLogger(__name__)

# One transaction must fit ZooKeeper's request limit (1 MiB); a partition takes about 250 bytes of it.
PARTITIONS_PER_CHANGE_MAX: Final = 2000
NAME_SHOWN_MAX: Final = 300
NEVER_READ: Final = 0  # no zxid: a topic that is read again each time
CHANGES_MAX: Final = 20  # attempts to change a topic that another change interrupts


def check_topic_name(name: str) -> None:
    """Raises `InvalidTopicError` for a name that Kafka does not allow either."""
    if not is_topic_name(name):
        raise InvalidTopicError(f"{name!r} is not a topic name: use {TOPIC_NAME_RULE}")


class TopicRegistry:
    """All topics of this datacenter. Caches them and reads again only what changed. Threads may share it."""

    def __init__(self, session: ZooKeeperSession) -> None:
        self._session = session
        self._known: dict[str, tuple[int, TopicState]] = {}
        self.unread: frozenset[str] = frozenset()
        """The topics whose partitions `list` could not read last: they are there as before, or left out."""

    @property
    def is_connected(self) -> bool:
        """Whether ZooKeeper answers, as far as is known now."""
        return self._session.state is SessionState.CONNECTED

    def create(
        self,
        name: str,
        topic_id: UUID,
        replicas: Mapping[int, tuple[int, ...]],
        config: Mapping[str, str] | None = None,
        *,
        stopping: Set[int] = frozenset(),
        dead: Set[int] = frozenset(),
    ) -> TopicState:
        """Creates a topic with its partitions, all or nothing. `stopping`, `dead`: see `new_partition`.

        Raises `TopicExistsError`, `InvalidTopicError`, `TooLargeError`. If a call fails and may have taken
        effect, it is safe to repeat it with the same `topic_id`.
        """
        check_topic_name(name)
        if sorted(replicas) != list(range(len(replicas))) or not replicas:
            raise InvalidTopicError(f"{name}: partitions must be numbered 0, 1, 2, …; got {sorted(replicas)}")
        _check_replicas(name, replicas)
        self._session.ensure_path(znodes.TOPICS)
        self._session.ensure_path(znodes.TOPIC_CONFIGS)
        partitions = {p: new_partition(r, stopping, dead) for p, r in sorted(replicas.items())}
        state = TopicState(name, topic_id, partitions, dict(config or {}))
        change = self._creation(state).set(znodes.TOPICS, b"")
        try:
            change.commit()
        except NodeExistsError:
            try:
                existing_id = self._get_versioned(name)[0].topic_id
            except TopicNotRegisteredError:
                existing_id = None
            if existing_id != topic_id:
                raise TopicExistsError(f"topic {name!r} exists already") from None
        return state

    def add_partitions(
        self,
        name: str,
        replicas: Mapping[int, tuple[int, ...]],
        *,
        stopping: Set[int] = frozenset(),
        dead: Set[int] = frozenset(),
    ) -> TopicState:
        """Adds partitions; their numbers start at the present count. `stopping`, `dead`: see `new_partition`.

        Raises `TopicNotRegisteredError`, `InvalidTopicError`, `TooLargeError`, and `BadVersionError` if
        others change it all the time.
        """
        _check_replicas(name, replicas)
        added = {p: new_partition(r, stopping, dead) for p, r in sorted(replicas.items())}
        for attempt in range(CHANGES_MAX):
            state, version = self._get_versioned(name)
            count = len(state.partitions)
            if attempt and added and all(_replicas(state, p) == new.replicas for p, new in added.items()):
                return state  # it was done, and the answer lost
            if sorted(replicas) != list(range(count, count + len(replicas))) or not replicas:
                raise InvalidTopicError(
                    f"{name} has {count} partitions; number new ones from {count}, not {sorted(replicas)}"
                )
            state = replace(state, partitions={**state.partitions, **added})
            self._creation(state).check_size()  # what can be made at once can be deleted at once
            change = self._session.transaction().set(
                znodes.topic(name), topic_document(state.topic_id, state.partitions), version=version
            )
            _create_partitions(change, name, added)
            try:
                self._commit(change, name, state.topic_id)
                return state
            except (BadVersionError, NoNodeError, NodeExistsError):
                continue
        raise _busy(name)

    def delete(self, name: str, topic_id: UUID | None = None) -> None:
        """Deletes the topic's nodes, all or nothing; brokers notice and delete their logs.

        Raises `TopicNotRegisteredError`; for another topic of this name, too, if `topic_id` is given. Raises
        `BadVersionError` if others change topics all the time.
        """
        for _ in range(CHANGES_MAX):
            state, version = self._get_versioned(name)
            topic_id = topic_id or state.topic_id  # if it is made again meanwhile, that one stays
            if state.topic_id != topic_id:
                raise TopicNotRegisteredError(f"topic {name!r} has the id {state.topic_id}, not {topic_id}")
            change = self._session.transaction()
            for partition_id in state.partitions:
                change.delete(znodes.partition_state(name, partition_id)).delete(
                    znodes.partition(name, partition_id)
                )
            change.delete(znodes.partitions(name)).delete(znodes.topic_config(name))
            change.delete(znodes.topic(name), version=version)
            try:
                return self._commit(change, name, topic_id)
            except _GoneError:
                continue
            except (BadVersionError, NoNodeError, NotEmptyError):  # it has other partitions now
                node = self._session.get_or_none(znodes.topic(name))
                if node is None or parse_topic(znodes.topic(name), node.data)[0] != topic_id:
                    return None  # it was done, and the answer lost
        raise _busy(name)

    def set_config(self, name: str, config: Mapping[str, str]) -> None:
        """Replaces all settings of the topic. Raises `TopicNotRegisteredError`."""
        self.change_config(name, lambda _: config)

    def change_config(
        self, name: str, change: Callable[[dict[str, str]], Mapping[str, str]]
    ) -> Mapping[str, str]:
        """Replaces all settings of the topic by what `change` makes of the present ones, and returns them. It
        is called again if they were changed meanwhile.

        Raises `TopicNotRegisteredError`, `BadVersionError`, `TooLargeError`, and what `change` raises.
        """
        path = znodes.topic_config(name)
        for _ in range(CHANGES_MAX):
            # The topic comes first: settings that are read after it are its own, or the versions differ.
            topic, node = self._session.get_many([znodes.topic(name), path])
            if topic is None or node is None:
                raise TopicNotRegisteredError(f"there is no topic {name!r}")
            config = change(parse_config(path, node))
            data = documents.encode_config(path, config)
            written = self._session.transaction().set(path, data, version=node.stat.version)
            written.set(znodes.topic(name), topic.data, version=topic.stat.version)
            try:
                self._commit(written, name, parse_topic(znodes.topic(name), topic.data)[0])
                return config
            except (BadVersionError, NoNodeError):
                continue
        raise _busy(name)

    def set_partition_state(
        self, name: str, partition_id: int, new: PartitionState, *, expected: PartitionState
    ) -> None:
        """Stores a new state of a partition if the present one is `expected`, as a whole.

        Raises `StaleStateError` (a `BadVersionError`) with the state that was found instead, and
        `TopicNotRegisteredError`.
        """
        (problem,) = self.set_partition_states([PartitionChange(name, partition_id, expected, new)])
        if problem is not None:
            raise problem

    def set_partition_states(
        self, changes: Sequence[PartitionChange], *, guard: Mapping[str, int] | None = None
    ) -> Sequence[CoordinationError | None]:
        """Stores new states of any number of partitions, of any topics, in transactions of bounded size.

        Returns the error of each change, None where it was stored: `StaleStateError`, `StaleBrokerError`,
        `TopicNotRegisteredError`, `CorruptNodeError`, `TooLargeError`. One that fails does not keep others
        from being stored. `guard`: nodes (path, version; -1: any) that must exist in this version with each
        transaction; else raises `GuardError`, and later groups are not stored.
        """
        check_changes(changes)
        problems: list[CoordinationError | None] = []
        for group in in_transactions(changes):
            try:
                problems += write(self._session, group, guard or {})
            except TooLargeError as error:  # the other groups are stored all the same
                problems += [error] * len(group)
        return problems

    def get(self, name: str) -> TopicState:
        """Reads the topic. Raises `TopicNotRegisteredError`, `CorruptNodeError`; also for what is older than
        what `list` has returned.
        """
        before = self._known.get(name)  # what is read now is not older
        topic = self._get_versioned(name)[0]
        problem = None if before is None else _later_than(before[1], topic)
        if problem is not None:
            raise problem
        return topic

    def list(self) -> dict[str, TopicState]:
        """Returns all topics by name."""
        names = _topic_names(self._session.children_or_empty(znodes.TOPICS))
        held = self._known  # what was read before: what is read now is not older
        topics = dict(zip(names, read_documents(self._session, names), strict=True))
        partitions = self._session.get_many_small(map(znodes.partitions, names))
        known: dict[str, tuple[int, TopicState]] = {}
        changed: dict[str, int] = {}  # the zxid that is known with it
        for (name, topic), node in zip(topics.items(), partitions, strict=True):
            if topic is None:
                continue
            zxid = max(topic.stat.modified_zxid, 0 if node is None else node.stat.modified_zxid)
            before = held.get(name)
            if before is not None and before[0] == zxid:
                known[name] = before
            else:
                changed[name] = zxid
        # What is read now may be newer than the zxid: at worst it is read once more.
        read = read_topics(self._session, {name: topics[name] for name in changed})
        unread = set()
        for name, found in read.items():
            before = held.get(name)
            result = found if before is None else _as_after(before[1], found)
            if isinstance(result, TopicRead):
                known[name] = changed[name], result.topic
            elif isinstance(result, CorruptNodeError):
                # One topic's damage is not the others', and a topic that was known is not deleted by it.
                kept, what = (None, "is left out") if before is None else _kept(before[1], result)
                if kept is not None:
                    known[name] = NEVER_READ, kept
                if kept is None or not isinstance(result, UnreadSettingsError):
                    unread.add(name)
                logger.error("%s; topic %s %s", result, name, what)
        self._known, self.unread = known, frozenset(unread)
        return {name: known[name][1] for name in names if name in known}

    def watch(self, callback: Callable[[dict[str, TopicState]], None]) -> Watch:
        """Calls `callback` with all topics by name, now and after every change of any of them; runs in the
        session's callback thread."""
        return self._session.watch_data(znodes.TOPICS, lambda _: callback(self.list()))

    def _creation(self, topic: TopicState) -> Transaction:
        """Returns what creates a topic's nodes."""
        document = topic_document(topic.topic_id, topic.partitions)
        change = self._session.transaction().create(znodes.topic(topic.name), document)
        path = znodes.topic_config(topic.name)
        change.create(path, documents.encode_config(path, topic.config)).create(znodes.partitions(topic.name))
        _create_partitions(change, topic.name, topic.partitions)
        return change

    def _commit(self, change: Transaction, name: str, topic_id: UUID) -> None:
        """Commits a change of a topic's nodes, unless the name has another topic by now.

        The versions of its nodes are no guard: they begin at 0 again. The version of the node of all
        topics is, also for a transaction that is repeated because its answer was lost.
        """
        present = self._session.exists(znodes.TOPICS)
        node = self._session.get_or_none(znodes.topic(name))
        if present is None or node is None or parse_topic(znodes.topic(name), node.data)[0] != topic_id:
            raise _GoneError(f"topic {name!r} was deleted meanwhile")
        change.set(znodes.TOPICS, b"", version=present.version).commit()

    def _get_versioned(self, name: str) -> tuple[TopicState, int]:
        documents = read_documents(self._session, [name])
        result = read_topics(self._session, {name: documents[0]})[name]
        if not isinstance(result, TopicRead):
            raise result
        return result.topic, result.stat.version


class _GoneError(BadVersionError):
    """The topic was deleted before the change was sent: by somebody else."""


def _topic_names(children: Sequence[str]) -> list[str]:
    """Leaves out what no topic can be called: answers have no room for it, nor file systems."""
    for name in children:
        if not is_topic_name(name):
            logger.error("%s: not a topic's name; it is left out", ascii(znodes.topic(name))[:NAME_SHOWN_MAX])
    return [name for name in children if is_topic_name(name)]


def _kept(before: TopicState, problem: CorruptNodeError) -> tuple[TopicState, str]:
    """Returns a damaged topic as it counts until it is mended: without its settings it still gets leaders."""
    if isinstance(problem, UnreadSettingsError) and problem.topic.topic_id == before.topic_id:
        return replace(problem.topic, config=before.config), "keeps the settings that it had"
    return before, "stays as it was"


def _as_after(before: TopicState, found: TopicRead | Problem) -> TopicRead | Problem:
    """Returns what was found, or why it is not what became of the topic: one that was made again under its
    name has another id, and new nodes; and leader epochs only grow.
    """
    if not isinstance(found, TopicRead | UnreadSettingsError):
        return found
    return _later_than(before, found.topic) or found


def _later_than(before: TopicState, now: TopicState) -> CorruptNodeError | None:
    """Returns why this is not what became of the topic; None if it is."""
    if now.topic_id != before.topic_id:
        former = {state.created_zxid for state in before.partitions.values()}
        if former.isdisjoint(state.created_zxid for state in now.partitions.values()):
            return None
        return CorruptNodeError(
            f"{znodes.topic(before.name)}: its id was {before.topic_id} and is {now.topic_id} now, and the "
            "topic was not made again: write the former id, or restart this broker if this one is right"
        )
    for index, state in before.partitions.items():
        found = now.partitions.get(index, state)
        path = znodes.partition_state(before.name, index)
        if found.leader_epoch < state.leader_epoch:
            return CorruptNodeError(
                f"{path}: its leader epoch was {state.leader_epoch}, and is {found.leader_epoch} now: "
                "write what was there, or a leader that has all, in a later epoch"
            )
        if found.leader_epoch == state.leader_epoch and found.leader != state.leader:
            return CorruptNodeError(
                f"{path}: in leader epoch {state.leader_epoch} its leader was {state.leader}, and is "
                f"{found.leader} now: write what was there, or a leader that has all, in a later epoch"
            )
    return None


def _check_replicas(name: str, replicas: Mapping[int, tuple[int, ...]]) -> None:
    if len(replicas) > PARTITIONS_PER_CHANGE_MAX:
        raise InvalidTopicError(
            f"{name}: at most {PARTITIONS_PER_CHANGE_MAX} partitions in one change, got {len(replicas)}"
        )
    for partition_id, brokers in replicas.items():
        if not brokers or len(set(brokers)) != len(brokers):
            raise InvalidTopicError(
                f"{name}-{partition_id}: needs one or more replicas on different brokers; got {brokers}"
            )


def _replicas(topic: TopicState, partition_id: int) -> tuple[int, ...] | None:
    state = topic.partitions.get(partition_id)
    return None if state is None else state.replicas


def _busy(name: str) -> BadVersionError:
    return BadVersionError(f"topic {name!r}: others changed topics in {CHANGES_MAX} attempts; retry")


def _create_partitions(change: Transaction, name: str, partitions: Mapping[int, PartitionState]) -> None:
    for partition_id, state in partitions.items():
        change.create(znodes.partition(name, partition_id))
        change.create(znodes.partition_state(name, partition_id), state_document(state))
