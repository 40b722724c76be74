"""The replicas of a broker put together: the logs that it leads and follows, its fetchers, its in-sync sets.

Owns the order in which these parts are made, and ended, and what is done to all logs from time to time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from headrace.broker.leadership.resigning import Resigning
from headrace.broker.network.peers import Peers
from headrace.broker.replicas.checkpoints import Checkpoints
from headrace.broker.replicas.cut_off import CHECK_MS, CutOff
from headrace.broker.replicas.fetcher import CLIENT_ID, RESPONSE_MORE_BYTES
from headrace.broker.replicas.fetchers import Fetchers
from headrace.broker.replicas.followed_partitions import FollowedPartitions
from headrace.broker.replicas.in_sync_changes import InSyncChanges
from headrace.broker.replicas.manager import ReplicaManager
from headrace.broker.replicas.offline import LOOK_INTERVAL_MS
from headrace.broker.replicas.producer_memory import TURN_MS, ProducerMemory
from headrace.broker.replicas.retention import Retention
from headrace.broker.settings.replication import LEADER_ALONE
from headrace.broker.state import BrokerState, StoredReplica
from headrace.broker.workers import Jobs, Workers
from headrace.coordination.topics import TopicRegistry, TopicState
from headrace.log.directory import LogDirectory

logger = logging.getLogger(__name__)

NOTE_EVERY_MS: Final = 1_000.0
NOTES_PER_JOB_MAX: Final = 2_000  # the next job begins with the other logs


class Replication:
    """`files`: threads for disks. `control`: threads for ZooKeeper. Called on the loop's thread."""

    def __init__(
        self,
        state: BrokerState,
        directory: LogDirectory,
        files: Workers,
        control: Jobs,
        registry: TopicRegistry,
    ) -> None:
        self._state = state
        keeps_pages = state.config["replica.selector.class"] != LEADER_ALONE
        self.followed = FollowedPartitions(files, state.loop.call_later, keeps_pages=keeps_pages)
        state.find_followed = self.followed.get
        # The largest batch is in a request, whatever its topic allows; a fetch has others beside it.
        response_max_bytes = state.config["socket.request.max.bytes"] + RESPONSE_MORE_BYTES
        self._links = Peers(state.loop, client_id=CLIENT_ID, response_max_bytes=response_max_bytes)
        self._fetchers = Fetchers(state, self.followed, self._links)
        resigning = Resigning(state, registry, control)
        self.manager = ReplicaManager(state, directory, files, self.followed, self._fetchers, resigning)
        self._retention = Retention(
            state.partitions,
            self.followed,
            self.manager.removals,
            state.cold_reads,
            state.loop.call_later,
            state.expiry_clock.now_ms,
        )
        state.delete_before = self._retention.delete_before
        self.followed.leader_deleted = self._retention.look_again
        self._checkpoint_ms: float = state.config["log.flush.offset.checkpoint.interval.ms"]
        self._checkpoints = Checkpoints(state.partitions, self.followed, self._checkpoint_ms)
        self._producers = ProducerMemory(state.partitions, self.followed)
        self._files = files
        self._is_noting = False
        self._looked_at = 0  # logs, in all rounds
        self._cut_off = CutOff(
            state, self._fetchers, self.followed, lambda: registry.is_connected, resigning.hand_over
        )
        self._in_sync = InSyncChanges(state, registry, control, state.config["replica.lag.time.max.ms"])

    def start(self, topics: Mapping[str, TopicState]) -> None:
        """Begins, before the broker is registered; `topics` are those of now."""
        self.manager.begin(topics)
        state, loop = self._state, self._state.loop
        loop.every(state.config["log.retention.check.interval.ms"], self._retention.enforce)
        loop.every(self._checkpoints.turn_ms, self._checkpoints.take_turn)
        loop.every(self._checkpoint_ms, self.manager.save_high_watermarks)
        loop.every(NOTE_EVERY_MS, self._note_flushed)
        loop.every(TURN_MS, self._producers.take_turn)
        loop.every(LOOK_INTERVAL_MS, self.manager.look_after_offline)
        loop.every(LOOK_INTERVAL_MS, self.manager.resigning.check)
        loop.every(self._in_sync.check_ms, self._in_sync.check)
        loop.every(CHECK_MS, self._cut_off.check)

    def topics_changed(self, topics: Mapping[str, TopicState], *, may_delete: bool) -> None:
        self.manager.apply(topics, may_delete=may_delete)

    def brokers_changed(self) -> None:
        self._fetchers.brokers_changed()

    def stored(self) -> list[StoredReplica]:
        """Returns the replicas that are open here and led by others."""
        return [
            StoredReplica(
                followed.name,
                followed.log.size_bytes,
                followed.log.start_address,
                followed.log.end_address,
                max(0, followed.leader_high_watermark - followed.log.end_address),
            )
            for followed in self.followed
            if followed.log.offline is None
        ]

    def _note_flushed(self) -> None:
        """Notes beside each log how far it was flushed (`log.flushed`), on a thread, unless it still does."""
        if self._is_noting:
            return
        logs = [partition.log for partition in self._state.partitions]
        logs += [followed.log for followed in self.followed if not followed.cutting]
        due: list[Callable[[], None]] = []
        begin = self._looked_at % max(1, len(logs))
        for log in (*logs[begin:], *logs[:begin]):
            self._looked_at += 1
            note = None if log.offline is not None else log.notes.due(log.flushed_address)
            if note is not None:
                due.append(note)
                if len(due) == NOTES_PER_JOB_MAX:
                    break
        if due:
            self._is_noting = True
            self._files.submit(lambda: _write_all(due), self._noted)

    def _noted(self, problem: OSError | None, error: Exception | None) -> None:
        self._is_noting = False
        if problem is not None or error is not None:
            logger.warning("how far logs were flushed is not noted: %s", problem or error)

    def stop_following(self) -> None:
        """Ends the links to leaders; what was fetched stays. Saves the high watermarks."""
        self._links.close()
        self.manager.save_high_watermarks()

    def close(self) -> None:
        """Flushes and closes every log."""
        self._state.partitions.close()
        self.followed.close()


def _write_all(notes: Sequence[Callable[[], None]]) -> OSError | None:
    """Writes each note; returns the error of the last that failed. A log may have been deleted meanwhile."""
    problem = None
    for write in notes:
        try:
            write()
        except FileNotFoundError:
            continue
        except OSError as error:
            problem = error
    return problem
