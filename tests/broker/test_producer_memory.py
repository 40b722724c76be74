"""What a broker remembers of idempotent producers has a bound over all partitions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.broker.replicas import producer_memory
from headrace.broker.replicas.producer_memory import SAY_EVERY_MS, SILENT_MIN_MS, ProducerMemory
from headrace.log.producers import PACKED_AFTER_MS, ProducerEntry, ProducerStates, StoredBatch


class Site:
    """Logs with producers, each of which is named by a number, and appended last when the test says."""

    def __init__(self, led: int, followed: int) -> None:
        self.now_ms = 0
        logs = [
            SimpleNamespace(producers=ProducerStates(clock_ms=self.clock_ms)) for _ in range(led + followed)
        ]
        self.followed = [SimpleNamespace(log=log, cutting=False) for log in logs[led:]]
        self.states = [log.producers for log in logs]
        parts = [SimpleNamespace(log=log, cutting=False) for log in logs[:led]]
        self.memory = ProducerMemory(cast(Any, parts), cast(Any, self.followed), self.clock_ms)

    def clock_ms(self) -> int:
        return self.now_ms

    def append(self, at: int, producer_id: int) -> None:
        entry = ProducerEntry(0, (StoredBatch(0, 0, producer_id),), self.now_ms)
        self.states[at].put(producer_id, entry)

    def known(self) -> list[list[int]]:
        return [[producer_id for producer_id, _ in states] for states in self.states]


def test_beyond_the_bound_those_that_are_silent_longest_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(producer_memory, "PRODUCERS_TOTAL_MAX", 4)
    site = Site(2, 1)
    for at, producer_id in ((0, 1), (1, 2), (2, 3), (0, 4), (2, 5), (1, 6), (0, 1)):
        site.now_ms += 10
        site.append(at, producer_id)
    site.now_ms += SILENT_MIN_MS
    site.memory.take_turn()
    assert site.known() == [[4, 1], [6], [5]], "2 and 3 were silent longest; 1 had appended again"


def test_who_appended_lately_is_not_forgotten_whatever_the_bound(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(producer_memory, "PRODUCERS_TOTAL_MAX", 1)
    site = Site(1, 1)
    for producer_id in range(3):
        site.append(0, producer_id)
        site.now_ms += 1_000
    site.append(1, 7)
    site.now_ms = SILENT_MIN_MS + 999  # of producer 0 alone this is long ago
    site.memory.take_turn()
    assert site.known() == [[1, 2], [7]]
    site.memory.take_turn()
    assert caplog.text.count("3 idempotent producers are remembered") == 1
    site.now_ms += SAY_EVERY_MS
    site.memory.take_turn()
    assert site.known() == [[], [7]]
    assert "at most 1 are to be: 2 that were silent longest" in caplog.text


def test_a_log_that_a_thread_cuts_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_memory, "PRODUCERS_TOTAL_MAX", 0)
    site = Site(0, 2)
    site.append(0, 1)
    site.append(1, 2)
    site.followed[0].cutting = True
    site.now_ms += SILENT_MIN_MS
    site.memory.take_turn()
    assert site.known() == [[1], []]
    site.followed[0].cutting = False
    site.memory.take_turn()
    assert site.known() == [[], []]


def test_a_turn_does_not_hold_the_loop_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_memory, "PRODUCERS_TOTAL_MAX", 0)
    monkeypatch.setattr(producer_memory, "PACKED_PER_TURN_MAX", 3)
    monkeypatch.setattr(producer_memory, "FORGOTTEN_PER_TURN_MAX", 2)
    site = Site(2, 0)
    for producer_id in range(8):
        site.append(producer_id % 2, producer_id)
    site.now_ms += SILENT_MIN_MS
    lengths = []
    for _ in range(4):
        site.memory.take_turn()
        lengths.append(
            (sum(map(len, site.states)), sum(len(list(each.packed_ones())) for each in site.states))
        )
    assert lengths == [(6, 1), (4, 2), (2, 2), (0, 0)]


def test_many_logs_take_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_memory, "PRODUCERS_TOTAL_MAX", 1)
    monkeypatch.setattr(producer_memory, "LOGS_PER_TURN_MAX", 2)
    site = Site(2, 1)
    for at in range(3):
        site.append(at, at)
    site.now_ms += SILENT_MIN_MS
    site.memory.take_turn()
    assert sum(map(len, site.states)) == 3, "one log was not looked at yet"
    site.memory.take_turn()
    assert site.known() == [[], [], [2]]


def test_silent_ones_are_packed_and_known_as_before() -> None:
    site = Site(1, 0)
    site.append(0, 1)
    site.now_ms += PACKED_AFTER_MS - 1
    site.append(0, 2)
    before = dict(site.states[0])
    site.memory.take_turn()
    assert not list(site.states[0].packed_ones())
    site.now_ms += 1
    site.memory.take_turn()
    assert list(site.states[0].packed_ones()) == [(1, 0)]
    assert dict(site.states[0]) == before
