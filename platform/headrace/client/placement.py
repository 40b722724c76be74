"""Whether a fetched batch lies where its offsets say. Pure.

On a headrace broker an offset is an address: a batch of L bytes that begins at address P ends at offset P + L
(see `wire.batch`). The base offset lies outside the batch's checksum, as in Apache Kafka, so a bit that
rots in it is found by the place of the batch alone. A broker says in ApiVersions whether its offsets are
addresses (`wire.apis.ADDRESS_FEATURE`); those of Apache Kafka count records, and nothing is checked.

Within one answer each batch begins where the one before it ends: a broker begins another answer behind a gap
that an administrator accepted. The first batch of an answer may begin before the position that was asked for,
or behind a gap; then what follows the batch must confirm its end.
"""

from __future__ import annotations

from typing import NamedTuple

from headrace.wire.batch import HEADER_SIZE_BYTES, BatchHeader, read_header
from headrace.wire.errors import CorruptBatchError
from headrace.wire.primitives import Buffer


class Misplaced(NamedTuple):
    """A batch at `at` in an answer that lies elsewhere than its offsets say.

    `end_offset`: where the next batch begins, by the place and the length of this one, if its checksum is
    right: it covers no length, but is over the bytes that the length says.
    """

    at: int
    end_offset: int
    problem: str


class NotConfirmedError(Exception):
    """Nothing in an answer confirms the offsets of a batch, nor refutes them: a longer answer may."""


def find_misplaced(
    records: Buffer,
    at: int,
    header: BatchHeader,
    position: int,
    high_watermark: int,
    *,
    is_end: bool,
    is_longest: bool,
) -> Misplaced | None:
    """Returns what is wrong with the place of the batch at `at`; None if its offsets are confirmed.

    `position`: the end of the batch before it, or the offset that was asked for; `is_end`: whether a
    confirmed batch ends there; `is_longest`: no answer can be longer. Raises `NotConfirmedError`.
    """
    if header.address == position:
        return None
    by_place = position + header.size_bytes
    is_beyond = header.next_offset > high_watermark >= 0
    if is_end and (at or header.address < position or is_beyond):
        return _misplaced(at, header, by_place)
    follower = _header_at(records, at + header.size_bytes)
    if follower is None:
        if header.next_offset == high_watermark:
            return None
        if is_longest and by_place == high_watermark:
            return _misplaced(at, header, by_place)
        raise NotConfirmedError
    if follower.address == header.next_offset:
        return None
    if is_end and follower.address == by_place:
        return _misplaced(at, header, by_place)
    # One of the two is wrong. What lies behind the follower says which.
    third = _header_at(records, at + header.size_bytes + follower.size_bytes)
    if follower.next_offset == (high_watermark if third is None else third.address):
        return _misplaced(at, header, follower.address)
    raise NotConfirmedError


def _misplaced(at: int, header: BatchHeader, end_offset: int) -> Misplaced:
    """Names a batch that ends at `end_offset`, by its place."""
    problem = (
        f"a batch with the offsets {header.base_offset} to {header.next_offset - 1}, but by its place in the "
        f"log it ends before offset {end_offset}"
    )
    return Misplaced(at, end_offset, problem)


def _header_at(records: Buffer, at: int) -> BatchHeader | None:
    if at + HEADER_SIZE_BYTES > len(records):
        return None
    try:
        return read_header(records, at)
    except CorruptBatchError:
        return None
