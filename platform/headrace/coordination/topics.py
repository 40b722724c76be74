"""The topics of a datacenter: their partitions, replicas, leaders and configuration.

Owns `/brokers/topics/<t>` (replicas), `…/partitions/<p>/state` (leader, in-sync set), `/config/topics/<t>`.
Every change is one transaction that also writes `/brokers/topics` and the topic's node: one watch on the
former covers everything, and a topic is read again only if its modified-zxid changed.
"""

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final
from uuid import UUID

from headrace.coordination import documents, znodes
from headrace.coordination.errors import (
    BadVersionError,
    CorruptNodeError,
    InvalidTopicError,
    NodeExistsError,
    NoNodeError,
    TopicExistsError,
    TopicNotRegisteredError,
)
from headrace.coordination.nodes import Node
from headrace.coordination.session import ZooKeeperSession
from headrace.coordination.standing import Watch
from headrace.coordination.transaction import Transaction

logger = logging.getLogger(__name__)

NO_LEADER: Final = -1
TOPIC_NAME_LENGTH_MAX: Final = 249
# One transaction must fit ZooKeeper's request limit (1 MiB); a partition takes about 250 bytes of it.
PARTITIONS_PER_CHANGE_MAX: Final = 2000
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]+")


@dataclass(frozen=True, slots=True)
class PartitionState:
    """`leader`: a broker id, or NO_LEADER. `replicas[0]`: the preferred leader. `isr`: in-sync replicas."""

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TopicState:
    name: str
    topic_id: UUID
    partitions: dict[int, PartitionState]
    config: dict[str, str] = field(default_factory=dict)


def is_topic_name(name: str) -> bool:
    """Whether Kafka allows the name, too."""
    return (
        name not in {".", ".."} and len(name) <= TOPIC_NAME_LENGTH_MAX and bool(_TOPIC_NAME.fullmatch(name))
    )


def check_topic_name(name: str) -> None:
    """Raises `InvalidTopicError` for a name that Kafka does not allow either."""
    if not is_topic_name(name):
        raise InvalidTopicError(
            f"{name!r} is not a topic name: use 1 to {TOPIC_NAME_LENGTH_MAX} characters of a-z A-Z 0-9 . _ - "
            "other than '.' and '..'"
        )


class TopicRegistry:
    """All topics of this datacenter. Caches them and reads again only what changed. Threads may share it."""

    def __init__(self, session: ZooKeeperSession) -> None:
        self._session = session
        self._known: dict[str, tuple[int, TopicState]] = {}

    def create(
        self,
        name: str,
        topic_id: UUID,
        replicas: Mapping[int, tuple[int, ...]],
        config: Mapping[str, str] | None = None,
    ) -> TopicState:
        """Creates a topic with its partitions, all or nothing; the first replica of each one leads.

        Raises `TopicExistsError`, `InvalidTopicError`. If a call fails and may have taken effect, it is safe
        to repeat it with the same `topic_id`.
        """
        check_topic_name(name)
        if sorted(replicas) != list(range(len(replicas))) or not replicas:
            raise InvalidTopicError(f"{name}: partitions must be numbered 0, 1, 2, …; got {sorted(replicas)}")
        _check_replicas(name, replicas)
        self._session.ensure_path(znodes.TOPICS)
        self._session.ensure_path(znodes.TOPIC_CONFIGS)
        state = TopicState(
            name, topic_id, {p: _fresh(r) for p, r in sorted(replicas.items())}, dict(config or {})
        )
        change = self._session.transaction().create(znodes.topic(name), _topic_document(state))
        change.create(znodes.topic_config(name), documents.encode({"config": state.config}))
        change.create(znodes.partitions(name))
        _create_partitions(change, name, state.partitions)
        change.set(znodes.TOPICS, b"")
        try:
            change.commit()
        except NodeExistsError:
            try:
                existing_id = self.get(name).topic_id
            except TopicNotRegisteredError:
                existing_id = None
            if existing_id != topic_id:
                raise TopicExistsError(f"topic {name!r} exists already") from None
        return state

    def add_partitions(self, name: str, replicas: Mapping[int, tuple[int, ...]]) -> TopicState:
        """Adds partitions; their numbers start at the present count.

        Raises `TopicNotRegisteredError`, `InvalidTopicError`, and `BadVersionError` if the topic changed
        concurrently.
        """
        state, version = self._get_versioned(name)
        _check_replicas(name, replicas)
        count = len(state.partitions)
        if sorted(replicas) != list(range(count, count + len(replicas))) or not replicas:
            raise InvalidTopicError(
                f"{name} has {count} partitions; number new ones from {count}, not {sorted(replicas)}"
            )
        added = {p: _fresh(r) for p, r in sorted(replicas.items())}
        state = replace(state, partitions={**state.partitions, **added})
        change = self._session.transaction().set(znodes.topic(name), _topic_document(state), version=version)
        _create_partitions(change, name, added)
        change.set(znodes.TOPICS, b"").commit()
        return state

    def delete(self, name: str) -> None:
        """Deletes the topic's nodes, all or nothing; brokers notice and delete their logs.

        Raises `TopicNotRegisteredError`.
        """
        while True:
            state, version = self._get_versioned(name)
            change = self._session.transaction()
            for partition_id in state.partitions:
                change.delete(znodes.partition_state(name, partition_id)).delete(
                    znodes.partition(name, partition_id)
                )
            change.delete(znodes.partitions(name)).delete(znodes.topic_config(name))
            change.delete(znodes.topic(name), version=version).set(znodes.TOPICS, b"")
            try:
                return change.commit()
            except (BadVersionError, NoNodeError):
                continue

    def set_config(self, name: str, config: Mapping[str, str]) -> None:
        """Replaces all settings of the topic. Raises `TopicNotRegisteredError`."""
        self._change(name, znodes.topic_config(name), documents.encode({"config": dict(config)}))

    def set_partition_state(
        self, name: str, partition_id: int, state: PartitionState, *, expected_leader_epoch: int
    ) -> None:
        """Stores a new leader or in-sync set, not `replicas`. Replication will use it; nothing calls it yet.

        Raises `BadVersionError` if the leader epoch is not the expected one, `TopicNotRegisteredError`.
        """
        path = znodes.partition_state(name, partition_id)
        node = self._session.get_or_none(path)
        if node is None:
            raise TopicNotRegisteredError(f"there is no partition {name}-{partition_id}")
        found = documents.decode(path, node.data).get("leader_epoch")
        if found != expected_leader_epoch:
            raise BadVersionError(
                f"{name}-{partition_id}: leader epoch is {found}, expected {expected_leader_epoch}"
            )
        self._change(name, path, _state_document(state), version=node.stat.version)

    def get(self, name: str) -> TopicState:
        """Reads the topic. Raises `TopicNotRegisteredError`."""
        return self._get_versioned(name)[0]

    def list(self) -> dict[str, TopicState]:
        """Returns all topics by name."""
        names = self._session.children_or_empty(znodes.TOPICS)
        stats = self._session.stat_many(znodes.topic(name) for name in names)
        known: dict[str, tuple[int, TopicState]] = {}
        for name, stat in zip(names, stats, strict=True):
            if stat is None:
                continue
            before = self._known.get(name)
            if before is not None and before[0] == stat.modified_zxid:
                known[name] = before
                continue
            try:
                # The topic may be newer than the stat: at worst it is read once more.
                known[name] = (stat.modified_zxid, self.get(name))
            except TopicNotRegisteredError:
                continue
            except CorruptNodeError as error:
                # One topic's damage is not the others', and a topic that was known is not deleted by it.
                if before is not None:
                    known[name] = before
                logger.error("%s; topic %s %s", error, name, "stays as it was" if before else "is left out")
        self._known = known
        return {name: state for name, (_, state) in known.items()}

    def watch(self, callback: Callable[[dict[str, TopicState]], None]) -> Watch:
        """Calls `callback` with all topics by name, now and after every change of any of them; runs in the
        session's callback thread."""
        return self._session.watch_data(znodes.TOPICS, lambda _: callback(self.list()))

    def _change(self, name: str, path: str, data: bytes, *, version: int = -1) -> None:
        node = self._session.get_or_none(znodes.topic(name))
        if node is None:
            raise TopicNotRegisteredError(f"there is no topic {name!r}")
        change = self._session.transaction().set(path, data, version=version)
        change.set(znodes.topic(name), node.data, version=node.stat.version).set(znodes.TOPICS, b"").commit()

    def _get_versioned(self, name: str) -> tuple[TopicState, int]:
        path = znodes.topic(name)
        topic = self._session.get_or_none(path)
        if topic is None:
            raise TopicNotRegisteredError(f"there is no topic {name!r}")
        fields = documents.decode(path, topic.data)
        try:
            replicas = {
                documents.int32(p): tuple(map(documents.int32, r)) for p, r in fields["partitions"].items()
            }
            topic_id = UUID(fields["topic_id"])
        except (KeyError, ValueError, TypeError, AttributeError):
            raise CorruptNodeError(f"{path}: not a topic's document: {topic.data[:80]!r}") from None
        paths = [znodes.topic_config(name), *(znodes.partition_state(name, p) for p in sorted(replicas))]
        config, *states = self._session.get_many(paths)
        if config is None or any(state is None for state in states):
            raise TopicNotRegisteredError(f"topic {name!r} is being deleted")
        partitions = {
            p: _parse_state(path, node, replicas[p])
            for p, path, node in zip(sorted(replicas), paths[1:], states, strict=True)
            if node is not None
        }
        return TopicState(name, topic_id, partitions, _parse_config(paths[0], config)), topic.stat.version


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


def _fresh(replicas: tuple[int, ...]) -> PartitionState:
    return PartitionState(leader=replicas[0], leader_epoch=0, replicas=tuple(replicas), isr=tuple(replicas))


def _create_partitions(change: Transaction, name: str, partitions: Mapping[int, PartitionState]) -> None:
    for partition_id, state in partitions.items():
        change.create(znodes.partition(name, partition_id))
        change.create(znodes.partition_state(name, partition_id), _state_document(state))


def _topic_document(state: TopicState) -> bytes:
    replicas = {str(p): list(s.replicas) for p, s in state.partitions.items()}
    return documents.encode({"topic_id": str(state.topic_id), "partitions": replicas})


def _state_document(state: PartitionState) -> bytes:
    return documents.encode(
        {"leader": state.leader, "leader_epoch": state.leader_epoch, "isr": list(state.isr)}
    )


def _parse_state(path: str, node: Node, replicas: tuple[int, ...]) -> PartitionState:
    fields = documents.decode(path, node.data)
    try:
        leader, epoch = documents.int32(fields["leader"]), documents.int32(fields["leader_epoch"])
        return PartitionState(leader, epoch, replicas, tuple(map(documents.int32, fields["isr"])))
    except (KeyError, ValueError, TypeError):
        raise CorruptNodeError(f"{path}: not a partition's state: {node.data[:80]!r}") from None


def _parse_config(path: str, node: Node) -> dict[str, str]:
    config = documents.decode(path, node.data).get("config")
    if not isinstance(config, dict):
        raise CorruptNodeError(f"{path}: no config in {node.data[:80]!r}")
    return {str(key): str(value) for key, value in config.items()}
