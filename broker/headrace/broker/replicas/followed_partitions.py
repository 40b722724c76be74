"""All partitions that this broker follows, and what threads do with their logs.

Owns flushes, cuts and retention of followed logs; `fetcher` decides what is appended and cut. A log that is
flushed may be appended to meanwhile; one that is cut is left alone until that is done.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from headrace.broker.partitions import LAZY_FLUSH_MS, end_flush
from headrace.broker.replicas.cuts import Cut, cut_log
from headrace.broker.replicas.followed import FollowedPartition
from headrace.broker.workers import Workers
from headrace.log.directory import PartitionName
from headrace.log.errors import LogError, LogOfflineError, LogStorageError
from headrace.log.flush import Flushed, FlushJob
from headrace.replication.following import Append

logger = logging.getLogger(__name__)

FORGET_EVERY_BYTES: Final = 4 * 1024 * 1024
"""What is flushed of a log before its pages are given back: nobody reads them while another broker leads."""
APPENDING_MAX_BYTES: Final = 64 * 1024 * 1024
"""What threads append of all logs at a time, and keep in memory until then."""


class FollowedPartitions:
    """By name. `on_offline` is called when the log of one has failed. `keeps_pages`: consumers may read
    from them here.
    """

    def __init__(
        self,
        workers: Workers,
        call_later: Callable[[float, Callable[[], None]], object],
        *,
        keeps_pages: bool = False,
    ) -> None:
        self._keeps_pages = keeps_pages
        self._workers = workers
        self._call_later = call_later
        self._by_name: dict[PartitionName, FollowedPartition] = {}
        self._appending_bytes = 0
        self.on_offline: Callable[[FollowedPartition], None] = lambda _: None
        self.leader_deleted: Callable[[FollowedPartition], None] = lambda _: None

    def get(self, name: PartitionName) -> FollowedPartition | None:
        return self._by_name.get(name)

    def __iter__(self) -> Iterator[FollowedPartition]:
        return iter(list(self._by_name.values()))

    def __len__(self) -> int:
        return len(self._by_name)

    def add(self, followed: FollowedPartition) -> None:
        self._by_name[followed.name] = followed

    def remove(self, followed: FollowedPartition, then: Callable[[], None]) -> None:
        """Removes a partition; `then` is called once no thread works on its log any more."""
        del self._by_name[followed.name]
        followed.when_idle = then
        followed.wake_readers()
        self._check_idle(followed)

    @staticmethod
    def _check_idle(followed: FollowedPartition) -> None:
        if followed.flushing or followed.cutting:
            return
        then, followed.when_idle = followed.when_idle, None
        if then is not None:
            then()

    def fail(self, followed: FollowedPartition) -> None:
        """Reports a log that went offline, once."""
        if followed.failure is None and followed.when_idle is None:
            followed.failure = str(followed.log.offline)
            logger.error("%s: %s", followed, followed.failure)
            self.on_offline(followed)
            followed.wake_readers()

    # --- threads ---

    def append(
        self,
        followed: FollowedPartition,
        step: Append,
        ended: Callable[[LogError | None], None],
        then: Callable[[FollowedPartition], None],
    ) -> bool:
        """Appends the batches of `step` durably on a thread, if that costs less than a write and a flush, and
        if nobody reads them here, nor a thread works on the log (it saves a checkpoint): calls `ended` with
        the error, if any, then `then`. Otherwise does nothing, and returns False. Raises `LogError`.
        """
        size_bytes = len(step.batches)
        waits = followed.config.acks_all_waits_for_fsync and not self._keeps_pages
        if followed.flushing or not waits or self._appending_bytes + size_bytes > APPENDING_MAX_BYTES:
            return False
        log = followed.log
        job = log.begin_append(step.batches, step.headers)
        if job is None:
            return False
        followed.flushing = True
        followed.then = then
        self._appending_bytes += size_bytes

        def worked(_: object, error: Exception | None) -> None:
            followed.flushing = False
            self._appending_bytes -= size_bytes
            if error is None:
                log.end_append(job)
            else:
                log.drop_append()
                if isinstance(error, LogOfflineError):
                    log.take_offline(str(error))
                elif not isinstance(error, LogStorageError):
                    log.take_offline(f"fsync failed: {getattr(error, 'strerror', None) or error}")
            if log.offline is not None:
                self.fail(followed)
            ended(log.offline or (error if isinstance(error, LogError) else None))
            self._worked(followed)

        self._workers.submit(job.run, worked)
        return True

    def flush(self, followed: FollowedPartition, then: Callable[[FollowedPartition], None]) -> bool:
        """Flushes what is not flushed yet, and calls `then`; returns whether there is anything to wait for.

        With `headrace.acks.all=replicated` nobody waits for it, and it runs a moment later.
        """
        if followed.flushing or followed.cutting:
            # Begun by a checkpoint, or while another broker led: `then` waits for its end, too.
            followed.then = then
            return True
        log = followed.log
        if log.flushed_address >= log.end_address:
            return False
        if followed.config.acks_all_waits_for_fsync:
            return self._begin_flush(followed, then)
        if not followed.flush_waits:
            followed.flush_waits = True
            self._call_later(LAZY_FLUSH_MS, lambda: self._flush_late(followed, then))
        return False

    def _flush_late(self, followed: FollowedPartition, then: Callable[[FollowedPartition], None]) -> None:
        followed.flush_waits = False
        if self.get(followed.name) is followed and not (followed.cutting or followed.flushing):
            self._begin_flush(followed, then)

    def _begin_flush(self, followed: FollowedPartition, then: Callable[[FollowedPartition], None]) -> bool:
        log = followed.log
        job = log.begin_flush()
        if job is None:
            return False
        followed.flushing = True
        followed.then = then

        def ended(flushed: object, error: Exception | None) -> None:
            followed.flushing = False
            if not end_flush(log, self._workers, flushed, error):  # type: ignore[arg-type]
                self.fail(followed)
            self._worked(followed)

        forgets = log.end_address - followed.forgotten_address >= FORGET_EVERY_BYTES
        if forgets and not self._keeps_pages:
            followed.forgotten_address = log.end_address
            self._workers.submit(lambda: _flush_and_forget(job), ended)
        else:
            self._workers.submit(job.run, ended)
        return followed.flushing

    def _worked(self, followed: FollowedPartition) -> None:
        """Called when a thread is done with a log."""
        then, followed.then = followed.then, None
        self._check_idle(followed)
        if then is not None:
            then(followed)

    def cut(self, followed: FollowedPartition, step: Cut, then: Callable[[FollowedPartition], None]) -> None:
        """Truncates a log, begins it anew or behind a gap, on a thread; nothing else may work on it then."""
        assert not (followed.flushing or followed.cutting)
        followed.cutting = True
        followed.then = then
        followed.wake_readers()
        log = followed.log

        def ended(_: None, error: Exception | None) -> None:
            followed.cutting = False
            if error is not None:
                log.take_offline(f"{type(step).__name__.lower()} at {step.address} failed: {error}")
                self.fail(followed)
            followed.high_watermark = min(followed.high_watermark, log.end_address)
            followed.forgotten_address = min(followed.forgotten_address, log.end_address)
            # What comes there now no leader has deleted yet.
            followed.leader_start_address = min(followed.leader_start_address, log.end_address)
            self._worked(followed)

        self._workers.submit(lambda: cut_log(log, step), ended)

    # --- upkeep ---

    def delete_expired(self, followed: FollowedPartition, now_ms: int) -> list[Path]:
        """Deletes some of what the leader has deleted, if the log is still followed here; returns the files,
        which the caller removes.
        """
        if followed.cutting or self.get(followed.name) is not followed:
            return []
        try:
            deleted = followed.log.delete_expired_segments(now_ms, source_start=followed.leader_start_address)
        except (LogError, OSError) as error:
            logger.error("%s: retention failed: %s", followed, error)
            return []
        if deleted:
            last = deleted[-1].stem
            logger.info("%s: deleted %d segments, as its leader, up to %s", followed, len(deleted), last)
            followed.wake_readers()  # their offsets may have been in these segments
        return deleted

    def checkpoint(self, followed: FollowedPartition) -> bool:
        """See `Partitions.checkpoint`."""
        if followed.cutting or self.get(followed.name) is not followed:
            return False
        is_due = followed.log.request_checkpoint()
        if is_due and not followed.flushing:
            self._begin_flush(followed, lambda _: None)
        return is_due

    def close(self) -> None:
        """Flushes and closes every log."""
        for followed in self:
            try:
                followed.log.close()
            except (LogError, OSError) as error:
                logger.error("%s: closing failed: %s", followed, error)


def _flush_and_forget(job: FlushJob) -> Flushed:
    """Runs on a thread. Raises `OSError` if the flush failed."""
    flushed = job.run()
    for file in job.files:
        with suppress(OSError):
            file.forget_pages()
    return flushed
