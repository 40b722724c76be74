"""One partition's log: appended at the end, read anywhere, flushed off the caller's thread.

Owns addresses: a batch of length L appended at address P gets baseOffset P and lastOffsetDelta L - 1. It may
not judge batches (the broker validated them) nor wait: `begin_flush` hands out the fsync as a job for another
thread. Not thread-safe; only `FlushJob.run` may be called elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from headrace.log.checkpoint import FILE_NAME, Checkpoint, encode
from headrace.log.config import UNLIMITED, LogConfig
from headrace.log.errors import (
    AddressMismatchError,
    AddressOutOfRangeError,
    LogOfflineError,
    LogStorageError,
)
from headrace.log.files import FileSlice, replace_file, sync_directory
from headrace.log.flush import FlushJob
from headrace.log.producers import ProducerStates
from headrace.log.reader import LogReader
from headrace.log.recovery import open_log
from headrace.log.scan import headers
from headrace.log.search import Search, TimestampedOffset, first_at, greatest, run_here
from headrace.log.segment import Segment
from headrace.log.segments import SegmentList
from headrace.log.staging import Staging
from headrace.process.clock import now_ms
from headrace.wire.batch import BatchHeader, hop, read_header
from headrace.wire.primitives import Buffer


class Appended(NamedTuple):
    """The range that an append got."""

    base_address: int
    end_address: int


class PartitionLog:
    """See the module. Opening recovers: whatever a crash left half-written is cut off.

    `offline` is set once an fsync or a write failed for good: nothing is appended, flushed or saved any more.

    Raises `LogDamagedError` if flushed bytes are missing, `OSError` if the directory cannot be used.
    """

    def __init__(
        self, directory: Path, config: LogConfig | None = None, clock: Callable[[], int] = now_ms
    ) -> None:
        self.directory = directory
        self.config = config or LogConfig()
        self._clock = clock
        self.offline: LogOfflineError | None = None
        directory.mkdir(parents=True, exist_ok=True)
        segments, self.producers = open_log(directory, clock)
        self._segments = SegmentList(segments)
        self._reader = LogReader(directory, self._segments)
        self.end_address = self._segments.end_address
        self.flushed_address = self.end_address
        self.staged_end_address = self.end_address
        self._staging = Staging()
        self._directory_unsynced = False
        self._checkpointed_address = -1
        self._checkpoint_due = False

    @property
    def start_address(self) -> int:
        """Address of the oldest byte still here."""
        return self._segments.start_address

    @property
    def size_bytes(self) -> int:
        return self.end_address - self._segments.start_address

    @property
    def segment_count(self) -> int:
        return len(self._segments)

    @property
    def is_pristine(self) -> bool:
        """Nothing was ever appended."""
        return self.staged_end_address == 0

    # append

    def append(self, batches: Buffer) -> Appended:
        """Readdress and write one or more whole batches. Raises `LogStorageError`."""
        base = self.staged_end_address
        writable = memoryview(batches if not memoryview(batches).readonly else bytearray(batches))
        for at, header in hop(writable):
            self.stage(writable[at : at + header.size_bytes], header)
        self.commit()
        return Appended(base, self.end_address)

    def append_verbatim(self, batches: Buffer) -> Appended:
        """Write whole batches that carry their addresses already, beginning exactly at `end_address`.

        An empty log (nothing was ever appended) takes the first address it is given.
        Raises `AddressMismatchError` (then nothing was appended), `LogStorageError`.
        """
        base = read_header(batches).base_offset
        if base != self.staged_end_address and not self.is_pristine:
            raise AddressMismatchError(
                f"{self.directory}: batch at address {base}, the log ends at {self.staged_end_address}"
            )
        expected = base
        for _, header in hop(batches):
            if header.base_offset != expected or header.last_offset_delta != header.size_bytes - 1:
                raise AddressMismatchError(
                    f"{self.directory}: offsets {header.base_offset} + {header.last_offset_delta} "
                    f"are no byte addresses (expected {expected})"
                )
            expected += header.size_bytes
        self.rebase(base)
        for at, header in hop(batches):
            self.stage(memoryview(batches)[at : at + header.size_bytes], header, verbatim=True)
        self.commit()
        return Appended(base, self.end_address)

    def stage(self, batch: Buffer, header: BatchHeader, *, verbatim: bool = False) -> int:
        """Give one verified batch its address, to be written by the next `commit`; returns the address.

        A batch of `COPY_BELOW_BYTES` or more must be writable, and the caller leaves it alone until `commit`.
        Rolls to a new segment first if this one is full: that commits what was staged, and may raise
        `LogStorageError`; then this batch is not staged.
        """
        size_bytes = len(batch)
        address = self.staged_end_address
        active = self._segments.active
        used_bytes = address - active.base_address
        if used_bytes and used_bytes + size_bytes > self.config.segment_bytes:
            self.commit()
            self.roll()
        self._staging.add(batch, address, header.max_timestamp_ms, verbatim=verbatim)
        self.staged_end_address = address + size_bytes
        if header.producer_id >= 0:
            self._staging.undo.append((header.producer_id, self.producers.get(header.producer_id)))
            self.producers.note(header, address, self._clock())
        return address

    def commit(self) -> None:
        """Write what is staged: one writev. Raises `LogStorageError`; then nothing that was staged
        remains.
        """
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
        active.last_append_ms = self._clock()
        self.end_address = self.staged_end_address
        staging.clear()

    def roll(self) -> None:
        """Begin a new segment at the end address; the directory is synced with the next flush.

        Raises `LogStorageError`.
        """
        if self.offline is not None:
            raise self.offline
        if self._segments.active.size_bytes == 0:
            return
        self._segments.add(self._new_segment(self.end_address))
        self._segments.release_idle(self.flushed_address)

    def rebase(self, address: int) -> None:
        """Let a log to which nothing was ever appended begin at `address` (no-op if it ends there)."""
        if address != self.staged_end_address and self.is_pristine:
            self._begin_with(self._new_segment(address))

    def restart(self, address: int) -> None:
        """Drop all there is and begin anew at `address`, beyond the end: a copy whose source has deleted what
        comes next.

        A crash meanwhile may bring back what there was. Waits for the disk. Raises `AddressOutOfRangeError`,
        `LogStorageError`.
        """
        self.commit()
        if self.offline is not None:
            raise self.offline
        if address <= self.end_address:
            raise AddressOutOfRangeError(
                f"{self.directory}: cannot begin anew at {address}, the log ends at {self.end_address}"
            )
        segment = self._new_segment(address)
        try:
            sync_directory(self.directory)  # the new beginning is there before the old one goes
            self._begin_with(segment)
        except OSError as error:
            raise self.take_offline(f"beginning anew at {address} failed: {error.strerror}") from error
        self.producers = ProducerStates()
        self._checkpointed_address = -1
        self._reader.forget()

    def _begin_with(self, segment: Segment) -> None:
        self._segments.replace_all(segment)
        self.end_address = self.flushed_address = self.staged_end_address = segment.base_address

    def _new_segment(self, base_address: int) -> Segment:
        try:
            segment = Segment(self.directory, base_address, create_at_ms=self._clock())
        except OSError as error:
            raise LogStorageError(
                f"{self.directory}: cannot begin a segment at {base_address}: {error.strerror}; "
                "free the disk, then retry"
            ) from error
        self._directory_unsynced = True
        return segment

    # flush

    def begin_flush(self) -> FlushJob | None:
        """The fsync of all that is written and not yet flushed, to be run on any thread; `None` if all is.

        Saves a checkpoint too, if one is due. If the job fails, `take_offline` must follow.
        """
        if self.offline is not None:
            return None
        if self.flushed_address >= self.end_address:
            due = self._due_checkpoint()
            return None if due is None else FlushJob(self.directory, (), False, self.end_address, due)
        files = tuple(
            segment.file
            for segment in self._segments
            if segment.end_address > self.flushed_address and segment.size_bytes
        )
        directory_too, self._directory_unsynced = self._directory_unsynced, False
        return FlushJob(self.directory, files, directory_too, self.end_address, self._due_checkpoint())

    def end_flush(self, job: FlushJob) -> None:
        """The job succeeded: its bytes are durable, and visible."""
        if job.upto_address > self.flushed_address:
            self.flushed_address = job.upto_address
            self._reader.keep(job.upto_address, job.upto_address)

    def take_offline(self, reason: str) -> LogOfflineError:
        """Stop for good, since nobody can say what the disk holds after the flushed address; the error to
        raise from now on.
        """
        if self.offline is None:
            self.offline = LogOfflineError(
                f"{self.directory} is offline: {reason}; addresses from {self.flushed_address} on may not be "
                "on the disk. Mend or replace the disk (see dmesg), then restart the broker: it "
                "reads what the disk holds and goes on after the last whole batch"
            )
        return self.offline

    def flush(self) -> None:
        """Commit, fsync, and return when all is durable. Raises `LogStorageError`."""
        if self.offline is not None:
            raise self.offline
        self.commit()
        job = self.begin_flush()
        if job is not None:
            try:
                job.run()
            except OSError as error:
                raise self.take_offline(f"fsync failed: {error.strerror}") from error
            self.end_flush(job)

    def request_checkpoint(self) -> bool:
        """Save a checkpoint with the next flush; False if the last one still holds."""
        self._checkpoint_due = self._checkpointed_address != self.end_address
        return self._checkpoint_due

    def _due_checkpoint(self) -> Checkpoint | None:
        """The checkpoint as of the end address: possible while nothing is staged, since producers are known
        as of the staged end.
        """
        if not self._checkpoint_due or self.staged_end_address != self.end_address:
            return None
        known = {
            segment.base_address: greatest
            for segment in self._segments.sealed()
            if (greatest := segment.max_timestamp_if_known_ms) is not None
        }
        self._checkpoint_due = False
        self._checkpointed_address = self.end_address
        return Checkpoint(self.end_address, tuple(self.producers), known)

    # read

    def position(self, offset: int) -> int:
        """See `LogReader.position`."""
        return self._reader.position(offset)

    def slices(self, offset: int, max_bytes: int, upto: int | None = None) -> list[FileSlice]:
        """Whole batches from `position(offset)` on, at most `max_bytes` of them, but at least one if one is
        there.

        `upto`: where to stop; by default, and at most, the flushed address. Raises `AddressOutOfRangeError`.
        """
        limit = self.flushed_address if upto is None else min(upto, self.flushed_address)
        return self._reader.slices(offset, max_bytes, limit)

    def offset_for_timestamp(self, timestamp_ms: int) -> TimestampedOffset | None:
        """The first flushed record, in log order, whose timestamp is `timestamp_ms` or later."""
        return run_here(self.search_timestamp(timestamp_ms))

    def max_timestamp_offset(self) -> TimestampedOffset | None:
        """The first flushed record with the greatest timestamp of all (KIP-734); `None` if there is none."""
        return run_here(self.search_max_timestamp())

    def search_timestamp(self, timestamp_ms: int) -> Search:
        """`offset_for_timestamp` in steps, whose reading may be done on another thread."""
        return first_at(self._segments, timestamp_ms, self.flushed_address)

    def search_max_timestamp(self) -> Search:
        """`max_timestamp_offset` in steps."""
        return greatest(self._segments, self.flushed_address)

    def address_for_timestamp(self, timestamp_ms: int) -> int | None:
        """Address of the first batch that holds a flushed record of `timestamp_ms` or later."""
        found = self.offset_for_timestamp(timestamp_ms)
        return None if found is None else self.position(found.offset)

    # life

    def retain(self, now_ms: int | None = None) -> list[str]:
        """Roll a segment that is old enough, delete those that retention no longer covers; the names deleted.

        Time counts from the last append to a segment (paper §3.1: "retained in the broker longer than a
        certain period"), not from the events' own timestamps, which may lie years back.
        Raises `LogStorageError`.
        """
        if self.offline is not None:
            return []
        now = self._clock() if now_ms is None else now_ms
        config = self.config
        segments = self._segments
        if self._is_old(segments.active, now) or segments.active.created_ms + config.segment_ms <= now:
            self.commit()
            self.roll()
        deleted = []
        while len(segments) > 1:
            oldest = segments.oldest
            too_much = (
                config.retention_bytes != UNLIMITED
                and self.size_bytes - oldest.size_bytes >= config.retention_bytes
            )
            if oldest.end_address > self.flushed_address or not (too_much or self._is_old(oldest, now)):
                break
            deleted.append(segments.remove_oldest().path.name)
        if deleted:
            self._directory_unsynced = True
            self._reader.forget()
        self.producers.expire(now - config.producer_expiration_ms)
        return deleted

    def _is_old(self, segment: Segment, now_ms: int) -> bool:
        retention_ms = self.config.retention_ms
        return retention_ms != UNLIMITED and segment.last_append_ms + retention_ms <= now_ms

    def truncate(self, address: int) -> None:
        """Cut off everything from `address` (a batch boundary) on. Raises `AddressOutOfRangeError`."""
        if not self.start_address <= address <= self.end_address or self.position(address) != address:
            raise AddressOutOfRangeError(
                f"{self.directory}: cannot truncate to {address}, no batch begins there"
            )
        replace_file(self.directory / FILE_NAME, encode(Checkpoint(self.start_address)))
        segments = self._segments
        while len(segments) > 1 and segments.active.base_address >= address:
            segments.remove_active()
        segments.active.truncate(address - segments.active.base_address)
        self.end_address = self.staged_end_address = address
        self.flushed_address = min(self.flushed_address, address)
        self._checkpointed_address = -1
        self._reader.forget()
        self.producers = ProducerStates()
        for segment in segments:
            for header in headers(
                segment.file, segment.base_address, segment.base_address, segment.end_address
            ):
                self.producers.note(header, header.base_offset, self._clock())

    def close(self) -> None:
        """Flush, save the checkpoint, release the files. Slices in flight keep working.

        A log that is offline only releases them. Raises `LogStorageError`.
        """
        if self.offline is None:
            self.request_checkpoint()
            self.flush()
        self.abandon()

    def abandon(self) -> None:
        """Release the files without saving anything."""
        self._segments.release_all()
