"""A record batch as a block of bytes: its header, length, checksum and address. Never decodes records.

Format: Kafka's RecordBatch v2 (https://kafka.apache.org/documentation/#recordbatch), the only one headrace
stores.

    0  baseOffset int64           21 attributes int16        43 producerId int64
    8  batchLength int32          23 lastOffsetDelta int32   51 producerEpoch int16
    12 partitionLeaderEpoch int32 27 baseTimestamp int64     53 baseSequence int32
    16 magic int8                 35 maxTimestamp int64      57 recordCount int32
    17 crc uint32 (of 21 to the end)                         61 records

`batchLength` counts from byte 12. baseOffset and partitionLeaderEpoch are outside the checksum, and a broker
changes nothing else, so the checksum that the producer computed stays.

The address of a stored batch is the place of its first byte in the log. A batch of L bytes with n records at
address P has the offsets P + L - n to P + L - 1: it is numbered from its end, so the offset after its last
record is the address of the next batch. Stored batches have fewer records than bytes (n < L).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from crc32c import crc32c

from headrace.wire.compression import Codec
from headrace.wire.errors import CorruptBatchError, UnsupportedMagicError
from headrace.wire.primitives import Buffer

HEADER_SIZE_BYTES: Final = 61
LENGTH_END_BYTES: Final = 12  # batchLength counts from here
MAGIC_AT: Final = 16
CRC_AT: Final = 17
ATTRIBUTES_AT: Final = 21
RECORD_COUNT_AT: Final = 57
MAGIC: Final = 2
SEQUENCE_SPAN: Final = 2**31  # sequence numbers wrap to 0 after 2**31 - 1
END_ADDRESS_MAX: Final = 2**63 - 1  # of a stored batch: it is the next offset, and Kafka's have 63 bits

CODEC_MASK: Final = 0x07
LOG_APPEND_TIME_BIT: Final = 0x08
TRANSACTIONAL_BIT: Final = 0x10
CONTROL_BIT: Final = 0x20

HEADER = struct.Struct(">qiibIhiqqqhii")
_OFFSET_AND_LENGTH = struct.Struct(">qi")
_OFFSET = struct.Struct(">q")
_PLACE = struct.Struct(">qii")
_PRODUCER = struct.Struct(">qhi")
_INT32 = struct.Struct(">i")
_UINT32 = struct.Struct(">I")


class BatchHeader(NamedTuple):
    """The 61 bytes before the records. Times in ms since the epoch; producer fields are -1 without a producer
    id.
    """

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        """The size of the whole batch, header and records."""
        return LENGTH_END_BYTES + self.batch_length

    @property
    def codec(self) -> Codec:
        """The compression codec. Raises `CorruptBatchError` for an unknown number."""
        try:
            return Codec(self.attributes & CODEC_MASK)
        except ValueError:
            raise CorruptBatchError(
                f"batch at offset {self.base_offset} has codec {self.attributes & 7}"
            ) from None

    @property
    def next_offset(self) -> int:
        """The offset to fetch after this batch; for a stored batch the address of its end."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def address(self) -> int:
        """The address of a stored batch. Negative, and meaningless, for a batch that a producer made."""
        return self.next_offset - self.size_bytes

    def is_stored_at(self, address: int) -> bool:
        """Whether the batch has exactly the offsets that a broker gives it at `address`."""
        size_bytes, count = LENGTH_END_BYTES + self.batch_length, self.record_count
        return (
            self.base_offset + count == address + size_bytes
            and self.last_offset_delta == count - 1
            and count < size_bytes
            and 0 <= address <= END_ADDRESS_MAX - size_bytes
        )

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & LOG_APPEND_TIME_BIT)

    @property
    def last_sequence(self) -> int:
        """Sequence number of the last record, wrapped as Kafka wraps it; -1 without a producer id."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.record_count - 1) % SEQUENCE_SPAN


def read_header(buffer: Buffer, at: int = 0) -> BatchHeader:
    """Reads the header of the batch at `at`.

    Checks magic, lengths and count; does not check the checksum or that the buffer holds the whole batch.
    Raises `CorruptBatchError` if no batch v2 starts here.
    """
    try:
        header = BatchHeader._make(HEADER.unpack_from(buffer, at))
    except struct.error:
        if len(buffer) - at > MAGIC_AT and buffer[at + MAGIC_AT] != MAGIC:
            raise _wrong_magic(buffer[at + MAGIC_AT]) from None
        raise CorruptBatchError(
            f"batch header needs {HEADER_SIZE_BYTES} bytes, {max(0, len(buffer) - at)} left"
        ) from None
    if header.magic != MAGIC:
        raise _wrong_magic(header.magic)
    if header.batch_length < HEADER_SIZE_BYTES - LENGTH_END_BYTES:
        raise CorruptBatchError(f"batch length {header.batch_length} is too short for a header")
    if header.record_count < 0 or header.last_offset_delta < 0:
        raise CorruptBatchError(
            f"batch has {header.record_count} records and last offset delta {header.last_offset_delta}"
        )
    return header


def hop(buffer: Buffer, at: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """Yields `(position, header)` of every complete batch in `buffer` from `at` on; ignores a cut last batch.

    Does not check checksums (`verify` does). Raises `CorruptBatchError` at an invalid header.
    """
    end = len(buffer)
    while at + HEADER_SIZE_BYTES <= end:
        header = read_header(buffer, at)
        after = at + LENGTH_END_BYTES + header.batch_length
        if after > end:
            return
        yield at, header
        at = after


def hop_sound(buffer: memoryview, address: int) -> tuple[list[BatchHeader], int]:
    """Returns the headers of the batches at the beginning of `buffer` that are whole, have a right CRC and
    lie at their address, the first one at `address`; and the size of these batches.

    Why it stops is not said: `read_header`, `verify` and `is_stored_at` tell. Every copied batch passes here.
    """
    headers: list[BatchHeader] = []
    at, size = 0, min(len(buffer), END_ADDRESS_MAX - address) if address >= 0 else 0
    unpack, make = HEADER.unpack_from, BatchHeader._make
    while at + HEADER_SIZE_BYTES <= size:
        fields = unpack(buffer, at)
        base_offset, length, _, magic, crc, _, last_delta, _, _, _, _, _, count = fields
        end = at + LENGTH_END_BYTES + length
        if not (
            magic == MAGIC
            and at + HEADER_SIZE_BYTES <= end <= size
            and 0 < count < end - at
            and last_delta == count - 1
            and base_offset + count == address + end
            and crc32c(buffer[at + ATTRIBUTES_AT : end]) == crc
        ):
            break
        headers.append(make(fields))
        at = end
    return headers, at


def verify(buffer: Buffer, at: int, header: BatchHeader) -> None:
    """Raises `CorruptBatchError` unless the whole batch is in `buffer` and its CRC-32C is right."""
    end = at + header.size_bytes
    if end > len(buffer):
        raise CorruptBatchError(f"batch of {header.size_bytes} bytes, {len(buffer) - at} left")
    actual = crc32c(memoryview(buffer)[at + ATTRIBUTES_AT : end])
    if actual != header.crc:
        raise CorruptBatchError(
            f"batch at offset {header.base_offset} has CRC {actual:#010x}, its header has {header.crc:#010x}"
        )


def readdress(buffer: bytearray | memoryview, at: int, address: int, leader_epoch: int) -> int:
    """Gives the batch at `at` its address and its leader's epoch, in place: baseOffset = `address` + L - n.

    The checksum does not cover them and stays. Returns the new base offset. The caller has verified the
    batch, and that it has fewer records than bytes.
    """
    (batch_length,) = _INT32.unpack_from(buffer, at + 8)
    (record_count,) = _INT32.unpack_from(buffer, at + RECORD_COUNT_AT)
    base_offset: int = address + LENGTH_END_BYTES + batch_length - record_count
    _OFFSET.pack_into(buffer, at, base_offset)
    _INT32.pack_into(buffer, at + LENGTH_END_BYTES, leader_epoch)
    return base_offset


def place(
    buffer: bytearray | memoryview, at: int, header: BatchHeader, address: int, leader_epoch: int
) -> int:
    """Like `readdress`, for a batch whose header was read already."""
    base_offset = address + LENGTH_END_BYTES + header.batch_length - header.record_count
    _PLACE.pack_into(buffer, at, base_offset, header.batch_length, leader_epoch)
    return base_offset


def renumber(
    buffer: bytearray | memoryview, at: int, producer_id: int, producer_epoch: int, base_sequence: int
) -> None:
    """Gives the batch at `at` another producer id, epoch and base sequence, in place; recomputes the CRC."""
    view = memoryview(buffer)
    _, batch_length = _OFFSET_AND_LENGTH.unpack_from(view, at)
    _PRODUCER.pack_into(view, at + 43, producer_id, producer_epoch, base_sequence)
    end = at + LENGTH_END_BYTES + batch_length
    _UINT32.pack_into(view, at + CRC_AT, crc32c(view[at + ATTRIBUTES_AT : end]))


def seal(
    records: Buffer,
    *,
    record_count: int,
    base_timestamp_ms: int,
    max_timestamp_ms: int,
    attributes: int = 0,
    base_offset: int = 0,
    last_offset_delta: int | None = None,
    partition_leader_epoch: int = -1,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
) -> bytes:
    """Returns the batch of `records`, which are already compressed by the codec that `attributes` names."""
    if last_offset_delta is None:
        last_offset_delta = record_count - 1
    tail = _AFTER_CRC.pack(
        attributes,
        last_offset_delta,
        base_timestamp_ms,
        max_timestamp_ms,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    )
    length = HEADER_SIZE_BYTES - LENGTH_END_BYTES + len(records)
    crc = crc32c(records, crc32c(tail))
    return b"".join((_TO_CRC.pack(base_offset, length, partition_leader_epoch, MAGIC, crc), tail, records))


_TO_CRC = struct.Struct(">qiibI")
_AFTER_CRC = struct.Struct(">hiqqqhii")


def _wrong_magic(magic: int) -> CorruptBatchError:
    if magic in (0, 1):
        return UnsupportedMagicError(
            f"message format {magic} (Kafka before 0.11) is not supported; only record batches v2 are"
        )
    return CorruptBatchError(f"not a record batch: its magic byte is {magic}")
