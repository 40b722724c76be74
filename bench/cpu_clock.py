"""The CPU time of the processes below this one, of Spark's JVM and of the Python that works for it.

Spark ends Python workers that had nothing to do for a while, and nobody waits for all of them: what they used
would be missing from every account afterwards. So the clock looks often, and remembers.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple

LOOK_EVERY_S: Final = 0.5
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class CpuSeconds:
    """CPU time of the JVMs and the Python processes below this one; dead ones, and this one, included."""

    jvm: float
    python: float

    def __sub__(self, before: CpuSeconds) -> CpuSeconds:
        return CpuSeconds(self.jvm - before.jvm, self.python - before.python)

    @property
    def total(self) -> float:
        return self.jvm + self.python

    @property
    def python_share(self) -> float:
        """Of all the CPU time, what Python took."""
        return self.python / self.total if self.total else 0.0


class _Process(NamedTuple):
    pid: int
    parent: int
    name: str
    start_ticks: int
    used_s: float


class CpuClock:
    """Reads the CPU time used so far; a context manager, because it looks in the background.

    A process that lives less than `LOOK_EVERY_S` may not be seen.
    """

    def __init__(self) -> None:
        self._used_s: dict[tuple[int, int], tuple[bool, float]] = {}
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._looking = threading.Thread(target=self._look_often, name="cpu-clock", daemon=True)

    def __enter__(self) -> CpuClock:
        self._looking.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        self._looking.join()

    def read(self) -> CpuSeconds:
        with self._lock:
            for each in _family(os.getpid()):
                self._used_s[each.pid, each.start_ticks] = (each.name == "java", each.used_s)
            return CpuSeconds(
                jvm=sum(used_s for is_jvm, used_s in self._used_s.values() if is_jvm),
                python=sum(used_s for is_jvm, used_s in self._used_s.values() if not is_jvm),
            )

    def _look_often(self) -> None:
        while not self._ending.wait(LOOK_EVERY_S):
            self.read()


def _family(root: int) -> list[_Process]:
    """`root` and all processes below it."""
    everyone = _processes()
    children: dict[int, list[_Process]] = {}
    for each in everyone:
        children.setdefault(each.parent, []).append(each)
    found = [each for each in everyone if each.pid == root]
    for each in found:
        found += children.get(each.pid, [])
    return found


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
