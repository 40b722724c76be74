"""Searches for a record by timestamp, one segment at a time. The log's thread decides which segment to read
next; any other thread may read it.

Owns the two searches: the first record at or after a timestamp, and the greatest timestamp. A search is a
generator that yields `SegmentScan`s and is sent their results; between two of them the log may append, roll
and delete segments. A search does not change the log.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Generator, Iterator
from contextlib import suppress
from itertools import islice
from typing import Final, NamedTuple

from headrace.log import scan
from headrace.log.errors import LogDamagedError
from headrace.log.files import FileSlice, OpenFile
from headrace.log.index import read_starts
from headrace.log.segment import Segment
from headrace.log.segments import SegmentList
from headrace.log.starts import NO_TIMESTAMP
from headrace.wire.batch import HEADER_SIZE_BYTES, read_header
from headrace.wire.errors import DecompressionLimitError, WireError
from headrace.wire.timestamps import timestamps

logger = logging.getLogger(__name__)

# A batch that is larger, or unpacks to more, is answered with its first record: a consumer that starts there
# misses nothing. At most `broker.lookups.RUNNING_MAX` batches are unpacked at a time.
UNPACKED_BATCH_MAX_BYTES: Final = 32 * 1024 * 1024


class TimestampedOffset(NamedTuple):
    """A record's offset and its timestamp."""

    offset: int
    timestamp_ms: int


class Scanned(NamedTuple):
    """The record, if the segment holds it; or the greatest timestamp, if the search is for that."""

    found: TimestampedOffset | None = None
    max_timestamp_ms: int = NO_TIMESTAMP


Search = Generator["SegmentScan", Scanned, TimestampedOffset | None]


class SegmentScan:
    """Scans one segment below the address `limit` for the first record with `timestamp_ms` or later, or, if
    that is None, for the greatest timestamp.

    `run` works on copies, on any thread; then `learn` must run on the log's thread.
    """

    def __init__(self, segment: Segment, timestamp_ms: int | None, limit: int) -> None:
        self.base_address = segment.base_address
        self._segment = segment
        self._timestamp_ms = timestamp_ms
        self._end = min(segment.end_address, limit)
        self._path = segment.path
        self._file = segment.file if segment.is_open else None
        self._known = segment.starts
        self._starts = segment.starts.copy()
        later = () if segment.later is None else (segment.later.copy(),)
        self._islands = (*segment.islands, *later)
        self._unproven = segment.unproven

    def run(self) -> Scanned:
        """Skips batches that cannot be unpacked, and what damage hides. Raises `LogReadError`, `OSError`."""
        try:
            file = self._file or OpenFile(self._path, os.O_RDONLY)
        except FileNotFoundError:
            return Scanned()  # retention deleted the segment since
        if self._starts.covered_address < self._end and (found := read_starts(self._path, file, self._end)):
            self._starts = found
        starts = self._starts
        with suppress(LogDamagedError):  # met once more below
            for step in scan.steps(file, self.base_address, starts.covered_address, self._end):
                starts.note(step.address, step.size_bytes, step.max_timestamp_ms)
        if self._timestamp_ms is None:
            return Scanned(max_timestamp_ms=self._greatest(file))
        return Scanned(self._first(file, self._timestamp_ms))

    def learn(self) -> None:
        """Gives the segment the starts that were found, so that the next search need not scan it."""
        if self._segment.starts is self._known:
            self._segment.learn(self._starts)

    def _first(self, file: OpenFile, timestamp_ms: int) -> TimestampedOffset | None:
        start = self._starts.first_span_reaching(timestamp_ms)
        if start is None:
            start = self._starts.covered_address  # the end, or damage
        for step in self._readable(file, start):
            if step.max_timestamp_ms >= timestamp_ms:
                found = self._first_in(file, step, timestamp_ms)
                if found is not None:
                    return found
        return None

    def _first_in(self, file: OpenFile, step: scan.Step, timestamp_ms: int) -> TimestampedOffset | None:
        at = step.address - self.base_address
        header = read_header(FileSlice(file, at, HEADER_SIZE_BYTES).read())
        if header.is_log_append_time:
            return TimestampedOffset(header.base_offset, header.max_timestamp_ms)
        first = TimestampedOffset(header.base_offset, header.base_timestamp_ms)
        if step.size_bytes > UNPACKED_BATCH_MAX_BYTES:
            return first
        batch = FileSlice(file, at, step.size_bytes).read()
        try:
            for offset, found_ms in timestamps(batch, limit_bytes=UNPACKED_BATCH_MAX_BYTES):
                if found_ms >= timestamp_ms:
                    return TimestampedOffset(offset, found_ms)
        except DecompressionLimitError:
            return first
        except WireError as error:
            # No consumer can read it either: the search goes on behind it. A client may repeat its request
            # without end, so this line is not among those that are logged by default.
            logger.debug(
                "%s: a lookup by time skips the batch at address %d: %s", self._path, step.address, error
            )
        return None

    def _greatest(self, file: OpenFile) -> int:
        start = self._starts.before(self._end)
        greatest_ms = self._starts.greatest_before(start)
        for step in self._readable(file, start):
            greatest_ms = max(greatest_ms, step.max_timestamp_ms)
        return greatest_ms

    def _readable(self, file: OpenFile, address: int) -> Iterator[scan.Step]:
        """Yields the batches from `address` on; behind damage, from the next one that is known to begin."""
        at: int | None = address
        while at is not None:
            try:
                for step in scan.steps(file, self.base_address, at, self._end):
                    yield step
                    at = step.address + step.size_bytes
                return
            except LogDamagedError as error:
                logger.debug("a lookup by time passes over damage: %s", error)
                at = self._start_behind(file, at)

    def _start_behind(self, file: OpenFile, address: int) -> int | None:
        """Returns where a batch begins behind an address at which none does; None if nothing tells."""
        begun = [run.base_address for run in self._islands if run.base_address > address]
        found = [start for run in (self._starts, *self._islands) if (start := run.after(address)) is not None]
        claimed = (each for each in self._unproven if each > address)
        whole = (each for each in claimed if scan.has_batch_at(file, self.base_address, each, self._end))
        return min([*begun, *found, *islice(whole, 1)], default=None)


def first_at(segments: SegmentList, timestamp_ms: int, limit: int) -> Search:
    """Searches, in log order below the address `limit`, for the first record with `timestamp_ms` or later."""
    after = -1
    while (segment := segments.first_after(after)) is not None and segment.base_address < limit:
        after = segment.base_address
        known_ms = segment.max_timestamp_if_known_ms
        if known_ms is not None and known_ms < timestamp_ms:
            continue
        scanned = yield SegmentScan(segment, timestamp_ms, limit)
        if scanned.found is not None:
            return scanned.found
    return None


def greatest(segments: SegmentList, limit: int) -> Search:
    """Searches for the first record with the greatest timestamp below `limit` (KIP-734)."""
    after, greatest_ms = -1, NO_TIMESTAMP
    while (segment := segments.first_after(after)) is not None and segment.base_address < limit:
        after = segment.base_address
        known_ms = segment.max_timestamp_if_known_ms if segment.end_address <= limit else None
        if known_ms is None:
            known_ms = (yield SegmentScan(segment, None, limit)).max_timestamp_ms
        greatest_ms = max(greatest_ms, known_ms)
    return (yield from first_at(segments, greatest_ms, limit)) if greatest_ms >= 0 else None
