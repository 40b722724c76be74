"""What one Fetch request may have of each partition: slices of log files, or an error.

A follower gets what is written, a consumer what is visible. `handlers.follower_fetch` has what else differs
for a follower, `replica_reads` which replica a consumer reads from. Source: KIP-74 (the first batch is
returned whole, however large), KIP-320 (epochs), KIP-392 (replicas of the reader's rack).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from headrace.broker import leader_hints
from headrace.broker.errors import Refused
from headrace.broker.handlers import follower_fetch, leader_epochs, replica_reads
from headrace.broker.handlers.fetch_results import out_of_range
from headrace.broker.handlers.replica_reads import Readable
from headrace.broker.partition import Partition
from headrace.broker.state import BrokerState
from headrace.log.directory import PartitionName
from headrace.log.epochs import EpochEnd
from headrace.log.errors import AddressOutOfRangeError, LogDamagedError, LogError
from headrace.log.files import FileSlice
from headrace.log.segment import ColdSegmentError, Segment
from headrace.wire.errors import ErrorCode
from headrace.wire.fetch import FetchPartition, FetchPartitionResult, FetchRequest
from headrace.wire.primitives import LeaderAndEpoch

LEARNING_MAX: Final = 1_000  # cold segments that one request waits for, one after the other


class Target(NamedTuple):
    """One partition of a request: the partition to read, or the error instead. `nearer`: the replica that the
    consumer should read instead. `leader`: who leads, said with the error.
    """

    part: FetchPartition
    partition: Readable | None
    code: ErrorCode
    nearer: int | None = None
    leader: LeaderAndEpoch | None = None


class FetchReading:
    """Looks partitions up for one request, and reads them: once, or once more after it has waited."""

    __slots__ = (
        "_allowance",
        "_body",
        "_is_follower",
        "_learned",
        "_learning_left",
        "_state",
        "_tells_followers",
    )

    def __init__(self, state: BrokerState, body: FetchRequest) -> None:
        self._state = state
        self._body = body
        self._is_follower = body.replica_id >= 0
        self._tells_followers = self._is_follower and follower_fetch.awaits_news(state, body)
        is_throttled = self._is_follower and state.throttles.leader.is_bounded
        self._allowance = follower_fetch.Allowance(state, body) if is_throttled else None
        self._learning_left = LEARNING_MAX
        self._learned: dict[Segment, LogError | None] = {}  # cold ones, with what kept it from their end

    # --- before it waits ---

    def look_up(self, name: str | None, part: FetchPartition) -> Target:
        """Returns where one partition is read, or why it is not; notes how far a follower is."""
        if name is None:
            return Target(part, None, ErrorCode.UNKNOWN_TOPIC_ID)
        state, body = self._state, self._body
        try:
            asked = PartitionName(name, part.partition)
            partition = replica_reads.readable(state, asked, body, part.fetch_offset)
            state.check_leader_epoch(partition, part.current_leader_epoch)
            if self._is_follower and isinstance(partition, Partition):
                follower_fetch.note(state, partition, part, body)
        except Refused as refused:
            leader = leader_hints.hint(state, name, part.partition, refused.code)
            return Target(part, None, refused.code, leader=leader)
        nearer = replica_reads.nearer(state, partition, body, part.fetch_offset)
        return Target(part, partition, ErrorCode.NONE, nearer)

    def is_due(self, target: Target) -> bool:
        """Whether the answer, at once, is an error, another replica, or that the logs differ."""
        partition = target.partition
        return partition is None or target.nearer is not None or self._is_diverging(target.part, partition)

    def available_bytes(self, partition: Readable, offset: int) -> int | None:
        """Returns how much may be read from there on; None if there is an error to report. What is written,
        but not flushed, may be asked for already."""
        if not replica_reads.is_readable(self._state, partition, offset) or partition.log.offline is not None:
            return None
        try:
            position = partition.log.position(offset)
        except LogError:
            return None
        available = max(0, self._upto(partition) - position)
        allowed = self._allowed_bytes(partition)
        return available if allowed is None else min(available, allowed)

    def has_news(self, partition: Readable) -> bool:
        """Whether a follower does not know the high watermark yet that consumers of its rack wait for."""
        if not self._tells_followers or not isinstance(partition, Partition):
            return False
        return follower_fetch.told(partition, self._body) < partition.visible_address

    # --- the answer ---

    def begin(self) -> None:
        """Begins the answer, perhaps once more."""
        if self._allowance is not None:
            self._allowance.begin()

    def read(
        self, target: Target, left_bytes: int, slices: list[FileSlice], *, has_waited: bool
    ) -> FetchPartitionResult:
        """Returns the result of one partition, whose records are a number of bytes; appends their slices.

        Raises `ColdSegmentError`, at most `LEARNING_MAX` times.
        """
        part, partition, code, nearer, leader = target
        if partition is not None and (has_waited or self._learned):
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
            follower_fetch.tell(partition, self._body)
        return FetchPartitionResult(
            part.partition,
            ErrorCode.NONE,
            visible,
            size_bytes,
            visible,
            log.start_address,
            diverging_epoch=parting,
            preferred_read_replica=-1 if nearer is None else nearer,
            address=position if size_bytes and self._body.wants_addresses else -1,
        )

    def learned(self, segment: Segment, problem: LogError | None) -> None:
        """Notes that it is known where the batches of a cold segment begin, or why not."""
        self._learning_left -= 1
        self._learned[segment] = problem

    def end(self) -> None:
        """Notes that the answer is sent."""
        if self._allowance is not None:
            self._allowance.send()

    # --- one partition ---

    def _upto(self, partition: Readable) -> int:
        """Returns the end of what this reader may have."""
        return partition.log.end_address if self._is_follower else partition.visible_address

    def _allowed_bytes(self, partition: Readable) -> int | None:
        """Returns what a throttled follower may have of a partition now; None without such a bound."""
        if self._allowance is None or not isinstance(partition, Partition):
            return None
        return self._allowance.left_bytes(partition)

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
