"""Which bytes of a response are batches, and where a bad batch ends. Pure.

A bad batch must cost its own records and no others. So the reader goes on behind it only where two witnesses
agree on its end, or the one that there is cannot be doubted: its length and its offsets, or its length and
the batch behind it. Nothing is searched for: the values of records may look like batches.
"""

from typing import Final, NamedTuple

from headrace.wire.batch import (
    HEADER,
    HEADER_SIZE_BYTES,
    LENGTH_END_BYTES,
    BatchHeader,
    read_header,
    verify,
)
from headrace.wire.errors import CorruptBatchError
from headrace.wire.primitives import Buffer

OFFSETS_MAX: Final = 1 << 30
"""Of one batch; more are a sign of damage."""


class Batch(NamedTuple):
    """A whole batch at `at` in `buffer`, which is valid until the next batch is read.

    `problem`: why it cannot be read, "" for a sound one. The header of a bad batch is as sound as can be
    told: its offsets are those that the batch must have, or else 1 record is assumed.
    """

    header: BatchHeader
    buffer: Buffer
    at: int
    problem: str = ""

    @property
    def data(self) -> memoryview:
        return memoryview(self.buffer)[self.at : self.at + self.header.size_bytes]


class EndUnknownError(Exception):
    """A bad batch, and nothing says where the next one begins. The message has the cause."""


class Examiner:
    """Goes through the responses to the fetches of one range, which begins at `position`."""

    def __init__(self, position: int) -> None:
        self.position = position
        """Where the next batch is expected: the offset after the last one; its address, if that is known."""
        self._is_addressed = False

    def resume_at(self, position: int) -> None:
        """Continues at `position`, the end of a batch, in the response to another fetch."""
        self.position = position

    def whole_batches(
        self, records: Buffer, address: int | None
    ) -> tuple[list[Batch], EndUnknownError | None]:
        """Returns the whole batches, the bad ones with their problem, up to one whose end is unknown.

        `address`: where the records begin in the log; None if the broker does not say, as Apache Kafka.
        """
        self._is_addressed = address is not None
        if address is not None:
            self.position = address
        found: list[Batch] = []
        at, size = 0, len(records)
        while at + HEADER_SIZE_BYTES <= size:
            try:
                batch = self._batch(records, at)
            except EndUnknownError as error:
                return found, error
            if batch is None:
                break
            found.append(batch)
            self.position = batch.header.next_offset
            at += batch.header.size_bytes
        return found, None

    def _batch(self, records: Buffer, at: int) -> Batch | None:
        """Returns the batch at `at`; None if only a part of it is there."""
        try:
            header = read_header(records, at)
        except CorruptBatchError as error:
            raw = BatchHeader._make(HEADER.unpack_from(records, at))
            return self._bad(records, at, raw, str(error))
        is_in_place = header.address == self.position
        if at + header.size_bytes > len(records):
            if at or is_in_place or not self._is_addressed:
                return None
            # The first batch of a response is whole, however large.
            return self._bad(records, at, header, f"it claims {header.size_bytes} bytes, and has fewer")
        try:
            verify(records, at, header)
        except CorruptBatchError as error:
            return self._bad(records, at, header, str(error))
        if self._is_addressed and not is_in_place:
            problem = (
                f"its offsets {header.base_offset} + {header.last_offset_delta} are not those of address"
            )
            return self._bad(records, at, header, f"{problem} {self.position}", is_whole=True)
        if header.next_offset <= self.position:
            return self._bad(records, at, header, f"its offsets end at {header.next_offset}")
        return Batch(header, records, at)

    def _bad(
        self, records: Buffer, at: int, header: BatchHeader, problem: str, *, is_whole: bool = False
    ) -> Batch:
        """Returns a bad batch. `is_whole`: its CRC vouches for its length."""
        end, size_bytes = self._extent(records, at, header, is_whole=is_whole)
        if end is None:
            raise EndUnknownError(f"{problem}; nothing confirms that it has {header.size_bytes} bytes")
        count = header.record_count
        if not 0 < count <= min(size_bytes, end - self.position):
            count = 1
        sound = header._replace(
            batch_length=size_bytes - LENGTH_END_BYTES,
            base_offset=end - count,
            last_offset_delta=count - 1,
            record_count=count,
        )
        return Batch(sound, records, at, problem)

    def _extent(
        self, records: Buffer, at: int, header: BatchHeader, *, is_whole: bool
    ) -> tuple[int | None, int]:
        """Returns the offset after a bad batch, None if nothing confirms one, and the batch's size."""
        left_bytes, size_bytes = len(records) - at, header.size_bytes
        if not self._is_addressed:
            # Offsets that count records.
            is_ahead = 0 < header.next_offset - self.position < OFFSETS_MAX
            is_there = HEADER_SIZE_BYTES <= size_bytes <= left_bytes
            return (header.next_offset if is_ahead and is_there else None), size_bytes
        by_length, by_offsets = self.position + size_bytes, header.next_offset
        for end in (by_length, by_offsets):
            size_bytes = end - self.position
            if not HEADER_SIZE_BYTES <= size_bytes <= left_bytes:
                continue
            if by_length == by_offsets or is_whole or size_bytes == left_bytes:
                return end, size_bytes
            if _address_at(records, at + size_bytes) == end:
                return end, size_bytes
        return None, size_bytes


def _address_at(records: Buffer, at: int) -> int | None:
    """Returns the address that the batch at `at` claims; None if none can begin there."""
    if not 0 < at <= len(records) - HEADER_SIZE_BYTES:
        return None
    try:
        return read_header(records, at).address
    except CorruptBatchError:
        return None
