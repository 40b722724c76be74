"""The threads that run fsync and other blocking work, so that the event loop never waits for a disk.

Owns threads and their queue. The caller decides what a job does, and what follows on the loop's thread.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, Protocol

logger = logging.getLogger(__name__)

THREADS: Final = 4  # concurrent fsyncs share one journal commit
STOP_WAIT_MAX_S: Final = 30.0

Outcome = Callable[[Any, Exception | None], None]


class Jobs(Protocol):
    """What runs `job()` on a thread, then `done(result, error)` on the loop's thread."""

    def submit(self, job: Callable[[], Any], done: Outcome) -> None: ...


class Workers:
    """Runs `job()` on one of its threads, then `done(result, error)` on the loop's thread by `post`.

    The queue is bounded by its users: a partition has one flush in flight, `FairWorkers` one job a thread.
    """

    def __init__(self, name: str, post: Callable[[Callable[[], None]], None], threads: int = THREADS) -> None:
        self._post = post
        self._has_ended = False
        self._queue: SimpleQueue[tuple[Callable[[], Any], Outcome] | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, name=f"{name}-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, job: Callable[[], Any], done: Outcome) -> None:
        """Once the threads have ended, the caller waits for the job: what is begun is done, as a log believes
        of the flush that a timer begins while the broker stops.
        """
        if self._has_ended:
            self._do(job, done)
        else:
            self._queue.put((job, done))

    def stop(self) -> None:
        """Finishes what is queued, then ends the threads. Called by the thread that submits."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join(STOP_WAIT_MAX_S)
        self._has_ended = True

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            self._do(*item)
            # Until the next job comes: a job of a log that is deleted meanwhile would keep its files open.
            del item

    def _do(self, job: Callable[[], Any], done: Outcome) -> None:
        try:
            result, error = job(), None
        except Exception as caught:
            result, error = None, caught
        self._post(partial(done, result, error))
        # An error refers to this frame, and the frame to the error: both would live on, with the job's files.
        del job, done, result, error
