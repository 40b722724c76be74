"""The threads for blocking work: what they keep of a job that has ended."""

from __future__ import annotations

import threading
import time
import weakref

from headrace.broker.workers import Workers

WAIT_MAX_S = 60.0


class Job:
    """A job that holds something, as a flush holds files."""

    def run(self) -> str:
        return "done"


def test_a_thread_that_waits_for_work_keeps_nothing_of_its_last_job() -> None:
    """A flush holds descriptors: those of a deleted topic stayed open until the next flush came."""
    ended = threading.Event()
    workers = Workers("test", lambda call: call(), threads=1)
    job = Job()
    kept = weakref.ref(job)
    workers.submit(job.run, lambda result, error: ended.set() if (result, error) == ("done", None) else None)
    del job
    assert ended.wait(WAIT_MAX_S)
    deadline = time.monotonic() + WAIT_MAX_S
    while kept() is not None:
        assert time.monotonic() < deadline, "the thread still has its last job"
        time.sleep(0.01)
    workers.stop()
