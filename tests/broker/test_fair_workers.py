"""Clients' blocking work: hosts and connections take turns, and what waits is bounded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.broker import fair_workers
from headrace.broker.errors import Refused
from headrace.broker.fair_workers import OWN, UPKEEP, FairWorkers, OwnJobs
from headrace.broker.groups.store import GroupStore
from headrace.broker.workers import Outcome, Workers
from headrace.wire.errors import ErrorCode

THREADS = 4


class StepWorkers:
    """Threads that end a job when told to; `running` are the jobs that have begun."""

    def __init__(self) -> None:
        self.running: list[tuple[Callable[[], Any], Outcome]] = []

    def submit(self, job: Callable[[], Any], done: Outcome) -> None:
        self.running.append((job, done))

    def end(self, at: int = 0) -> None:
        job, done = self.running.pop(at)
        done(job(), None)


class FairBench:
    """`began` are the clients of the jobs that have begun, in order."""

    def __init__(self) -> None:
        self.steps = StepWorkers()
        self.fair = FairWorkers(cast(Workers, self.steps), THREADS)
        self.ended: list[tuple[str, int]] = []
        self.refused: list[ErrorCode] = []

    def submit(self, client: str, number: int = 0) -> None:
        def done(result: tuple[str, int] | None, error: Exception | None) -> None:
            if result is None:
                assert isinstance(error, Refused)
                self.refused.append(error.code)
            else:
                assert self.fair.client == client, "what follows is in the client's name, too"
                self.ended.append(result)

        self.fair.client = client
        self.fair.submit(lambda: (client, number), done)

    def end_all(self) -> None:
        while self.steps.running:
            assert len(self.steps.running) <= THREADS
            self.steps.end()


def test_a_connection_has_one_job_at_a_time() -> None:
    bench = FairBench()
    for number in range(600):
        bench.submit("127.0.0.1:1", number)
    assert len(bench.steps.running) == 1
    bench.submit("127.0.0.1:2")
    assert len(bench.steps.running) == 2, "another connection waits for none of them"
    bench.end_all()
    assert [number for client, number in bench.ended if client == "127.0.0.1:1"] == list(range(600))


def test_one_host_never_has_all_threads() -> None:
    bench = FairBench()
    for port in range(500):
        bench.submit(f"10.0.0.1:{port}")
    assert len(bench.steps.running) == THREADS - 1
    bench.submit("10.0.0.2:1")
    assert len(bench.steps.running) == THREADS


def test_hosts_take_turns_whatever_number_of_connections_they_have() -> None:
    bench = FairBench()
    for port in range(100):
        bench.submit(f"10.0.0.1:{port}")
    for host in range(2, 6):
        bench.submit(f"10.0.0.{host}:1")
    bench.end_all()
    last = max(at for at, (client, _) in enumerate(bench.ended) if not client.startswith("10.0.0.1:"))
    assert last < 12


def test_jobs_beyond_the_bound_are_refused_and_the_brokers_own_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fair_workers, "WAITING_PER_CLIENT_MAX", 3)
    monkeypatch.setattr(fair_workers, "WAITING_MAX", 5)
    bench = FairBench()
    for number in range(6):
        bench.submit("10.0.0.1:1", number)
    assert bench.refused == [ErrorCode.REQUEST_TIMED_OUT] * 2
    assert bench.fair.refusal is not None
    for number in range(4):
        bench.submit("10.0.0.2:1", number)
    assert len(bench.refused) == 3, "five wait"
    own: list[int] = []
    OwnJobs(bench.fair).submit(lambda: 1, lambda result, _: own.append(result))
    assert bench.fair.client == "10.0.0.2:1"
    bench.end_all()
    assert own == [1]
    assert len(bench.ended) == 7
    bench.submit("10.0.0.1:1")
    assert len(bench.refused) == 3, "there is room again"


def test_own_work_needs_no_client() -> None:
    bench = FairBench()
    bench.submit(OWN)
    bench.end_all()
    assert bench.ended == [(OWN, 0)]


@settings(max_examples=200)
@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(0, 3)), max_size=60))
def test_every_job_ends_once_and_a_clients_jobs_in_order(steps: list[tuple[int, int, int]]) -> None:
    bench = FairBench()
    submitted: dict[str, int] = {}
    for host, port, ends in steps:
        client = f"10.0.0.{host}:{port}"
        submitted[client] = submitted.get(client, 0) + 1
        bench.submit(client, submitted[client])
        for _ in range(min(ends, len(bench.steps.running))):
            bench.steps.end(ends % len(bench.steps.running))
        assert len(bench.steps.running) <= THREADS
    bench.end_all()
    for client, count in submitted.items():
        assert [number for ended, number in bench.ended if ended == client] == list(range(1, count + 1))
    assert len(bench.ended) == len(steps)


def test_no_client_waits_for_the_offsets_of_deleted_topics() -> None:
    """They were deleted in the name of the client that was served last: its commits waited for all."""
    bench = FairBench()
    bench.fair.client = "10.0.0.1:5"
    store = GroupStore(cast(Any, None), bench.fair, cast(Any, None), upkeep=OwnJobs(bench.fair, UPKEEP))
    store.topics_deleted(["a", "b"])
    assert bench.fair.client == "10.0.0.1:5"
    bench.submit("10.0.0.1:5", 1)
    OwnJobs(bench.fair).submit(lambda: None, lambda *_: None)
    assert len(bench.steps.running) == 3
    bench.steps.end(1)
    assert bench.ended == [("10.0.0.1:5", 1)]
