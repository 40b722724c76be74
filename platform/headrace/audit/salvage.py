"""Counting past damage: reads one partition closely from where counting stopped, and sets bad batches aside.

Good batches before and between damaged ones are counted. Nothing is set aside before it was read twice: the
consumer saw the damage first, this module reads again.
"""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

from headrace.audit.counting import PartitionCounter
from headrace.audit.damage import Damage, damage_of, is_good_at, missing_bytes, walk
from headrace.audit.raw_reader import READ_MAX_BYTES, RawBytes, RawReader
from headrace.wire.batch import HEADER, HEADER_SIZE_BYTES, LENGTH_END_BYTES, BatchHeader
from headrace.wire.errors import ErrorCode

logger = logging.getLogger(__name__)

SALVAGE_MAX_DAMAGES: Final = 1_000  # of one piece; the next piece begins behind the last of them


class Salvaged(NamedTuple):
    """`stuck`: why counting cannot go on now; "" if it goes on at the counter's `counted_to`.

    `jump_to`: the batch that holds `counted_to` begins there, so counting has to begin again there.
    """

    stuck: str = ""
    jump_to: int | None = None


def count_past_damage(reader: RawReader, counter: PartitionCounter) -> Salvaged:
    """Counts one piece of the log from `counter.counted_to` on, damaged batches excepted.

    Raises `ClientError` if no broker answers.
    """
    topic, number = counter.partition.topic, counter.partition.log_partition
    address = counter.counted_to
    read = _read(reader, topic, number, address)
    if read.error is ErrorCode.OFFSET_OUT_OF_RANGE:
        return Salvaged()  # the consumer will meet it, too
    if read.error is not ErrorCode.NONE:
        return _skip_to_readable(reader, counter, f"the broker answers {read.error.name}", None)
    if not read.buffer:
        return Salvaged()
    holding = _batch_that_holds(read.buffer, address)
    if holding is not None:
        return Salvaged(jump_to=holding)
    damages = 0
    for step in walk(read.buffer, address):
        if not step.cause:
            continue
        at = address + step.position
        _feed(counter, read, address, step.position)
        if step.end is None:
            size_bytes = _claimed_size(read.buffer, step.position)
            return _skip_to_readable(reader, counter, step.cause, size_bytes)
        damage = Damage(at, address + step.end, f"{step.end - step.position} bytes: {step.cause}")
        if step.header is not None:
            damage = damage_of(step.header, step.cause, count_is_known=True, in_tally=False)
        set_aside(counter, damage)
        damages += 1
        if damages >= SALVAGE_MAX_DAMAGES:
            return Salvaged()
    _feed(counter, read, address, len(read.buffer))
    if counter.counted_to == address:
        problem = f"the broker sends {len(read.buffer)} bytes of a batch, and not its end"
        return _skip_to_readable(reader, counter, problem, None)
    return Salvaged()


def set_aside(counter: PartitionCounter, damage: Damage) -> None:
    """Continues behind a damaged batch, and says so in the log."""
    count = "an unknown number of" if damage.record_count is None else str(damage.record_count)
    logger.error(
        "%s: %s records at addresses %d to %d are corrupt: %s; counting goes on behind them",
        counter.partition.name,
        count,
        damage.start,
        damage.end,
        damage.cause,
    )
    counter.set_aside(damage)


def _read(reader: RawReader, topic: str, number: int, address: int) -> RawBytes:
    read = reader.read(topic, number, address)
    missing = missing_bytes(read.buffer, address) if read.error is ErrorCode.NONE and read.buffer else 0
    if missing:
        read = reader.read(topic, number, address, max(READ_MAX_BYTES, len(read.buffer) + missing))
    return read


def _feed(counter: PartitionCounter, read: RawBytes, address: int, end: int) -> None:
    start = counter.counted_to
    if start < address + end:
        counter.feed(read.buffer[start - address : end], start)


def _skip_to_readable(
    reader: RawReader, counter: PartitionCounter, cause: str, size_bytes: int | None
) -> Salvaged:
    """Sets aside all from `counted_to` to the next address from which the broker can read on."""
    partition, start = counter.partition, counter.counted_to
    end = reader.end(partition.topic, partition.log_partition)
    following = None
    if end is not None and end > start:
        following = reader.first_good_after(partition.topic, partition.log_partition, start, end)
    if following is None:
        return Salvaged(stuck=f"{partition.name} cannot be read from address {start} on: {cause}")
    if size_bytes is None:
        cause = f"no batch can be read there: {cause}"
    else:
        cause = f"a batch of {size_bytes} bytes at address {start} whose header cannot be believed: {cause}"
    set_aside(counter, Damage(start, following, cause))
    return Salvaged()


def _claimed_size(buffer: memoryview, position: int) -> int:
    header = BatchHeader._make(HEADER.unpack_from(buffer, position))
    return LENGTH_END_BYTES + header.batch_length


def _batch_that_holds(buffer: memoryview, address: int) -> int | None:
    """Returns where the first batch begins if it is good and begins before `address`, which lies in it."""
    if len(buffer) < HEADER_SIZE_BYTES:
        return None
    header = BatchHeader._make(HEADER.unpack_from(buffer, 0))
    is_before = header.address < address < header.next_offset
    return header.address if is_before and is_good_at(buffer, 0, header.address) else None
