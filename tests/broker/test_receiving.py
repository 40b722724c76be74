"""The bound on requests being received: never far exceeded, never in a circle, and empty in the end."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from headrace.broker.network.connection_limits import ConnectionLimits
from headrace.broker.network.receiving import BEGINNING_MAX_BYTES, Progress, ReceiveBound
from headrace.broker.settings.config import BrokerConfig

LIMITS = replace(
    ConnectionLimits.of(BrokerConfig().__getitem__),
    receive_timeout_s=30.0,
    receive_stall_max_s=1.0,
    receive_bytes_per_second_min=1_000,
)


class Frame:
    """A receiver whose frame arrives as quickly as the bound allows."""

    def __init__(self, bound: ReceiveBound, size_bytes: int) -> None:
        self.bound, self.size_bytes = bound, size_bytes
        self.filled = 0
        self.taken_bytes = 0
        self.waits = False

    def feed(self) -> None:
        assert self.waits
        self.waits = False

    def take(self, count: int) -> None:
        self.filled += count
        self._account(0 if self.filled == self.size_bytes else self.filled)

    def step(self, chance: random.Random) -> None:
        allowed = self.bound.allowance(self, self.size_bytes, self.filled)
        assert allowed <= self.size_bytes - self.filled
        self.waits = not allowed
        if allowed:
            self.take(chance.randrange(1, allowed + 1))

    def give_up(self) -> None:
        self.waits = False
        self._account(0)

    def _account(self, now_bytes: int) -> None:
        before, self.taken_bytes = self.taken_bytes, now_bytes
        if now_bytes != before:
            self.bound.account(self, before, now_bytes)


@pytest.mark.parametrize("seed", range(30))
def test_all_frames_arrive_and_the_bound_holds(seed: int) -> None:
    chance = random.Random(seed)
    bound = ReceiveBound(max_bytes := chance.choice((1_000, 300_000, 2_000_000)))
    frames = [
        Frame(bound, chance.choice((100, 70_000, 500_000, 5_000_000))) for _ in range(chance.randrange(1, 12))
    ]
    largest = max(frame.size_bytes for frame in frames)
    beginnings = len(frames) * BEGINNING_MAX_BYTES
    open_frames = list(frames)
    for _ in range(100_000):
        ready = [frame for frame in open_frames if not frame.waits]
        if not open_frames:
            break
        assert ready, "nobody may proceed: they wait for each other"
        frame = chance.choice(ready)
        if chance.random() < 0.01:
            frame.give_up()
            open_frames.remove(frame)
            continue
        if chance.random() < 0.05:
            bound.hold(500)
            bound.release(500)
        frame.step(chance)
        assert bound.reserved_bytes == sum(each.taken_bytes for each in frames)
        assert bound.reserved_bytes <= max_bytes + largest + beginnings
        if frame.filled == frame.size_bytes:
            open_frames.remove(frame)
    assert not open_frames
    assert bound.reserved_bytes == bound._committed_bytes == 0
    assert not bound.partials and not bound.starved and not bound._admitted


def test_those_that_wait_are_admitted_in_order() -> None:
    bound = ReceiveBound(1_000_000)
    first, second, third = (Frame(bound, 800_000) for _ in range(3))
    chance = random.Random(1)
    for frame in (first, second, third):
        frame.take(BEGINNING_MAX_BYTES)
    for frame in (first, second, third):
        frame.step(chance)
    assert [frame.waits for frame in (first, second, third)] == [False, True, True]
    first.give_up()
    assert [frame.waits for frame in (second, third)] == [False, True]
    second.give_up()
    assert not third.waits


@pytest.mark.parametrize(
    ("seconds", "arrived", "others_wait", "is_read", "is_given_up"),
    [
        (29, 0, False, True, False),
        (30, 0, False, True, True),
        (30, 29_999, False, True, True),
        (30, 30_000, False, True, False),
        (300, 0, False, False, False),  # the broker does not read it
        (0.9, 0, True, True, False),
        (1, 999, True, True, True),
        (1, 1_000, True, True, False),
        (30, 1_000_000, True, True, True),  # incomplete for long, and others wait
        (30, 1_000_000, True, False, True),
    ],
)
def test_progress(seconds: float, arrived: int, others_wait: bool, is_read: bool, is_given_up: bool) -> None:
    progress = Progress()
    progress.begin(1_000.0, 500)
    problem = progress.problem(
        1_000.0 + seconds, 500 + arrived, LIMITS, is_read=is_read, others_wait=others_wait
    )
    assert bool(problem) == is_given_up, problem
