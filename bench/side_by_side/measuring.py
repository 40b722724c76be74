"""Rounds: each contender in turn does the same work, in an order that rotates, and is measured meanwhile.

Owns the order, the client's process and the readings before and after. What the work is, the caller says.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from clients.outcome import ClientFailedError, Outcome
from clients.running import run
from side_by_side.figures import (
    BROKER_CPU,
    CLIENT_CORES,
    CLIENT_MEMORY_MB,
    OTHER_CORES,
    RECORDS_PER_S,
    Row,
    Sample,
)
from side_by_side.machine import snapshot

SETTLE_S: Final = 0.5


@dataclass(frozen=True)
class Command:
    """A client program to run, and the cores that it may use."""

    arguments: Sequence[str]
    cores: Collection[int]
    log: Path
    env: Mapping[str, str] = field(default_factory=dict)


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
    """The machine's use from its construction until `stop`."""

    def __init__(self, broker_pids: Collection[int]) -> None:
        self._broker_pids = list(broker_pids)
        # Everything that the bench has started runs below it.
        self._ours = [os.getpid(), *broker_pids]
        self._began_s = self._ended_s = time.monotonic()
        self._before = self._after = snapshot()

    def stop(self) -> None:
        self._after, self._ended_s = snapshot(), time.monotonic()

    @property
    def seconds(self) -> float:
        return self._ended_s - self._began_s

    @property
    def broker_cpu_s(self) -> float:
        return self._after.cpu_s(self._broker_pids) - self._before.cpu_s(self._broker_pids)

    @property
    def other_cores(self) -> float:
        """The cores that strangers used, and the hypervisor."""
        used_s = self._after.others_s(self._ours) - self._before.others_s(self._ours)
        return max(0.0, used_s + self._after.stolen_s - self._before.stolen_s) / self.seconds


class _Together:
    """Reads the machine from when the last of some clients has warmed up until the first one ends."""

    def __init__(self, clients: int, begin: Callable[[], Reading]) -> None:
        self._lock = threading.Lock()
        self._waits_for = clients
        self._begin = begin
        self._has_ended = False
        self.reading: Reading | None = None

    def on_begin(self) -> None:
        with self._lock:
            self._waits_for -= 1
            if not self._waits_for:
                self.reading = self._begin()

    def on_end(self) -> None:
        with self._lock:
            if self.reading is not None and not self._has_ended:
                self.reading.stop()
                self._has_ended = True


def run_clients(commands: Sequence[Command], broker_pids: Collection[int]) -> Sample:
    """Runs clients at once and returns the figures of all of them together. Raises `ClientFailedError`."""
    together = _Together(len(commands), lambda: Reading(broker_pids))

    def run_one(command: Command) -> Outcome:
        return run(
            command.arguments,
            cores=command.cores,
            log=command.log,
            env=command.env,
            on_begin=together.on_begin,
            on_end=together.on_end,
        )

    with ThreadPoolExecutor(len(commands)) as pool:
        outcomes = list(pool.map(run_one, commands))
    reading = together.reading
    if reading is None or not reading.seconds:
        raise ClientFailedError(f"{commands[0].arguments[0]}: the clients did not run at the same time")
    return _sample(outcomes, reading)


def _sample(outcomes: Sequence[Outcome], reading: Reading) -> Sample:
    records_per_s = sum(outcome.records_per_s for outcome in outcomes)
    sample = {
        RECORDS_PER_S: records_per_s,
        BROKER_CPU: reading.broker_cpu_s * 1e6 / (records_per_s * reading.seconds),
        CLIENT_CORES: sum(outcome.cpu_s / outcome.seconds for outcome in outcomes),
        OTHER_CORES: reading.other_cores,
        "records": float(sum(outcome.records for outcome in outcomes)),
        "size_bytes": float(sum(outcome.size_bytes for outcome in outcomes)),
        **outcomes[0].more,
    }
    if memory_bytes := sum(outcome.memory_bytes for outcome in outcomes):
        sample[CLIENT_MEMORY_MB] = memory_bytes / 1e6
    return sample
