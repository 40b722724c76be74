"""Sums up what the files of a partition's log hold between two addresses, now (`wire.content`).

Reads headers only, through descriptors of its own, so any thread may do it while the log is written. What the
checksums do not cover, or what rotted beneath them, `log.scrub` finds.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from headrace.log.files import OpenFile
from headrace.log.names import SEGMENT_SUFFIX, address_of, file_name
from headrace.wire.batch import HEADER_SIZE_BYTES, BatchHeader, read_header
from headrace.wire.content import NO_BATCHES, added, content_of
from headrace.wire.errors import WireError
from headrace.wire.log_contents import NO_LOG, ContentAnswer

WINDOW_BYTES: Final = 32 * 1024


class Summed(NamedTuple):
    """What the batches hold, and how many they were."""

    answer: ContentAnswer
    batch_count: int


def sum_contents(directory: Path, start: int, end: int, batches_max: int) -> Summed:
    """Sums up the batches from `start`, where one must begin, until one reaches `end`; at most `batches_max`.

    Control batches and empty ones count as no content. Never raises: what is wrong is the answer's problem.
    """
    total, address, last_start, count = NO_BATCHES, start, -1, 0
    try:
        for batch in _batches(directory, start, end):
            if not batch.header.is_control and batch.header.record_count:
                total = added(total, content_of(batch.data, batch.at)) or NO_BATCHES
            last_start, address, count = address, address + batch.header.size_bytes, count + 1
            if count == batches_max:
                break
    except (OSError, WireError, _MissingError) as error:
        problem = str(error) or type(error).__name__
        contradicts = isinstance(error, _NoBatchError | WireError)
        return Summed(ContentAnswer(NO_BATCHES, address, -1, problem, contradicts), count)
    return Summed(ContentAnswer(total, address, last_start), count)


class _Batch(NamedTuple):
    """A batch's header, which begins at `at` of `data`."""

    header: BatchHeader
    data: bytes
    at: int


def _batches(directory: Path, address: int, end: int) -> Iterator[_Batch]:
    """Yields the batches from `address` to the one that reaches `end`, over all segments."""
    while address < end:
        with _Window(directory, address) as window:
            while address < end and window.holds(address):
                at = window.at(address)
                header = read_header(window.data, at)
                if not header.is_stored_at(address):
                    raise _NoBatchError(f"no batch begins at address {address}")
                yield _Batch(header, window.data, at)
                address += header.size_bytes


class _MissingError(Exception):
    """The log does not have an address, perhaps for a good reason."""


class _NoBatchError(_MissingError):
    """The log should have a batch there, and has none."""


class _Window:
    """A segment's file, read piece by piece."""

    def __init__(self, directory: Path, address: int) -> None:
        try:
            names = [path.name for path in directory.iterdir()]
        except FileNotFoundError:
            raise _MissingError(NO_LOG) from None
        found = (address_of(name, SEGMENT_SUFFIX) for name in names)
        bases = sorted(base for base in found if base is not None)
        held = [base for base in bases if base <= address]
        if not held:
            begin = f"begins at {bases[0]}" if bases else "is empty"
            raise _MissingError(f"the log {begin}")
        self._base = held[-1]
        self._file = OpenFile(directory / file_name(self._base, SEGMENT_SUFFIX), os.O_RDONLY)
        self._end = self._base + os.fstat(self._file.fd).st_size
        if address >= self._end:
            raise _NoBatchError(f"the log ends at {self._end}, or has a gap there")
        self.data = b""
        self._data_address = address

    def __enter__(self) -> _Window:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def holds(self, address: int) -> bool:
        """Whether the file reaches beyond this address."""
        return address < self._end

    def at(self, address: int) -> int:
        """Returns where the header at this address begins in `data`."""
        if address + HEADER_SIZE_BYTES > self._data_address + len(self.data):
            self.data = os.pread(self._file.fd, WINDOW_BYTES, address - self._base)
            self._data_address = address
        return address - self._data_address
