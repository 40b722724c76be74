"""ListOffsets: earliest, latest, by timestamp, greatest timestamp (KIP-734).

A request may name many partitions. Its searches run a few at a time, so that it neither fills the queue of
searches for everybody nor holds more than a few batches in memory, and all of them end within one deadline.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from functools import partial
from typing import Any, Final, NamedTuple

from headrace.broker.bodies import Tree
from headrace.broker.errors import Refused
from headrace.broker.lookups import WAIT_MAX_MS, Outcome
from headrace.broker.partition import Partition
from headrace.broker.promise import Promise
from headrace.broker.state import BrokerState
from headrace.log.epochs import NO_EPOCH
from headrace.log.errors import LogError
from headrace.wire.errors import ErrorCode
from headrace.wire.messages import Request
from headrace.wire.topic_names import TopicPartition

logger = logging.getLogger(__name__)

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4  # nothing is tiered: the same as earliest
LATEST_TIERED: Final = -5
# Times below 0 that mean something else, and the version that began it; Apache Kafka refuses all others.
SPECIAL_FROM: Final = {LATEST: 1, EARLIEST: 1, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9}
UNSETTLED_FROM: Final = 5  # the first version that knows OFFSET_NOT_AVAILABLE (KIP-207)
NOTHING: Final = -1  # the offset where there is none
NOWHERE: Final = (-1, NOTHING)
SEARCHES_AT_ONCE_MAX: Final = 4  # of one request
# One slice of a long request is answered in a few ms; then other connections have their turn.
SLICE_PARTITIONS: Final = 500


class _Search(NamedTuple):
    """A search by time that has not begun."""

    key: TopicPartition
    partition: Partition
    timestamp_ms: int


class _Job:
    """A request in progress: collects its partitions' results. A partition that is named twice is refused, as
    in Kafka, and answered once.
    """

    def __init__(self, state: BrokerState, request: Request) -> None:
        self.promise: Promise[Tree] = Promise()
        self._state = state
        self._client = state.peer
        self._version = request.version
        self._places = [(topic.name, part) for topic in request.body.topics for part in topic.partitions]
        self._counts = Counter((topic, part.partition_index) for topic, part in self._places)
        self._names = list(dict.fromkeys(topic.name for topic in request.body.topics))
        self._results: dict[TopicPartition, Tree] = {}
        self._searches: deque[_Search] = deque()
        self._searching = 0
        self._deadline_ms = state.monotonic_ms() + WAIT_MAX_MS
        self._look_up_from(0)

    def _look_up_from(self, start: int) -> None:
        end = start + SLICE_PARTITIONS
        for topic, part in self._places[start:end]:
            self._look_up(topic, part)
        if end < len(self._places):
            self._state.loop.call_later(0, lambda: self._look_up_from(end))
            return
        self._places.clear()
        self._advance()

    def _look_up(self, topic: str, part: Any) -> None:
        key = (topic, part.partition_index)
        if self._counts[key] > 1:
            self._results[key] = _refused(part.partition_index, ErrorCode.INVALID_REQUEST)
            return
        try:
            partition = self._state.led_partition(topic, part.partition_index)
            self._state.check_not_cut_off(partition)
            self._state.check_leader_epoch(partition, getattr(part, "current_leader_epoch", -1))
        except Refused as refused:
            self._results[key] = _refused(part.partition_index, refused.code)
            return
        if part.timestamp < 0 and SPECIAL_FROM.get(part.timestamp, self._version + 1) > self._version:
            self._results[key] = _refused(part.partition_index, ErrorCode.UNSUPPORTED_VERSION)
        elif part.timestamp == LATEST:
            self._results[key] = self._latest(partition)
        elif part.timestamp in (EARLIEST, EARLIEST_LOCAL):
            self._results[key] = _found(partition, partition.log.start_address)
        elif part.timestamp == LATEST_TIERED:
            self._results[key] = _found(partition, NOTHING)
        else:
            self._searches.append(_Search(key, partition, part.timestamp))

    def _latest(self, partition: Partition) -> Tree:
        replicas = partition.replicas
        if replicas is not None and not replicas.is_settled:
            code = ErrorCode.OFFSET_NOT_AVAILABLE
            return _refused(
                partition.index, code if self._version >= UNSETTLED_FROM else ErrorCode.LEADER_NOT_AVAILABLE
            )
        return _found(partition, partition.visible_address)

    # --- searches ---

    def _advance(self) -> None:
        """Begins the searches that this request may have now; responds after the last one."""
        if self._state.monotonic_ms() >= self._deadline_ms:
            self._give_up()
        for _ in range(min(len(self._searches), SEARCHES_AT_ONCE_MAX - self._searching)):
            search = self._searches.popleft()
            log, upto = search.partition.log, search.partition.visible_address
            self._searching += 1
            if search.timestamp_ms == MAX_TIMESTAMP:
                steps = log.search_max_timestamp(upto)
            else:
                steps = log.search_timestamp(search.timestamp_ms, upto)
            self._state.lookups.find(steps, self._client).then(partial(self._ended, search))
        if not self._searches and not self._searching and not self.promise.done:
            self._respond()

    def _give_up(self) -> None:
        for key, _, _ in self._searches:
            self._results[key] = _refused(key[1], ErrorCode.REQUEST_TIMED_OUT)
        self._searches.clear()

    def _ended(self, search: _Search, outcome: Outcome) -> None:
        key, partition, _ = search
        self._searching -= 1
        try:
            # It may have been deleted, or gone offline, while its segments were read.
            if self._state.led_partition(*key) is not partition:
                raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{partition.name} was recreated")
            timestamp_ms, offset = self._judge(partition, outcome)
            self._results[key] = _found(partition, offset, timestamp_ms)
        except Refused as refused:
            self._results[key] = _refused(key[1], refused.code)
        # On the loop's next turn: thousands of searches that end at once must not hold it up.
        self._state.loop.call_later(0, self._advance)

    def _judge(self, partition: Partition, outcome: Outcome) -> tuple[int, int]:
        """Returns `(timestamp, offset)`; -1 for none. Raises `Refused`."""
        if outcome is None:
            return NOWHERE
        if not isinstance(outcome, Exception):
            return outcome.timestamp_ms, outcome.offset
        if isinstance(outcome, Refused):
            raise outcome
        if isinstance(outcome, LogError):
            self._state.read_failed(partition, outcome)
        else:
            logger.error("%s: a lookup failed: %s", partition.name, outcome, exc_info=outcome)
        raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, str(outcome))

    def _respond(self) -> None:
        by_topic: dict[str, list[Tree]] = {name: [] for name in self._names}
        for key in self._counts:
            by_topic[key[0]].append(self._results[key])
        self.promise.resolve(
            {"topics": [{"name": name, "partitions": found} for name, found in by_topic.items()]}
        )


def handle(state: BrokerState, request: Request) -> Promise[Tree]:
    """Responds once every partition has its result."""
    return _Job(state, request).promise


def _refused(index: int, code: ErrorCode) -> Tree:
    return {"partition_index": index, "error_code": code}


def _found(partition: Partition, offset: int, timestamp_ms: int = -1) -> Tree:
    return {
        "partition_index": partition.index,
        "error_code": ErrorCode.NONE,
        "timestamp": timestamp_ms,
        "offset": offset,
        "leader_epoch": _epoch_at(partition, offset),
    }


def _epoch_at(partition: Partition, offset: int) -> int:
    """Returns the leader epoch that belongs to an offset (KIP-320): that of the batch there, at the end the
    present leader's. A mirror's copy has its source's epochs: any other one than those ends before the offset
    (`leader_epochs.end_of`), as if the copy had lost what lies between.
    """
    epochs = partition.log.epochs
    if offset == NOTHING:
        return NO_EPOCH
    if offset < partition.visible_address:
        return epochs.at(offset)
    return epochs.latest if partition.config.mirror else partition.leader_epoch
