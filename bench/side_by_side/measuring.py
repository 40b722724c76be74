"""Rounds: each contender in turn does the same work, in an order that rotates, and is measured meanwhile.

Owns the order, the client's process and the readings before and after. What the work is, the caller says.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from clients.outcome import ClientFailedError, Outcome
from side_by_side.figures import (
    BROKER_CPU,
    BROKER_MEMORY_MB,
    CLIENT_CORES,
    CLIENT_MEMORY_MB,
    OTHER_CORES,
    RECORDS_PER_S,
    Row,
    Sample,
)
from side_by_side.machine import Snapshot, snapshot
from side_by_side.process import PinnedProcess

CLIENT_WAIT_MAX_S: Final = 300.0
BEGIN_LINE: Final = b"begin"
SETTLE_S: Final = 0.5


@dataclass(frozen=True)
class Command:
    """A client program to run, and the cores that it may use."""

    arguments: Sequence[str]
    cores: Collection[int]
    log: Path
    counts: int = 1
    """How many such clients run at once; their records are added up."""


@dataclass(frozen=True)
class Contender:
    """One broker in one row. `work` does a round and returns its figures."""

    name: str
    work: Callable[[int], Sample]
    before: Callable[[int], None] = lambda _: None
    after: Callable[[int], None] = lambda _: None


def run_rounds(row: Row, contenders: Sequence[Contender], rounds: int) -> None:
    """Adds `rounds` samples of each contender to the row. Round r begins with contender r."""
    for number in range(rounds):
        first = number % len(contenders)
        for contender in (*contenders[first:], *contenders[:first]):
            contender.before(number)
            try:
                settle()
                row.add(contender.name, contender.work(number))
            finally:
                contender.after(number)


def settle() -> None:
    """Writes what brokers left in the page cache, so that no round pays for the one before."""
    os.sync()
    time.sleep(SETTLE_S)


class Reading:
    """The machine's use from its construction until `sample`."""

    def __init__(self, broker_pids: Collection[int], idle_pids: Collection[int] = ()) -> None:
        """`idle_pids`: brokers that run but are not measured now; they are no strangers to the bench."""
        self._broker_pids = list(broker_pids)
        self._ours = [os.getpid(), *broker_pids, *idle_pids]
        self._began_s = time.monotonic()
        self._before: Snapshot = snapshot()

    def sample(self, outcome: Outcome, memory_bytes: int = 0) -> Sample:
        """Returns the figures of a round in which the client did `outcome`."""
        after, seconds = snapshot(), time.monotonic() - self._began_s
        broker_cpu_s = after.cpu_s(self._broker_pids) - self._before.cpu_s(self._broker_pids)
        others_s = after.others_s(self._ours) - self._before.others_s(self._ours)
        others_s += after.stolen_s - self._before.stolen_s
        sample = {
            RECORDS_PER_S: outcome.records_per_s,
            BROKER_CPU: broker_cpu_s * 1e6 / outcome.records,
            CLIENT_CORES: outcome.cpu_s / outcome.seconds,
            OTHER_CORES: max(0.0, others_s) / seconds,
            "records": float(outcome.records),
            "size_bytes": float(outcome.size_bytes),
            **outcome.more,
        }
        if outcome.memory_bytes:
            sample[CLIENT_MEMORY_MB] = outcome.memory_bytes / 1e6
        if memory_bytes:
            sample[BROKER_MEMORY_MB] = memory_bytes / 1e6
        return sample


def run_clients(
    commands: Sequence[Command], broker_pids: Collection[int], idle_pids: Collection[int] = ()
) -> Sample:
    """Runs clients at once, and reads the machine from when the last one has warmed up until the first one
    reports. Returns the figures of all of them together. Raises `ClientFailedError`.
    """
    running = [
        PinnedProcess(each.arguments, cores=each.cores, log=each.log, pipe_output=True) for each in commands
    ]
    try:
        for process in running:
            _await_begin(process)
        reading = Reading(broker_pids, idle_pids)
        first = _await_outcome(running[0])
        sample = reading.sample(first)
        outcomes = [first, *(_await_outcome(process) for process in running[1:])]
    finally:
        for process in running:
            process.stop()
    if len(outcomes) > 1:
        total = sum(outcome.records_per_s for outcome in outcomes)
        sample[BROKER_CPU] *= first.records_per_s / total
        sample[RECORDS_PER_S] = total
        sample[CLIENT_CORES] = sum(outcome.cpu_s / outcome.seconds for outcome in outcomes)
    return sample


def _await_begin(process: PinnedProcess) -> None:
    line = process.output.readline().strip()
    if line != BEGIN_LINE:
        raise ClientFailedError(f"{process.name} did not begin: {line[:300]!r}; {process.log_tail()}")


def _await_outcome(process: PinnedProcess) -> Outcome:
    line = process.output.readline().decode(errors="replace")
    if process.wait(CLIENT_WAIT_MAX_S) != 0 or not line.strip():
        raise ClientFailedError(f"{process.name} failed: {line[:300]!r}; {process.log_tail()}")
    return Outcome.parse(line)
