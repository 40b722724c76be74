"""Batches that have an address but are not written yet, collected for one writev.

Owns the buffers, and what must be undone if the write fails. The log owns addresses and segments.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from headrace.log.producers import ProducerEntry
from headrace.wire.batch import BatchHeader, readdress
from headrace.wire.primitives import Buffer

# Smaller batches are copied into one buffer; larger ones are written from their own.
COPY_BELOW_BYTES: Final = 32 * 1024


class StagedBatch(NamedTuple):
    """What the segment records of a batch once it is written."""

    address: int
    size_bytes: int
    max_timestamp_ms: int


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
                base_offset = readdress(gather, at, address, leader_epoch)
        else:
            if leader_epoch is not None:
                base_offset = readdress(batch, 0, address, leader_epoch)  # type: ignore[arg-type]
            self.buffers.append(batch)
            self._gather = bytearray()
        self.batches.append(StagedBatch(address, size_bytes, header.max_timestamp_ms))
        return base_offset
