"""One partition's log: append at the end (`log.writing`), read at any address, flush on another thread.

Never waits for the disk in an append, a flush or a read: `begin_flush` returns the fsync as a job. Not
thread-safe; only `FlushJob.run` and `AppendJob.run` may run on another thread.
"""

from __future__ import annotations

from pathlib import Path

from headrace.log.checkpoint import Checkpoint, producers_in, save_cut
from headrace.log.config import UNLIMITED
from headrace.log.cutting import expire
from headrace.log.epochs import LeaderEpochs
from headrace.log.errors import AddressOutOfRangeError
from headrace.log.files import FileReference, FileSlice, sync_directory
from headrace.log.flush import Flushed, FlushJob
from headrace.log.index import IndexJob
from headrace.log.producers import ProducerStates
from headrace.log.retention import delete_expired, must_roll
from headrace.log.saving import checkpoint_of
from headrace.log.search import Search, first_at, greatest
from headrace.log.segment import Segment
from headrace.log.segments import UNFLUSHED_SEALED_MAX
from headrace.log.writing import LogWriter


class PartitionLog(LogWriter):
    """The log in one folder. Opening it recovers: batches that a crash left incomplete are cut off.

    `offline` is set once an fsync failed, or a write left the file in an unknown state: the log then appends,
    flushes and saves nothing more. `leader_epoch` is written into every batch that is not verbatim; `epochs`
    are those of all that is written. `appending`: what a thread writes behind the end now.

    Raises `LogDamagedError` if flushed bytes are missing, `OSError` if the directory cannot be used.
    """

    def restart(self, address: int, *, may_go_back: bool = False) -> None:
        """Drops all batches and restarts at `address`, after the end: for a copy whose source has deleted the
        batches in between. `may_go_back`: or before the start, for one whose leader has none of them.

        A crash may undo it. Waits for the disk. Raises `AddressOutOfRangeError`, `LogStorageError`.
        """
        self.commit()
        self.check_online()
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

    # --- flush ---

    @property
    def must_flush(self) -> bool:
        """Whether a flush can wait no longer: each sealed segment takes a descriptor until then."""
        return self._segments.unflushed_count >= UNFLUSHED_SEALED_MAX

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
        self._covered_address = max(self._covered_address, flushed.checkpointed_address)
        self._segments.flush_ended()

    def begin_index(self, cold: Segment | None = None) -> IndexJob | None:
        """Returns a job for any thread: it writes the index of a segment that was sealed and flushed, `None`
        if there is none. Nothing need be done with its result.

        With `cold`, of a `ColdSegmentError`: it learns that segment's starts, and `Segment.learn` must get
        them.
        """
        return self._segments.indexing(cold)

    def flush(self) -> None:
        """Commits and fsyncs; returns when all is durable. Raises `LogStorageError`."""
        self.check_online()
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

    @property
    def awaits_checkpoint(self) -> bool:
        """Whether the next flush saves a checkpoint, and segments that it covers may be deleted then."""
        is_requested = self._checkpoint_requested and self.offline is None
        return is_requested and self._segments.oldest.end_address > self._covered_address

    def request_checkpoint(self) -> bool:
        """Requests a checkpoint with the next flush; returns False if the last one is still valid."""
        self._checkpoint_requested = self._checkpointed_address != self.end_address
        return self._checkpoint_requested

    def _take_checkpoint(self) -> Checkpoint | None:
        """Returns the checkpoint that is requested or due; `None` if none is, or while batches are staged."""
        if not self._checkpoint_is_due() or self.staged_end_address != self.end_address:
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
        default the flushed address, and before the last checkpoint (`awaits_checkpoint`), at most
        `DELETED_AT_ONCE_MAX`; returns their files, which the caller removes. With `source_start`, the start
        of a copy's source, deletes what lies before that alone. Raises `ColdSegmentError` for a segment that
        must be read first, `LogStorageError`, `OSError`.
        """
        if self.offline is not None:
            return []
        now = self._clock() if now_ms is None else now_ms
        config = self.config
        if self.appending is None and must_roll(self._segments.active, config, now):
            self.commit()
            self.roll()
        if self._cut_files and config.retention_ms != UNLIMITED:
            self._cut_files = expire(self._cut_files, now - config.retention_ms)
        self.producers.expire(config.producer_expiration_ms)
        return self._delete_segments(now, upto, source_start)

    def _delete_segments(self, now_ms: int, upto: int | None, source_start: int | None) -> list[Path]:
        if self.appending is None and source_start == self.staged_end_address:
            self.commit()
            self.roll()  # nothing of the active segment is to stay
        end = committed_end = self.flushed_address if upto is None else min(upto, self.flushed_address)
        if self._covered_address < end:
            # After a crash nobody would know what producers had in what lies behind it.
            end = self._covered_address
            if self._segments.oldest.end_address > end and len(self._segments) > 1:
                self.request_checkpoint()
        deleted = delete_expired(
            self._segments, self.config, end, now_ms, source_start, committed_end=committed_end
        )
        if deleted:
            self._directory_unsynced = True
            self._reader.forget()
            self.epochs.forget_before(self.start_address)
        return deleted

    def delete_before(self, address: int, *, upto: int) -> list[Path]:
        """Deletes the segments that end at `address` or before, and before `upto`, as
        `delete_expired_segments` does, whatever their age.
        """
        return [] if self.offline is not None else self._delete_segments(self._clock(), upto, address)

    def has_segment_before(self, address: int) -> bool:
        """Whether `delete_before` still has something to delete."""
        segments = self._segments
        return len(segments) > 1 and segments.oldest.end_address <= address

    def truncate(self, address: int) -> None:
        """Cuts off everything from `address`, a batch boundary, on. Waits for the disk. Raises
        `AddressOutOfRangeError`, `OSError`.
        """
        if not self.start_address <= address <= self.end_address or self.position(address) != address:
            raise AddressOutOfRangeError(
                f"{self.directory}: cannot truncate to {address}, no batch begins there"
            )
        assert self.appending is None, f"{self.directory}: a thread is appending"
        known = save_cut(self.directory, self.start_address, address, self.notes.renew())
        segments = self._segments
        if segments.truncate(self.directory, address):
            segments.add(self._new_segment(address))
        # A deleted file that a power cut brings back would follow on what is written in its place.
        sync_directory(self.directory)
        self.epochs.truncate(address)
        self.end_address = self.staged_end_address = address
        self.flushed_address = min(self.flushed_address, address)
        self._checkpointed_address = -1
        self._covered_address = known.recovery_point
        self._reader.forget()
        self.producers = producers_in(known, self.start_address)
        for header in segments.headers(known.recovery_point):
            self.producers.note(header, header.base_offset)

    def close(self) -> None:
        """Flushes, saves a checkpoint and releases the files; slices in use keep working. A flush job that
        was begun and not run may have taken the last checkpoint with it: only one that was saved counts.

        If the log is offline, only releases the files. Raises `LogStorageError`.
        """
        if self.offline is None:
            is_saved = self._covered_address == self.end_address
            self._checkpoint_requested = self.request_checkpoint() or not is_saved
            self.flush()
        self.abandon()

    def abandon(self) -> list[FileReference]:
        """Releases the files without saving anything; returns those that slices still have open."""
        return self._segments.release_all()
