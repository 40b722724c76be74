"""The end of a partition's log: its state, and how batches get their addresses and are written.

Owns addresses: a batch of L bytes with n records appended at address P gets baseOffset P + L - n (see
`wire.batch`). Neither validates batches (the broker does) nor waits for the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from headrace.log import appending
from headrace.log.appending import AppendJob
from headrace.log.checkpoint import CHECKPOINT_EVERY_BYTES
from headrace.log.config import LogConfig
from headrace.log.errors import LogOfflineError, LogStorageError
from headrace.log.flush import FlushJob
from headrace.log.flushed import FlushedNotes
from headrace.log.reader import LogReader
from headrace.log.recovery import open_log
from headrace.log.segment import Segment
from headrace.log.segments import SegmentList
from headrace.log.staging import Staging, check_outermost, check_verbatim, in_segments
from headrace.process.clock import now_ms
from headrace.process.disk import explained
from headrace.wire.batch import BatchHeader, hop
from headrace.wire.primitives import Buffer


class Appended(NamedTuple):
    """The range [base, end) of appended batches."""

    base_address: int
    end_address: int


class LogWriter:
    """The state of a log, and its appends. `PartitionLog` adds the rest, and says what the fields mean.

    Raises `LogDamagedError` if flushed bytes are missing, `OSError` if the directory cannot be used.
    """

    def __init__(
        self, directory: Path, config: LogConfig | None = None, clock: Callable[[], int] = now_ms
    ) -> None:
        self.directory = directory
        self.config = config or LogConfig()
        self._clock = clock
        self.offline: LogOfflineError | None = None
        self.leader_epoch = 0
        directory.mkdir(parents=True, exist_ok=True)
        opened = open_log(directory, clock)
        segments, self.producers, self.epochs, self._cut_files, lineage, self._covered_address = opened
        self.notes = FlushedNotes(directory, lineage)
        self._segments = SegmentList(segments)
        self._reader = LogReader(directory, self._segments)
        self.end_address = self._segments.end_address
        self.flushed_address = self.staged_end_address = self.end_address
        # Readers at the end go on, even if the batches before it cannot be read.
        self._reader.keep(self.end_address, self.end_address)
        self._staging = Staging()
        self.appending: AppendJob | None = None  # what a thread writes now
        self._directory_unsynced = self._checkpoint_requested = False
        self._checkpointed_address = -1  # where the last checkpoint was taken; `_covered_address`: saved, too

    @property
    def start_address(self) -> int:
        """The address of the oldest byte."""
        return self._segments.start_address

    @property
    def size_bytes(self) -> int:
        return self.end_address - self._segments.start_address

    @property
    def end_position_bytes(self) -> int:
        """Where the end lies in its segment's file."""
        return self._segments.active.size_bytes

    @property
    def is_pristine(self) -> bool:
        """Whether nothing was ever appended."""
        return self.staged_end_address == 0

    # --- append ---

    def append(self, batches: Buffer) -> Appended:
        """Assigns addresses to one or more whole batches and writes them. Raises `LogStorageError`."""
        base = self.staged_end_address
        writable = memoryview(batches if not memoryview(batches).readonly else bytearray(batches))
        for at, header in hop(writable):
            self.stage(writable[at : at + header.size_bytes], header)
        self.commit()
        return Appended(base, self.end_address)

    def append_verbatim(self, batches: Buffer, headers: Sequence[BatchHeader] | None = None) -> Appended:
        """Writes whole batches that have their addresses already; the first one must begin at `end_address`.
        A pristine log accepts any first address. `headers`: theirs, if the caller has checked that each batch
        has its address; then the first and the last are looked at again.

        Raises `AddressMismatchError` (nothing was appended then), `LogStorageError`.
        """
        address = None if self.is_pristine else self.staged_end_address
        if headers is None:
            headers = [header for _, header in hop(batches)]
            base = check_verbatim(headers, address, self.directory)
        else:
            base = check_outermost(headers, address, len(batches), self.directory)
        self.rebase(base)
        self.commit()
        view, at = memoryview(batches), 0
        for run in in_segments(headers, self._segments.active.size_bytes, self.config.segment_bytes):
            if run.begins_segment:
                self.roll()
            written = view[at : at + run.size_bytes]
            self.staged_end_address = self._staging.add_stored(written, self.staged_end_address, run.headers)
            self._staging.undo += self.producers.note_all(run.headers)
            self.commit()
            at += run.size_bytes
        return Appended(base, self.end_address)

    def stage(self, batch: Buffer, header: BatchHeader, *, verbatim: bool = False) -> int:
        """Assigns an address to one verified batch, which the next `commit` writes; returns its base offset.

        A batch of `COPY_BELOW_BYTES` or more must be writable, and must not change until `commit`. If the
        segment is full, commits what is staged and rolls; if that raises `LogStorageError`, this batch is not
        staged.
        """
        size_bytes = len(batch)
        address = self.staged_end_address
        active = self._segments.active
        used_bytes = address - active.base_address
        if used_bytes and used_bytes + size_bytes > self.config.segment_bytes:
            self.commit()
            self.roll()
        leader_epoch = None if verbatim else self.leader_epoch
        base_offset = self._staging.add(batch, address, header, leader_epoch)
        self.staged_end_address = address + size_bytes
        if header.producer_id >= 0:
            before = self.producers.note(header, base_offset)
            self._staging.undo.append((header.producer_id, before))
        return base_offset

    def commit(self) -> None:
        """Writes the staged batches by one writev. Drops all of them if it raises `LogStorageError`."""
        staging = self._staging
        if not staging.batches:
            return
        active = self._segments.active
        try:
            self.check_online()
            assert self.appending is None, f"{self.directory}: a thread is appending"
            active.write(staging.buffers, self.staged_end_address - self.end_address)
        except LogStorageError as error:
            for producer_id, entry in reversed(staging.undo):
                self.producers.restore(producer_id, entry)
            self.staged_end_address = self.end_address
            staging.clear()
            if isinstance(error, LogOfflineError):
                raise self.take_offline(str(error)) from error.__cause__
            raise
        self._written()

    def _written(self) -> None:
        """Takes what is staged into the log, once the active segment has its bytes."""
        staging, active = self._staging, self._segments.active
        active.note(staging.batches)
        self.epochs.note_all(staging.batches)
        active.last_append_ms = self._clock()
        self.end_address = self.staged_end_address
        staging.clear()

    def begin_append(self, batches: Buffer, headers: Sequence[BatchHeader]) -> AppendJob | None:
        """Returns what `append_verbatim` and a flush do, as one job for any thread; `None` if they must be
        two: `batches` are short, or more than they are to be written or flushed. `headers`: see there.

        The caller passes a job that succeeded to `end_append`. After one that failed it calls `drop_append`
        and, unless the error is a `LogStorageError` and no `LogOfflineError`, `take_offline`. Until then
        nothing else may be appended or cut.
        Raises `AddressMismatchError`, `LogOfflineError`.
        """
        self.check_online()
        size_bytes, active = len(batches), self._segments.active
        is_all_durable = self.flushed_address == self.staged_end_address and not self._directory_unsynced
        fits = not self.is_pristine and active.size_bytes + size_bytes <= self.config.segment_bytes
        if (
            size_bytes < appending.DIRECT_MIN_BYTES
            or not (is_all_durable and fits)
            or self._checkpoint_is_due()
        ):
            return None
        assert self.appending is None, f"{self.directory}: a thread is appending"
        check_outermost(headers, self.end_address, size_bytes, self.directory)
        flush = FlushJob(self.directory, (active.file,), False, self.end_address + size_bytes)
        self.appending = AppendJob(active.file, active.size_bytes, batches, headers, flush)
        return self.appending

    def end_append(self, job: AppendJob) -> None:
        """Takes the batches of a job that succeeded into the log. They are durable."""
        assert self.appending is job
        self.appending = None
        self._segments.active.size_bytes += len(job.batches)
        self.staged_end_address = self._staging.add_stored(job.batches, self.end_address, job.headers)
        self.producers.note_all(job.headers)
        self._written()
        self.flushed_address = self.end_address
        self._reader.keep(self.end_address, self.end_address)

    def drop_append(self) -> None:
        """Forgets a job that failed, and its file: no log is opened again while that is open for writing."""
        self.appending = None

    def _checkpoint_is_due(self) -> bool:
        grown_bytes = self.end_address - self._checkpointed_address
        return self._checkpoint_requested or grown_bytes >= CHECKPOINT_EVERY_BYTES

    def roll(self) -> None:
        """Begins a new segment at the end address; the next flush syncs the directory.

        Raises `LogStorageError`.
        """
        self.check_online()
        assert self.appending is None, f"{self.directory}: a thread is appending"
        if self._segments.active.size_bytes == 0:
            return
        self._segments.add(self._new_segment(self.end_address))
        self._segments.release_idle()

    def rebase(self, address: int) -> None:
        """Makes a pristine log begin at `address`; does nothing to any other log."""
        if address != self.staged_end_address and self.is_pristine:
            self._begin_with(self._new_segment(address))

    def _begin_with(self, segment: Segment) -> None:
        self.notes.renew()
        self._segments.replace_all(segment)
        self._reader.forget()
        self._checkpoint_requested = True  # from now on the log's end is known by more than its last file
        self.end_address = self.flushed_address = self.staged_end_address = segment.base_address
        self._covered_address = segment.base_address

    def _new_segment(self, base_address: int) -> Segment:
        try:
            segment = Segment(self.directory, base_address, create_at_ms=self._clock())
        except OSError as error:
            raise LogStorageError(
                f"cannot begin a segment at {base_address}: {explained(error, self.directory)}"
            ) from error
        self._directory_unsynced = True
        return segment

    def take_offline(self, problem: str) -> LogOfflineError:
        """Stops the log, since the disk's content after the flushed address is unknown.

        Returns the error to raise, as every later call does. `offline` itself is never raised: by a traceback
        it would keep the files of the calls that raised, and no log is opened again while those are open.
        """
        if self.offline is None:
            self.offline = LogOfflineError(
                f"{self.directory} is offline: {problem}; addresses from {self.flushed_address} on may not "
                "be on the disk. Repair or replace the disk (see dmesg). The broker tries to open the log "
                "again by itself, and continues after the last whole batch that the disk holds"
            )
        return LogOfflineError(*self.offline.args)

    def check_online(self) -> None:
        """Raises `LogOfflineError` if the log is offline."""
        if self.offline is not None:
            raise LogOfflineError(*self.offline.args)
