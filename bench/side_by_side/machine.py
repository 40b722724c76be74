"""The machine that a run is measured on: its cores, what it is, and what else used it meanwhile.

Owns the split of the cores between brokers and clients, and the reading of /proc. Judges nothing.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

CORES_MIN: Final = 2
TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
KERNEL_PARENT_PID: Final = 2  # kthreadd: its children are the kernel's own threads


class TooFewCoresError(Exception):
    """The machine has a single core, so a client would take the broker's time."""


@dataclass(frozen=True)
class Cores:
    """Which cores brokers run on, and which clients run on. They share none."""

    broker: frozenset[int]
    client: frozenset[int]


def split_cores(available: Collection[int] | None = None, broker_count: int = 1) -> Cores:
    """Returns the first `broker_count` cores for brokers, the others for clients.

    A comparison gives each broker one core: a headrace broker uses no more, so Apache Kafka gets as much.
    Raises `TooFewCoresError`.
    """
    cores = sorted(os.sched_getaffinity(0) if available is None else available)
    if len(cores) < max(CORES_MIN, broker_count + 1):
        raise TooFewCoresError(
            f"{len(cores)} core(s) available, {max(CORES_MIN, broker_count + 1)} needed: brokers and clients "
            "must not share one"
        )
    return Cores(frozenset(cores[:broker_count]), frozenset(cores[broker_count:]))


class ProcessTimes(NamedTuple):
    """A process's CPU time so far, all threads, children that it has waited for included."""

    parent: int
    cpu_s: float


@dataclass(frozen=True)
class Snapshot:
    """The CPU times of all processes, and the time that the hypervisor took, at one moment."""

    processes: dict[tuple[int, int], ProcessTimes]  # by pid and start time
    stolen_s: float

    def cpu_s(self, pids: Collection[int]) -> float:
        """Returns the CPU time of these processes and of all below them."""
        family = self._family(pids)
        return sum(times.cpu_s for (pid, _), times in self.processes.items() if pid in family)

    def others_s(self, pids: Collection[int]) -> float:
        """Returns the CPU time of all other processes, without the kernel's own threads."""
        family = self._family(pids)
        return sum(
            times.cpu_s
            for (pid, _), times in self.processes.items()
            if pid not in family and times.parent != KERNEL_PARENT_PID
        )

    def _family(self, roots: Collection[int]) -> set[int]:
        children: dict[int, list[int]] = {}
        for (pid, _), times in self.processes.items():
            children.setdefault(times.parent, []).append(pid)
        family: set[int] = set()
        left = list(roots)
        while left:
            pid = left.pop()
            if pid not in family:
                family.add(pid)
                left += children.get(pid, [])
        return family


def snapshot() -> Snapshot:
    """Reads the CPU times of all processes."""
    processes = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                text = (entry / "stat").read_text()
            except OSError:
                continue  # it ended meanwhile
            fields = text[text.rindex(")") + 2 :].split()
            used_s = sum(map(int, fields[11:15])) / TICKS_PER_S
            processes[int(entry.name), int(fields[19])] = ProcessTimes(int(fields[1]), used_s)
    first_line = Path("/proc/stat").read_text().splitlines()[0].split()
    return Snapshot(processes, int(first_line[8]) / TICKS_PER_S)


def describe() -> dict[str, str]:
    """Returns what the machine is, for a report."""
    return {
        "processor": _field("/proc/cpuinfo", "model name"),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / (1 << 30):.0f} GiB",
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def _field(path: str, name: str) -> str:
    for line in Path(path).read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return "unknown"
