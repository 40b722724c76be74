"""One partition's log: append at the end, read at any address, flush on another thread.

Owns addresses: a batch of L bytes with n records appended at address P gets baseOffset P + L - n (see
`wire.batch`). Neither validates batches (the broker does) nor waits for the disk: `begin_flush` returns the
fsync as a job. Not thread-safe; only `FlushJob.run` may run on another thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from headrace.log.checkpoint import CHECKPOINT_EVERY_BYTES, Checkpoint, save_cut
from headrace.log.config import UNLIMITED, LogConfig
from headrace.log.cutting import expire
from headrace.log.epochs import LeaderEpochs
from headrace.log.errors import AddressOutOfRangeError, LogOfflineError, LogStorageError
from headrace.log.files import FileReference, FileSlice, sync_directory
from headrace.log.flush import Flushed, FlushJob
from headrace.log.flushed import FlushedNotes
from headrace.log.index import IndexJob
from headrace.log.producers import ProducerStates
from headrace.log.reader import LogReader
from headrace.log.recovery import open_log
from headrace.log.retention import delete_expired, must_roll
from headrace.log.saving import checkpoint_of
from headrace.log.search import Search, first_at, greatest
from headrace.log.segment import Segment
from headrace.log.segments import SegmentList
from headrace.log.staging import Staging, check_verbatim, in_segments
from headrace.process.clock import now_ms
from headrace.process.disk import explained
from headrace.wire.batch import BatchHeader, hop
from headrace.wire.primitives import Buffer


class Appended(NamedTuple):
    """The range [base, end) of appended batches."""

    base_address: int
    end_address: int


class PartitionLog:
    """The log in one folder. Opening it recovers: batches that a crash left incomplete are cut off.

    `offline` is set once an fsync failed, or a write left the file in an unknown state: the log then appends,
    flushes and saves nothing more. `leader_epoch` is written into every batch that is not verbatim; `epochs`
    are those of all that is written.

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
        segments, self.producers, self.epochs, self._cut_files, lineage = open_log(directory, clock)
        self.notes = FlushedNotes(directory, lineage)
        self._segments = SegmentList(segments)
        self._reader = LogReader(directory, self._segments)
        self.end_address = self._segments.end_address
        self.flushed_address = self.staged_end_address = self.end_address
        # Readers at the end go on, even if the batches before it cannot be read.
        self._reader.keep(self.end_address, self.end_address)
        self._staging = Staging()
        self._directory_unsynced = self._checkpoint_requested = False
        self._checkpointed_address = -1

    @property
    def start_address(self) -> int:
        """The address of the oldest byte."""
        return self._segments.start_address

    @property
    def size_bytes(self) -> int:
        return self.end_address - self._segments.start_address

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
        A pristine log accepts any first address. `headers`: theirs, if the caller has read them.

        Raises `AddressMismatchError` (nothing was appended then), `LogStorageError`.
        """
        headers = [header for _, header in hop(batches)] if headers is None else headers
        address = None if self.is_pristine else self.staged_end_address
        base = check_verbatim(headers, address, self.directory)
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
            if self.offline is not None:
                raise self.offline
            active.write(staging.buffers, self.staged_end_address - self.end_address)
        except LogStorageError as error:
            for producer_id, entry in reversed(staging.undo):
                self.producers.restore(producer_id, entry)
            self.staged_end_address = self.end_address
            staging.clear()
            if isinstance(error, LogOfflineError):
                raise self.take_offline(str(error)) from error.__cause__
            raise
        active.note(staging.batches)
        self.epochs.note_all(staging.batches)
        active.last_append_ms = self._clock()
        self.end_address = self.staged_end_address
        staging.clear()

    def roll(self) -> None:
        """Begins a new segment at the end address; the next flush syncs the directory.

        Raises `LogStorageError`.
        """
        if self.offline is not None:
            raise self.offline
        if self._segments.active.size_bytes == 0:
            return
        self._segments.add(self._new_segment(self.end_address))
        self._segments.release_idle(self.flushed_address)

    def rebase(self, address: int) -> None:
        """Makes a pristine log begin at `address`; does nothing to any other log."""
        if address != self.staged_end_address and self.is_pristine:
            self._begin_with(self._new_segment(address))

    def restart(self, address: int, *, may_go_back: bool = False) -> None:
        """Drops all batches and restarts at `address`, after the end: for a copy whose source has deleted the
        batches in between. `may_go_back`: or before the start, for one whose leader has none of them.

        A crash may undo it. Waits for the disk. Raises `AddressOutOfRangeError`, `LogStorageError`.
        """
        self.commit()
        if self.offline is not None:
            raise self.offline
        if address <= self.end_address and not (may_go_back and address < self.start_address):
            raise AddressOutOfRangeError(
                f"{self.directory}: cannot restart at {address}, the log ends at {self.end_address}"
            )
        try:
            if address < self.start_address:
                self.truncate(self.start_address)  # first it is empty, and no file says that more was here
                save_cut(self.directory, address, address, self.notes.renew())
            segment = self._new_segment(address)
            sync_directory(self.directory)  # the new segment is durable before the old ones are deleted
            self._begin_with(segment)
        except OSError as error:
            raise self.take_offline(f"restarting at {address} failed: {error.strerror}") from error
        self.producers, self.epochs = ProducerStates(), LeaderEpochs()
        self._checkpointed_address = -1

    def go_on_at(self, address: int) -> None:
        """Begins a segment behind the end, once all is flushed and `log.gaps` allows the gap between; the
        directory is the caller's. Raises `LogStorageError`."""
        self._segments.add(self._new_segment(address))
        self._reader.forget()
        self.end_address = self.flushed_address = self.staged_end_address = address

    def _begin_with(self, segment: Segment) -> None:
        self.notes.renew()
        self._segments.replace_all(segment)
        self._reader.forget()
        self._checkpoint_requested = True  # from now on the log's end is known by more than its last file
        self.end_address = self.flushed_address = self.staged_end_address = segment.base_address

    def _new_segment(self, base_address: int) -> Segment:
        try:
            segment = Segment(self.directory, base_address, create_at_ms=self._clock())
        except OSError as error:
            raise LogStorageError(
                f"cannot begin a segment at {base_address}: {explained(error, self.directory)}"
            ) from error
        self._directory_unsynced = True
        return segment

    # --- flush ---

    def begin_flush(self, gather_s: float = 0.0) -> FlushJob | None:
        """Returns the fsync of all unflushed bytes, to run on any thread; `None` if all is flushed.

        The job waits `gather_s` for more, and saves a requested checkpoint. The caller passes its result to
        `end_flush`, or calls `take_offline` if it fails.
        """
        if self.offline is not None:
            return None
        if self.flushed_address >= self.end_address:
            if (checkpoint := self._take_checkpoint()) is None:
                return None
            return FlushJob(self.directory, (), False, self.end_address, checkpoint)
        files = tuple(segment.file for segment in self._segments.written_behind(self.flushed_address))
        directory_too, self._directory_unsynced = self._directory_unsynced, False
        self._segments.flush_began()
        end, checkpoint, active = self.end_address, self._take_checkpoint(), self._segments.active
        # An active segment that is still empty is not among the files.
        written_end = active.written_end if active.size_bytes else None
        return FlushJob(self.directory, files, directory_too, end, checkpoint, written_end, gather_s)

    def end_flush(self, flushed: Flushed) -> None:
        """Makes the bytes of a job that succeeded visible."""
        if flushed.upto_address > self.flushed_address:
            self.flushed_address = flushed.upto_address
            self._reader.keep(flushed.upto_address, flushed.upto_address)
        self._segments.flush_ended()

    def begin_index(self, cold: Segment | None = None) -> IndexJob | None:
        """Returns a job for any thread: it writes the index of a segment that was sealed and flushed, `None`
        if there is none. Nothing need be done with its result.

        With `cold`, of a `ColdSegmentError`: it learns that segment's starts, and `Segment.learn` must get
        them.
        """
        return self._segments.indexing(cold)

    def take_offline(self, problem: str) -> LogOfflineError:
        """Stops the log, since the disk's content after the flushed address is unknown.

        Returns the error that every later call raises."""
        if self.offline is None:
            self.offline = LogOfflineError(
                f"{self.directory} is offline: {problem}; addresses from {self.flushed_address} on may not "
                "be on the disk. Repair or replace the disk (see dmesg). The broker tries to open the log "
                "again by itself, and continues after the last whole batch that the disk holds"
            )
        return self.offline

    def flush(self) -> None:
        """Commits and fsyncs; returns when all is durable. Raises `LogStorageError`."""
        if self.offline is not None:
            raise self.offline
        self.commit()
        job = self.begin_flush()
        if job is not None:
            try:
                flushed = job.run()
            except OSError as error:
                raise self.take_offline(f"fsync failed: {error.strerror}") from error
            self.end_flush(flushed)
        while (indexing := self.begin_index()) is not None:
            indexing.run()

    def request_checkpoint(self) -> bool:
        """Requests a checkpoint with the next flush; returns False if the last one is still valid."""
        self._checkpoint_requested = self._checkpointed_address != self.end_address
        return self._checkpoint_requested

    def _take_checkpoint(self) -> Checkpoint | None:
        """Returns the checkpoint that is requested or due; `None` if none is, or while batches are staged."""
        is_due = self.end_address - self._checkpointed_address >= CHECKPOINT_EVERY_BYTES
        if not (self._checkpoint_requested or is_due) or self.staged_end_address != self.end_address:
            return None
        self._checkpoint_requested = False
        self._checkpointed_address = self.end_address
        lineage = self.notes.lineage
        return checkpoint_of(self.end_address, self._segments, self.producers, self.epochs, lineage)

    # --- read ---

    def position(self, offset: int) -> int:
        """See `LogReader.position`."""
        return self._reader.position(offset)

    def gap_end(self, address: int) -> int | None:
        """See `LogReader.gap_end`."""
        return self._reader.gap_end(address)

    def slices(self, offset: int, max_bytes: int, upto: int | None = None) -> list[FileSlice]:
        """Returns whole batches from `position(offset)` on: at most `max_bytes`, but at least one batch, if
        any.

        `upto`: the address to stop at, a batch boundary; at most the end, by default the flushed address.
        Raises `AddressOutOfRangeError`.
        """
        limit = self.flushed_address if upto is None else min(upto, self.end_address)
        return self._reader.slices(offset, max_bytes, limit)

    def search_timestamp(self, timestamp_ms: int, upto: int | None = None) -> Search:
        """Searches for the first record with `timestamp_ms` or later, in log order, before `upto`."""
        return first_at(self._segments, timestamp_ms, self.flushed_address if upto is None else upto)

    def search_max_timestamp(self, upto: int | None = None) -> Search:
        """Searches for the first record with the greatest timestamp before `upto` (KIP-734)."""
        return greatest(self._segments, self.flushed_address if upto is None else upto)

    # --- retention, truncation, close ---

    def delete_expired_segments(
        self, now_ms: int | None = None, *, upto: int | None = None, source_start: int | None = None
    ) -> list[Path]:
        """Rolls a segment that is old enough, deletes segments beyond retention that end before `upto`, by
        default the flushed address, at most `DELETED_AT_ONCE_MAX`; returns their files, which the caller
        removes. With `source_start`, the start of a copy's source, deletes what lies before that alone.
        Raises `ColdSegmentError` for a segment that must be read first, `LogStorageError`, `OSError`."""
        if self.offline is not None:
            return []
        now = self._clock() if now_ms is None else now_ms
        config = self.config
        if must_roll(self._segments.active, config, now):
            self.commit()
            self.roll()
        if self._cut_files and config.retention_ms != UNLIMITED:
            self._cut_files = expire(self._cut_files, now - config.retention_ms)
        self.producers.expire(config.producer_expiration_ms)
        end = self.flushed_address if upto is None else min(upto, self.flushed_address)
        deleted = delete_expired(self._segments, config, end, now, source_start)
        if deleted:
            self._directory_unsynced = True
            self._reader.forget()
            self.epochs.forget_before(self.start_address)
        return deleted

    def truncate(self, address: int) -> None:
        """Cuts off everything from `address`, a batch boundary, on. Raises `AddressOutOfRangeError`."""
        if not self.start_address <= address <= self.end_address or self.position(address) != address:
            raise AddressOutOfRangeError(
                f"{self.directory}: cannot truncate to {address}, no batch begins there"
            )
        known = save_cut(self.directory, self.start_address, address, self.notes.renew())
        segments = self._segments
        segments.truncate(self.directory, address)
        self.epochs.truncate(address)
        self.end_address = self.staged_end_address = address
        self.flushed_address = min(self.flushed_address, address)
        self._checkpointed_address = -1
        self._reader.forget()
        self.producers = ProducerStates.restored(known.producers, known.saved_ms)
        for header in segments.headers(known.recovery_point):
            self.producers.note(header, header.base_offset)

    def close(self) -> None:
        """Flushes, saves a checkpoint and releases the files; slices in use keep working.

        If the log is offline, only releases the files. Raises `LogStorageError`.
        """
        if self.offline is None:
            self.request_checkpoint()
            self.flush()
        self.abandon()

    def abandon(self) -> list[FileReference]:
        """Releases the files without saving anything; returns those that slices still have open."""
        return self._segments.release_all()
