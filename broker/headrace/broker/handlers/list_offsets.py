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
    """One request on its way: collects its partitions' answers; what needs no reading is answered at once."""

    def __init__(self, state: BrokerState, request: Request) -> None:
        self.promise: Promise[Tree] = Promise()
        self._state = state
        self._topics = request.body.topics
        self._answers: dict[tuple[int, int], Tree] = {}
        places = [
            (at, index, topic.name, each)
            for at, topic in enumerate(self._topics)
            for index, each in enumerate(topic.partitions)
        ]
        self._left = len(places)
        for at, index, topic, asked in places:
            self._ask(topic, asked, partial(self._settle, (at, index)))
        if not places:
            self._answer()

    def _ask(self, topic: str, asked: Any, settle: Callable[[Tree], None]) -> None:
        answer: Tree = {"partition_index": asked.partition_index, "error_code": ErrorCode.NONE}
        try:
            partition = self._state.led_partition(topic, asked.partition_index)
            self._state.check_leader_epoch(partition, getattr(asked, "current_leader_epoch", -1))
        except Refused as refused:
            settle(answer | {"error_code": refused.code})
            return

        def found(outcome: Outcome) -> None:
            try:
                # It may have gone, or gone offline, while its segments were read.
                if self._state.led_partition(topic, asked.partition_index) is not partition:
                    raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{partition.name} was made again")
                timestamp_ms, offset = self._place(partition, outcome)
            except Refused as refused:
                settle(answer | {"error_code": refused.code})
                return
            where = {"timestamp": timestamp_ms, "offset": offset, "leader_epoch": partition.leader_epoch}
            settle(answer | where)

        log = partition.log
        if asked.timestamp == LATEST:
            settle(answer | _known(partition, partition.visible_address))
        elif asked.timestamp in (EARLIEST, EARLIEST_LOCAL):
            settle(answer | _known(partition, log.start_address))
        elif asked.timestamp == LATEST_TIERED:
            settle(answer | _known(partition, -1))
        elif asked.timestamp == MAX_TIMESTAMP:
            self._state.lookups.find(log.search_max_timestamp()).then(found)
        else:
            self._state.lookups.find(log.search_timestamp(asked.timestamp)).then(found)

    def _place(self, partition: Partition, outcome: Outcome) -> tuple[int, int]:
        """`(timestamp, offset)`; -1 where there is none. Raises `Refused`."""
        if outcome is None:
            return NOWHERE
        if not isinstance(outcome, Exception):
            return outcome.timestamp_ms, outcome.offset
        if isinstance(outcome, Refused):
            raise outcome
        if isinstance(outcome, WireError):
            # A producer's doing: its checksum is right, but what it packed cannot be unpacked.
            logger.warning("%s: a lookup met a batch that cannot be read: %s", partition.name, outcome)
            raise Refused(ErrorCode.CORRUPT_MESSAGE, str(outcome))
        if isinstance(outcome, LogError):
            self._state.storage_failed(partition, outcome)
        else:
            logger.error("%s: a lookup failed: %s", partition.name, outcome, exc_info=outcome)
        raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, str(outcome))

    def _settle(self, place: tuple[int, int], answer: Tree) -> None:
        self._answers[place] = answer
        self._left -= 1
        if not self._left:
            self._answer()

    def _answer(self) -> None:
        self.promise.resolve(
            {
                "topics": [
                    {
                        "name": topic.name,
                        "partitions": [self._answers[at, index] for index in range(len(topic.partitions))],
                    }
                    for at, topic in enumerate(self._topics)
                ]
            }
        )


def handle(state: BrokerState, request: Request) -> Promise[Tree]:
    """Answered once every partition's place is known."""
    return _Job(state, request).promise


def _known(partition: Partition, offset: int) -> Tree:
    return {"timestamp": -1, "offset": offset, "leader_epoch": partition.leader_epoch}
