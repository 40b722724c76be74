"""Fetch: an answer at once, or as soon as enough is visible.

Source: https://kafka.apache.org/protocol#The_Messages_Fetch. Consumers get no sessions (KIP-227): session id
0 makes them name every partition each time. A full request, which begins or ends a session, is served
whatever session it names; `handlers.follower_session` has the sessions of followers, `fetch_reading` what an
answer holds of each partition.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final
from uuid import UUID

from headrace.broker import leader_hints
from headrace.broker.core import ClientConnection, Slot
from headrace.broker.handlers.fetch_reading import FetchReading, Target
from headrace.broker.handlers.fetch_results import Session, answer_parts
from headrace.broker.handlers.replica_reads import Readable
from headrace.broker.loop import Timer
from headrace.broker.partition import Partition
from headrace.broker.replicas.followed import FollowedPartition
from headrace.broker.state import BrokerState
from headrace.log.errors import LogError
from headrace.log.files import FileSlice
from headrace.log.segment import ColdSegmentError, Segment
from headrace.wire.errors import ErrorCode
from headrace.wire.fetch import (
    FULL_EPOCHS,
    FetchPartitionResult,
    FetchRequest,
    FetchResponse,
    FetchTopicResult,
)
from headrace.wire.messages import Request

logger = logging.getLogger(__name__)

WAIT_MAX_MS: Final = 300_000


class FetchWait:
    """A fetch that waits for `min_bytes`: a reader of all its partitions until it responds.

    The available bytes are counted once; then each partition that changes is looked at alone.
    """

    __slots__ = (
        "_available",
        "_available_bytes",
        "_holds",
        "_is_learning",
        "_limit_bytes",
        "_min_bytes",
        "_offsets",
        "_reading",
        "_request",
        "_session",
        "_slot",
        "_state",
        "_targets",
        "_timer",
    )

    def __init__(
        self, state: BrokerState, slot: Slot, request: Request, session: Session | None = None
    ) -> None:
        body: FetchRequest = request.body
        self._session = session
        self._state = state
        self._slot = slot
        self._request = request
        self._min_bytes = body.min_bytes
        self._limit_bytes = min(body.max_bytes, state.config["fetch.max.bytes"])
        self._reading = reading = FetchReading(state, body)
        self._targets = [
            reading.look_up(topic.name or state.view.names_by_id.get(topic.topic_id), part)
            for topic in body.topics
            for part in topic.partitions
        ]
        self._timer: Timer | None = None
        self._is_learning = False
        self._holds = False  # the later requests of its connection
        self._offsets: dict[Readable, int] = {}  # the lowest one that is asked for
        self._available: dict[Readable, int] = {}  # bytes that may be read from there on
        self._available_bytes = 0  # their sum
        if body.max_wait_ms <= 0 or slot.connection.nothing_follows or self._is_ready():
            self._respond()
            return
        self._hold()
        self._timer = state.loop.call_later(min(body.max_wait_ms, WAIT_MAX_MS), self.end)
        for partition in self._available:
            if isinstance(partition, FollowedPartition):
                partition.readers[self] = None
            elif body.replica_id >= 0:
                partition.follower_readers[self] = None
            else:
                partition.readers[self] = None
                state.partitions.request_flush(partition)

    def more(self, partition: Readable) -> None:
        """Called when there is more of a partition, its oldest segments were deleted, or it was removed."""
        self._guarded(self._look_at, partition)

    def risen(self, partition: Readable) -> None:
        """Called when a follower's partition has a higher high watermark: it learns it with the answer."""

    def abandon(self) -> bool:
        """Waits no more, and never responds; returns False if it does not wait: it responds."""
        if self._is_learning or self._slot.parts is not None:
            return False
        self._stop_waiting()
        if self._holds:
            self._slot.connection.hand_over()
        return True

    def end(self) -> None:
        """Responds with what is visible; called, too, when the connection ends."""
        if not self._is_learning:
            self._guarded(self._respond)

    def _guarded(self, call: Callable[..., None], *arguments: Readable) -> None:
        """A failure ends this fetch's connection alone: the caller wakes those of others, too."""
        try:
            call(*arguments)
        except Exception:
            connection = self._slot.connection
            logger.exception("%s: a waiting fetch failed", connection.peer)
            self._stop_waiting()
            connection.abort("a waiting fetch failed")

    def _look_at(self, partition: Readable) -> None:
        """Responds if enough bytes are visible now, or the partition has an error or news to report."""
        is_due = self._has_error(partition, self._offsets[partition]) or self._reading.has_news(partition)
        if is_due or self._available_bytes >= self._min_bytes:
            self._respond()

    def _is_ready(self) -> bool:
        """Whether enough bytes are visible, or a partition has an error to report at once."""
        for target in self._targets:
            partition = target.partition
            if partition is None or self._reading.is_due(target):
                return True
            if self._has_error(partition, target.part.fetch_offset) or self._reading.has_news(partition):
                return True
            if self._available_bytes >= self._min_bytes:
                return True
        return self._available_bytes >= self._min_bytes

    def _has_error(self, partition: Readable, offset: int) -> bool:
        """Whether a partition has an error to report at once; else counts its visible bytes."""
        available_bytes = self._reading.available_bytes(partition, offset)
        if available_bytes is None:
            return True
        # Of a partition that is named several times the lowest offset counts.
        if offset <= self._offsets.get(partition, offset):
            self._offsets[partition] = offset
            self._available_bytes += available_bytes - self._available.get(partition, 0)
            self._available[partition] = available_bytes
        return False

    def _hold(self) -> None:
        if not self._holds:
            self._holds = True
            self._slot.connection.wait(self)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            for partition in self._available:
                partition.readers.pop(self, None)
                if isinstance(partition, Partition):
                    partition.follower_readers.pop(self, None)

    def _respond(self) -> None:
        self._stop_waiting()
        self._read_all()

    def _read_all(self) -> None:
        """Responds, as soon as it is known where the batches of the segments begin."""
        if self._slot.connection.closed:
            return
        body, left = self._request.body, self._limit_bytes
        slices: list[FileSlice] = []
        reading, has_waited = self._reading, self._timer is not None
        reading.begin()
        targets = iter(self._targets)
        topics, session = [], self._session
        looked_at: list[tuple[UUID, FetchPartitionResult, Readable | None]] = []
        for topic in body.topics:
            results = []
            for _ in topic.partitions:
                target = next(targets)
                try:
                    result = reading.read(target, left, slices, has_waited=has_waited)
                except ColdSegmentError as cold:
                    self._learn(target, cold.segment)
                    return
                left -= result.records
                if session is None or session.tells(topic.topic_id, result):
                    results.append(result)
                if session is not None:
                    looked_at.append((topic.topic_id, result, target.partition))
            if results:
                topics.append(FetchTopicResult(topic.name, topic.topic_id, results))
        hints = [result.current_leader for topic in topics for result in topic.partitions]
        response = FetchResponse(
            topics,
            session_id=0 if session is None else session.id,
            node_endpoints=leader_hints.endpoints(self._state.view, hints),
        )
        self._slot.fill(answer_parts(self._request, response, slices))
        if session is not None:
            session.answered(looked_at)
        reading.end()
        if self._holds:
            self._slot.connection.stop_waiting()

    def _learn(self, target: Target, segment: Segment) -> None:
        """Begins again once a thread has read where the batches of a segment begin."""
        assert target.partition is not None
        self._is_learning = True
        self._hold()

        def learned(problem: LogError | None) -> None:
            self._is_learning = False
            self._reading.learned(segment, problem)
            self._guarded(self._read_all)

        self._state.cold_reads.learn(target.partition.log, segment).then(learned)


def handle(state: BrokerState, connection: ClientConnection, request: Request) -> None:
    """Responds now, or as soon as enough is visible."""
    body: FetchRequest = request.body
    slot = connection.open_slot()
    if body.session_epoch not in FULL_EPOCHS:
        slot.fill(answer_parts(request, FetchResponse([], ErrorCode.FETCH_SESSION_ID_NOT_FOUND)))
        return
    FetchWait(state, slot, request)
