"""What ZooKeeper keeps of Kafka's own groups: their offsets, where the paper's consumers keep theirs
(`/consumers/<group>/offsets`), and their members (`/consumers/<group>/generation`).

Owns the order of a group's commits, generations and deletions: at most one of them is in flight; later ones
wait, and commits are merged, so that an older offset can never overwrite a newer one. `offset_nodes` and
`generation_nodes` own the contents of the nodes.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from headrace.broker.groups import deletion, offset_nodes
from headrace.broker.groups.fencing import Coordinator
from headrace.broker.groups.generation_nodes import NOBODY, Generations, OtherGenerationError, with_members
from headrace.broker.groups.generations import (
    ALL_DOCUMENTS_MAX_BYTES,
    DOCUMENT_MAX_BYTES,
    StoredGeneration,
    encode,
)
from headrace.broker.groups.offset_nodes import Committed, Offsets
from headrace.broker.groups.room import GroupRoom
from headrace.broker.promise import Promise
from headrace.broker.workers import Jobs
from headrace.coordination.consumers import forget_topic, groups
from headrace.coordination.errors import CoordinationError
from headrace.coordination.session import ZooKeeperSession
from headrace.wire.topic_names import TopicPartition

logger = logging.getLogger(__name__)

T = TypeVar("T")

REPORT_EVERY_S: Final = 10.0


@dataclass(slots=True)
class _Commits:
    """Commits that one write stores."""

    coordinator: Coordinator
    """As which this broker has accepted them."""
    room: GroupRoom | None
    offsets: Offsets = field(default_factory=dict)
    promises: list[Promise[Exception | None]] = field(default_factory=list)

    def work(self, generations: Generations, group: str) -> None:
        offset_nodes.write(generations, group, self.offsets, self.coordinator, self.room)

    def resolve(self, _: bool | None, error: Exception | None) -> None:
        for promise in self.promises:
            promise.resolve(error)


@dataclass(slots=True)
class _Deletion:
    """The deletion of the group, accepted while it had no members."""

    coordinator: Coordinator
    promise: Promise[bool | Exception]

    def work(self, generations: Generations, group: str) -> bool:
        return deletion.delete(generations.session, group, self.coordinator)

    def resolve(self, is_deleted: bool | None, error: Exception | None) -> None:
        self.promise.resolve(bool(is_deleted) if error is None else error)


@dataclass(slots=True)
class _OffsetDeletion:
    """The deletion of some of its offsets, accepted while no member read their topics."""

    coordinator: Coordinator
    keys: Collection[TopicPartition]
    promise: Promise[Set[str] | Exception]

    def work(self, generations: Generations, group: str) -> Set[str]:
        session, members = generations.session, generations.checked(group)
        return deletion.delete_offsets(session, group, self.keys, self.coordinator, members)

    def resolve(self, read: Set[str] | None, error: Exception | None) -> None:
        self.promise.resolve((read or frozenset()) if error is None else error)


@dataclass(slots=True)
class _Generation:
    """A generation, or that there are no members any more."""

    coordinator: Coordinator
    data: bytes
    promise: Promise[Exception | None]

    def work(self, generations: Generations, group: str) -> None:
        generations.store(group, self.data, self.coordinator)

    def resolve(self, _: None, error: Exception | None) -> None:
        self.promise.resolve(error)


@dataclass(slots=True)
class _Load:
    """The generation that was stored last, after all writes that were accepted before."""

    coordinator: Coordinator
    promise: Promise[StoredGeneration | Exception | None]

    def work(self, generations: Generations, group: str) -> StoredGeneration | None:
        return generations.load(group)

    def resolve(self, found: StoredGeneration | None, error: Exception | None) -> None:
        self.promise.resolve(found if error is None else error)


_Step = _Commits | _Deletion | _OffsetDeletion | _Generation | _Load


@dataclass(slots=True)
class _Queue:
    """What is to be written of a group, in order."""

    waiting: deque[_Step] = field(default_factory=deque)
    in_flight: _Step | None = None
    is_going_on: bool = False


class GroupStore:
    """Called on the loop's thread; calls to ZooKeeper run on control threads. `coordinator`: this broker, in
    its present broker epoch. `upkeep`: what runs jobs that no client waits for; as `control` by default.
    `room`: for offsets; without bounds by default.
    """

    def __init__(
        self,
        session: ZooKeeperSession,
        control: Jobs,
        coordinator: Callable[[], Coordinator],
        upkeep: Jobs | None = None,
        room: GroupRoom | None = None,
    ) -> None:
        self._session = session
        self._generations = Generations(session)
        self._control = control
        self._upkeep = control if upkeep is None else upkeep
        self._coordinator = coordinator
        self._room = room
        self._queues: dict[str, _Queue] = {}
        self._reported_s = -REPORT_EVERY_S
        self.on_other_generation: Callable[[str], None] = lambda _: None
        """Told of a group whose members another broker has stored: those that are known here are over."""

    def commit(self, group: str, offsets: Mapping[TopicPartition, Committed]) -> Promise[Exception | None]:
        """Stores offsets; resolves with the exception, or None."""
        promise: Promise[Exception | None] = Promise()
        queue = self._queues.setdefault(group, _Queue())
        coordinator = self._coordinator()
        commits = queue.waiting[-1] if queue.waiting else None
        if (
            not isinstance(commits, _Commits)
            or commits.coordinator != coordinator
            or commits.coordinator.is_over
        ):
            commits = _Commits(coordinator, self._room)
            queue.waiting.append(commits)
        commits.offsets.update(offsets)
        commits.promises.append(promise)
        self._go_on(group, queue)
        return promise

    def _append(self, group: str, step: _Step) -> None:
        queue = self._queues.setdefault(group, _Queue())
        queue.waiting.append(step)
        self._go_on(group, queue)

    def _go_on(self, group: str, queue: _Queue) -> None:
        """Begins the next write, unless one is in flight. Not recursive: jobs may be refused at once."""
        if queue.is_going_on:
            return
        queue.is_going_on = True
        while queue.waiting and queue.in_flight is None:
            self._write(group, queue, queue.waiting.popleft())
        queue.is_going_on = False
        if not queue.waiting and queue.in_flight is None and self._queues.get(group) is queue:
            del self._queues[group]

    def _write(self, group: str, queue: _Queue, step: _Step) -> None:
        queue.in_flight = step

        def written(result: Any, error: Exception | None) -> None:
            queue.in_flight = None
            if isinstance(error, OtherGenerationError):
                self.on_other_generation(group)
            step.resolve(result, error)
            self._go_on(group, queue)

        self._control.submit(lambda: step.work(self._generations, group), written)

    def read(self, group: str, wanted: list[TopicPartition] | None) -> Promise[Offsets | Exception]:
        """Reads the offsets of `wanted` (None: all of the group's); partitions without one are left out."""
        return self._later(lambda: offset_nodes.read(self._session, group, wanted))

    def groups(self, is_wanted: Callable[[str], bool]) -> Promise[list[str] | Exception]:
        """Reads the names of all groups that ZooKeeper knows; resolves with those that are wanted. There
        may be a hundred thousand: `is_wanted` is called on a control thread.
        """
        return self._later(lambda: [name for name in groups(self._session) if is_wanted(name)])

    def with_members(self, names: Collection[str]) -> Promise[Set[str] | Exception]:
        """Returns those of these groups whose members are stored."""
        return self._later(lambda: with_members(self._session, names))

    def store(self, group: str, generation: StoredGeneration | None) -> Promise[Exception | None]:
        """Stores a generation (None: the group has no members). One that is too large is not stored: its
        members will join again at the next coordinator.
        """
        promise: Promise[Exception | None] = Promise()
        data = NOBODY if generation is None else self._document(group, generation)
        self._append(group, _Generation(self._coordinator(), data, promise))
        return promise

    def _document(self, group: str, generation: StoredGeneration) -> bytes:
        data = encode(generation)
        if data is not None and self._generations.size_bytes() + len(data) <= ALL_DOCUMENTS_MAX_BYTES:
            return data
        now_s = time.monotonic()
        if now_s - self._reported_s >= REPORT_EVERY_S:
            self._reported_s = now_s
            logger.warning(
                "group %r: its %d members are not stored, since they take more than %d KiB, or those of all"
                " groups more than %d MiB: they join again if another broker coordinates the group",
                group,
                len(generation.members),
                DOCUMENT_MAX_BYTES >> 10,
                ALL_DOCUMENTS_MAX_BYTES >> 20,
            )
        return NOBODY

    def load(self, group: str) -> Promise[StoredGeneration | Exception | None]:
        """Reads the generation that was stored last; None if the group has no members."""
        promise: Promise[StoredGeneration | Exception | None] = Promise()
        self._append(group, _Load(self._coordinator(), promise))
        return promise

    def delete(self, group: str) -> Promise[bool | Exception]:
        """Deletes a group, after the commits that were accepted before, and before all later ones; False if
        there is none. Fails while it has paper-style members.
        """
        promise: Promise[bool | Exception] = Promise()
        self._append(group, _Deletion(self._coordinator(), promise))
        return promise

    def delete_offsets(self, group: str, keys: Collection[TopicPartition]) -> Promise[Set[str] | Exception]:
        """Deletes some offsets of a group, in order as `delete` does. Resolves with the topics whose offsets
        stay, because paper-style members read them.
        """
        promise: Promise[Set[str] | Exception] = Promise()
        self._append(group, _OffsetDeletion(self._coordinator(), keys, promise))
        return promise

    def brokers_changed(self, coordinates: Callable[[str], bool]) -> None:
        """Writes no more, of groups that another broker coordinates now, what was accepted before: not even
        if they come back. `coordinates(group_id)`: whether this broker is the group's coordinator now.
        """
        self._generations.forget(group for group in self._generations.known() if not coordinates(group))
        for group, queue in self._queues.items():
            if not coordinates(group):
                for step in (*queue.waiting, queue.in_flight):
                    if step is not None:
                        step.coordinator.is_over = True

    def topics_deleted(self, topics: Iterable[str]) -> None:
        """Deletes all groups' offsets of these topics. Offsets that stay are read by nobody."""
        names = list(topics)

        def forget() -> None:
            for topic in names:
                try:
                    forget_topic(self._session, topic)
                except CoordinationError as error:
                    logger.warning("offsets of deleted topic %s stay in ZooKeeper: %s", topic, error)

        def forgotten(_: None, error: Exception | None) -> None:
            if error is not None:
                logger.warning("offsets of deleted topics %s stay in ZooKeeper: %s", names, error)

        self._upkeep.submit(forget, forgotten)

    def _later(self, job: Callable[[], T]) -> Promise[T | Exception]:
        promise: Promise[T | Exception] = Promise()
        self._control.submit(job, lambda result, error: promise.resolve(result if error is None else error))
        return promise
