"""What a recovery cuts off: incomplete batches at the end of a log that were never flushed completely.

They go to `.cut` files beside the segments, named by the address of their first byte, with a warning that
counts what they hold. Those files go with retention, and the oldest when there are more than
`CUT_FILES_MAX`; both is said in the log.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from headrace.log import index
from headrace.log.files import OpenFile, sync_directory
from headrace.log.names import CUT_SUFFIX, TEMPORARY_SUFFIX, file_name
from headrace.log.segment import Segment
from headrace.wire.batch import HEADER_SIZE_BYTES, read_header
from headrace.wire.errors import WireError

logger = logging.getLogger(__name__)

CUT_FILES_MAX: Final = 64  # of one partition; each crash leaves at most a few
COPY_BYTES: Final = 1024 * 1024


class CutFile(NamedTuple):
    """A `.cut` file and when it was made (wall clock in ms)."""

    path: Path
    made_ms: int


class Content(NamedTuple):
    """What the headers say that bytes hold; batches behind an unreadable header are not counted."""

    batches: int
    records: int


def cut(directory: Path, segments: Sequence[Segment], at: int, address: int, problem: str) -> None:
    """Cuts everything from `address` on, which lies in `segments[at]`, off the log.

    A crash in between is no harm: the next start does the rest. Raises `OSError`, for example if the disk has
    no room for the copy; the log is then still as it was, or shorter by whole segments.
    """
    segment, later = segments[at], segments[at + 1 :]
    lost_bytes = segment.end_address - address + sum(each.size_bytes for each in later)
    held = [count(segment.file, segment.base_address, address, segment.end_address)]
    names = []
    for each in reversed(later):
        held.append(count(each.file, each.base_address, each.base_address, each.end_address))
        each.release()
        index.remove(directory, each.base_address)
        if each.size_bytes:
            aside = unused(directory, each.base_address, CUT_SUFFIX)
            each.path.rename(aside)
            names.append(aside.name)
        else:
            each.path.unlink()
    # The last segment is written again: an index says that a segment is finished.
    index.remove(directory, segment.base_address)
    if segment.end_address > address:
        copy = unused(directory, address, CUT_SUFFIX)
        copy_range(segment.file, address - segment.base_address, segment.size_bytes, copy)
        names.append(copy.name)
        sync_directory(directory)
        segment.truncate(address - segment.base_address)
    sync_directory(directory)
    logger.warning(
        "%s: cut %d bytes off at address %d, which were never flushed completely: %s. As far as their "
        "headers can be read, they hold %d batches with %d records; %s",
        directory,
        lost_bytes,
        address,
        problem,
        sum(each.batches for each in held),
        sum(each.records for each in held),
        f"they are kept in {', '.join(reversed(names))}" if names else "nothing is to be kept",
    )


def count(file: OpenFile, base_address: int, address: int, end_address: int) -> Content:
    """Counts the batches from `address` on, incomplete ones included, whatever their CRC is."""
    batches = records = 0
    while address < end_address:
        try:
            header = read_header(os.pread(file.fd, HEADER_SIZE_BYTES, address - base_address))
        except (WireError, OSError):
            break
        if not header.is_stored_at(address):
            break
        batches += 1
        records += header.record_count
        address += header.size_bytes
    return Content(batches, records)


def unused(directory: Path, address: int, suffix: str) -> Path:
    """Returns a path for a file of this kind that does not exist yet."""
    name = file_name(address, suffix)
    path, number = directory / name, 0
    while path.exists():
        number += 1
        path = directory / f"{name}.{number}"
    return path


def copy_range(file: OpenFile, start: int, end: int, target: Path) -> None:
    """Copies positions [start, end) of a file to a new one, durably; the directory is the caller's. Raises
    `OSError`.
    """
    temporary = target.with_name(target.name + TEMPORARY_SUFFIX)
    with temporary.open("wb") as made:
        at = start
        while at < end:
            piece = os.pread(file.fd, min(COPY_BYTES, end - at), at)
            if not piece:
                break
            made.write(piece)
            at += len(piece)
        made.flush()
        os.fsync(made.fileno())
    temporary.rename(target)


def cut_files(directory: Path) -> list[CutFile]:
    """Returns the `.cut` files of a partition, the oldest first; removes the oldest beyond
    `CUT_FILES_MAX`.
    """
    found = sorted(
        (CutFile(path, int(path.stat().st_mtime * 1000)) for path in directory.glob(f"*{CUT_SUFFIX}*")),
        key=lambda each: (each.made_ms, each.path.name),
    )
    for each in found[:-CUT_FILES_MAX]:
        logger.warning("%s: more than %d cut files: the oldest is deleted", each.path, CUT_FILES_MAX)
        each.path.unlink(missing_ok=True)
    return found[-CUT_FILES_MAX:]


def expire(files: Sequence[CutFile], before_ms: int) -> list[CutFile]:
    """Deletes the files that were made before `before_ms`; returns the others."""
    kept = []
    for each in files:
        if each.made_ms >= before_ms:
            kept.append(each)
            continue
        logger.info("%s: deleted by retention", each.path)
        each.path.unlink(missing_ok=True)
    return kept
