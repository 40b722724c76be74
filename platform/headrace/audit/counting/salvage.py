"""Counting past damage: reads one partition closely from where counting stopped, and sets bad batches aside.

Good batches before and between damaged ones are counted. Nothing is set aside before it was read twice: the
consumer saw the damage first, this module reads again.
"""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

from headrace.audit.batches.damage import Damage, damage_of, is_good_at, missing_bytes, walk
from headrace.audit.batches.raw_reader import READ_AGAIN_MAX_BYTES, READ_MAX_BYTES, RawBytes, RawReader
from headrace.audit.counting.partition_counter import PartitionCounter
from headrace.wire.errors import ErrorCode

logger = logging.getLogger(__name__)

SALVAGE_MAX_DAMAGES: Final = 1_000  # of one piece; the next piece begins behind the last of them


class Salvaged(NamedTuple):
    """`stuck`: why counting cannot go on now; "" if it goes on at the counter's `counted_to`.

    `jump_to`: the batch that holds `counted_to` begins there, so counting has to begin again there.
    """

    stuck: str = ""
    jump_to: int | None = None


def count_past_damage(reader: RawReader, counter: PartitionCounter, *, gives_up: bool = True) -> Salvaged:
    """Counts one piece of the log from `counter.counted_to` on, damaged batches excepted.

    `gives_up`: whether to set aside what the broker refuses to read; its disk may only be out of order for a
    moment. Raises `ClientError` if no broker answers.
    """
    topic, number = counter.partition.topic, counter.partition.log_partition
    address = counter.counted_to
    base, read = _read(reader, counter)
    if read.error is ErrorCode.OFFSET_OUT_OF_RANGE:
        return Salvaged()  # the consumer will meet it, too
    if read.error is not ErrorCode.NONE:
        problem = f"the broker answers {read.error.name}"
        if gives_up:
            return _skip_to_readable(reader, counter, problem)
        return Salvaged(stuck=f"{topic}-{number} at address {address}: {problem}")
    if not read.buffer or base > address:
        return Salvaged()  # the consumer will meet the gap, too
    holding = _batch_that_holds(read, address)
    if holding is not None and (base == address or read.address >= 0):
        return Salvaged(jump_to=holding)
    damages = 0
    for step in walk(read.buffer, base):
        if not step.cause or base + step.position < address:
            continue
        at = base + step.position
        _feed(counter, read, base, step.position)
        if step.end is None:
            unknown = f"a batch of unknown length at address {at} whose header cannot be believed"
            return _skip_to_readable(reader, counter, f"{unknown}: {step.cause}")
        size_bytes = step.end - step.position
        unbelieved = f"a batch of {size_bytes} bytes at address {at} whose header cannot be believed"
        damage = Damage(at, base + step.end, f"{unbelieved}: {step.cause}")
        if step.header is not None:
            damage = damage_of(step.header, step.cause, count_is_known=True, in_tally=False)
        set_aside(counter, damage)
        damages += 1
        if damages >= SALVAGE_MAX_DAMAGES:
            return Salvaged()
    _feed(counter, read, base, len(read.buffer))
    if counter.counted_to == address:
        problem = f"the broker sends {len(read.buffer)} bytes of a batch, and not its end"
        return _skip_to_readable(reader, counter, problem)
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


def _read(reader: RawReader, counter: PartitionCounter) -> tuple[int, RawBytes]:
    """Returns bytes with those from `counted_to` on, and the address of the first of them.

    A broker may not find the address of a damaged batch, and yet send its bytes behind those of the good one
    before it.
    """
    partition, address = counter.partition, counter.counted_to
    topic, number = partition.topic, partition.log_partition
    read = reader.read(topic, number, address)
    missing = missing_bytes(read.buffer, address) if read.error is ErrorCode.NONE and read.buffer else 0
    if missing:
        read = reader.read(topic, number, address, max(READ_MAX_BYTES, len(read.buffer) + missing))
    base = None if counter.last is None else counter.last.address
    if read.error is ErrorCode.NONE or base is None or base >= address:
        return (address if read.address < 0 else read.address), read
    for max_bytes in (READ_MAX_BYTES, READ_AGAIN_MAX_BYTES):
        earlier = reader.read(topic, number, base, max_bytes)
        if earlier.address not in (-1, base):
            return address, read
        if earlier.error is ErrorCode.NONE and len(earlier.buffer) > address - base:
            return base, earlier
    return address, read


def _feed(counter: PartitionCounter, read: RawBytes, base: int, end: int) -> None:
    start = counter.counted_to
    if start < base + end:
        counter.feed(read.buffer[start - base : end], start)


def _skip_to_readable(reader: RawReader, counter: PartitionCounter, cause: str) -> Salvaged:
    """Sets aside all from `counted_to` to the next address from which the broker can read on."""
    partition, start = counter.partition, counter.counted_to
    end = reader.end(partition.topic, partition.log_partition)
    following = None
    if end is not None and end > start:
        following = reader.first_good_after(partition.topic, partition.log_partition, start, end)
    if following is None:
        return Salvaged(stuck=f"{partition.name} cannot be read from address {start} on: {cause}")
    set_aside(counter, Damage(start, following, cause))
    return Salvaged()


def _batch_that_holds(read: RawBytes, address: int) -> int | None:
    """Returns where the first batch begins if it is good and begins before `address`, which lies in it."""
    header, place = read.header, read.place
    if header is None or not place < address < header.next_offset:
        return None
    return place if is_good_at(read.buffer, 0, place) else None
