"""Committed offsets of Kafka's own groups, kept where the paper's consumers keep theirs:
`/consumers/<group>/offsets` in ZooKeeper.

Owns the order of a group's commits: at most one write per group is in flight; later ones wait and are merged,
so that an older offset can never overwrite a newer one. `offset_nodes` owns the contents of the nodes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from headrace.broker.groups import offset_nodes
from headrace.broker.groups.fencing import Coordinator, NotCoordinatorError
from headrace.broker.groups.offset_nodes import Committed, Offsets, TopicPartition
from headrace.broker.promise import Promise
from headrace.broker.workers import Jobs
from headrace.coordination import znodes
from headrace.coordination.consumers import ConsumerRegistry, forget_topic, groups
from headrace.coordination.errors import CoordinationError
from headrace.coordination.session import ZooKeeperSession

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(slots=True)
class _Queue:
    """A group's commits that wait for the one in flight."""

    pending: Offsets = field(default_factory=dict)
    coordinator: Coordinator | None = None
    """As which this broker has accepted what is pending."""
    promises: list[Promise[Exception | None]] = field(default_factory=list)
    writing: bool = False


class OffsetStore:
    """Called on the loop's thread; calls to ZooKeeper run on control threads. `coordinator`: this broker, in
    its present broker epoch. `upkeep`: what runs jobs that no client waits for; as `control` by default.
    """

    def __init__(
        self,
        session: ZooKeeperSession,
        control: Jobs,
        coordinator: Callable[[], Coordinator],
        upkeep: Jobs | None = None,
    ) -> None:
        self._session = session
        self._control = control
        self._upkeep = control if upkeep is None else upkeep
        self._coordinator = coordinator
        self._queues: dict[str, _Queue] = {}

    def commit(self, group: str, offsets: Mapping[TopicPartition, Committed]) -> Promise[Exception | None]:
        """Stores offsets; resolves with the exception, or None."""
        promise: Promise[Exception | None] = Promise()
        queue = self._queues.setdefault(group, _Queue())
        coordinator = self._coordinator()
        if queue.promises and queue.coordinator != coordinator:
            refused, queue.promises = queue.promises, []
            queue.pending = {}
            for each in refused:
                each.resolve(NotCoordinatorError(f"group {group!r}: this broker has registered again since"))
        queue.coordinator = coordinator
        queue.pending.update(offsets)
        queue.promises.append(promise)
        if not queue.writing:
            self._write(group, queue)
        return promise

    def _write(self, group: str, queue: _Queue) -> None:
        queue.writing = True
        offsets, queue.pending = queue.pending, {}
        coordinator = queue.coordinator
        assert coordinator is not None
        promises, queue.promises = queue.promises, []

        def written(_: None, error: Exception | None) -> None:
            queue.writing = False
            for promise in promises:
                promise.resolve(error)
            if queue.promises:
                self._write(group, queue)
            else:
                del self._queues[group]

        self._control.submit(lambda: offset_nodes.write(self._session, group, offsets, coordinator), written)

    def read(self, group: str, wanted: list[TopicPartition] | None) -> Promise[Offsets | Exception]:
        """Reads the offsets of `wanted` (None: all of the group's); partitions without one are left out."""
        return self._later(lambda: offset_nodes.read(self._session, group, wanted))

    def groups(self) -> Promise[list[str] | Exception]:
        """Reads the names of all groups that ZooKeeper knows."""
        return self._later(lambda: groups(self._session))

    def delete(self, group: str) -> Promise[bool | Exception]:
        """Deletes a group; False if there is none. Fails while it has paper-style members."""

        def delete() -> bool:
            if self._session.exists(znodes.group(group)) is None:
                return False
            ConsumerRegistry(self._session, group).delete()
            return True

        return self._later(delete)

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
