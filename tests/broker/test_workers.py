"""The threads for blocking work: what they keep of a job that has ended."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial

import pytest

from headrace.broker.workers import Workers

WAIT_MAX_S = 60.0


class Job:
    """A job that holds something, as a flush holds files."""

    def run(self) -> str:
        return "done"

    def fail(self) -> str:
        raise OSError("the disk")


@pytest.mark.parametrize("call", [Job.run, Job.fail])
def test_a_thread_that_waits_for_work_keeps_nothing_of_its_last_job(call: Callable[[Job], str]) -> None:
    """A flush holds descriptors: those of a deleted topic stayed open until the next flush came, and those of
    one that failed until the garbage collector came, so that the log could not be opened again.
    """
    ended = threading.Event()
    workers = Workers("test", lambda call: call(), threads=1)
    job = Job()
    kept = weakref.ref(job)
    gc.disable()
    try:
        workers.submit(partial(call, job), lambda result, error: ended.set())
        del job
        assert ended.wait(WAIT_MAX_S)
        deadline = time.monotonic() + WAIT_MAX_S
        while kept() is not None:
            assert time.monotonic() < deadline, "the thread still has its last job"
            time.sleep(0.01)
    finally:
        gc.enable()
    workers.stop()


def test_what_is_submitted_after_the_end_is_done_at_once() -> None:
    """A timer that fell between the end of the threads and the closing of the logs began a flush that nobody
    ran: its log believed that a checkpoint was saved, and that its directory was synced.
    """
    workers = Workers("test", lambda call: call(), threads=2)
    workers.stop()
    outcomes: list[tuple[object, Exception | None]] = []
    problem = OSError("the disk")

    def fails() -> None:
        raise problem

    workers.submit(Job().run, lambda *outcome: outcomes.append(outcome))
    workers.submit(fails, lambda *outcome: outcomes.append(outcome))
    assert outcomes == [("done", None), (None, problem)]
