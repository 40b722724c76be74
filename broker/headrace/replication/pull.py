"""The primitive of replicas and mirrors: fetch at the copy's end, append the bytes verbatim.

Checks what may be appended. The copy's end is the only checkpoint, so a copy never skips or repeats a batch.
The caller decides what to do if source and copy disagree: a follower truncates, a mirror stops the partition
and alerts.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

from headrace.log.epochs import EpochEnd
from headrace.wire.batch import HEADER_SIZE_BYTES, BatchHeader, hop_sound, read_header, verify
from headrace.wire.errors import CorruptBatchError
from headrace.wire.primitives import Buffer

REFUSED: Final = "its broker cannot read it (CORRUPT_MESSAGE)"


class ReplicationError(Exception):
    """Source and copy disagree; nothing was appended."""


class SourceBehindError(ReplicationError):
    """The source ends before the copy: it lost bytes that the copy has, or it is another log."""


class SourceAheadError(ReplicationError):
    """The source begins after the copy's end: retention deleted bytes that were never copied."""


class DivergedError(ReplicationError):
    """Source and copy differ at an address that both have, or the source's bytes are not batches for it."""


class DamagedBatchError(DivergedError):
    """The source's batch at `address` is not what its CRC says, or is no batch.

    `end_address`: where the next batch begins; None if the batch's length cannot be believed.
    """

    def __init__(self, address: int, end_address: int | None, problem: str) -> None:
        self.address = address
        self.end_address = end_address
        self.problem = problem
        where = f"addresses {address} to {end_address}" if end_address else f"address {address}"
        super().__init__(f"the source's batch at {where} is damaged: {problem}")


class MissingRangeError(DivergedError):
    """The source has no batch at the addresses [address, end_address), and goes on behind them."""

    def __init__(self, address: int, end_address: int) -> None:
        self.address = address
        self.end_address = end_address
        super().__init__(
            f"the source no longer holds addresses {address} to {end_address}: they were damaged, and moved "
            "aside there (`headrace log set-aside`)"
        )


class Fetched(NamedTuple):
    """Whole batches of a source from the requested address on; an incomplete last batch is ignored.

    `start_address`, `end_address`: the range that the source holds and shows to consumers.
    """

    batches: Buffer
    start_address: int
    end_address: int


class LastBatch(NamedTuple):
    """The last batch of a copy."""

    address: int
    end_address: int
    crc: int
    leader_epoch: int


class CopySource(Protocol):
    """The log that is copied."""

    def fetch(self, address: int) -> Fetched:
        """Returns batches from `address` on: at least one, or none if `address` is outside
        `[start_address, end_address)`.
        """


class CopySink(Protocol):
    """The copy: a follower's own log, or a mirror partition behind a Produce request."""

    @property
    def end_address(self) -> int:
        """The address of the next batch; 0 if nothing was ever appended."""

    def append(self, batches: Buffer) -> None:
        """Stores whole batches that begin at `end_address` (an empty copy accepts any address)."""


class Pulled(NamedTuple):
    """The bytes that one pull appended, and the bytes that the copy still lacks."""

    appended_bytes: int
    lag_bytes: int


def pull_once(source: CopySource, sink: CopySink) -> Pulled:
    """Copies the batches of one fetch. Raises `ReplicationError` and what `source` and `sink` raise."""
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
    """Returns the size of the whole batches in `batches`.

    Raises `DivergedError` unless each has its address (the first one `address`) and a right CRC.
    """
    prefix = sound_prefix(batches, address)
    if prefix.problem is not None:
        raise prefix.problem
    return prefix.size_bytes


class SoundPrefix(NamedTuple):
    """The whole batches before the first bad one; `problem`: what is wrong with that one."""

    headers: list[BatchHeader]
    size_bytes: int
    problem: DivergedError | None


def sound_prefix(batches: Buffer, address: int) -> SoundPrefix:
    """Returns the good batches at the beginning of `batches`.

    A good batch has its address (the first one `address`) and a right CRC, whatever its records are.
    """
    batches = memoryview(batches)
    headers, at = hop_sound(batches, address)
    problem = _problem_of(batches, at, address + at) if at + HEADER_SIZE_BYTES <= len(batches) else None
    return SoundPrefix(headers, at, problem)


def _problem_of(batches: memoryview, at: int, address: int) -> DivergedError | None:
    """Returns what is wrong with the batch at position `at`, which is not good; None if it is not whole."""
    try:
        header = read_header(batches, at)
        if at + header.size_bytes > len(batches):
            return None
        verify(batches, at, header)
    except CorruptBatchError as error:
        return DamagedBatchError(address, _end_of_damaged(batches, at, address), str(error))
    return _misplaced(header, address)


def _misplaced(header: BatchHeader, expected: int) -> DivergedError:
    if header.address > expected and header.is_stored_at(header.address):
        return MissingRangeError(expected, header.address)
    return DivergedError(
        f"the source's batch for address {expected} ({header.size_bytes} bytes, {header.record_count} "
        f"records) has offset {header.base_offset} and last delta {header.last_offset_delta}: it does not "
        "keep byte addresses"
    )


def _end_of_damaged(batches: Buffer, at: int, address: int) -> int | None:
    """Returns the address behind a damaged batch, if its own header or the batch behind it vouches for it."""
    try:
        header = read_header(batches, at)
    except CorruptBatchError:
        return None
    if header.is_stored_at(address):
        return address + header.size_bytes
    # Either the length is wrong, or the offset. A wrong length may lead to a later batch, past good ones.
    ends = {address + header.size_bytes, header.base_offset + header.record_count}
    confirmed = (end for end in ends if end > address and _begins_at(batches, at + end - address, end))
    return min(confirmed, default=None)


def _begins_at(batches: Buffer, at: int, address: int) -> bool:
    try:
        return read_header(batches, at).is_stored_at(address)
    except CorruptBatchError:
        return False


def check_epoch(source_end: EpochEnd, last: LastBatch) -> None:
    """Checks, before the first append, that the source has all of the leader epoch that the copy's last batch
    is of. With `check_tail` that is enough: an address and its epoch name one batch for ever. `source_end`:
    what the source answered for that epoch. Raises `DivergedError`.
    """
    if source_end.epoch == last.leader_epoch and source_end.end_address >= last.end_address:
        return
    if source_end.epoch < 0:
        problem = f"the source has nothing of leader epoch {last.leader_epoch}, nor of a later one"
    elif source_end.epoch == last.leader_epoch:
        problem = f"in the source leader epoch {last.leader_epoch} ends at {source_end.end_address}"
    else:
        problem = (
            f"the source has nothing of leader epoch {last.leader_epoch}; its epoch {source_end.epoch} ends "
            f"at {source_end.end_address}"
        )
    raise DivergedError(
        f"{problem}; the copy's last batch, at {last.address} to {last.end_address}, is of that epoch: "
        "another leader's bytes were copied, and the source has lost them"
    )


def check_tail(source: CopySource, last: LastBatch) -> None:
    """Checks, before the first append, that the source holds the copy's last batch.

    Detects copies of equal length but other content. Passes if the source no longer has the batch: its
    retention deleted it, or it was set aside. Raises `DivergedError`, `SourceBehindError`.
    """
    fetched = source.fetch(last.address)
    if fetched.start_address > last.address:
        return
    if fetched.end_address <= last.address:
        raise SourceBehindError(
            f"the source ends at {fetched.end_address}, the copy holds a batch at {last.address}"
        )
    if not len(fetched.batches):
        return  # everything from there to the source's end was set aside
    try:
        header = read_header(fetched.batches)
    except CorruptBatchError as error:
        raise DivergedError(f"the source's batch at {last.address}: {error}") from None
    if header.address > last.address and _is_stored(source, header.address):
        return
    if header.address != last.address or header.crc != last.crc:
        raise DivergedError(
            f"at address {last.address} the copy's batch has CRC {last.crc:#010x}, the source's "
            f"{header.crc:#010x} at {header.address}: the copy is of another log"
        )


def _is_stored(source: CopySource, address: int) -> bool:
    """Whether the source finds a batch at `address`: a batch's own offset is not under its checksum."""
    try:
        return read_header(source.fetch(address).batches).is_stored_at(address)
    except CorruptBatchError:
        return False
