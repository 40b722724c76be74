"""The index of a sealed segment, a small file beside it: sparse starts of batches with the greatest timestamp
of each span, as `KnownStarts` holds them.

With it, a fetch into a segment that nobody has read since the start scans at most one span. It is written
only after the whole segment was flushed, and removed before the segment is cut or deleted. So it proves more:
all bytes up to its end were durable, and a next segment exists. Without it, or with a damaged one, the
segment is scanned and the index written again.

Format: a line with the CRC-32C of the rest in hex, a line of JSON, then the addresses and the timestamps as
little-endian int64. The first batch's CRC tells this segment from another log's of the same name and size.
"""

from __future__ import annotations

import json
import logging
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from crc32c import crc32c

from headrace.log import scan
from headrace.log.errors import LogError, LogReadError
from headrace.log.files import OpenFile, replace_file
from headrace.log.names import INDEX_SUFFIX, file_name
from headrace.log.starts import KnownStarts
from headrace.process.disk import explained
from headrace.wire.batch import CRC_AT

logger = logging.getLogger(__name__)

VERSION: Final = 1
SIZE_MAX_BYTES: Final = 64 * 1024 * 1024
_UINT32 = struct.Struct(">I")


class SegmentIndex(NamedTuple):
    """The starts of the batches in `[base_address, end_address)`; `first_crc`: its first batch's CRC."""

    base_address: int
    end_address: int
    first_crc: int
    starts: KnownStarts


def path_of(directory: Path, base_address: int) -> Path:
    return directory / file_name(base_address, INDEX_SUFFIX)


def encode(index: SegmentIndex) -> bytes:
    head = {
        "version": VERSION,
        "base": index.base_address,
        "end": index.end_address,
        "first_crc": index.first_crc,
        "max_timestamp_ms": index.starts.max_timestamp_ms,
    }
    body = json.dumps(head, separators=(",", ":")).encode() + b"\n" + index.starts.to_bytes()
    return b"%08x\n" % crc32c(body) + body


def decode(content: bytes) -> SegmentIndex | None:
    """Returns `None` if `content` is not a whole index of this version."""
    checksum, newline, body = content.partition(b"\n")
    if not newline or len(checksum) != 8:
        return None
    try:
        if int(checksum, 16) != crc32c(body):
            return None
        line, _, starts = body.partition(b"\n")
        head: dict[str, Any] = json.loads(line)
        numbers = [head[name] for name in ("base", "end", "first_crc", "max_timestamp_ms")]
        if head["version"] != VERSION or any(type(each) is not int for each in numbers):
            return None
        return SegmentIndex(
            head["base"],
            head["end"],
            head["first_crc"],
            KnownStarts.from_bytes(starts, head["end"], head["max_timestamp_ms"]),
        )
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError):
        return None


def load(directory: Path, base_address: int) -> SegmentIndex | None:
    """Returns the index of that segment; `None` if there is none, or it is damaged. Raises `OSError`."""
    path = path_of(directory, base_address)
    try:
        if path.stat().st_size > SIZE_MAX_BYTES:
            return None
        found = decode(path.read_bytes())
    except FileNotFoundError:
        return None
    return found if found is not None and found.base_address == base_address else None


def first_crc_of(file: OpenFile) -> int:
    """Returns the CRC in the first batch's header; 0 if the file is too short."""
    content = os.pread(file.fd, _UINT32.size, CRC_AT)
    crc: int = _UINT32.unpack(content)[0] if len(content) == _UINT32.size else 0
    return crc


def remove(directory: Path, base_address: int) -> None:
    path_of(directory, base_address).unlink(missing_ok=True)


class IndexJob:
    """Learns the starts of one segment up to `end_address`, on any thread; then `learn` runs on the log's.

    From its index, if it has one, else by a scan; with `save`, the index of a scanned segment is written. The
    caller says so only for a sealed segment that was flushed to its end, whose directory entry and next
    segment are durable, too. `unproven`: addresses, ascending, where batches begin according to a checkpoint;
    behind damage, the scan goes on at the next of them where a whole batch is.
    """

    def __init__(
        self,
        path: Path,
        file: OpenFile | None,
        starts: KnownStarts,
        end_address: int,
        *,
        save: bool,
        unproven: Sequence[int] = (),
    ) -> None:
        self.path = path
        self._file = file
        self._end = end_address
        self._base = starts.base_address
        self._starts = starts.copy()
        self._save = save
        self._unproven = unproven
        self.problem: LogError | None = None  # why the starts do not reach the end
        self.islands: list[KnownStarts] = []  # what is known behind damage

    def run(self) -> KnownStarts:
        """Returns the starts, up to the first batch that is damaged or cannot be read."""
        starts = self._starts
        try:
            file = self._file or OpenFile(self.path, os.O_RDONLY)
        except OSError as error:  # retention may have deleted it
            self.problem = LogReadError(f"{self.path}: {error.strerror}")
            return starts
        if starts.covered_address < self._end and (found := read_starts(self.path, file, self._end)):
            return found
        self.problem = self._scan(file, starts)
        if self.problem is not None:
            self._scan_behind(file)
        elif self._save:
            self._write(file)
        return starts

    def _scan(self, file: OpenFile, starts: KnownStarts) -> LogError | None:
        """Notes the batches up to the end, or to the first one that is damaged or cannot be read."""
        try:
            for step in scan.steps(file, self._base, starts.covered_address, self._end):
                starts.note(step.address, step.size_bytes, step.max_timestamp_ms)
        except LogError as error:
            return error
        return None

    def _scan_behind(self, file: OpenFile) -> None:
        known = self._starts
        for address in self._unproven:
            if address > known.covered_address and scan.has_batch_at(file, self._base, address, self._end):
                known = KnownStarts(address)
                self._scan(file, known)
                self.islands.append(known)

    def _write(self, file: OpenFile) -> None:
        if not self._is_still(file):
            return
        directory = self.path.parent
        content = encode(SegmentIndex(self._base, self._end, first_crc_of(file), self._starts))
        try:
            replace_file(path_of(directory, self._base), content)
        except OSError as error:
            if self.path.exists():
                logger.warning("no index was written: %s", explained(error, self.path))
            return
        # Who deletes or cuts a segment removes the index, changes the file, and removes the index: one of us
        # removes what we have just written.
        if not self._is_still(file):
            remove(directory, self._base)

    def _is_still(self, file: OpenFile) -> bool:
        """Whether the segment is the file that was scanned, as long as it was: it may have been deleted, and
        its topic made again, or cut.
        """
        try:
            now = self.path.stat()
        except OSError:
            return False
        scanned = os.fstat(file.fd)
        is_same = (now.st_dev, now.st_ino) == (scanned.st_dev, scanned.st_ino)
        return is_same and now.st_size == self._end - self._base


def read_starts(path: Path, file: OpenFile, end_address: int) -> KnownStarts | None:
    """Returns the starts in a segment's index, if it has one that reaches exactly to its end."""
    base = int(path.stem)
    try:
        found = load(path.parent, base)
    except OSError as error:
        logger.warning("%s: its index cannot be read: %s", path, error.strerror)
        return None
    if found is None or found.end_address != end_address or found.first_crc != first_crc_of(file):
        return None
    return found.starts
