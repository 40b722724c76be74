"""The partitions this broker leads: staged appends, waiting producers and readers, flush scheduling.

Owns the order of steps: stage during a wakeup, one writev per partition at its end (`commit`), then the
fsync on a worker, then a call to everything that waits for durable or visible bytes. Knows no protocol:
waiters are called back with error codes.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from headrace.broker.loop import Timer
from headrace.broker.partition import AppendWaiter, Partition
from headrace.broker.workers import Workers
from headrace.log.config import flush_wait_ms
from headrace.log.errors import LogError, LogOfflineError, LogStorageError
from headrace.log.flush import Flushed, FlushJob
from headrace.log.partition import PartitionLog
from headrace.log.segment import ColdSegmentError
from headrace.wire.errors import ErrorCode

logger = logging.getLogger(__name__)

LAZY_FLUSH_MS: Final = 10  # adaptive flushing, while neither a producer nor a consumer waits
TIMEOUT_CHECK_MS: Final = 50  # how late a producer may get its timeout


def end_flush(log: PartitionLog, workers: Workers, flushed: Flushed | None, error: Exception | None) -> bool:
    """Takes the outcome of a log's flush job; returns whether the log is still online."""
    if log.offline is not None:
        return False
    if flushed is None:
        problem = error.strerror if isinstance(error, OSError) else str(error)
        log.take_offline(f"fsync failed: {problem}")
        return False
    log.end_flush(flushed)
    while (indexing := log.begin_index()) is not None:
        workers.submit(indexing.run, _index_written)
    return True


def _index_written(_starts: object, error: Exception | None) -> None:
    """An index that is missing costs a scan later: that is all."""
    if error is not None:
        logger.warning("an index was not written: %s", error)


class Partitions:
    """All partitions. `call_later(delay_ms, fn)` is the loop's timer; `monotonic_ms` gives a time that nobody
    sets.
    """

    def __init__(
        self,
        workers: Workers,
        call_later: Callable[[float, Callable[[], None]], Timer],
        monotonic_ms: Callable[[], float] = lambda: time.monotonic() * 1000,
    ) -> None:
        self._workers = workers
        self._call_later = call_later
        self._monotonic_ms = monotonic_ms
        self._by_name: dict[tuple[str, int], Partition] = {}
        self._dirty: dict[Partition, None] = {}
        self._awaited: dict[Partition, None] = {}  # producers may wait for their flush
        self._checks_timeouts = False
        self.on_offline: Callable[[Partition], None] = lambda _: None

    def get(self, topic: str, index: int) -> Partition | None:
        return self._by_name.get((topic, index))

    def __iter__(self) -> Iterator[Partition]:
        return iter(list(self._by_name.values()))

    def __len__(self) -> int:
        return len(self._by_name)

    def add(self, partition: Partition) -> None:
        self._by_name[partition.topic, partition.index] = partition

    def remove(
        self,
        partition: Partition,
        code: ErrorCode = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        problem: str = "the topic was deleted",
    ) -> None:
        """Removes a partition; everything that waits for it fails."""
        self._by_name.pop((partition.topic, partition.index), None)
        partition.fail(problem)
        self._dirty.pop(partition, None)
        waiting = [*partition.waiting, *(waiter for _, waiter in partition.durable_waiting)]
        partition.waiting.clear()
        partition.durable_waiting.clear()
        for waiter in waiting:
            waiter.appended(code, problem)
        self._wake_readers(partition)
        self._wake_followers(partition)

    def set_cut_off(self, partition: Partition, problem: str | None) -> None:
        """Sends clients to ask who leads from now on, and those that wait for acks=all; None: no longer."""
        partition.cut_off = problem is not None
        partition.see_plain()
        if problem is not None:
            waiting = [waiter for _, waiter in partition.durable_waiting]
            partition.durable_waiting.clear()
            for waiter in waiting:
                waiter.appended(ErrorCode.NOT_LEADER_OR_FOLLOWER, problem)
            self._wake_readers(partition)

    def give_up(self, partition: Partition, problem: str, then: Callable[[], None]) -> None:
        """Ends leading: writes what is staged, refuses what waits for more than that, and calls `then` once
        no fsync of the log runs any more.
        """
        if partition in self._dirty:
            del self._dirty[partition]
            self._write(partition)
        self.remove(partition, ErrorCode.NOT_LEADER_OR_FOLLOWER, problem)
        if partition.flush_timer is not None:
            partition.flush_timer.cancel()
            partition.flush_timer = None
        if partition.flushing:
            partition.when_flushed = then
        else:
            then()

    def staged(self, partition: Partition, waiting: AppendWaiter | None, records: int) -> None:
        """Schedules the write of what was staged in its log, at the end of this wakeup."""
        if waiting is not None:
            partition.waiting.append(waiting)
        if not partition.unflushed_records:
            partition.oldest_unflushed_ms = self._monotonic_ms()
        partition.unflushed_records += records
        self._dirty[partition] = None

    def commit(self) -> None:
        """Ends a wakeup: writes what is staged, calls those that wait for the write, starts the flushes."""
        if not self._dirty:
            return
        dirty, self._dirty = self._dirty, {}
        for partition in dirty:
            self._write(partition)
            if partition.log.flushed_address < partition.log.end_address:
                self._schedule_flush(partition)

    def _write(self, partition: Partition) -> None:
        try:
            partition.log.commit()
        except LogOfflineError:
            pass  # `complete_writes` reports it
        except LogStorageError as error:
            logger.error("%s: %s", partition.name, error)
        self.complete_writes(partition)
        if partition.replicas is not None:
            self._wake_followers(partition)
            if not partition.config.acks_all_waits_for_fsync:
                self.advance(partition)

    def complete_writes(self, partition: Partition) -> None:
        """Calls the waiters once nothing is staged any more: their bytes are in the file, or failed."""
        if partition.log.offline is not None and not partition.failure:
            self._fail(partition, str(partition.log.offline))
        waiting, partition.waiting = partition.waiting, []
        end = partition.log.end_address
        visible = partition.visible_address
        awaiting: list[AppendWaiter] = []
        for waiter in waiting:
            if waiter.end_address > end:
                waiter.appended(ErrorCode.KAFKA_STORAGE_ERROR, "writing to the disk failed")
            elif waiter.durable and waiter.end_address > visible:
                if partition.failure:
                    waiter.appended(ErrorCode.KAFKA_STORAGE_ERROR, partition.failure)
                else:
                    awaiting.append(waiter)
            else:
                waiter.appended(ErrorCode.NONE, None)
        if awaiting:
            self._await_visible(partition, awaiting)

    def _await_visible(self, partition: Partition, waiting: Sequence[AppendWaiter]) -> None:
        partition.await_visible(waiting, self._monotonic_ms())
        self._awaited[partition] = None
        if not self._checks_timeouts:
            self._checks_timeouts = True
            self._call_later(TIMEOUT_CHECK_MS, self._check_timeouts)

    def _check_timeouts(self) -> None:
        """Repeats while a producer waits: one timer for all requests instead of one per request."""
        now_ms = self._monotonic_ms()
        checked, self._awaited = self._awaited, {}
        try:
            for partition in checked:
                if partition.soonest_deadline_ms <= now_ms:
                    partition.time_out(now_ms)
                if partition.durable_waiting:
                    self._awaited[partition] = None
        finally:
            self._checks_timeouts = bool(self._awaited)
            if self._checks_timeouts:
                self._call_later(TIMEOUT_CHECK_MS, self._check_timeouts)

    # --- flush ---

    def request_flush(self, partition: Partition) -> None:
        """Flushes what is not visible yet, as soon as the flush settings allow: a reader waits for it."""
        if partition.log.flushed_address < partition.log.end_address:
            self._schedule_flush(partition)

    def config_changed(self, partition: Partition) -> None:
        """Schedules the flush that is due later anew: its topic may have other flush settings now."""
        if partition.flush_timer is not None:
            partition.flush_timer.cancel()
            partition.flush_timer = None
            self.request_flush(partition)

    def _schedule_flush(self, partition: Partition, *, follows: bool = False) -> None:
        """Starts the next flush, now or later. `follows`: the last one has just ended."""
        if partition.flushing or partition.failure:
            return
        config = partition.log.config
        if partition.log.must_flush:
            wait_ms = 0
        elif config.flush_messages is None and config.flush_ms is None:
            needs_fsync = partition.replicas is None or partition.config.acks_all_waits_for_fsync
            is_awaited = needs_fsync and (partition.durable_waiting or partition.readers)
            wait_ms = 0 if is_awaited else LAZY_FLUSH_MS
        else:
            wait_ms = flush_wait_ms(config, partition.unflushed_records, self._age_ms(partition))
        if wait_ms <= 0:
            gathers = bool(partition.durable_waiting)
            self._start_flush(partition, partition.gathering.wait_s(follows=follows) if gathers else 0.0)
        elif partition.flush_timer is None:
            partition.flush_timer = self._call_later(wait_ms, lambda: self._flush_due(partition))

    def _flush_due(self, partition: Partition) -> None:
        partition.flush_timer = None
        if self.get(partition.topic, partition.index) is not partition or partition.flushing:
            return
        if flush_wait_ms(partition.log.config, partition.unflushed_records, self._age_ms(partition)) > 0:
            self._schedule_flush(partition)
        elif partition.log.flushed_address < partition.log.end_address and not partition.failure:
            self._start_flush(partition)

    def _age_ms(self, partition: Partition) -> int:
        return int(self._monotonic_ms() - partition.oldest_unflushed_ms)

    def _start_flush(self, partition: Partition, gather_s: float = 0.0) -> None:
        if partition.flush_timer is not None:
            partition.flush_timer.cancel()
            partition.flush_timer = None
        job = partition.log.begin_flush(gather_s)
        if job is None:
            return
        partition.flushing = True
        partition.unflushed_records = 0
        self._workers.submit(
            job.run, lambda flushed, error: self._on_flush_ended(partition, job, flushed, error)
        )

    def _on_flush_ended(
        self, partition: Partition, job: FlushJob, flushed: Flushed | None, error: Exception | None
    ) -> None:
        partition.flushing = False
        then, partition.when_flushed = partition.when_flushed, None
        log = partition.log
        if then is not None:
            end_flush(log, self._workers, flushed, error)
            then()
        elif self.get(partition.topic, partition.index) is not partition or log.offline is not None:
            return
        elif not end_flush(log, self._workers, flushed, error):
            self._fail(partition, str(log.offline))
        else:
            assert flushed is not None
            partition.gathering.note(job.gather_s, flushed)
            self.advance(partition)
            if log.flushed_address < log.end_address:
                self._schedule_flush(partition, follows=True)

    @staticmethod
    def _complete_durable(partition: Partition) -> None:
        visible = partition.visible_address
        durable = partition.durable_waiting
        while durable and durable[0][1].end_address <= visible:
            _, waiter = durable.popleft()
            waiter.appended(ErrorCode.NONE, None)

    # --- replicas ---

    def advance(self, partition: Partition) -> None:
        """Calls what waits for visible bytes, if more are visible now: the log was flushed, or a follower has
        told how far it is.
        """
        replicas = partition.replicas
        if replicas is None or replicas.advance(partition.stored_address):
            self._complete_durable(partition)
            self._wake_readers(partition)
            if partition.told:
                self._wake_followers(partition)
            else:
                for reader in list(partition.follower_readers):
                    reader.risen(partition)

    def in_sync_changed(self, partition: Partition) -> None:
        """Called after every change of a led partition's in-sync set, or of how many it needs."""
        partition.see_plain()
        if partition.is_below_min:
            waiting, partition.durable_waiting = partition.durable_waiting, deque()
            for _, waiter in waiting:
                waiter.appended(
                    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
                    f"{partition.name}: written, but fewer replicas are in sync than min.insync.replicas",
                )
        else:
            self.advance(partition)

    def _fail(self, partition: Partition, problem: str) -> None:
        """Fails everything that waits for a partition whose log is offline."""
        partition.fail(problem)
        logger.error("%s: %s", partition.name, problem)
        self.on_offline(partition)
        if partition.flush_timer is not None:
            partition.flush_timer.cancel()
            partition.flush_timer = None
        while partition.durable_waiting:
            _, waiter = partition.durable_waiting.popleft()
            waiter.appended(ErrorCode.KAFKA_STORAGE_ERROR, problem)
        self._wake_readers(partition)
        self._wake_followers(partition)

    def _wake_readers(self, partition: Partition) -> None:
        for reader in list(partition.readers):
            reader.more(partition)

    def _wake_followers(self, partition: Partition) -> None:
        for reader in list(partition.follower_readers):
            reader.more(partition)

    # --- upkeep ---

    def delete_expired(self, partition: Partition, now_ms: int) -> list[Path]:
        """Deletes some of a log's expired segments, if it is still led here; returns their files, which the
        caller removes. Raises `ColdSegmentError` for a segment that must be read first.
        """
        upto = partition.visible_address
        delete = partition.log.delete_expired_segments
        return self._delete(partition, "retention", lambda: delete(now_ms, upto=upto))

    def delete_before(self, partition: Partition, address: int) -> list[Path]:
        """Deletes some of a log's segments before an address, as `delete_expired` does."""
        upto = partition.visible_address
        delete = partition.log.delete_before
        return self._delete(partition, "DeleteRecords", lambda: delete(address, upto=upto))

    def _delete(self, partition: Partition, cause: str, delete: Callable[[], list[Path]]) -> list[Path]:
        # A segment that is rolled is written first. If that fails, those who wait for it must hear of it
        # before the next batch gets the same address.
        self.commit()
        if self.get(partition.topic, partition.index) is not partition:
            return []
        try:
            deleted = delete()
        except ColdSegmentError:
            raise
        except (LogError, OSError) as error:
            logger.error("%s: %s failed: %s", partition.name, cause, error)
            return []
        if deleted:
            name = partition.name
            logger.info("%s: %s deleted %d segments up to %s", name, cause, len(deleted), deleted[-1].stem)
            self._wake_readers(partition)  # their offsets may have been in these segments
            self._wake_followers(partition)
        return deleted

    def checkpoint(self, partition: Partition) -> bool:
        """Saves a log's checkpoint, if one is due, with its next flush or now; returns whether one is."""
        if self.get(partition.topic, partition.index) is not partition or partition.failure:
            return False
        is_due = partition.log.request_checkpoint()
        if is_due and not partition.flushing:
            self._start_flush(partition)
        return is_due

    def close(self) -> None:
        """Flushes and closes every log."""
        self.commit()
        for partition in self:
            try:
                partition.log.close()
            except (LogError, OSError) as error:
                logger.error("%s: closing failed: %s", partition.name, error)
            self._complete_durable(partition)
