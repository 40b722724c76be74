"""One partition of a consumer: its position, its prefetched bytes, and what its next fetch has to wait for.

`client.fetching` sends the requests, `client.unpacking` takes the bytes out.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final

from headrace.client.calls import LATEST
from headrace.client.errors import ClientError
from headrace.client.lineage import ReadLineage
from headrace.wire.batch import BatchHeader
from headrace.wire.errors import CorruptBatchError
from headrace.wire.primitives import NO_UUID

_END_WANTED: Final = -1


class Piece:
    """Prefetched whole batches of one partition; those before `at` were returned to the application.

    `address`: where the buffer begins in the log; None if the broker does not say.
    """

    __slots__ = ("address", "at", "buffer", "high_watermark")

    def __init__(self, buffer: memoryview, high_watermark: int, address: int | None = None) -> None:
        self.buffer = buffer
        self.at = 0
        self.high_watermark = high_watermark
        self.address = address

    @property
    def left_bytes(self) -> int:
        return len(self.buffer) - self.at

    def is_misplaced(self, header: BatchHeader, at: int) -> bool:
        """Whether the batch at `at` has the offsets of another place, as far as its place is known."""
        return self.address is not None and header.next_offset - header.size_bytes != self.address + at


class PartitionFetch:
    """One assigned partition. `position`: the offset to return next; None while it has to be looked up."""

    __slots__ = (
        "_search_end",
        "error",
        "failures",
        "fetch_bytes",
        "fetch_position",
        "generation",
        "high_watermark",
        "high_watermark_s",
        "id_refused",
        "in_flight",
        "interruptions",
        "lineage",
        "not_before_s",
        "partition",
        "paused",
        "pieces",
        "position",
        "refusals",
        "reset_to",
        "suspect",
        "topic",
        "topic_id",
    )

    def __init__(self, topic: str, partition: int, fetch_bytes: int) -> None:
        self.topic = topic
        self.partition = partition
        self.position: int | None = None
        self.fetch_position = 0
        """The offset to fetch next: the end of the prefetched bytes."""
        self.reset_to: int | None = None
        """The timestamp (or EARLIEST, LATEST) to look up the position by; None: the consumer's setting."""
        # After a search by time that found nothing: the log's end as it was before the next one, or
        # `_END_WANTED` until that is known.
        self._search_end: int | None = None
        self.pieces: deque[Piece] = deque()
        self.in_flight = False
        """Whether a request for it is in flight."""
        self.generation = 0
        """Counts seeks: responses to requests of an older generation are discarded."""
        self.failures = 0
        self.interruptions = 0
        """Counts all failed fetches, since the partition was assigned."""
        self.lineage = ReadLineage()
        """Of what was fetched from `position` or before up to `fetch_position`."""
        self.topic_id = NO_UUID
        """Of the topic that the position is in; another one may be made under its name. Zero: not known."""
        self.id_refused = False
        """Whether the leader, asked by that id, has said last that it knows no such topic."""
        self.not_before_s = 0.0
        self.fetch_bytes = fetch_bytes
        self.high_watermark = -1
        self.high_watermark_s = -math.inf
        """When the fetch was sent whose answer has it, by the consumer's clock."""
        self.error: ClientError | None = None
        """Raised by `poll` once the pieces are used up."""
        self.paused = False
        self.suspect: int | None = None
        """The position at which a fetched batch was bad; it is fetched once more before it is skipped."""
        self.refusals = 0
        """How often the batch there was an error."""

    @property
    def buffered_bytes(self) -> int:
        return sum(piece.left_bytes for piece in self.pieces)

    def move_to(self, position: int | None, reset_to: int | None = None) -> None:
        """Discards the prefetched bytes and continues at `position`, or looks it up by `reset_to`."""
        self.position = position
        self.fetch_position = position or 0
        self.reset_to = reset_to
        self._search_end = None
        self.lineage = ReadLineage()
        self.topic_id = NO_UUID
        self.id_refused = False
        self.pieces.clear()
        self.generation += 1
        self.in_flight = False
        self.error = None
        self.failures = 0
        self.not_before_s = 0.0

    def looks_up(self, reset: int | None) -> int | None:
        """Returns what to look the position up by. `reset`: the consumer's setting."""
        if self._search_end == _END_WANTED:
            return LATEST
        return reset if self.reset_to is None else self.reset_to

    def looked_up(self, offset: int) -> int | None:
        """Takes the answer, -1 if no record has the time or a later one; returns the position, or None if
        there is more to look up: where the log ends, and whether anything came before that was known.
        """
        if self._search_end == _END_WANTED:
            self._search_end = offset
            return None
        if offset < 0 and self._search_end is None:
            self._search_end = _END_WANTED
            return None
        return self._search_end if offset < 0 else offset

    def rewind(self) -> None:
        """Discards the prefetched bytes; they are to be fetched again. A position that is looked up is looked
        up anew.
        """
        kept, topic_id = self.lineage.before(self.position or 0), self.topic_id
        self.move_to(self.position, self.reset_to)
        self.lineage, self.topic_id = kept, topic_id


def check_offsets(header: BatchHeader, high_watermark: int) -> None:
    """Raises `CorruptBatchError` if the offsets, which no checksum covers, lie behind the log's end.

    A position taken from them would be out of range, and the consumer would be sent to the log's other end.
    """
    if header.next_offset > high_watermark >= 0:
        raise CorruptBatchError(
            f"a batch with the offsets {header.base_offset} to {header.next_offset - 1}, but the log ends at "
            f"{high_watermark}"
        )


def check_order(header: BatchHeader, position: int) -> None:
    """Raises `CorruptBatchError` if the offsets of a batch that comes next lie before `position`.

    Its records would be taken for those that were returned before, and left out.
    """
    if header.next_offset <= position:
        raise CorruptBatchError(
            f"a batch with the offsets {header.base_offset} to {header.next_offset - 1} behind offset "
            f"{position - 1}"
        )


class MisplacedError(CorruptBatchError):
    """A batch at `address` that has the offsets of another place: its base offset is under no checksum.

    `end_offset`: the offset behind it, if its checksum is right, and so the bytes that its length says.
    """

    def __init__(self, header: BatchHeader, address: int) -> None:
        self.end_offset = address + header.size_bytes
        super().__init__(
            f"a batch with the offsets {header.base_offset} to {header.next_offset - 1}, but by its place in "
            f"the log they end at {self.end_offset - 1}"
        )
