"""One segment file: the bytes `[base_address, end_address)` of a partition's log.

Owns the file's name, its descriptor and its known starts. Does not decide when to roll, flush or delete.
"""

from __future__ import annotations

import errno
import os
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from headrace.log import index, scan
from headrace.log.errors import LogDamagedError, LogError, LogOfflineError, LogReadError, LogStorageError
from headrace.log.files import DISK_FULL, FileReference, OpenFile, cut_back
from headrace.log.names import SEGMENT_SUFFIX, TEMPORARY_SUFFIX, file_name
from headrace.log.staging import StagedBatch
from headrace.log.starts import KnownStarts, thinned
from headrace.process.disk import explained
from headrace.wire.primitives import Buffer

BUFFERS_MAX: Final = os.sysconf("SC_IOV_MAX")  # of one pwritev
COLD_SCAN_MAX_BYTES: Final = 128 * 1024  # about 2 ms of the smallest batches
DAMAGES_MAX: Final = 1024  # places where reading met damage that one segment remembers


class ColdSegmentError(LogError):
    """Not a failure: a lookup would scan more of this segment than the event loop can wait for. After the
    segment's `indexing` job has run and was learned, the same lookup succeeds.
    """

    def __init__(self, segment: Segment) -> None:
        super().__init__(f"{segment.path}: nothing is known of its batches yet; retry")
        self.segment = segment


class Segment:
    """A new segment (with `create_at_ms`), or an existing one, whose batch starts are not indexed yet.

    `starts` begins at the segment's base; `later` are those of what was checked or appended since the log was
    opened, as long as nobody has read what lies between. `unproven`: addresses where batches begin according
    to the last checkpoint; `islands`: what was found to follow on them, behind damage. `damaged`: where
    reading from known starts met damage, ascending.
    """

    __slots__ = (
        "_file",
        "_last_file",
        "_newest_found_ms",
        "_noted_max_timestamp_ms",
        "base_address",
        "created_ms",
        "damaged",
        "islands",
        "last_append_ms",
        "later",
        "path",
        "size_bytes",
        "starts",
        "unproven",
    )

    def __init__(self, directory: Path, base_address: int, *, create_at_ms: int | None = None) -> None:
        self.path = directory / file_name(base_address, SEGMENT_SUFFIX)
        self.base_address = base_address
        self.starts = KnownStarts(base_address)
        self.later: KnownStarts | None = None
        self.unproven: tuple[int, ...] = ()
        self.islands: tuple[KnownStarts, ...] = ()
        self.damaged: tuple[int, ...] = ()
        self._noted_max_timestamp_ms: int | None = None
        self._newest_found_ms: int | None = None
        self._file: OpenFile | None
        self._last_file: FileReference | None = None
        if create_at_ms is None:
            stat = self.path.stat()
            self._file = None
            self.size_bytes = stat.st_size
            self.created_ms = self.last_append_ms = int(stat.st_mtime * 1000)
        else:
            self._file = OpenFile(self.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            self.size_bytes = 0
            self.created_ms = self.last_append_ms = create_at_ms

    @property
    def end_address(self) -> int:
        return self.base_address + self.size_bytes

    def written_end(self) -> int:
        """Returns the end of what was written. Any thread."""
        return self.base_address + self.size_bytes

    @property
    def file(self) -> OpenFile:
        """The open file; opened on first use, unless a slice still has it open."""
        if self._file is None:
            self._file = self.in_use() or OpenFile(self.path)
        return self._file

    def to_read(self) -> OpenFile:
        """Returns the open file. Raises `LogReadError` if it cannot be opened: it was removed, say."""
        try:
            return self.file
        except OSError as error:
            raise LogReadError(f"{self.path}: it cannot be opened: {error.strerror}") from error

    def in_use(self) -> OpenFile | None:
        """The file, if it is open: here, or by a slice that was not read yet."""
        if self._file is not None or self._last_file is None:
            return self._file
        return self._last_file()

    @property
    def is_open(self) -> bool:
        return self._file is not None

    def release(self) -> None:
        """Drops the descriptor; it is closed once no slice refers to it."""
        if self._file is not None:
            self._last_file = weakref.ref(self._file)
        self._file = None

    def write(self, buffers: Sequence[Buffer], size_bytes: int) -> None:
        """Appends all or nothing. Raises `LogStorageError` if the file is as before, `LogOfflineError` if its
        content is unknown.
        """
        fd = self.file.fd
        at = self.size_bytes
        try:
            if len(buffers) > BUFFERS_MAX or os.pwritev(fd, buffers, at) != size_bytes:
                _write_in_pieces(fd, buffers, at)
        except OSError as error:
            problem = f"writing {size_bytes} bytes at {at} failed: {explained(error, self.path)}"
            if cut_back(fd, at) and error.errno in DISK_FULL:
                raise LogStorageError(problem) from error
            raise LogOfflineError(problem) from error
        self.size_bytes = at + size_bytes

    def truncate(self, size_bytes: int) -> None:
        """Cuts the file, durably. With nothing left it is another file; the directory is the caller's."""
        os.ftruncate(self.file.fd, size_bytes)
        if size_bytes:
            os.fsync(self.file.fd)
        else:
            self._file = self._last_file = None
            temporary = self.path.with_name(self.path.name + TEMPORARY_SUFFIX)
            temporary.write_bytes(b"")
            temporary.replace(self.path)
        self.size_bytes = size_bytes
        self.starts = KnownStarts(self.base_address)
        self.later = None
        self.unproven = tuple(each for each in self.unproven if each < self.end_address)
        self.islands, self.damaged = (), ()
        self._noted_max_timestamp_ms = self._newest_found_ms = None

    def delete(self) -> None:
        """Deletes the file; slices in use keep working.

        Its index goes before it, since an index without its segment says that the segment was lost; and once
        more behind it, in case a thread was just writing one.
        """
        self.release()
        directory = self.path.parent
        index.remove(directory, self.base_address)
        self.path.unlink()
        index.remove(directory, self.base_address)

    def take_out(self) -> Path:
        """Gives the file a name that the next start removes; returns it. Any thread may remove it: to free a
        large file's bytes takes long (33 ms for 128 MB on ext4). Otherwise like `delete`.
        """
        self.release()
        directory, taken = self.path.parent, self.path.with_name(self.path.name + TEMPORARY_SUFFIX)
        index.remove(directory, self.base_address)
        self.path.rename(taken)
        index.remove(directory, self.base_address)
        return taken

    def note(self, batches: Sequence[StagedBatch]) -> None:
        """Records the starts of batches just written."""
        starts = self._run_at(batches[0].address)
        for address, size_bytes, max_timestamp_ms, _ in batches:
            starts.note(address, size_bytes, max_timestamp_ms)

    def note_checked(self, address: int, size_bytes: int, max_timestamp_ms: int) -> None:
        """Records the start of a batch that was read and found whole, behind the one before it."""
        self._run_at(address).note(address, size_bytes, max_timestamp_ms)

    def _run_at(self, address: int) -> KnownStarts:
        """Returns the starts that the batch at `address` follows."""
        if self.starts.covered_address == address:
            return self.starts
        if self.later is None or self.later.covered_address != address:
            self.later = KnownStarts(address)
        return self.later

    # --- lookup ---

    def start_before(self, address: int) -> int:
        """Returns the greatest known start at or before `address`."""
        return self._run_before(address).before(address)

    def _run_before(self, address: int) -> KnownStarts:
        starts, later = self.starts, self.later
        if later is not None and address >= later.base_address:
            return later if later.covered_address > starts.covered_address else starts
        for island in reversed(self.islands):
            if starts.covered_address < island.base_address <= address:
                return island
        return starts

    def walk(self, address: int, *, is_start: bool = False) -> Iterator[scan.Step]:
        """Yields batches from the greatest known start at or before `address` on, from `address` itself with
        `is_start`; records new starts, and where there is damage.
        """
        starts = self.starts
        at = address if is_start else self.start_before(address)
        try:
            for step in scan.steps(self.to_read(), self.base_address, at, self.end_address):
                if step.address == starts.covered_address:
                    starts.note(step.address, step.size_bytes, step.max_timestamp_ms)
                at = step.address + step.size_bytes
                yield step
        except (LogDamagedError, LogReadError):
            self._note_damage(at)
            raise

    def cover(self, address: int) -> None:
        """Scans until all starts up to `address` are known."""
        if self._run_before(address).covered_address >= address:
            return
        for step in self.walk(address):
            if step.address + step.size_bytes >= address:
                return

    def is_cold(self, address: int) -> bool:
        """Whether a lookup of `address` would scan more than `COLD_SCAN_MAX_BYTES`."""
        return address - self._run_before(address).covered_address > COLD_SCAN_MAX_BYTES

    def is_behind_damage(self, address: int) -> bool:
        """Whether no known start leads to `address`: there is damage between."""
        if not self.damaged:
            return False
        return self.first_damage(self.start_before(address), address) is not None

    def first_damage(self, start: int, end: int) -> int | None:
        """Returns the first address in [start, end) where reading met damage."""
        return next((address for address in self.damaged if start <= address < end), None)

    def _note_damage(self, address: int) -> None:
        self.damaged = tuple(sorted({*self.damaged, address})[-DAMAGES_MAX:])

    def has_batch_at(self, address: int) -> bool:
        """See `scan.has_batch_at`: for an address where no known start leads."""
        return scan.has_batch_at(self.to_read(), self.base_address, address, self.end_address)

    def sparse_starts(self) -> list[int]:
        """Returns what a checkpoint stores of this segment."""
        runs = [self.starts, *self.islands, *([self.later] if self.later is not None else [])]
        known = {run.base_address for run in runs}.union(self.unproven, *(run.sparse() for run in runs))
        return thinned(known, self.base_address)

    def indexing(self, end_address: int, *, save: bool) -> index.IndexJob:
        """Returns the job that learns all starts up to `end_address`; `learn` takes its result."""
        file = self._file
        return index.IndexJob(self.path, file, self.starts, end_address, save=save, unproven=self.unproven)

    def learn(
        self, starts: KnownStarts, problem: LogError | None = None, islands: Sequence[KnownStarts] = ()
    ) -> None:
        """Takes what a job found, unless more is known already. `problem`: what kept it from the end;
        `islands`: what it found behind that.
        """
        if starts.base_address == self.base_address and (
            self.starts.covered_address < starts.covered_address <= self.end_address
        ):
            self.starts = starts
        if isinstance(problem, LogDamagedError | LogReadError):
            self.islands = tuple(islands)
            self._newest_found_ms = max(run.max_timestamp_ms for run in (starts, *islands))
            for run in (starts, *islands):
                if run.covered_address < self.end_address:
                    self._note_damage(run.covered_address)

    def forget_starts(self) -> None:
        """Forgets what the index has, which a lookup reads again: 68 kB of a segment of 128 MiB."""
        if self.starts.covered_address >= self.end_address:
            self._noted_max_timestamp_ms = self.starts.max_timestamp_ms
            self.starts = KnownStarts(self.base_address)

    @property
    def max_timestamp_if_known_ms(self) -> int | None:
        """The greatest timestamp in the segment, -1 for none; `None` if unknown (a search must scan it)."""
        if self.starts.covered_address >= self.end_address:
            return self.starts.max_timestamp_ms
        return self._noted_max_timestamp_ms

    @property
    def newest_readable_ms(self) -> int | None:
        """The greatest timestamp of those batches that can be read, -1 for none; `None` as long as nobody has
        looked for them (`ColdSegmentError`).
        """
        known_ms = self.max_timestamp_if_known_ms
        return self._newest_found_ms if known_ms is None else known_ms

    def note_max_timestamp(self, timestamp_ms: int) -> None:
        """Sets the greatest timestamp of a sealed segment, from a checkpoint."""
        self._noted_max_timestamp_ms = timestamp_ms


def _write_in_pieces(fd: int, buffers: Sequence[Buffer], at: int) -> None:
    """Writes buffers that one `pwritev` did not take: they are too many, or it wrote only a part. What was
    written is written again.
    """
    for first in range(0, len(buffers), BUFFERS_MAX):
        piece = buffers[first : first + BUFFERS_MAX]
        size_bytes = sum(map(len, piece))
        written = os.pwritev(fd, piece, at)
        if written < size_bytes:
            rest = memoryview(b"".join(piece))
            while written < size_bytes:
                count = os.pwrite(fd, rest[written:], at + written)
                if count == 0:
                    raise OSError(errno.EIO, "the disk accepts no more bytes")
                written += count
        at += size_bytes
