"""Reads one segment file and says which ranges of it are not what was written. Changes nothing.

After a bad batch it goes on where a batch begins for certain: behind the bad one, if its length agrees with
its offsets and its place, or the bytes there are a whole batch with the right address and checksum; else at
the next start in the segment's index, or at one of the checkpoint's, if a whole batch is there. It never
searches the bytes for something that looks like a header: a
payload can contain such bytes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from headrace.log.starts import KnownStarts
from headrace.wire.batch import HEADER_SIZE_BYTES, BatchHeader, read_header, verify
from headrace.wire.errors import WireError

READ_BYTES: Final = 256 * 1024


class ReadAt(Protocol):
    """Returns up to so many bytes from a position of the segment file on. Raises `OSError`."""

    def __call__(self, size_bytes: int, position: int, /) -> bytes | memoryview: ...


class BadRange(NamedTuple):
    """The addresses [start, end) that hold no good batches, and why."""

    start: int
    end: int
    cause: str


class Examiner:
    """One pass over the addresses [base, end) of a segment. `on_batch` gets the header of every good batch.

    `steps` yields after each piece of about `READ_BYTES`, so that the caller may rest; then `bad` holds what
    was found, in order. `starts`: of its index, if there is one. `unproven`: addresses, ascending, where
    batches begin according to a checkpoint.
    """

    def __init__(
        self,
        read: ReadAt,
        base: int,
        end: int,
        starts: KnownStarts | None = None,
        on_batch: Callable[[BatchHeader], None] = lambda _: None,
        unproven: Sequence[int] = (),
    ) -> None:
        self._read = read
        self._base = base
        self._end = end
        self._starts = starts
        self._on_batch = on_batch
        self._unproven = unproven
        self.bad: list[BadRange] = []
        self.good_batches = 0
        self.good_records = 0
        self.good_end = base  # of the last good batch

    def steps(self, start: int | None = None) -> Iterator[int]:
        """Yields the number of bytes read since the last time. `start`: the batch to begin with."""
        address = self._base if start is None else start
        while address < self._end:
            window = self._window(address, READ_BYTES)
            if isinstance(window, str):
                address = self._set_aside(address, window, None)
                continue
            begun, at, cause = address, 0, None
            while address < self._end and cause is None:
                header, cause = self._batch(window, at, address)
                if header is None:
                    break
                self.good_batches += 1
                self.good_records += header.record_count
                self._on_batch(header)
                address += header.size_bytes
                at += header.size_bytes
                self.good_end = address
            yield address - begun
            if cause is None and address == begun:  # a batch larger than the window
                address = self._large(window, address)
                yield address - begun
            elif cause is not None:
                address = self._set_aside(address, cause, window[at:])

    def run(self) -> list[BadRange]:
        """Reads all of it, without a rest."""
        for _ in self.steps():
            pass
        return self.bad

    def _window(self, address: int, size_bytes: int) -> memoryview | str:
        """Returns bytes from `address` on, or why they cannot be read."""
        try:
            size_bytes = min(size_bytes, self._end - address)
            return memoryview(self._read(size_bytes, address - self._base))
        except OSError as error:
            return f"it cannot be read: {error.strerror}"

    def _batch(self, window: memoryview, at: int, address: int) -> tuple[BatchHeader | None, str | None]:
        """Returns the batch at `address`, or what is wrong with it, or neither if the window is too short."""
        left = len(window) - at
        if left < HEADER_SIZE_BYTES and address + left < self._end:
            return None, None
        try:
            header = read_header(window, at)
            if not header.is_stored_at(address):
                return None, (
                    f"the batch has {header.size_bytes} bytes and the offsets {header.base_offset} + "
                    f"{header.last_offset_delta}"
                )
            if address + header.size_bytes > self._end:
                return None, f"the batch's {header.size_bytes} bytes reach beyond the end at {self._end}"
            if header.size_bytes > left:
                return None, None
            verify(window, at, header)
        except WireError as error:
            return None, str(error)
        return header, None

    def _large(self, window: memoryview, address: int) -> int:
        """Reads a batch larger than a window; returns where to go on."""
        try:
            size_bytes = read_header(window).size_bytes
        except WireError:
            return self._set_aside(address, "the file ends here", None)
        whole = self._window(address, size_bytes)
        if isinstance(whole, str):
            return self._set_aside(address, whole, None)
        header, cause = self._batch(whole, 0, address)
        if header is None:
            return self._set_aside(address, cause or "the file was cut meanwhile", whole)
        self.good_batches += 1
        self.good_records += header.record_count
        self._on_batch(header)
        self.good_end = address + header.size_bytes
        return self.good_end

    def _set_aside(self, address: int, cause: str, rest: memoryview | None) -> int:
        """Notes a bad range that begins at `address`; returns its end."""
        end = self._behind(address, rest)
        if self.bad and self.bad[-1].end == address:
            first = self.bad.pop()
            self.bad.append(BadRange(first.start, end, first.cause))
        else:
            self.bad.append(BadRange(address, end, cause))
        return end

    def _behind(self, address: int, rest: memoryview | None) -> int:
        if rest is not None:
            try:
                header = read_header(rest)
                behind = address + header.size_bytes
                if behind == self._end or (behind < self._end and header.is_stored_at(address)):
                    return behind
                if address < behind < self._end and self._is_good(behind):
                    return behind
            except WireError:
                pass
        known = self._starts.after(address) if self._starts is not None else None
        end = self._end if known is None else min(known, self._end)
        for start in self._unproven[bisect_right(self._unproven, address) :]:
            if start >= end:
                break
            if self._is_good(start):
                return start
        return end

    def _is_good(self, address: int) -> bool:
        window = self._window(address, READ_BYTES)
        if isinstance(window, str):
            return False
        try:
            if len(window) < (size_bytes := read_header(window).size_bytes):
                window = self._window(address, size_bytes)
        except WireError:
            return False
        return not isinstance(window, str) and self._batch(window, 0, address)[0] is not None
