"""Opens a partition's files after a stop, clean or not, and decides what is kept and what is cut off.

All bytes below the recovery point were flushed and are trusted. From there on the stored address, the length
and the CRC of every batch are checked. The first bad batch and all after it were never flushed completely, so
never acknowledged with acks=all nor shown to a consumer: they are cut off, with a warning in the log.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from headrace.log.checkpoint import Checkpoint, load
from headrace.log.errors import LogDamagedError, OldLogFormatError
from headrace.log.files import TEMPORARY_SUFFIX, sync_directory
from headrace.log.flush import FlushJob
from headrace.log.producers import ProducerStates
from headrace.log.segment import Segment, base_address_of
from headrace.wire.batch import HEADER_SIZE_BYTES, BatchHeader, read_header, verify
from headrace.wire.errors import WireError

logger = logging.getLogger(__name__)

READ_BYTES: Final = 4 * 1024 * 1024


class Opened(NamedTuple):
    """The segments of a directory, in order, and the producers' state at their end."""

    segments: list[Segment]
    producers: ProducerStates


def open_log(directory: Path, clock: Callable[[], int]) -> Opened:
    """Opens the segments, cuts off incomplete batches, and returns once all is durable; creates the first
    segment in an empty directory. `clock`: wall clock in ms. Raises `LogDamagedError`, `OldLogFormatError`,
    `OSError`.
    """
    segments = find_segments(directory)
    if not segments:
        segment = Segment(directory, 0, create_at_ms=clock())
        FlushJob(directory, (), directory_too=True, upto_address=0).run()
        return Opened([segment], ProducerStates())
    first = segments[0].base_address
    saved = load(directory)
    if saved is None or segments[-1].end_address < saved.recovery_point:
        saved = Checkpoint(first)  # no checkpoint, or bytes below it are missing: check everything
    producers = ProducerStates.restored(saved.producers, saved.saved_ms)
    for segment in segments[:-1]:
        if segment.base_address in saved.max_timestamps_ms:
            segment.note_max_timestamp(saved.max_timestamps_ms[segment.base_address])
    for segment in segments:
        if segment.end_address > saved.recovery_point:
            segment.file.drop_page_cache(max(0, saved.recovery_point - segment.base_address))
    kept = recover(
        directory,
        segments,
        max(saved.recovery_point, first),
        lambda header: producers.note(header, header.base_offset),
    )
    files = tuple(segment.file for segment in kept if segment.end_address > saved.recovery_point)
    FlushJob(directory, files, directory_too=True, upto_address=0).run()
    return Opened(kept, producers)


def find_segments(directory: Path) -> list[Segment]:
    """Returns the segments of a directory in order; removes temporary files of a crash."""
    bases = []
    for path in directory.iterdir():
        if path.name.endswith(TEMPORARY_SUFFIX):
            path.unlink()
        elif (base := base_address_of(path.name)) is not None:
            bases.append(base)
    return [Segment(directory, base) for base in sorted(bases)]


def recover(
    directory: Path, segments: list[Segment], recovery_point: int, on_batch: Callable[[BatchHeader], None]
) -> list[Segment]:
    """Returns the segments to keep, the last one cut after the last good batch.

    Calls `on_batch` with the header of every good batch, in order. Raises `LogDamagedError` if bytes below
    the recovery point are missing.
    """
    kept = segments
    for index, segment in enumerate(segments):
        following = segments[index + 1].base_address if index + 1 < len(segments) else None
        if following is not None and following <= recovery_point:  # the segment was flushed to its end
            if segment.end_address == following:
                continue
            raise LogDamagedError(
                f"{directory}: {segment.path.name} ends at address {segment.end_address}, the next segment "
                f"begins at {following}: restore the file, or move the later ones away"
            )
        good_end, problem = check_batches(segment, max(segment.base_address, recovery_point), on_batch)
        if problem is None and following not in (None, good_end):
            problem = f"the next segment begins at {following}"
        if problem is not None:
            _cut(directory, segments, index, good_end, problem)
            kept = segments[: index + 1]
            break
    return kept


def check_batches(
    segment: Segment, address: int, on_batch: Callable[[BatchHeader], None]
) -> tuple[int, str | None]:
    """Returns the end of the last good batch, and the problem of the next one (`None` if all are good).

    Raises `OldLogFormatError` before anything is cut.
    """
    file_end = segment.end_address
    window, window_address = memoryview(b""), address
    while address < file_end:
        at = address - window_address
        needed = HEADER_SIZE_BYTES
        try:
            if len(window) - at < needed:
                window, window_address, at = _read(segment, address, READ_BYTES), address, 0
            header = read_header(window, at)
            needed = header.size_bytes
            if address + needed > file_end:
                return address, f"its {needed} bytes are incomplete"
            if len(window) - at < needed:
                window, window_address, at = _read(segment, address, max(READ_BYTES, needed)), address, 0
            if not header.is_stored_at(address):
                if _is_old(header, address):
                    raise OldLogFormatError(segment.path.parent, f"the batch at address {address}")
                return address, f"its offsets are {header.base_offset} + {header.last_offset_delta}"
            verify(window, at, header)
        except WireError as error:
            return address, str(error)
        on_batch(header)
        if segment.starts.covered_address == address:
            segment.starts.note(address, needed, header.max_timestamp_ms)
        address += needed
    return address, None


def _is_old(header: BatchHeader, address: int) -> bool:
    """Whether the batch has the offsets that headrace stored until November 2026."""
    return header.base_offset == address and header.last_offset_delta == header.size_bytes - 1


def _read(segment: Segment, address: int, size_bytes: int) -> memoryview:
    return memoryview(os.pread(segment.file.fd, size_bytes, address - segment.base_address))


def _cut(directory: Path, segments: list[Segment], index: int, address: int, problem: str) -> None:
    lost = sum(segment.size_bytes for segment in segments[index:]) - (address - segments[index].base_address)
    logger.warning("%s: cut %d bytes off at address %d: %s", directory, lost, address, problem)
    for segment in reversed(segments[index + 1 :]):
        segment.release()
        segment.path.unlink()
    segment = segments[index]
    segment.truncate(address - segment.base_address)
    os.fsync(segment.file.fd)
    sync_directory(directory)
