"""The event loop: an exception ends what raised it, by name, and never the loop; cancelled timers go."""

from __future__ import annotations

import os
from functools import partial

import pytest

from headrace.broker.loop import TIMERS_PURGE_MIN, EventLoop, describe
from headrace.broker.promise import Promise
from headrace.broker.workers import Workers


class Defective:
    """Raises whenever its descriptor is ready, as a defect of one connection does."""

    def __init__(self, loop: EventLoop, fd: int, *, ends: bool) -> None:
        self.loop, self.fd, self.ends = loop, fd, ends
        self.failures = 0

    def __str__(self) -> str:
        return "client 7"

    def on_ready(self, events: int) -> None:
        raise KeyError("a defect")

    def on_failure(self) -> None:
        self.failures += 1
        if not self.ends:
            raise RuntimeError("it cannot be ended either")
        self.loop.unregister(self.fd)


class Counting:
    def __init__(self) -> None:
        self.count = 0

    def on_ready(self, events: int) -> None:
        self.count += 1

    def on_failure(self) -> None:
        raise AssertionError("it never fails")


@pytest.mark.parametrize("ends", [True, False])
def test_a_defect_ends_what_raised(loop: EventLoop, caplog: pytest.LogCaptureFixture, ends: bool) -> None:
    pipes = [os.pipe() for _ in range(2)]
    bad, good = Defective(loop, pipes[0][0], ends=ends), Counting()
    loop.register(pipes[0][0], bad)
    loop.register(pipes[1][0], good)
    for _, write_end in pipes:
        os.write(write_end, b"x")
    for _ in range(3):
        loop.turn(1)
    assert bad.failures == 1, "it is not called again"
    assert good.count == 3
    assert "client 7: handling its socket failed" in caplog.text
    for pipe in pipes:
        for fd in pipe:
            os.close(fd)


def test_a_failing_timer_is_named_and_others_run(loop: EventLoop, caplog: pytest.LogCaptureFixture) -> None:
    ran = []

    def fails_as_a_timer() -> None:
        raise ValueError("a defect")

    loop.call_later(0, fails_as_a_timer)
    loop.call_later(0, lambda: ran.append(1))
    loop.at_wakeup_end(fails_as_a_timer)
    loop.at_wakeup_end(lambda: ran.append(2))
    loop.turn(0.01)
    assert ran == [1, 2]
    assert caplog.text.count("fails_as_a_timer") >= 2


def test_a_failing_outcome_of_a_worker_is_named(loop: EventLoop, caplog: pytest.LogCaptureFixture) -> None:
    workers = Workers("test", loop.post, 1)

    def fails_as_an_outcome(result: object, error: Exception | None) -> None:
        raise ValueError("a defect")

    workers.submit(lambda: 1, fails_as_an_outcome)
    workers.stop()
    loop.turn(1)
    assert "fails_as_an_outcome" in caplog.text


def test_a_failing_callback_keeps_a_promise_from_nobody(caplog: pytest.LogCaptureFixture) -> None:
    promise: Promise[int] = Promise()
    got: list[int] = []

    def fails(value: int) -> None:
        raise ValueError("a defect")

    promise.then(fails)
    promise.then(got.append)
    promise.resolve(5)
    assert got == [5]
    assert "fails" in caplog.text


def test_names_of_calls_hold_no_arguments() -> None:
    class Big:
        def call(self, data: bytes) -> None: ...

        def __repr__(self) -> str:
            return "x" * 1_000_000

    assert len(describe(partial(Big().call, bytes(1_000_000)))) < 200


def test_cancelled_timers_are_removed_before_their_time(loop: EventLoop) -> None:
    """Fetches may wait for minutes, and most end within milliseconds."""
    ran: list[int] = []
    loop.call_later(0, lambda: ran.append(1))
    for _ in range(50 * TIMERS_PURGE_MIN):
        loop.call_later(300_000, lambda: None).cancel()
    assert len(loop._timers) <= TIMERS_PURGE_MIN + 1
    loop.turn(0.01)
    assert ran == [1]
