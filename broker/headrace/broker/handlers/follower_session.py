"""Fetch sessions of followers (KIP-227): a follower names the partitions that changed, not all of them.

A session belongs to one connection; each follower has one at most. It stands in for the partitions that are
not named: each request asks for all of them again. So the leader looks at those that the request names, and
at those with news, and the answer holds only what the follower does not know. Consumers get no session.

What a request says by leaving a partition out is noted later: when there is something new for it, or at the
next look at lagging replicas (`refresh`), which is soon enough for both.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import Final
from uuid import UUID

from headrace.broker.core import ClientConnection, Slot
from headrace.broker.handlers import fetch
from headrace.broker.handlers.fetch import FetchWait
from headrace.broker.handlers.fetch_results import answer_parts
from headrace.broker.handlers.replica_reads import Readable
from headrace.broker.partition import Partition
from headrace.broker.state import BrokerState
from headrace.replication.in_sync import InSyncReplicas
from headrace.wire.errors import ErrorCode
from headrace.wire.fetch import (
    TOPIC_IDS_FROM,
    FetchPartition,
    FetchPartitionResult,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from headrace.wire.messages import Request

SESSION_PARTITIONS_MAX: Final = 20_000
EPOCH_MAX: Final = 2**31 - 1
NEW: Final = 0  # the epoch of a request that begins a session

Key = tuple[UUID, int]

_ids = count(1)


class _Entry:
    """One partition of a session. `told`: the high watermark and the start of the log of the last answer.

    `is_clean`: the follower has all that `partition` had since it asked for it, as one of `replicas`.
    """

    __slots__ = ("is_clean", "part", "partition", "replicas", "told")

    def __init__(self, part: FetchPartition) -> None:
        self.part = part
        self.partition: Partition | None = None
        self.replicas: InSyncReplicas | None = None
        self.told: tuple[int, int] | None = None
        self.is_clean = False


class FollowerSession:
    """One follower's session on one connection."""

    def __init__(self, state: BrokerState, connection: ClientConnection, body: FetchRequest) -> None:
        self._state = state
        self._connection = connection
        self._follower = body.replica_id
        self._broker_epoch = body.replica_epoch
        self._id = next(_ids) % EPOCH_MAX + 1
        self._epoch = NEW  # of the last request
        self._entries: dict[Key, _Entry] = {}
        self._keys: dict[Partition, Key] = {}
        self._dirty: dict[Key, None] = {}  # to be looked at in the next answer, the longest waiting first
        self.asked_ms = 0.0
        self._wait: tuple[FetchWait, Slot, Request] | None = None
        self._until_ms = 0.0

    @property
    def id(self) -> int:
        return self._id

    # --- requests ---

    def problem(self, connection: ClientConnection, body: FetchRequest) -> ErrorCode:
        """Returns why a request is none of this session; NONE if it is the next one."""
        is_same = connection is self._connection and body.session_id == self._id
        who = (body.replica_id, body.replica_epoch) == (self._follower, self._broker_epoch)
        if not (is_same and who and self._is_registered):
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if body.session_epoch != self._epoch % EPOCH_MAX + 1:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH
        return ErrorCode.NONE

    @property
    def _is_registered(self) -> bool:
        return self._state.is_registered_epoch(self._follower, self._broker_epoch)

    def serve(self, slot: Slot, request: Request) -> bool:
        """Responds now, or as soon as there is news. Returns False if there are too many partitions."""
        body: FetchRequest = request.body
        for gone in body.forgotten:
            for index in gone.partitions:
                self._forget((gone.topic_id, index))
        for topic in body.topics:
            for part in topic.partitions:
                self._name((topic.topic_id, part.partition), part)
        if len(self._entries) > SESSION_PARTITIONS_MAX:
            return False
        self._epoch = body.session_epoch
        self.asked_ms = self._state.monotonic_ms()
        self._until_ms = self.asked_ms + body.max_wait_ms
        self._look(slot, request)
        return True

    def _name(self, key: Key, part: FetchPartition) -> None:
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry(part)
        entry.part = part
        entry.is_clean = False
        self._dirty.pop(key, None)
        self._dirty[key] = None  # behind those that wait longer

    def _forget(self, key: Key) -> None:
        entry = self._entries.pop(key, None)
        self._dirty.pop(key, None)
        if entry is not None:
            self._watch(key, entry, None)

    def _watch(self, key: Key, entry: _Entry, partition: Partition | None) -> None:
        """Reads from this partition from now on."""
        before, entry.partition = entry.partition, partition
        if before is partition:
            return
        if before is not None:
            before.follower_readers.pop(self, None)
            self._keys.pop(before, None)
        if partition is not None:
            partition.follower_readers[self] = None
            self._keys[partition] = key

    def _look(self, slot: Slot, request: Request) -> None:
        """Serves the partitions with news; with `wait`, for the rest of the time."""
        body: FetchRequest = request.body
        by_topic: dict[UUID, list[FetchPartition]] = {}
        for key in self._dirty:
            by_topic.setdefault(key[0], []).append(self._entries[key].part)
        topics = [FetchTopic("", topic_id, parts) for topic_id, parts in by_topic.items()]
        left_ms = int(self._until_ms - self._state.monotonic_ms())
        looked_at = request._replace(body=body._replace(topics=topics, max_wait_ms=left_ms))
        wait = FetchWait(self._state, slot, looked_at, self)
        self._wait = None if slot.parts is not None else (wait, slot, request)

    # --- answers ---

    def tells(self, topic_id: UUID, result: FetchPartitionResult) -> bool:
        """Whether an answer holds this result: the follower does not know it yet."""
        entry = self._entries.get((topic_id, result.partition))
        is_plain = result.error_code == ErrorCode.NONE and result.diverging_epoch is None
        is_known = entry is not None and entry.told == (result.high_watermark, result.log_start_offset)
        return bool(result.records) or not is_plain or not is_known

    def answered(self, results: Iterable[tuple[UUID, FetchPartitionResult, Readable | None]]) -> None:
        self._wait = None
        for topic_id, result, found in results:
            key = (topic_id, result.partition)
            entry = self._entries.get(key)
            if entry is None:
                continue
            partition = found if isinstance(found, Partition) else None
            self._watch(key, entry, partition)
            if result.error_code != ErrorCode.NONE or result.diverging_epoch is not None or partition is None:
                entry.told = None
                continue
            entry.told = (result.high_watermark, result.log_start_offset)
            has_all = partition.log.end_address <= entry.part.fetch_offset
            entry.replicas = partition.replicas
            entry.is_clean = has_all
            if has_all:
                self._dirty.pop(key, None)

    # --- news ---

    def more(self, partition: Partition) -> None:
        """Called when there is more of a partition, or it is not what it was."""
        key = self._keys.get(partition)
        if key is None:
            return
        entry = self._entries[key]
        if self._is_registered:
            self._ask_again(entry)
        entry.is_clean = False
        self._news(key)

    def risen(self, partition: Partition) -> None:
        """Called when its high watermark rose: the follower learns that with the next answer."""
        key = self._keys.get(partition)
        if key is not None:
            self._dirty[key] = None

    def _news(self, key: Key) -> None:
        is_new = key not in self._dirty
        self._dirty[key] = None
        if self._connection.closed:
            self.close()
        elif is_new and self._wait is not None:
            wait, slot, request = self._wait
            if wait.abandon():
                self._look(slot, request)

    def _ask_again(self, entry: _Entry) -> None:
        """Notes that the last request asked for a partition that it did not name."""
        partition, replicas = entry.partition, entry.replicas
        if not entry.is_clean or partition is None or replicas is None or replicas is not partition.replicas:
            return
        replicas.asked_again(self._follower, entry.part.fetch_offset, self.asked_ms)

    def refresh(self) -> None:
        """Notes what the last request said of all partitions; ends with its connection."""
        if self._connection.closed:
            self.close()
            return
        if self._is_registered:
            for entry in self._entries.values():
                self._ask_again(entry)

    def close(self) -> None:
        """Reads from no partition any more."""
        for entry in self._entries.values():
            if entry.partition is not None:
                entry.partition.follower_readers.pop(self, None)
        self._entries.clear()
        self._keys.clear()
        self._dirty.clear()
        if self._state.follower_sessions.get(self._follower) is self:
            del self._state.follower_sessions[self._follower]


def handle(state: BrokerState, connection: ClientConnection, request: Request) -> None:
    """Serves a Fetch of anybody; of a registered follower in its session."""
    body: FetchRequest = request.body
    is_follower = body.replica_id >= 0 and request.version >= TOPIC_IDS_FROM
    if not is_follower or body.session_epoch < NEW:
        fetch.handle(state, connection, request)
        return
    session = state.follower_sessions.get(body.replica_id)
    if body.session_epoch == NEW:
        if not state.is_registered_epoch(body.replica_id, body.replica_epoch):
            fetch.handle(state, connection, request)
            return
        if session is not None:
            session.close()
        session = FollowerSession(state, connection, body)
        state.follower_sessions[body.replica_id] = session
        code = ErrorCode.NONE
    elif isinstance(session, FollowerSession):
        code = session.problem(connection, body)
    else:
        code = ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    slot = connection.open_slot()
    if code is ErrorCode.NONE and isinstance(session, FollowerSession):
        if session.serve(slot, request):
            return
        session.close()
        code = ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    slot.fill(answer_parts(request, FetchResponse([], code)))
