"""Damaged batches of a log, as values, and the walk that finds how far fetched bytes can be believed. Pure.

A batch is damaged if its header cannot be believed, if its checksum is wrong (the bytes changed after they
were stored), or if the checksum is right and its records cannot be read (its producer sent them so).

Where a batch ends is believed only from numbers that agree: base offset, length, record count and last offset
delta of a stored batch fit together for one address alone. If they do not, the batch's end is sought where
the header's own numbers point, and accepted only if a whole batch with a right checksum begins there. The
bytes are never searched for something that looks like a batch: payloads can forge one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from headrace.audit.times import is_named
from headrace.wire.batch import HEADER, HEADER_SIZE_BYTES, MAGIC, SEQUENCE_SPAN, BatchHeader, verify
from headrace.wire.errors import CorruptBatchError
from headrace.wire.primitives import Buffer

OTHER_BYTES: Final = "other bytes than were counted are on the disk of"
"""How the cause of a range begins that is readable, and not what was counted
(`audit.counting.replica_contents`)."""
ON_DISK: Final = "on the disk"
"""How the cause of a range begins that a broker's scrub found after it was counted
(`audit.counting.disk_damage`)."""
BATCH_SIZE_MAX_BYTES: Final = 128 * 1024 * 1024  # a header that claims more is not believed
NO_PRODUCER: Final = -1


class Damage(NamedTuple):
    """One damaged batch at [start, end), and what its header says as far as it can be believed.

    `record_count` and the times are None if the header cannot be believed; the producer's fields are then -1,
    as they are without a producer id. `in_tally`: the checksum is right, so the batch lies within a tally's
    range and its records count there as the header says, if their number is known.
    """

    start: int
    end: int
    cause: str
    record_count: int | None = None
    first_ms: int | None = None
    last_ms: int | None = None
    producer_id: int = NO_PRODUCER
    producer_epoch: int = -1
    first_sequence: int = -1
    last_sequence: int = -1
    in_tally: bool = False


class Step(NamedTuple):
    """What the walk found at `position` of the bytes: a good batch, or a damaged one.

    `end` is the position behind it; None if only the broker can say where the next batch begins.
    """

    position: int
    end: int | None
    cause: str = ""
    header: BatchHeader | None = None


def walk(buffer: Buffer, address: int) -> Iterator[Step]:
    """Yields every whole batch of `buffer`, whose first byte lies at `address`, but no cut last batch.

    Stops behind a damaged batch whose end is not known. Of a damaged batch, `header` is None if it cannot be
    believed.
    """
    position = 0
    while position + HEADER_SIZE_BYTES <= len(buffer):
        header = BatchHeader._make(HEADER.unpack_from(buffer, position))
        if _is_believable(header, address + position):
            end = position + header.size_bytes
            if end > len(buffer):
                return
            try:
                verify(buffer, position, header)
            except CorruptBatchError as error:
                yield Step(position, end, str(error), header)
            else:
                yield Step(position, end, "", header)
            position = end
            continue
        following = _end_by_its_own_numbers(buffer, position, address, header)
        yield Step(position, following, _problem(header))
        if following is None:
            return
        position = following


def is_good_at(buffer: Buffer, position: int, address: int) -> bool:
    """Whether a whole batch with a right checksum begins at `position`, whose address is `address`."""
    if position + HEADER_SIZE_BYTES > len(buffer):
        return False
    header = BatchHeader._make(HEADER.unpack_from(buffer, position))
    return _is_believable(header, address) and is_whole(buffer, position, header)


def is_whole(buffer: Buffer, position: int, header: BatchHeader) -> bool:
    """Whether all of the batch at `position` is there, with a right checksum; its offsets may be wrong."""
    if header.size_bytes < HEADER_SIZE_BYTES:
        return False
    try:
        verify(buffer, position, header)
    except CorruptBatchError:
        return False
    return True


def missing_bytes(buffer: Buffer, address: int) -> int:
    """Returns how many bytes the first batch of `buffer` lacks; 0 if that is not known."""
    if len(buffer) < HEADER_SIZE_BYTES:
        return HEADER_SIZE_BYTES - len(buffer)
    header = BatchHeader._make(HEADER.unpack_from(buffer, 0))
    return max(0, header.size_bytes - len(buffer)) if _is_believable(header, address) else 0


def damage_of(header: BatchHeader, cause: str, *, count_is_known: bool, in_tally: bool) -> Damage:
    """Returns the damage of a stored batch whose header fits its place."""
    first_ms = header.max_timestamp_ms if header.is_log_append_time else header.base_timestamp_ms
    last_ms = max(first_ms, header.max_timestamp_ms)
    times = (first_ms, last_ms) if is_named(first_ms) and is_named(last_ms) else (first_ms, first_ms)
    damage = Damage(header.address, header.next_offset, cause, None, *times, in_tally=in_tally)
    if not count_is_known:
        return damage
    damage = damage._replace(record_count=header.record_count)
    if header.producer_id < 0 or header.base_sequence < 0 or header.producer_epoch < 0:
        return damage
    last = min(header.base_sequence + header.record_count, SEQUENCE_SPAN) - 1
    return damage._replace(
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        first_sequence=header.base_sequence,
        last_sequence=last,
    )


def _is_believable(header: BatchHeader, address: int) -> bool:
    return (
        header.magic == MAGIC
        and HEADER_SIZE_BYTES <= header.size_bytes <= BATCH_SIZE_MAX_BYTES
        and header.record_count >= 0
        and header.is_stored_at(address)
    )


def _end_by_its_own_numbers(buffer: Buffer, position: int, address: int, header: BatchHeader) -> int | None:
    """Returns where the next batch begins if the length or the offsets of a damaged header lead to one."""
    for end in (position + header.size_bytes, header.next_offset - address):
        if end >= position + HEADER_SIZE_BYTES and is_good_at(buffer, end, address + end):
            return end
    return None


def _problem(header: BatchHeader) -> str:
    if header.magic != MAGIC:
        return f"no record batch begins here: the magic byte is {header.magic}"
    return (
        f"the header contradicts its place in the log: base offset {header.base_offset}, length "
        f"{header.batch_length}, {header.record_count} records, last offset delta {header.last_offset_delta}"
    )
