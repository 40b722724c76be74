"""Lookups by timestamp share the threads, always end, and delay no other request."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from headrace.broker.errors import Refused
from headrace.broker.lookups import RUNNING_MAX, WAIT_MAX_MS, WAITING_MAX, Lookups, Outcome
from headrace.broker.loop import Timer
from headrace.broker.workers import Workers
from headrace.log.checkpoint import Checkpoint, encode
from headrace.log.config import LogConfig
from headrace.log.partition import PartitionLog
from headrace.log.search import Search
from headrace.wire.errors import ErrorCode
from headrace.wire.records import Record, encode_batch


@dataclass
class ManualWorkers:
    """Threads that run a job when `work` is called, and a clock."""

    now_ms: float = 0.0
    jobs: list[tuple[Callable[[], Any], Callable[[Any, Exception | None], None]]] = field(
        default_factory=list
    )
    timers: list[tuple[float, Callable[[], None]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lookups = Lookups(cast(Workers, self), self.call_later, lambda: self.now_ms)

    def submit(self, job: Callable[[], Any], done: Callable[[Any, Exception | None], None]) -> None:
        self.jobs.append((job, done))

    def call_later(self, delay_ms: float, call: Callable[[], None]) -> Timer:
        self.timers.append((self.now_ms + delay_ms, call))
        return Timer(call)

    def work(self, error: Exception | None = None) -> None:
        """Runs the oldest job."""
        job, done = self.jobs.pop(0)
        if error is not None:
            done(None, error)
        else:
            done(job(), None)

    def wait(self, ms: float) -> None:
        self.now_ms += ms
        due = [timer for timer in self.timers if timer[0] <= self.now_ms]
        self.timers = [timer for timer in self.timers if timer not in due]
        for _, call in due:
            call()

    def find(self, search: Search, client: str = "10.0.0.1:1") -> list[Outcome]:
        answers: list[Outcome] = []
        self.lookups.find(search, client).then(answers.append)
        return answers


@pytest.fixture
def log(tmp_path: Path) -> Iterator[PartitionLog]:
    """Ten cold segments of one batch each, timestamps 0 to 9."""
    config = LogConfig(segment_bytes=1_024)
    made = PartitionLog(tmp_path / "t-0", config)
    for ms in range(10):
        made.append(encode_batch([Record(0, ms, None, bytes(1_000))]))
    made.close()
    (tmp_path / "t-0" / "checkpoint").write_bytes(encode(Checkpoint(made.end_address)))
    cold = PartitionLog(tmp_path / "t-0", config)
    yield cold
    cold.close()


def test_many_lookups_of_one_cold_log_read_it_about_once(log: PartitionLog) -> None:
    workers = ManualWorkers()
    answers = [workers.find(log.search_timestamp(9)) for _ in range(20)]
    jobs = 0
    while workers.jobs:
        assert len(workers.jobs) <= RUNNING_MAX
        workers.work()
        jobs += 1
    assert answers == [[(log.end_address - 1, 9)]] * 20
    assert jobs < 10 * RUNNING_MAX + 20
    assert workers.timers, "one timer for all lookups"
    assert len(workers.timers) == 1
    workers.wait(WAIT_MAX_MS)
    assert workers.timers == []


def test_a_search_ends_in_time_even_if_the_disk_hangs(log: PartitionLog) -> None:
    workers = ManualWorkers()
    early = [workers.find(log.search_timestamp(9)) for _ in range(RUNNING_MAX + 1)]
    workers.wait(WAIT_MAX_MS / 2)
    late = workers.find(log.search_timestamp(9))
    workers.wait(WAIT_MAX_MS / 2)
    for answer in early:
        (refused,) = answer
        assert isinstance(refused, Refused) and refused.code is ErrorCode.REQUEST_TIMED_OUT
    assert late == []
    # The disk responds at last: no lookup ends twice, and waiting lookups run.
    while workers.jobs:
        workers.work()
    assert late == [(log.end_address - 1, 9)]
    assert [len(answer) for answer in early] == [1] * len(early)


def test_no_more_wait_than_the_bound(log: PartitionLog) -> None:
    workers = ManualWorkers()
    for _ in range(WAITING_MAX):
        workers.find(log.search_timestamp(9))
    (refused,) = workers.find(log.search_timestamp(9))
    assert isinstance(refused, Refused) and refused.code is ErrorCode.REQUEST_TIMED_OUT
    assert "1000 lookups by timestamp wait already; retry" in str(refused)


def test_a_failed_read_fails_its_own_search_only(log: PartitionLog) -> None:
    workers = ManualWorkers()
    first, second = workers.find(log.search_timestamp(0)), workers.find(log.search_timestamp(0))
    error = OSError("the disk is gone")
    workers.work(error)
    assert first == [error]
    workers.work()
    assert second == [(log.end_address // 10 - 1, 0)]


def test_a_host_with_many_lookups_delays_those_of_another_by_a_few_turns(log: PartitionLog) -> None:
    """One connection may have a thousand of them: all others were refused, or waited for all of its turns."""
    workers = ManualWorkers()
    crowd = [workers.find(log.search_timestamp(9), f"10.0.0.1:{number % 7}") for number in range(WAITING_MAX)]
    own = [workers.find(log.search_timestamp(9), f"10.0.0.2:{number}") for number in range(3)]
    turns = 0
    while not all(own):
        workers.work()
        turns += 1
    assert own == [[(log.end_address - 1, 9)]] * 3
    assert turns <= 2 * 10 * len(own) + RUNNING_MAX
    refused = [each for answers in crowd for each in answers if isinstance(each, Refused)]
    assert len(refused) == len(own), "those that gave way"
    while workers.jobs:
        workers.work()
    assert all(len(answers) == 1 for answers in crowd)


def test_hosts_that_have_as_many_do_not_take_each_others_room(log: PartitionLog) -> None:
    workers = ManualWorkers()
    for number in range(WAITING_MAX):
        workers.find(log.search_timestamp(9), f"10.0.0.{number % 2}:1")
    (refused,) = workers.find(log.search_timestamp(9), "10.0.0.1:2")
    assert isinstance(refused, Refused)
