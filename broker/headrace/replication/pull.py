"""The one primitive of replicas and mirrors: fetch at the copy's own end, append the bytes verbatim.

Owns the decision what may be appended. No checkpoint exists besides the copy's end, so a copy can neither
skip nor repeat. What to do when source and copy disagree is the caller's policy: a follower truncates, a
mirror halts the partition and alerts.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from headrace.wire.batch import hop, read_header, verify
from headrace.wire.errors import CorruptBatchError
from headrace.wire.primitives import Buffer


class ReplicationError(Exception):
    """Source and copy disagree: nothing was appended."""


class SourceBehindError(ReplicationError):
    """The source ends before the copy does: it lost bytes that the copy has, or is another log."""


class SourceAheadError(ReplicationError):
    """The source begins after the copy's end: retention deleted bytes that were never copied."""


class DivergedError(ReplicationError):
    """At an address that both have, the bytes differ, or the source's bytes are no batches for this
    address.
    """


class Fetched(NamedTuple):
    """Bytes of a source: whole batches from the address asked for (a short tail may follow; it is ignored).

    `start_address`, `end_address`: what the source holds now, as far as consumers may see it.
    """

    batches: Buffer
    start_address: int
    end_address: int


class LastBatch(NamedTuple):
    """The batch a copy ends with."""

    address: int
    crc: int


class Source(Protocol):
    """Where bytes come from."""

    def fetch(self, address: int) -> Fetched:
        """Batches from `address` on, at least one if one is there; none if `address` is not in
        `[start_address, end_address)`.
        """


class Sink(Protocol):
    """Where they go: a follower's own log, or a mirror partition behind a Produce request."""

    @property
    def end_address(self) -> int:
        """Where the next batch must begin; 0 for a copy to which nothing was ever appended."""

    def append(self, batches: Buffer) -> None:
        """Store whole batches that begin exactly at `end_address` (an empty copy takes any address)."""


class Pulled(NamedTuple):
    """What one pull did: bytes appended, and how many the copy still lacks."""

    appended_bytes: int
    lag_bytes: int


def pull_once(source: Source, sink: Sink) -> Pulled:
    """Copy once: at most what one fetch brings. Raises `ReplicationError`; what `source` and `sink` raise
    passes through.
    """
    address = sink.end_address
    fetched = source.fetch(address)
    if address == 0 and fetched.start_address > 0:
        address = fetched.start_address
        fetched = source.fetch(address)
    if fetched.end_address < address:
        raise SourceBehindError(f"the source ends at {fetched.end_address}, the copy at {address}")
    if fetched.start_address > address:
        raise SourceAheadError(f"the source begins at {fetched.start_address}, the copy ends at {address}")
    size_bytes = check_batches(fetched.batches, address)
    if size_bytes:
        sink.append(memoryview(fetched.batches)[:size_bytes])
    return Pulled(size_bytes, fetched.end_address - address - size_bytes)


def check_batches(batches: Buffer, address: int) -> int:
    """Bytes of the whole batches, each of which carries its address (`address` the first) and a right CRC.

    Raises `DivergedError`.
    """
    expected = address
    try:
        for at, header in hop(batches):
            if header.base_offset != expected or header.last_offset_delta != header.size_bytes - 1:
                raise DivergedError(
                    f"the source's batch for address {expected} says offset {header.base_offset} "
                    f"and last delta {header.last_offset_delta}: it does not keep byte addresses"
                )
            verify(batches, at, header)
            expected += header.size_bytes
    except CorruptBatchError as error:
        raise DivergedError(f"the source's batch for address {expected}: {error}") from None
    return expected - address


def check_tail(source: Source, last: LastBatch) -> None:
    """Before the first append: the source must hold the very batch the copy ends with.

    Sees divergence that lengths hide. A source whose retention deleted that batch passes: there is nothing
    left to compare. Raises `DivergedError`, `SourceBehindError`.
    """
    fetched = source.fetch(last.address)
    if fetched.start_address > last.address:
        return
    if fetched.end_address <= last.address:
        raise SourceBehindError(
            f"the source ends at {fetched.end_address}, the copy holds a batch at {last.address}"
        )
    try:
        header = read_header(fetched.batches)
    except CorruptBatchError as error:
        raise DivergedError(f"the source's batch at {last.address}: {error}") from None
    if header.base_offset != last.address or header.crc != last.crc:
        raise DivergedError(
            f"at address {last.address} the copy's batch has CRC {last.crc:#010x}, the source's "
            f"{header.crc:#010x} at {header.base_offset}: the copy is of another log"
        )
