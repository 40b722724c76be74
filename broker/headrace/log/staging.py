"""What was given an address and is not written yet: the batches of one wakeup, for one writev.

Owns the buffers and what must be undone if the write fails. Addresses and segments are the log's.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from headrace.log.producers import ProducerEntry
from headrace.wire.batch import readdress
from headrace.wire.primitives import Buffer

# Smaller batches are gathered into one buffer, larger ones are written from where they are.
COPY_BELOW_BYTES: Final = 32 * 1024


class StagedBatch(NamedTuple):
    """What is noted of a batch once it is written."""

    address: int
    size_bytes: int
    max_timestamp_ms: int


class Staging:
    """Empty after `clear`."""

    __slots__ = ("_gather", "batches", "buffers", "undo")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self._gather = bytearray()
        self.buffers: list[Buffer] = []
        self.batches: list[StagedBatch] = []
        self.undo: list[tuple[int, ProducerEntry | None]] = []

    def add(self, batch: Buffer, address: int, max_timestamp_ms: int, *, verbatim: bool) -> None:
        """Take a batch, with its address put in unless it is there already (`verbatim`).

        One of `COPY_BELOW_BYTES` or more is not copied: it must be writable and left alone until written.
        """
        size_bytes = len(batch)
        if size_bytes < COPY_BELOW_BYTES:
            gather = self._gather
            if not gather:
                self.buffers.append(gather)
            at = len(gather)
            gather += batch
            if not verbatim:
                readdress(gather, at, address)
        else:
            if not verbatim:
                readdress(batch, 0, address)  # type: ignore[arg-type]
            self.buffers.append(batch)
            self._gather = bytearray()
        self.batches.append(StagedBatch(address, size_bytes, max_timestamp_ms))
