"""From fetched bytes to records or whole batches. For one thread.

Owns the checks of fetched batches, and the batches of which only a part of the records was returned.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import repeat
from typing import Final, NamedTuple

from headrace.client.cluster import TopicPartition
from headrace.client.errors import CorruptRecordsError
from headrace.client.partition_fetch import (
    MisplacedError,
    PartitionFetch,
    Piece,
    check_offsets,
    check_order,
)
from headrace.wire.batch import HEADER, HEADER_SIZE_BYTES, BatchHeader, hop, read_header, verify
from headrace.wire.errors import CorruptBatchError
from headrace.wire.records import Header, decode_columns


class ConsumerRecord(NamedTuple):
    """One record and its offset. Time in ms since the epoch."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]


# `ConsumerRecord._make` is a function in Python, which would be called for every record.
_AS_CONSUMER_RECORD: Final = partial(tuple.__new__, ConsumerRecord)


class FetchedBatches(NamedTuple):
    """Consecutive whole batches of one partition, byte for byte as the log holds them.

    `base_offset` is that of the first batch, `end_address` the offset after the last one. The first batch
    begins before the consumer's position if the position was inside it.
    """

    topic: str
    partition: int
    buffer: memoryview
    base_offset: int
    end_address: int
    high_watermark: int

    @property
    def address(self) -> int:
        """Where the first batch begins in the log of a headrace broker, whose offsets count bytes."""
        return self.end_address - len(self.buffer)


class _OpenBatch:
    """The first fetched batch of a partition while its records are being returned."""

    __slots__ = ("header", "records", "returned_count")

    def __init__(self, header: BatchHeader, records: list[ConsumerRecord]) -> None:
        self.header = header
        self.records = records
        self.returned_count = 0


class Unpacker:
    """Takes records or batches out of a partition's pieces and moves its position behind them."""

    def __init__(self, *, check_crcs: bool, decode_limit_bytes: int) -> None:
        self._check_crcs = check_crcs
        self._decode_limit_bytes = decode_limit_bytes
        self._open: dict[TopicPartition, _OpenBatch] = {}

    def is_open(self, key: TopicPartition) -> bool:
        """Returns whether only a part of the partition's first batch was returned."""
        return key in self._open

    def keep_only(self, keys: Iterable[TopicPartition]) -> None:
        """Forgets the open batches of all other partitions."""
        self._open = {key: self._open[key] for key in keys if key in self._open}

    def forget(self, key: TopicPartition) -> None:
        """Forgets the partition's open batch: its position was moved."""
        self._open.pop(key, None)

    def add_records(self, state: PartitionFetch, taken: list[ConsumerRecord], limit: int) -> None:
        """Adds records of the partition's first batch to `taken`, up to `limit`, and drops a used-up batch.

        Raises `CorruptRecordsError`.
        """
        key = (state.topic, state.partition)
        batch = self._open.get(key)
        if batch is None:
            batch = self._open[key] = self._decode(state, state.pieces[0])
        start = batch.returned_count
        records = batch.records[start : start + limit - len(taken)]
        if records:
            taken += records
            state.position = records[-1].offset + 1
            batch.returned_count += len(records)
        if batch.returned_count == len(batch.records):
            state.position = max(state.position or 0, batch.header.next_offset)
            del self._open[key]
            piece = state.pieces[0]
            piece.at += batch.header.size_bytes
            if piece.at >= len(piece.buffer):
                state.pieces.popleft()

    def add_batches(self, state: PartitionFetch, taken: list[FetchedBatches], limit: int) -> None:
        """Adds what is left of the partition's first piece to `taken`. Raises `CorruptRecordsError`."""
        piece = state.pieces[0]
        rest = piece.buffer[piece.at :]
        first = last = self._checked_header(state, piece)
        end = first.size_bytes
        # A bad batch ends what is taken now; the next call raises its error.
        with contextlib.suppress(CorruptBatchError):
            for at, header in hop(rest, first.size_bytes):
                if self._check_crcs:
                    verify(rest, at, header)
                if piece.is_misplaced(header, piece.at + at):
                    break
                check_offsets(header, piece.high_watermark)
                check_order(header, last.next_offset)
                last, end = header, at + header.size_bytes
        self.forget((state.topic, state.partition))
        piece.at += end
        if piece.at >= len(piece.buffer):
            state.pieces.popleft()
        state.position = last.next_offset
        taken.append(
            FetchedBatches(
                topic=state.topic,
                partition=state.partition,
                buffer=rest[:end],
                base_offset=first.base_offset,
                end_address=last.next_offset,
                high_watermark=piece.high_watermark,
            )
        )

    def _decode(self, state: PartitionFetch, piece: Piece) -> _OpenBatch:
        header = self._checked_header(state, piece)
        position = state.position or 0
        # Offsets that count records are compared with those of the next batch alone.
        behind = _header_at(piece, piece.at + header.size_bytes) if piece.address is None else None
        if behind is not None and _overlaps(header, behind, position):
            problem = f"a batch with the offsets {header.base_offset} to {header.next_offset - 1}, but the "
            raise corrupt(state, piece, f"{problem}next one begins at {behind.base_offset}")
        if header.is_control:
            return _OpenBatch(header, [])
        try:
            columns = decode_columns(piece.buffer, piece.at, limit_bytes=self._decode_limit_bytes)
        except CorruptBatchError as error:
            raise corrupt(state, piece, str(error)) from None
        first, last = min(columns.offsets, default=position), max(columns.offsets, default=position)
        if columns.offsets and not header.base_offset <= first <= last < header.next_offset:
            # The position would jump, and later records be taken for returned ones.
            problem = f"records with the offsets {first} to {last} in a batch of {header.base_offset} to "
            raise corrupt(state, piece, f"{problem}{header.next_offset - 1}")
        rows = zip(repeat(state.topic), repeat(state.partition), *columns)  # two have no end
        records = list(map(_AS_CONSUMER_RECORD, rows))
        if first < position:
            records = [record for record in records if record.offset >= position]
        return _OpenBatch(header, records)

    def _checked_header(self, state: PartitionFetch, piece: Piece) -> BatchHeader:
        try:
            header = read_header(piece.buffer, piece.at)
            if self._check_crcs:
                verify(piece.buffer, piece.at, header)
            self._check_place(state, piece, header)
            check_offsets(header, piece.high_watermark)
            check_order(header, state.position or 0)
        except CorruptBatchError as error:
            raise corrupt(state, piece, str(error)) from None
        return header

    @staticmethod
    def _check_place(state: PartitionFetch, piece: Piece, header: BatchHeader) -> None:
        if piece.address is not None and piece.is_misplaced(header, piece.at):
            verify(piece.buffer, piece.at, header)  # so that its length is right
            error = MisplacedError(header, piece.address + piece.at)
            raise _error(state, piece, str(error), error.end_offset)


def corrupt(state: PartitionFetch, piece: Piece, problem: str) -> CorruptRecordsError:
    """Returns the error for the first batch of a piece, with the offset behind it if that is known."""
    position = state.position or 0
    next_offset = _end_by_numbers(piece, position) if piece.address is None else _end_by_place(piece)
    return _error(state, piece, problem, next_offset)


def _error(state: PartitionFetch, piece: Piece, problem: str, next_offset: int | None) -> CorruptRecordsError:
    position = state.position or 0
    if next_offset is not None and not position < next_offset <= piece.high_watermark:
        next_offset = None
    return CorruptRecordsError(state.topic, state.partition, position, problem, next_offset)


def _end_by_numbers(piece: Piece, position: int) -> int | None:
    """Returns the offset behind a bad batch of a broker that does not say where its records begin."""
    next_offset: int | None = None
    if len(piece.buffer) - piece.at >= HEADER_SIZE_BYTES:
        next_offset = BatchHeader._make(HEADER.unpack_from(piece.buffer, piece.at)).next_offset
    behind = _following(piece)
    if behind is not None and not position < (next_offset or 0) <= behind.base_offset:
        next_offset = behind.base_offset  # the offsets of the bad batch are wrong: nothing lies between
    return next_offset


def _end_by_place(piece: Piece) -> int | None:
    """Returns where a bad batch ends, by its length or its offsets: if they agree, if only one of them is
    possible, or else by what begins or ends there. All of the batch is in the answer.
    """
    assert piece.address is not None
    if len(piece.buffer) - piece.at < HEADER_SIZE_BYTES:
        return None
    header = BatchHeader._make(HEADER.unpack_from(piece.buffer, piece.at))
    place, answer_end = piece.address + piece.at, piece.address + len(piece.buffer)
    ends = {place + header.size_bytes, header.next_offset}
    possible = [end for end in ends if place + HEADER_SIZE_BYTES <= end <= answer_end]
    if len(possible) > 1:
        possible = [end for end in possible if end == answer_end or _begins_at(piece, end)]
    return possible[0] if len(possible) == 1 else None


def _begins_at(piece: Piece, address: int) -> bool:
    behind = _header_at(piece, address - (piece.address or 0))
    return behind is not None and behind.address == address


def _overlaps(header: BatchHeader, behind: BatchHeader, position: int) -> bool:
    """Whether the offsets of a batch overlap those of the next one, and are the wrong ones of the two: it
    does not begin at `position`, neither by its offsets nor by its address.
    """
    begins_here = header.base_offset <= position or 0 <= header.address <= position
    return not begins_here and position <= behind.base_offset < header.next_offset


def _following(piece: Piece) -> BatchHeader | None:
    """Returns the header of the batch behind the piece's first batch, if its length leads there."""
    header = _header_at(piece, piece.at)
    return None if header is None else _header_at(piece, piece.at + header.size_bytes)


def _header_at(piece: Piece, at: int) -> BatchHeader | None:
    if at + HEADER_SIZE_BYTES > len(piece.buffer):
        return None
    try:
        return read_header(piece.buffer, at)
    except CorruptBatchError:
        return None
