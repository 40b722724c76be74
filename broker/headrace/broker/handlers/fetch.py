"""Fetch: slices of log files, at once or as soon as enough is visible.

Source: https://kafka.apache.org/protocol#The_Messages_Fetch, KIP-74 (the first batch is returned whole,
however large). Consumers get no sessions (KIP-227): session id 0 makes them name every partition each time. A
full request, which begins or ends a session, is served whatever session it names. A follower gets what is
written, a consumer what is visible; `handlers.follower_fetch` has what else differs for a follower,
`follower_session` its sessions, `replica_reads` which replica a consumer reads from.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, NamedTuple
from uuid import UUID

from headrace.broker import leader_hints
from headrace.broker.core import ClientConnection, Slot
from headrace.broker.errors import Refused
from headrace.broker.handlers import follower_fetch, leader_epochs, replica_reads
from headrace.broker.handlers.fetch_results import Session, answer_parts, out_of_range
from headrace.broker.handlers.replica_reads import Readable
from headrace.broker.loop import Timer
from headrace.broker.partition import Partition
from headrace.broker.replicas.followed import FollowedPartition
from headrace.broker.state import BrokerState
from headrace.log.directory import PartitionName
from headrace.log.epochs import EpochEnd
from headrace.log.errors import AddressOutOfRangeError, LogDamagedError, LogError
from headrace.log.files import FileSlice
from headrace.log.segment import ColdSegmentError, Segment
from headrace.wire.errors import ErrorCode
from headrace.wire.fetch import (
    FULL_EPOCHS,
    FetchPartition,
    FetchPartitionResult,
    FetchRequest,
    FetchResponse,
    FetchTopicResult,
)
from headrace.wire.messages import Request
from headrace.wire.primitives import LeaderAndEpoch

logger = logging.getLogger(__name__)

WAIT_MAX_MS: Final = 300_000
LEARNING_MAX: Final = 1_000  # cold segments that one request waits for, one after the other


class _Target(NamedTuple):
    """One partition of a request: the partition to read, or the error instead. `nearer`: the replica that the
    consumer should read instead. `leader`: who leads, said with the error.
    """

    part: FetchPartition
    partition: Readable | None
    code: ErrorCode
    nearer: int | None = None
    leader: LeaderAndEpoch | None = None


class FetchWait:
    """A fetch that waits for `min_bytes`: a reader of all its partitions until it responds.

    The available bytes are counted once; then each partition that changes is looked at alone.
    """

    __slots__ = (
        "_allowance",
        "_available",
        "_available_bytes",
        "_holds",
        "_is_follower",
        "_is_learning",
        "_learned",
        "_learning_left",
        "_limit_bytes",
        "_min_bytes",
        "_offsets",
        "_request",
        "_session",
        "_slot",
        "_state",
        "_targets",
        "_tells_followers",
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
        self._is_follower = body.replica_id >= 0
        self._tells_followers = self._is_follower and follower_fetch.awaits_news(state, body)
        is_throttled = self._is_follower and state.throttles.leader.is_bounded
        self._allowance = follower_fetch.Allowance(state, body) if is_throttled else None
        self._targets = [
            self._look_up(topic.name or state.view.names_by_id.get(topic.topic_id), part)
            for topic in body.topics
            for part in topic.partitions
        ]
        self._timer: Timer | None = None
        self._learning_left = LEARNING_MAX
        self._learned: dict[Segment, LogError | None] = {}  # cold ones, with what kept it from their end
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
            elif self._is_follower:
                partition.follower_readers[self] = None
            else:
                partition.readers[self] = None
                state.partitions.request_flush(partition)

    def _look_up(self, name: str | None, part: FetchPartition) -> _Target:
        if name is None:
            return _Target(part, None, ErrorCode.UNKNOWN_TOPIC_ID)
        state, body = self._state, self._request.body
        try:
            asked = PartitionName(name, part.partition)
            partition = replica_reads.readable(state, asked, body, part.fetch_offset)
            state.check_leader_epoch(partition, part.current_leader_epoch)
            if self._is_follower and isinstance(partition, Partition):
                follower_fetch.note(state, partition, part, body)
        except Refused as refused:
            leader = leader_hints.hint(state, name, part.partition, refused.code)
            return _Target(part, None, refused.code, leader=leader)
        nearer = replica_reads.nearer(state, partition, body, part.fetch_offset)
        return _Target(part, partition, ErrorCode.NONE, nearer)

    def _upto(self, partition: Readable) -> int:
        """Returns the end of what this reader may have."""
        return partition.log.end_address if self._is_follower else partition.visible_address

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
        is_due = self._has_error(partition, self._offsets[partition]) or self._has_news(partition)
        if is_due or self._available_bytes >= self._min_bytes:
            self._respond()

    def _is_ready(self) -> bool:
        """Whether enough bytes are visible, or a partition has an error to report at once."""
        for target in self._targets:
            partition = target.partition
            if partition is None or target.nearer is not None or self._is_diverging(target.part, partition):
                return True
            if self._has_error(partition, target.part.fetch_offset) or self._has_news(partition):
                return True
            if self._available_bytes >= self._min_bytes:
                return True
        return self._available_bytes >= self._min_bytes

    def _has_news(self, partition: Readable) -> bool:
        """Whether a follower does not know the high watermark yet that consumers of its rack wait for."""
        if not self._tells_followers or not isinstance(partition, Partition):
            return False
        return follower_fetch.told(partition, self._request.body) < partition.visible_address

    def _has_error(self, partition: Readable, offset: int) -> bool:
        """Whether a partition has an error to report at once; else counts its visible bytes."""
        if not replica_reads.is_readable(self._state, partition, offset) or partition.log.offline is not None:
            return True
        try:
            position = partition.log.position(offset)
        except LogError:
            return True
        # Of a partition that is named several times the lowest offset counts. What is written, but not
        # flushed, may be asked for already.
        if offset <= self._offsets.get(partition, offset):
            self._offsets[partition] = offset
            available = max(0, self._upto(partition) - position)
            allowed = self._allowed_bytes(partition)
            if allowed is not None:
                available = min(available, allowed)
            self._available_bytes += available - self._available.get(partition, 0)
            self._available[partition] = available
        return False

    def _allowed_bytes(self, partition: Readable) -> int | None:
        """Returns what a throttled follower may have of a partition now; None without such a bound."""
        if self._allowance is None or not isinstance(partition, Partition):
            return None
        return self._allowance.left_bytes(partition)

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
        if self._allowance is not None:
            self._allowance.begin()
        targets = iter(self._targets)
        topics, session = [], self._session
        looked_at: list[tuple[UUID, FetchPartitionResult, Readable | None]] = []
        for topic in body.topics:
            results = []
            for _ in topic.partitions:
                target = next(targets)
                try:
                    result = self._read(target, left, slices)
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
        if self._allowance is not None:
            self._allowance.send()
        if self._holds:
            self._slot.connection.stop_waiting()

    def _learn(self, target: _Target, segment: Segment) -> None:
        """Begins again once a thread has read where the batches of a segment begin."""
        assert target.partition is not None
        self._learning_left -= 1
        self._is_learning = True
        self._hold()

        def learned(problem: LogError | None) -> None:
            self._is_learning = False
            self._learned[segment] = problem
            self._guarded(self._read_all)

        self._state.cold_reads.learn(target.partition.log, segment).then(learned)

    def _read(self, target: _Target, left_bytes: int, slices: list[FileSlice]) -> FetchPartitionResult:
        """Returns the result of one partition, whose records are a number of bytes; appends their slices.

        Raises `ColdSegmentError`, at most `LEARNING_MAX` times.
        """
        part, partition, code, nearer, leader = target
        if partition is not None and (self._timer is not None or self._learned):  # it has waited
            code = self._code_of_removed(partition, part.fetch_offset)
            leader = leader_hints.hint(self._state, *partition.name, code)
        if partition is None or code is not ErrorCode.NONE:
            return FetchPartitionResult(part.partition, code, -1, 0, current_leader=leader)
        log = partition.log
        if log.offline is not None:
            return FetchPartitionResult(part.partition, ErrorCode.KAFKA_STORAGE_ERROR, -1, 0)
        visible, upto = partition.visible_address, self._upto(partition)
        size_bytes = 0
        try:
            parting = self._parting(part, partition)
            position = upto if parting else log.position(part.fetch_offset)
            limit, allowed = min(part.max_bytes, left_bytes), self._allowed_bytes(partition)
            if allowed is not None:
                limit = min(limit, allowed)
            # What is written and not visible yet is no error: a leader before may have shown it already.
            may_exceed = not slices and allowed != 0
            if position < upto and nearer is None and (limit > 0 or may_exceed):
                found = log.slices(position, limit, upto)
                size_bytes = sum([piece.length_bytes for piece in found])
                if size_bytes > limit and not may_exceed:
                    size_bytes = 0  # only the first batch of a response may exceed the limit
                else:
                    slices += found
                if allowed is not None and self._allowance is not None:
                    self._allowance.take(size_bytes)
        except (AddressOutOfRangeError, Refused):
            return out_of_range(partition, part)
        except ColdSegmentError as cold:
            problem = self._learned.get(cold.segment)
            if problem is None and self._learning_left:
                raise
            return self._unreadable(partition, part, problem or cold)
        except LogError as error:
            return self._unreadable(partition, part, error)
        if self._tells_followers and isinstance(partition, Partition):
            follower_fetch.tell(partition, self._request.body)
        return FetchPartitionResult(
            part.partition,
            ErrorCode.NONE,
            visible,
            size_bytes,
            visible,
            log.start_address,
            diverging_epoch=parting,
            preferred_read_replica=-1 if nearer is None else nearer,
            address=position if size_bytes and self._request.body.wants_addresses else -1,
        )

    def _parting(self, part: FetchPartition, partition: Readable) -> EpochEnd | None:
        """See `leader_epochs.diverging`."""
        return leader_epochs.diverging(
            partition, part.last_fetched_epoch, part.fetch_offset, for_follower=self._is_follower
        )

    def _is_diverging(self, part: FetchPartition, partition: Readable) -> bool:
        """Whether the answer, at once, is that what was read last is not in this log, or a gap begins."""
        last = part.last_fetched_epoch
        if last == -1 or (last == partition.log.epochs.latest and not self._is_follower):
            return False
        try:
            return self._parting(part, partition) is not None
        except Refused:
            return True

    def _code_of_removed(self, partition: Readable, offset: int) -> ErrorCode:
        """Why a partition that this fetch waited for is not read here any more; NONE if it is."""
        if replica_reads.is_readable(self._state, partition, offset):
            return ErrorCode.NONE
        try:
            replica_reads.led(self._state, partition.name)
        except Refused as refused:
            return refused.code
        return ErrorCode.NOT_LEADER_OR_FOLLOWER  # not as the leader that it was asked as

    def _unreadable(self, partition: Readable, part: FetchPartition, error: LogError) -> FetchPartitionResult:
        """The answer where a batch is damaged or cannot be read. Producers, and readers of others, go on."""
        self._state.read_failed(partition, error)
        is_damaged = isinstance(error, LogDamagedError)
        code = ErrorCode.CORRUPT_MESSAGE if is_damaged else ErrorCode.KAFKA_STORAGE_ERROR
        return FetchPartitionResult(part.partition, code, -1, 0)


def handle(state: BrokerState, connection: ClientConnection, request: Request) -> None:
    """Responds now, or as soon as enough is visible."""
    body: FetchRequest = request.body
    slot = connection.open_slot()
    if body.session_epoch not in FULL_EPOCHS:
        slot.fill(answer_parts(request, FetchResponse([], ErrorCode.FETCH_SESSION_ID_NOT_FOUND)))
        return
    FetchWait(state, slot, request)
