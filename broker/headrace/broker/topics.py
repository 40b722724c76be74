"""Topics as administrators change them: checks, placement, and the wait until a change is usable everywhere.

Runs on control threads, since calls to ZooKeeper and to other brokers block. It may not touch partitions or
connections; it sees the cluster through the immutable view.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Final, TypeVar
from uuid import UUID, uuid4

from headrace.broker.cluster import ClusterView, metric_name
from headrace.broker.errors import Refused
from headrace.broker.settings.config import BrokerConfig, check_topic_config
from headrace.broker.settings.origins import Explained, of_topic
from headrace.broker.settings.replication import default_min_insync
from headrace.broker.settings.setting import ConfigError
from headrace.client.admin import LATEST
from headrace.client.calls import list_offsets_call
from headrace.client.cluster import BrokerAddress
from headrace.client.errors import ClientError
from headrace.client.network import Network
from headrace.coordination import declared
from headrace.coordination.errors import (
    CoordinationError,
    InvalidTopicError,
    TooLargeError,
    TopicExistsError,
    TopicNotRegisteredError,
)
from headrace.coordination.placement import place_partitions
from headrace.coordination.topics import PartitionState, TopicRegistry, TopicState, check_topic_name
from headrace.process.clock import now_ms
from headrace.wire.errors import ErrorCode

logger = logging.getLogger(__name__)

T = TypeVar("T")

LEADER_CALL_MAX_S: Final = 2.0
LEADER_PAUSE_S: Final = 2.0  # after a leader did not answer, nobody's wait asks it again for so long
PARTITIONS_MAX: Final = 2_000
COPY_STAYS: Final = (
    "is a mirror's copy, and stays one (headrace.mirror=true): its batches have the numbers of producers "
    "elsewhere, and batches of producers here would be taken for repetitions of those. Make another topic"
)
MIRROR: Final = "headrace.mirror"


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to be created; -1 means the broker's default. `assignment`: brokers by partition, if chosen."""

    name: str
    partition_count: int = -1
    replication_factor: int = -1
    config: Mapping[str, str] = field(default_factory=dict)
    assignment: Mapping[int, tuple[int, ...]] = field(default_factory=dict)


class TopicAdmin:
    """`view` returns the present view of the cluster, `served_here` whether this broker serves a partition,
    `bounds_ms` how early and how late it may be.

    Methods that change something raise `Refused`.
    """

    def __init__(
        self,
        registry: TopicRegistry,
        config: BrokerConfig,
        view: Callable[[], ClusterView],
        served_here: Callable[[str, int], bool],
        bounds_ms: Callable[[], tuple[int, int]] = lambda: (now_ms(), now_ms()),
    ) -> None:
        self._registry = registry
        self._config = config
        self._view = view
        self._served_here = served_here
        self._bounds_ms = bounds_ms
        self._silent_until_s: dict[int, float] = {}  # by leader

    @staticmethod
    def check_name(name: str) -> None:
        try:
            check_topic_name(name)
        except InvalidTopicError as error:
            raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, str(error)) from None

    @classmethod
    def is_valid_name(cls, name: str) -> bool:
        try:
            cls.check_name(name)
        except Refused:
            return False
        return True

    def partition_count(self, new: NewTopic) -> int:
        """Returns how many partitions a new topic is to have."""
        if new.assignment:
            return len(new.assignment)
        return int(self._config["num.partitions"]) if new.partition_count == -1 else new.partition_count

    def create(self, new: NewTopic, *, validate_only: bool) -> TopicState:
        """Creates a topic; it can be used a moment later (`is_usable`). Raises `Refused`."""
        self.check_name(new.name)
        self._check_collision(new.name)
        topic_id = uuid4()
        try:
            replicas = self._placed(new, topic_id)
        except Refused:
            # Programs create their topics whenever they start. While a broker is down there are too few for
            # the factor, and they would wait for it, though their topics are there.
            self._check_is_new(new.name)
            raise
        if validate_only:
            self._check_is_new(new.name)
            states = {index: PartitionState(ids[0], 0, ids, ids) for index, ids in replicas.items()}
            return TopicState(new.name, UUID(int=0), states, dict(new.config))
        absent = self._absent_of(replicas)
        state = self._change(
            lambda: self._registry.create(new.name, topic_id, replicas, new.config, **absent)
        )
        logger.info("topic %s created with %d partitions", new.name, len(state.partitions))
        return state

    def delete(self, name: str, topic_id: UUID | None = None) -> None:
        """Deletes a topic, the one with this id if it is given; brokers see it a moment later. Raises
        `Refused`."""
        if not self._config["delete.topic.enable"]:
            raise Refused(ErrorCode.TOPIC_DELETION_DISABLED, "delete.topic.enable is false")
        self._change(lambda: self._registry.delete(name, topic_id))
        logger.info("topic %s deleted", name)

    def sees_none_of(self, names: Iterable[str]) -> bool:
        """Whether this broker sees that these topics were deleted."""
        return not any(name in self._view().topics for name in names)

    def add_partitions(
        self,
        name: str,
        count: int,
        chosen: Sequence[tuple[int, ...]] | None,
        *,
        validate_only: bool,
    ) -> tuple[TopicState, tuple[int, ...]]:
        """Raises the number of partitions to `count`; the new ones can be used a moment later (`is_usable`).
        Returns the topic as it is then, with the numbers of the new partitions; with `validate_only` as it
        was, without any. Raises `Refused`.
        """
        present = self._change(lambda: self._registry.get(name))
        before = len(present.partitions)
        if not before < count <= PARTITIONS_MAX:
            raise Refused(
                ErrorCode.INVALID_PARTITIONS,
                f"{name} has {before} partitions: the new count must be more, at most {PARTITIONS_MAX}",
            )
        if chosen is not None and len(chosen) != count - before:
            raise Refused(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{count - before} partitions to add, {len(chosen)} assigned",
            )
        if chosen is not None:
            replicas = {before + at: brokers for at, brokers in enumerate(chosen)}
        else:
            factor = _replication_factor(present)
            replicas = self._place(count - before, factor, present.topic_id, first=before)
        self._check_assignment(replicas, _replication_factor(present))
        if validate_only:
            return present, ()
        absent = self._absent_of(replicas)
        raised = self._change(lambda: self._registry.add_partitions(name, replicas, **absent))
        return raised, tuple(replicas)

    def set_config(
        self, name: str, change: Callable[[dict[str, str]], dict[str, str]], *, validate_only: bool
    ) -> dict[str, str]:
        """Replaces a topic's configuration with the result of `change`, and returns it as it is stored.

        Raises `Refused`.
        """

        def checked(present: dict[str, str]) -> dict[str, str]:
            wanted = change(dict(present))
            self._check_config(wanted)
            if _is_copy(present) and not _is_copy(wanted):
                raise Refused(ErrorCode.INVALID_CONFIG, f"{name} {COPY_STAYS}")
            return self._with_history(present, wanted)

        if validate_only:
            return checked(dict(self._change(lambda: self._registry.get(name)).config))
        wanted = self._change(lambda: self._registry.change_config(name, checked))
        logger.info("topic %s configured: %s", name, wanted)
        return dict(wanted)

    def explain(self, topic: TopicState) -> Iterator[Explained]:
        """Yields every setting of a topic, with where its value comes from."""
        return of_topic(self._config, topic.config, topic.partitions[0].settled_count)

    def _placed(self, new: NewTopic, topic_id: UUID) -> dict[int, tuple[int, ...]]:
        """Returns the replicas of a new topic's partitions. Raises `Refused`."""
        self._check_config(new.config)
        if declared.HISTORY in new.config:
            raise Refused(ErrorCode.INVALID_CONFIG, declared.WRITTEN_BY_BROKERS)
        count = self.partition_count(new)
        if not 1 <= count <= PARTITIONS_MAX:
            raise Refused(
                ErrorCode.INVALID_PARTITIONS, f"{count} partitions: must be from 1 to {PARTITIONS_MAX}"
            )
        replicas = dict(new.assignment) or self._place(count, new.replication_factor, topic_id)
        self._check_assignment(replicas, len(replicas[0]))
        return replicas

    def _absent_of(self, replicas: Mapping[int, tuple[int, ...]]) -> dict[str, Set[int]]:
        """Returns which brokers are not in sync at the beginning, as arguments of `TopicRegistry.create`."""
        view = self._view()
        chosen = {each for brokers in replicas.values() for each in brokers}
        return {"stopping": view.stopping, "dead": chosen - view.brokers.keys()}

    # --- checks ---

    def _check_is_new(self, name: str) -> None:
        if name in self._view().topics:
            raise Refused(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name!r} exists already")

    def _check_collision(self, name: str) -> None:
        """Kafka's tools write "." as "_" in the names of metrics, so it refuses two such topics."""
        known = self._view().names_by_metric.get(metric_name(name), name)
        if known != name:
            raise Refused(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"topic {name!r} collides with topic {known!r}: '.' and '_' count as the same",
            )

    def _place(
        self, count: int, factor: int, topic_id: UUID, *, first: int = 0
    ) -> dict[int, tuple[int, ...]]:
        """Chooses brokers for new partitions. `factor` -1: the broker's default, or all brokers if they are
        fewer. Dead brokers that are to come back (`ClusterView.away`) get what there are too few live ones
        for, if those are enough for `min.insync.replicas`.
        """
        view = self._view()
        alive = view.placeable
        if not view.brokers:
            raise Refused(ErrorCode.BROKER_NOT_AVAILABLE, "no broker is registered in ZooKeeper")
        drained = sorted(view.brokers.keys() - alive.keys())
        wanted = self._config["default.replication.factor"] if factor == -1 else factor
        away = sorted(view.away()) if wanted > len(alive) else []
        numbers = range(len(alive), len(alive) + len(away) + 1)
        most = max((n for n in numbers if default_min_insync(n) <= len(alive)), default=0)
        if factor == -1:
            factor = min(wanted, most)
        if not 1 <= factor <= most:
            raise Refused(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"replication factor {factor}: must be from 1 to {most}, the number of live brokers "
                "(or -1, the default)"
                + (f"; of the dead brokers {away} as many count as leave acks=all possible" if away else "")
                + (f"; drained, and left out: {drained} (`headrace brokers undrain`)" if drained else ""),
            )
        live_count = min(factor, len(alive))
        placed = place_partitions(alive, count, live_count, _seed(topic_id), first=first)
        return {
            index: (*live, *[away[(index + at) % len(away)] for at in range(factor - live_count)])
            for index, live in placed.items()
        }

    def _check_assignment(self, replicas: Mapping[int, tuple[int, ...]], factor: int) -> None:
        """Checks chosen brokers: as many for each partition, all different, one alive, and the others at
        least to come back.
        """
        view = self._view()
        alive, away = view.brokers, view.away() if self._absent_of(replicas)["dead"] else frozenset()
        for index, brokers in replicas.items():
            if not brokers or len(set(brokers)) != len(brokers):
                raise Refused(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"partition {index}: replicas {list(brokers)}: name one broker or more, each once",
                )
            if len(brokers) != factor:
                raise Refused(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"partition {index}: {len(brokers)} replicas, others have {factor}",
                )
            dead = set(brokers) - alive.keys()
            if dead == set(brokers) or not dead <= away:
                raise Refused(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"broker {min(dead)} is not alive; alive: {sorted(alive)}",
                )

    def _check_config(self, config: Mapping[str, str]) -> None:
        try:
            check_topic_config(config)
        except ConfigError as error:
            raise Refused(ErrorCode.INVALID_CONFIG, str(error)) from None

    def _with_history(self, present: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str]:
        try:
            return declared.with_history(present, wanted, *self._bounds_ms())
        except ValueError as error:
            raise Refused(ErrorCode.INVALID_CONFIG, str(error)) from None

    def _change(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except TopicExistsError as error:
            raise Refused(ErrorCode.TOPIC_ALREADY_EXISTS, str(error)) from None
        except TopicNotRegisteredError as error:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, str(error)) from None
        except InvalidTopicError as error:
            raise Refused(ErrorCode.INVALID_REQUEST, str(error)) from None
        except TooLargeError as error:
            raise Refused(
                ErrorCode.POLICY_VIOLATION,
                f"{error}: take fewer partitions, a shorter name, or shorter settings",
            ) from None
        except CoordinationError as error:
            raise Refused(ErrorCode.REQUEST_TIMED_OUT, str(error)) from None

    # --- waiting ---

    def is_usable(self, state: TopicState, left: dict[int, PartitionState]) -> bool:
        """Whether this broker knows the topic and all partitions are served. `left` are those to be checked;
        those that are served are removed from it.
        """
        known = self._view().topics.get(state.name)
        if known is None or len(known.partitions) < len(state.partitions):
            return False
        for leader in {partition.leader for partition in left.values()}:
            led = [index for index, partition in left.items() if partition.leader == leader]
            for index in self._served(leader, state.name, led):
                del left[index]
        return not left

    @staticmethod
    def not_usable(state: TopicState, left: Iterable[int]) -> Refused:
        return Refused(
            ErrorCode.REQUEST_TIMED_OUT,
            f"topic {state.name} exists, but its partitions {sorted(left)} are not served yet",
        )

    def served_by_leader(self, leader: int, topic: str, indexes: list[int]) -> list[int]:
        """Returns those of these partitions that another broker serves as their leader. Blocks."""
        broker = self._view().brokers.get(leader)
        try:
            return [] if broker is None else _served_by(broker.host, broker.port, topic, indexes)
        except ClientError:
            return []

    def _served(self, leader: int, topic: str, indexes: list[int]) -> list[int]:
        """Returns those of these partitions that their leader serves."""
        here = [index for index in indexes if self._served_here(topic, index)]
        broker = self._view().brokers.get(leader)
        if broker is None or here or time.monotonic() < self._silent_until_s.get(leader, 0.0):
            return here
        try:
            return _served_by(broker.host, broker.port, topic, indexes)
        except ClientError:
            self._silent_until_s[leader] = time.monotonic() + LEADER_PAUSE_S
            return []


def _served_by(host: str, port: int, topic: str, indexes: list[int]) -> list[int]:
    """Returns which of these partitions a broker serves, by ListOffsets. Raises `ClientError`."""
    network = Network(
        str(BrokerAddress(host, port)),
        client_id="headrace-broker",
        request_timeout_ms=LEADER_CALL_MAX_S * 1000,
    )
    try:
        call = list_offsets_call({topic: dict.fromkeys(indexes, LATEST)})
        response = network.send_and_wait(call, deadline_s=time.monotonic() + LEADER_CALL_MAX_S)
    finally:
        network.close()
    return [
        partition.partition_index
        for found in response.topics
        for partition in found.partitions
        if partition.error_code == ErrorCode.NONE
    ]


def _is_copy(config: Mapping[str, str]) -> bool:
    return config.get(MIRROR, "").lower() == "true"


def _replication_factor(topic: TopicState) -> int:
    """Returns how many replicas a topic's partitions have, apart from a reassignment under way."""
    state = topic.partitions[0]
    return len(set(state.replicas) - set(state.removing))


def _seed(topic_id: UUID) -> int:
    """The seed of a topic's placement: the placement of partitions added later continues from it."""
    return topic_id.int & 0xFFFFFFFF
