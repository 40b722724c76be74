"""Batches that have an address but are not written yet, collected for one writev.

Owns the buffers, what must be undone if the write fails, and which batches may be stored as they are. The log
owns addresses and segments.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from headrace.log.errors import AddressMismatchError
from headrace.log.producers import ProducerEntry
from headrace.wire.batch import BatchHeader, place
from headrace.wire.primitives import Buffer

# Smaller batches are copied into one buffer; larger ones are written from their own.
COPY_BELOW_BYTES: Final = 32 * 1024


class StagedBatch(NamedTuple):
    """What the segment records of a batch once it is written."""

    address: int
    size_bytes: int
    max_timestamp_ms: int
    leader_epoch: int


class Staging:
    """The buffers to write, their batches, and the producer entries to restore if the write fails."""

    __slots__ = ("_gather", "batches", "buffers", "undo")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self._gather = bytearray()
        self.buffers: list[Buffer] = []
        self.batches: list[StagedBatch] = []
        self.undo: list[tuple[int, ProducerEntry | None]] = []

    def add(self, batch: Buffer, address: int, header: BatchHeader, leader_epoch: int | None) -> int:
        """Takes a batch, sets its offsets and leader epoch, and returns its base offset. If `leader_epoch`
        is None, the batch has them already.

        A batch of `COPY_BELOW_BYTES` or more is not copied: it must be writable and unchanged until written.
        """
        size_bytes = len(batch)
        base_offset = header.base_offset
        if size_bytes < COPY_BELOW_BYTES:
            gather = self._gather
            if not gather:
                self.buffers.append(gather)
            at = len(gather)
            gather += batch
            if leader_epoch is not None:
                base_offset = place(gather, at, header, address, leader_epoch)
        else:
            if leader_epoch is not None:
                base_offset = place(batch, 0, header, address, leader_epoch)  # type: ignore[arg-type]
            self.buffers.append(batch)
            self._gather = bytearray()
        epoch = header.partition_leader_epoch if leader_epoch is None else leader_epoch
        self.batches.append(StagedBatch(address, size_bytes, header.max_timestamp_ms, epoch))
        return base_offset

    def add_stored(self, batches: Buffer, address: int, headers: Iterable[BatchHeader]) -> int:
        """Takes batches that have their offsets and leader epochs already; returns the end of the last one.

        The first one is at `address`. They are not copied.
        """
        self.buffers.append(batches)
        self._gather = bytearray()
        for header in headers:
            size_bytes = header.size_bytes
            self.batches.append(
                StagedBatch(address, size_bytes, header.max_timestamp_ms, header.partition_leader_epoch)
            )
            address += size_bytes
        return address


class Run(NamedTuple):
    """Batches that follow each other in a segment. `begins_segment`: it is a new one."""

    headers: list[BatchHeader]
    size_bytes: int
    begins_segment: bool


def in_segments(headers: Iterable[BatchHeader], used_bytes: int, segment_bytes: int) -> Iterator[Run]:
    """Yields batches segment by segment. `used_bytes`: what the first segment holds already.

    A batch that is larger than a segment has one of its own.
    """
    run: list[BatchHeader] = []
    run_bytes, begins_segment = 0, False
    for header in headers:
        size_bytes = header.size_bytes
        if used_bytes and used_bytes + size_bytes > segment_bytes:
            if run:
                yield Run(run, run_bytes, begins_segment)
            run, run_bytes, used_bytes, begins_segment = [], 0, 0, True
        run.append(header)
        run_bytes += size_bytes
        used_bytes += size_bytes
    if run:
        yield Run(run, run_bytes, begins_segment)


def check_verbatim(headers: Iterable[BatchHeader], address: int | None, where: object) -> int:
    """Returns the address of the first batch.

    Raises `AddressMismatchError` unless each batch has its address already, the first one `address`; None:
    any. `where` names the log.
    """
    base = address
    for header in headers:
        if address is None:
            base = address = header.address
        if not header.is_stored_at(address):
            raise AddressMismatchError(
                f"{where}: a batch of {header.size_bytes} bytes and {header.record_count} "
                f"records with offsets {header.base_offset} + {header.last_offset_delta} does not "
                f"belong at address {address}"
            )
        address += header.size_bytes
    if base is None:
        raise AddressMismatchError(f"{where}: there is no whole batch to append")
    return base


def check_outermost(
    headers: Sequence[BatchHeader], address: int | None, size_bytes: int, where: object
) -> int:
    """Like `check_verbatim`, for batches that were checked one by one already (`wire.batch.hop_sound`): looks
    at the first and the last. `size_bytes`: of all of them.
    """
    base = check_verbatim(headers[:1], address, where)
    last = headers[-1]
    check_verbatim((last,), base + size_bytes - last.size_bytes, where)
    return base
