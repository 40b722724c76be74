"""What a consumer does where a log does not hold what it read, or not any more.

Its topic may have been deleted and made again, an unclean election may have cut the log, or retention may
have come by. A leader's claim that the log parted is checked: the batch that was read last is fetched again.
Then the consumer continues where the log parted from what was read (KIP-320), or where its settings say; or
it is an error.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from uuid import UUID

from headrace.client.calls import EARLIEST
from headrace.client.errors import ClientError, LogTruncationError, OffsetOutOfRangeError
from headrace.client.lineage import Claim
from headrace.client.partition_fetch import PartitionFetch
from headrace.wire.batch import HEADER_SIZE_BYTES
from headrace.wire.errors import ErrorCode
from headrace.wire.fetch import FetchPartitionResult
from headrace.wire.primitives import NO_UUID

logger = logging.getLogger(__name__)


class Divergence:
    """Decides for the partitions of one consumer, and moves them or sets their error."""

    def __init__(
        self,
        reset: int | None,
        wait: Callable[[PartitionFetch], None],
        back_off: Callable[[PartitionFetch, ClientError | None], None],
    ) -> None:
        """`reset`: where to continue without a valid position: EARLIEST, LATEST, or None for an error.

        `wait` fetches a partition again after a pause; `back_off` does so after a failure.
        """
        self._reset = reset
        self._wait = wait
        self._back_off = back_off

    def is_made_again(self, state: PartitionFetch, topic_id: UUID, *, by_name: bool) -> bool:
        """Whether the topic was deleted, and another one made under its name: the position is none of its.

        `topic_id`: that of the metadata; `by_name`: whether brokers are asked by the topic's name.
        """
        if topic_id == NO_UUID:
            return False
        if state.position is None or state.topic_id in (NO_UUID, topic_id):
            state.topic_id = topic_id
            return False
        if not (state.id_refused or by_name):
            return False  # a broker that is behind may have told of it: the leader knows
        if state.pieces:
            return True  # they are returned first
        cause = "its topic was deleted and made again"
        if self._reset is None:
            state.error = LogTruncationError(state.topic, state.partition, state.fetch_position, None, cause)
        else:
            logger.warning("%s-%d: %s, continuing at its start", state.topic, state.partition, cause)
            state.move_to(None, EARLIEST)
        return True

    def on_parted(self, state: PartitionFetch, claim: Claim) -> None:
        """The log does not hold this offset, or not what was read before it."""
        if state.pieces:
            # The prefetched records are returned first; a later fetch comes back here.
            self._wait(state)
        elif state.lineage.last_offset is not None:
            state.lineage.claim = claim
        else:
            self._begin_elsewhere(state, claim, has_parted=claim.is_precise)

    def on_read_again(self, state: PartitionFetch, claim: Claim, result: FetchPartitionResult) -> None:
        """The answer to the fetch of the batch that was read last, after a claim that it is not there."""
        lineage, records = state.lineage, result.records
        lineage.claim = None
        if isinstance(records, memoryview) and len(records) >= HEADER_SIZE_BYTES:
            if lineage.holds_last(records):
                logger.warning(
                    "%s-%d: its broker does not know leader epoch %d of the batch before offset %d, which is "
                    "in the log; reading goes on",
                    *(state.topic, state.partition, lineage.epoch, state.fetch_position),
                )
                state.lineage = lineage.before(0)
            else:
                self._begin_elsewhere(state, claim, has_parted=True)
        elif result.error_code == ErrorCode.NONE and result.high_watermark > (lineage.last_offset or 0):
            lineage.claim = claim  # the answer had no room for it
            self._wait(state)
        else:
            self._begin_elsewhere(state, claim, has_parted=claim.is_precise)

    def _begin_elsewhere(self, state: PartitionFetch, claim: Claim, *, has_parted: bool) -> None:
        """Continues where the log parted from what was read, if that is known, else where the settings say;
        or it is an error."""
        parting = state.lineage.parting(claim, state.fetch_position) if claim.is_precise else None
        reset = self._reset
        if parting == state.fetch_position:
            self._back_off(state, None)  # a leader that contradicts itself
        elif reset is None and has_parted:
            state.error = LogTruncationError(state.topic, state.partition, state.fetch_position, parting)
        elif reset is None:
            state.error = OffsetOutOfRangeError(state.topic, state.partition, state.fetch_position)
        else:
            where = "start" if reset == EARLIEST else "end"
            logger.warning(
                "%s-%d: %s, continuing at %s",
                *(state.topic, state.partition),
                f"the log has lost what was read up to offset {state.fetch_position}"
                if has_parted
                else f"offset {state.fetch_position} is not in the log",
                f"its {where}" if parting is None else f"offset {parting}",
            )
            kept = state.lineage.before(parting or 0)
            state.move_to(parting)
            state.lineage = kept
