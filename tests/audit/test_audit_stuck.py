"""When an auditor looks closely at a partition that it cannot count: one at a time, with pauses."""

from __future__ import annotations

import logging

import pytest

from headrace.audit.counting.stuck import PAUSE_S, RETRY_S, StuckPartitions

FIRST, SECOND = ("t", 0), ("t", 1)


class Watched:
    """Two partitions, and a clock that the test moves. `failing`: those whose fetches fail."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.failing: set[tuple[str, int]] = set()
        self.stuck = StuckPartitions(lambda: self.now_s)

    def due(self) -> tuple[str, int] | None:
        return self.stuck.take_due((FIRST, SECOND), self.failing.__contains__)


def test_one_partition_is_due_at_a_time_and_not_at_once_again() -> None:
    watched = Watched()
    assert watched.due() is None
    watched.failing = {FIRST, SECOND}
    assert watched.due() == FIRST
    watched.stuck.pause()
    assert watched.due() is None, "all others wait for a look: counting comes before the next one"
    watched.now_s += PAUSE_S
    assert watched.due() == SECOND
    assert watched.due() is None
    watched.now_s += RETRY_S
    assert watched.due() == FIRST


def test_a_stuck_partition_is_due_later_and_one_without_hope_never(caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched()
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            watched.stuck.stop(FIRST, "its leader is away")
    assert len(caplog.records) == 1, "the log says it once"
    watched.stuck.stop_for_good(SECOND, "a defect")
    assert watched.stuck.problems == {FIRST: "its leader is away", SECOND: "a defect"}
    assert watched.due() is None
    watched.now_s += RETRY_S
    assert watched.due() == FIRST
    watched.now_s += 1000 * RETRY_S
    assert watched.due() == FIRST
    watched.stuck.go_on(FIRST)
    assert watched.due() is None


def test_looks_in_a_row_are_those_since_counting_went_on() -> None:
    stuck = Watched().stuck
    assert [stuck.note_look(FIRST) for _ in range(3)] == [1, 2, 3]
    assert stuck.note_look(SECOND) == 1
    stuck.go_on(FIRST)
    assert stuck.note_look(FIRST) == 1
