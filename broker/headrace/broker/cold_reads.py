"""Lookups in segments of which nothing is known yet, off the event loop: after a restart the first fetch into
a segment reads its index, or scans it, which takes up to seconds for a segment of small batches.

Owns their order and bounds. What is learned stays with the log, so only the first fetch waits.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from headrace.broker.promise import Promise
from headrace.broker.workers import Workers
from headrace.log.errors import LogError, LogReadError
from headrace.log.index import IndexJob
from headrace.log.partition import PartitionLog
from headrace.log.segment import Segment
from headrace.log.starts import KnownStarts

RUNNING_MAX: Final = 2  # the threads fsync, too

Outcome = LogError | None


class ColdReads:
    """Called on the loop's thread. `workers` run the reading. Fetches of one segment share one job, so there
    are at most as many jobs as segments.
    """

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._promises: dict[Segment, Promise[Outcome]] = {}
        self._queue: deque[tuple[PartitionLog, Segment]] = deque()
        self._running = 0

    def learn(self, log: PartitionLog, segment: Segment) -> Promise[Outcome]:
        """Learns where the batches of a segment begin; resolves with what kept it from its end, if any."""
        promise = self._promises.get(segment)
        if promise is None:
            promise = self._promises[segment] = Promise()
            self._queue.append((log, segment))
            self._start()
        return promise

    def _start(self) -> None:
        while self._queue and self._running < RUNNING_MAX:
            log, segment = self._queue.popleft()
            job = log.begin_index(segment)
            assert job is not None  # it always is for a given segment
            self._running += 1
            self._submit(segment, job)

    def _submit(self, segment: Segment, job: IndexJob) -> None:
        def learned(starts: KnownStarts | None, error: Exception | None) -> None:
            self._running -= 1
            problem = job.problem
            if starts is not None:
                segment.learn(starts, problem, job.islands)
            if error is not None:
                problem = LogReadError(f"{job.path}: {error}")
            self._promises.pop(segment).resolve(problem)
            self._start()

        self._workers.submit(job.run, learned)
