"""Keeps this broker's logs in step with the topics in ZooKeeper: opens those that it has a replica of, closes
others.

Owns opening (on worker threads, since recovery reads files) of logs, and opens those that are offline again
once they were mended. `roles` decides which of them this broker leads, and which it follows; `closing` closes
and deletes them. Decisions are pure: `replicas.plan`, `replicas.offline`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from headrace.broker.leadership.resigning import Resigning
from headrace.broker.partition import Partition
from headrace.broker.replicas import high_watermarks
from headrace.broker.replicas.closing import Closing
from headrace.broker.replicas.fetchers import Fetchers
from headrace.broker.replicas.folders import Folders
from headrace.broker.replicas.followed import FollowedPartition
from headrace.broker.replicas.followed_partitions import FollowedPartitions
from headrace.broker.replicas.offline import (
    LOOKED_AT_MAX,
    Fingerprint,
    OfflineLog,
    Tried,
    fingerprint,
    try_to_open,
)
from headrace.broker.replicas.plan import plan
from headrace.broker.replicas.removals import Removals
from headrace.broker.replicas.roles import Roles, has_moved
from headrace.broker.settings.config import TopicConfig
from headrace.broker.state import BrokerState
from headrace.broker.workers import THREADS, Workers
from headrace.coordination.topics import TopicState
from headrace.log.directory import LogDirectory, PartitionName
from headrace.log.errors import LogDamagedError, LogError
from headrace.log.partition import PartitionLog

logger = logging.getLogger(__name__)

# Fewer than the threads, which fsync, too: producers wait for no more than one log to be opened.
OPENED_AT_ONCE_MAX: Final = THREADS - 1

Call = Callable[[], None]


@dataclass(eq=False, slots=True)
class _Opening:
    """A log that is being opened. `may_delete`: its topic was deleted meanwhile."""

    topic_id: UUID
    may_delete: bool = False


class ReplicaManager:
    """Opens, closes and deletes logs; called on the loop's thread whenever the topics changed."""

    def __init__(
        self,
        state: BrokerState,
        directory: LogDirectory,
        workers: Workers,
        followed: FollowedPartitions,
        fetchers: Fetchers,
        resigning: Resigning,
    ) -> None:
        self.resigning = resigning
        self._state = state
        self._followed = followed
        self._fetchers = fetchers
        known = high_watermarks.load(directory.path)
        self._roles = Roles(state, followed, fetchers, self._lost_while_moving, known)
        self._is_saving = False
        self._directory = directory
        self._workers = workers
        self.removals = Removals(workers)
        self._folders = Folders()
        self._closing = Closing(state, directory, workers, self._folders, self.removals)
        self._opening: dict[PartitionName, _Opening] = {}
        self._offline: dict[PartitionName, OfflineLog] = {}
        # Logs that went offline, and still have open files.
        self._failed: list[Partition | FollowedPartition] = []
        self._is_looking = False
        self._to_renew: set[PartitionName] = set()  # open again, and led in a later epoch alone
        self._to_open: deque[Call] = deque()
        self._opening_now = 0
        self._applied: Mapping[str, TopicState] = {}
        self._idle_callbacks: list[Callable[[], None]] = []
        state.partitions.on_offline = followed.on_offline = self._went_offline

    def warn_of_strays(self) -> None:
        """Warns of partition folders that no topic owns; they are never deleted automatically."""
        for name in self._directory.partitions():
            if self._roles.topic_id(name) is None and name not in self._opening:
                logger.warning(
                    "%s: no topic has this log; its files are kept, remove %s if they are not needed",
                    name,
                    self._directory.path / str(name),
                )

    def save_high_watermarks(self) -> None:
        """Saves them on a thread, unless it still does."""
        if self._is_saving:
            return
        known = self._roles.high_watermarks()
        self._is_saving = True

        def saved(_: None, error: Exception | None) -> None:
            self._is_saving = False
            if error is not None:
                logger.warning("the high watermarks are not saved: %s", error)

        self._workers.submit(lambda: high_watermarks.save(self._directory.path, known), saved)

    def when_idle(self, callback: Callable[[], None]) -> None:
        """Calls back once nothing is being opened; at once if nothing is now."""
        self._idle_callbacks.append(callback)
        self._check_idle()

    def begin(self, topics: Mapping[str, TopicState]) -> None:
        """Sees the topics of the broker's start, before it is registered: what it led until then is over."""
        self._roles.begin(topics)

    def apply(self, topics: Mapping[str, TopicState], *, may_delete: bool) -> None:
        """Makes this broker's logs those that it has a replica of now, each with its role.

        `may_delete`: False when ZooKeeper may have lost its data. Then logs of missing topics are
        closed and their files kept.
        """
        before, self._applied = self._applied, topics
        changed = {name for name, topic in topics.items() if before.get(name) != topic}
        changed |= before.keys() - topics.keys()
        present = self._present(before, changed)
        planned = plan(
            self._state.broker_id, present, {name: topics[name] for name in changed if name in topics}
        )
        for name in planned.close:
            states = (
                before[name.topic].partitions.get(name.partition),
                topics[name.topic].partitions.get(name.partition),
            )
            self._drop(name, delete=may_delete and has_moved(*states, self._state.broker_id), is_gone=False)
        for name in planned.delete:
            self._drop(name, delete=may_delete, is_gone=True)
        if planned.delete and not may_delete:
            logger.error(
                "ZooKeeper no longer lists any topic: %d partitions are closed, their files kept in %s; "
                "restore ZooKeeper's data, or recreate the topics and import the files",
                len(planned.delete),
                self._directory.path,
            )
        configs = {name: self._state.topic_config(topics[name]) for name in changed if name in topics}
        for name, _ in planned.open:
            self._open(name, topics[name.topic], configs[name.topic])
        for topic, config in configs.items():
            for index in topics[topic].partitions:
                name = PartitionName(topic, index)
                self._roles.settle(name, topics[topic], config)
                if name in self._state.unopened:
                    self.resigning.resign(name)
                elif name in self._to_renew:
                    self._renew(name, topics[topic])

    def _present(self, before: Mapping[str, TopicState], changed: Iterable[str]) -> dict[PartitionName, UUID]:
        """Returns what is open, is being opened, or could not be opened, of these topics."""
        present: dict[PartitionName, UUID] = {}
        for topic in changed:
            for index in before[topic].partitions if topic in before else ():
                name = PartitionName(topic, index)
                open_id = self._roles.topic_id(name)
                found = self._opening.get(name) or self._offline.get(name)
                if open_id is not None:
                    present[name] = open_id
                elif found is not None:
                    present[name] = found.topic_id
        return present

    def _open(self, name: PartitionName, topic: TopicState, config: TopicConfig) -> None:
        topic_id = topic.topic_id
        opening = self._opening[name] = _Opening(topic_id)
        again = name in self._offline
        held_to, creation = self._roles.held_to(name, topic), topic.partitions[name.partition].creation

        def opened(tried: Tried | None, error: Exception | None) -> None:
            self._opening_now -= 1
            self._open_next()
            if tried is None:
                tried = Tried(None, error, frozenset())
            try:
                if self._opening.get(name) is opening:
                    del self._opening[name]
                    self._opened(name, topic, config, tried)
                else:
                    if tried.log is not None:
                        tried.log.abandon()
                        self._directory.release(name)
                    if opening.may_delete:
                        self._closing.delete_folder_if_gone(name, topic_id)
            finally:
                self._folders.leave(name)
            self._check_idle()

        def begin() -> None:
            self._to_open.append(
                lambda: self._workers.submit(
                    lambda: try_to_open(
                        self._directory,
                        name,
                        topic_id,
                        config.log,
                        again=again,
                        held_to=held_to,
                        creation=creation,
                    ),
                    opened,
                )
            )
            self._open_next()

        self._folders.use_alone(name, begin)

    def _opened(self, name: PartitionName, topic: TopicState, config: TopicConfig, tried: Tried) -> None:
        log = tried.log
        if log is None:
            kind = "" if isinstance(tried.error, (LogError, OSError)) else type(tried.error).__name__ + ": "
            problem = f"{kind}{tried.error}"
            offline = self._offline.setdefault(name, OfflineLog(topic.topic_id, ""))
            if problem != offline.problem:
                logger.error("%s cannot be opened, and is offline: %s", name, problem)
                is_damaged = isinstance(tried.error, LogDamagedError)
                self._state.note_unopened(name, problem, is_damaged=is_damaged)
            offline.failed(tried, problem)
            self.resigning.resign(name)
            return
        again = " again" if self._offline.pop(name, None) is not None else ""
        now = self._state.view.topics[name.topic]
        known = config if now.config == topic.config else self._state.topic_config(now)
        self._roles.place(name, now, known, log)
        if again:
            self._renew(name, now)
        self._state.forget_unopened(name)
        logger.info("%s: open%s, addresses [%d, %d)", name, again, log.start_address, log.end_address)

    def _renew(self, name: PartitionName, topic: TopicState) -> None:
        """Begins an epoch in which a log that is open again leads; again at each change until it does."""
        if self._roles.leads(name, topic):
            self._to_renew.discard(name)
        else:
            self._to_renew.add(name)
            self.resigning.renew(name)

    def _open_next(self) -> None:
        while self._to_open and self._opening_now < OPENED_AT_ONCE_MAX:
            self._opening_now += 1
            self._to_open.popleft()()

    def _drop(self, name: PartitionName, *, delete: bool, is_gone: bool) -> None:
        """`is_gone`: there is no such topic any more; else its partition is on other brokers now."""
        self._to_renew.discard(name)
        offline = self._offline.pop(name, None)
        if offline is not None:
            self._state.forget_unopened(name)
        opening = self._opening.pop(name, None)
        if opening is not None:
            opening.may_delete = delete  # `opened` sees that it is no longer needed
            return
        if offline is not None:
            if delete:
                self._closing.delete_folder_if_gone(name, offline.topic_id)
            return
        topic_id = self._roles.topic_id(name)
        if topic_id is None:
            return
        if self._state.forget_unopened(name):
            self._failed = [failed for failed in self._failed if failed.name != name]

        def take(log: PartitionLog) -> None:
            try:
                if delete:
                    self._closing.delete(name, topic_id, log)
                else:
                    self._closing.close(name, log)
            finally:
                self._folders.leave(name)

        self._folders.use(name)
        self._roles.take(name, take, is_deleted=delete and is_gone)

    # --- logs that are offline ---

    def _went_offline(self, partition: Partition | FollowedPartition) -> None:
        """Notes that the log of a partition has failed while it was open."""
        self._failed.append(partition)
        if isinstance(partition, FollowedPartition):
            self._fetchers.leave(partition)
        self._state.note_unopened(partition.name, partition.failure or "")
        self.resigning.resign(partition.name)

    def look_after_offline(self) -> None:
        """Opens logs again that were mended. Called every `LOOK_INTERVAL_MS`."""
        self._failed = [partition for partition in self._failed if not self._hand_over(partition)]
        if self._is_looking or not self._offline:
            return
        names = [name for name in self._offline if name not in self._opening][:LOOKED_AT_MAX]
        self._is_looking = True
        self._workers.submit(
            lambda: [(name, fingerprint(self._directory.path / str(name))) for name in names], self._looked
        )

    def _hand_over(self, partition: Partition | FollowedPartition) -> bool:
        """Closes the files of a log that has failed, so that it can be opened again; returns False while a
        thread works on it, or a producer is still to be answered.
        """
        if partition.flushing:
            return False
        if isinstance(partition, Partition):
            if partition.waiting:
                return False
            if partition.replicas is not None:
                self._roles.has_led(partition.name, partition.topic_id, partition.leader_epoch)
        elif partition.cutting:
            return False
        name, topic_id, log = partition.name, partition.topic_id, partition.log
        problem = self._state.unopened[name]
        self._roles.take(name, lambda _: self._set_offline(name, topic_id, log, problem), is_deleted=False)
        return True

    def _lost_while_moving(self, name: PartitionName, topic_id: UUID, log: PartitionLog) -> None:
        problem = str(log.offline or f"{name} is no longer known")
        self._state.note_unopened(name, problem)
        self._set_offline(name, topic_id, log, problem)

    def _set_offline(self, name: PartitionName, topic_id: UUID, log: PartitionLog, problem: str) -> None:
        log.abandon()
        self._directory.release(name)
        self._offline[name] = OfflineLog(topic_id, problem)

    def _looked(self, found: list[tuple[PartitionName, Fingerprint]] | None, error: Exception | None) -> None:
        self._is_looking = False
        if found is None:
            logger.error("looking at the logs that are offline failed", exc_info=error)
            return
        for name, now in found:
            offline = self._offline.get(name)
            if offline is None or name in self._opening:
                continue
            # The next look begins with others.
            self._offline[name] = self._offline.pop(name)
            topic = self._state.view.topics.get(name.topic)
            if topic is not None and topic.topic_id == offline.topic_id and offline.must_open(now):
                self._open(name, topic, self._state.topic_config(topic))

    def _check_idle(self) -> None:
        if not self._opening:
            callbacks, self._idle_callbacks = self._idle_callbacks, []
            for callback in callbacks:
                callback()
