"""ListOffsets: earliest, latest, by timestamp, greatest timestamp (KIP-734)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from headrace.broker.bodies import Tree
from headrace.broker.errors import Refused
from headrace.broker.lookups import Outcome
from headrace.broker.partitions import Partition
from headrace.broker.promise import Promise
from headrace.broker.state import BrokerState
from headrace.log.errors import LogError
from headrace.wire.errors import ErrorCode, WireError
from headrace.wire.messages import Request

logger = logging.getLogger(__name__)

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4  # nothing is tiered: the same as earliest
LATEST_TIERED: Final = -5
NOWHERE: Final = (-1, -1)


class _Job:
    """A request in progress: collects its partitions' results. Only lookups by timestamp take time."""

    def __init__(self, state: BrokerState, request: Request) -> None:
        self.promise: Promise[Tree] = Promise()
        self._state = state
        self._topics = request.body.topics
        self._results: dict[tuple[int, int], Tree] = {}
        places = [
            (at, index, topic.name, part)
            for at, topic in enumerate(self._topics)
            for index, part in enumerate(topic.partitions)
        ]
        self._left = len(places)
        for at, index, topic, part in places:
            self._look_up(topic, part, partial(self._complete, (at, index)))
        if not places:
            self._respond()

    def _look_up(self, topic: str, part: Any, complete: Callable[[Tree], None]) -> None:
        result: Tree = {"partition_index": part.partition_index, "error_code": ErrorCode.NONE}
        try:
            partition = self._state.led_partition(topic, part.partition_index)
            self._state.check_leader_epoch(partition, getattr(part, "current_leader_epoch", -1))
        except Refused as refused:
            complete(result | {"error_code": refused.code})
            return

        def found(outcome: Outcome) -> None:
            try:
                # It may have been deleted, or gone offline, while its segments were read.
                if self._state.led_partition(topic, part.partition_index) is not partition:
                    raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{partition.name} was recreated")
                timestamp_ms, offset = self._outcome(partition, outcome)
            except Refused as refused:
                complete(result | {"error_code": refused.code})
                return
            complete(result | _found(partition, offset, timestamp_ms))

        log = partition.log
        if part.timestamp == LATEST:
            complete(result | _found(partition, partition.visible_address))
        elif part.timestamp in (EARLIEST, EARLIEST_LOCAL):
            complete(result | _found(partition, log.start_address))
        elif part.timestamp == LATEST_TIERED:
            complete(result | _found(partition, -1))
        elif part.timestamp == MAX_TIMESTAMP:
            self._state.lookups.find(log.search_max_timestamp()).then(found)
        else:
            self._state.lookups.find(log.search_timestamp(part.timestamp)).then(found)

    def _outcome(self, partition: Partition, outcome: Outcome) -> tuple[int, int]:
        """Returns `(timestamp, offset)`; -1 for none. Raises `Refused`."""
        if outcome is None:
            return NOWHERE
        if not isinstance(outcome, Exception):
            return outcome.timestamp_ms, outcome.offset
        if isinstance(outcome, Refused):
            raise outcome
        if isinstance(outcome, WireError):
            # Caused by the producer: the checksum is right, but the records cannot be decompressed.
            logger.warning("%s: a lookup met a batch that cannot be read: %s", partition.name, outcome)
            raise Refused(ErrorCode.CORRUPT_MESSAGE, str(outcome))
        if isinstance(outcome, LogError):
            self._state.read_failed(partition, outcome)
        else:
            logger.error("%s: a lookup failed: %s", partition.name, outcome, exc_info=outcome)
        raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, str(outcome))

    def _complete(self, place: tuple[int, int], result: Tree) -> None:
        self._results[place] = result
        self._left -= 1
        if not self._left:
            self._respond()

    def _respond(self) -> None:
        self.promise.resolve(
            {
                "topics": [
                    {
                        "name": topic.name,
                        "partitions": [self._results[at, index] for index in range(len(topic.partitions))],
                    }
                    for at, topic in enumerate(self._topics)
                ]
            }
        )


def handle(state: BrokerState, request: Request) -> Promise[Tree]:
    """Responds once every partition has its result."""
    return _Job(state, request).promise


def _found(partition: Partition, offset: int, timestamp_ms: int = -1) -> Tree:
    return {"timestamp": timestamp_ms, "offset": offset, "leader_epoch": partition.leader_epoch}
