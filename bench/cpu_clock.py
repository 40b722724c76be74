"""The CPU time of the processes below this one, Spark's JVM and its Python workers, and of servers.

Spark ends idle Python workers without waiting for all of them, so their time would be missing in the end. The
clock therefore samples often, and keeps the last sample of each process.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple

SAMPLE_EVERY_S: Final = 0.5
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class CpuSeconds:
    """The CPU time of the JVMs and the Python processes, including this one and ended ones."""

    jvm: float
    python: float

    def __sub__(self, before: CpuSeconds) -> CpuSeconds:
        return CpuSeconds(self.jvm - before.jvm, self.python - before.python)

    @property
    def total(self) -> float:
        return self.jvm + self.python


class _Process(NamedTuple):
    pid: int
    parent: int
    name: str
    start_ticks: int
    used_s: float


class CpuClock:
    """Measures the CPU time used so far; a context manager, because it samples in the background.

    It may miss a process that lives less than `SAMPLE_EVERY_S`.
    """

    def __init__(self) -> None:
        self._used_s: dict[tuple[int, int], tuple[bool, float]] = {}
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._sampling = threading.Thread(target=self._sample_often, name="cpu-clock", daemon=True)

    def __enter__(self) -> CpuClock:
        self._sampling.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        self._sampling.join()

    def read(self) -> CpuSeconds:
        with self._lock:
            for process in _family(os.getpid()):
                self._used_s[process.pid, process.start_ticks] = (process.name == "java", process.used_s)
            return CpuSeconds(
                jvm=sum(used_s for is_jvm, used_s in self._used_s.values() if is_jvm),
                python=sum(used_s for is_jvm, used_s in self._used_s.values() if not is_jvm),
            )

    def _sample_often(self) -> None:
        while not self._ending.wait(SAMPLE_EVERY_S):
            self.read()


def used_by(servers: Mapping[str, tuple[str, ...]]) -> dict[str, float]:
    """Returns the CPU time of servers, whose command lines have all the words that are given, by name."""
    used_s = dict.fromkeys(servers, 0.0)
    for process in _processes():
        try:
            command = (Path("/proc") / str(process.pid) / "cmdline").read_text(errors="replace")
        except OSError:
            continue
        for name, words in servers.items():
            if all(word in command for word in words):
                used_s[name] += process.used_s
    return used_s


def _family(root: int) -> list[_Process]:
    """`root` and all processes below it."""
    processes = _processes()
    children: dict[int, list[_Process]] = {}
    for process in processes:
        children.setdefault(process.parent, []).append(process)
    family = [process for process in processes if process.pid == root]
    for process in family:
        family += children.get(process.pid, [])
    return family


def _processes() -> list[_Process]:
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            text = (entry / "stat").read_text()
        except OSError:
            continue
        name, rest = text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 2 :].split()
        used_s = sum(map(int, rest[11:13])) / _TICKS_PER_S
        found.append(_Process(int(entry.name), int(rest[1]), name, int(rest[19]), used_s))
    return found
