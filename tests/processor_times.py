"""Which programs used the processors during a run, seen from outside: `/proc`, once a second.

Owns `Programs`, which watches all processes of this machine that began after it did. What ends within a
second of its begin may never be seen.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

LOOK_INTERVAL_S: Final = 1.0
UNNAMED: Final = "the kernel"
"""What has no command line: its own threads, and processes that have ended."""
NAMED_LOOKS: Final = 3
"""A process is named again at its first looks: it may become another program, or give itself a title."""
PROC: Final = Path("/proc")
TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_IDLE_COLUMNS: Final = (3, 4)
"""Of `/proc/stat`: idle, and idle while a disk works (iowait)."""
_COLUMNS_MAX: Final = 8
"""The columns behind these count the time of guests once more."""
# Of `/proc/PID/stat`, behind the name in brackets.
_USER, _SYSTEM, _BEGIN = 11, 12, 19
_PYTHONS_OPTIONS: Final = frozenset(("-I", "-S", "-s", "-u", "-E", "-B", "-P"))
_JAVAS_PATHS: Final = frozenset(("-cp", "-classpath", "--class-path", "-p", "--module-path"))


class Processors(NamedTuple):
    """What all processors together have done since the machine's start, in ticks."""

    busy: int
    idle: int

    @classmethod
    def read(cls, path: Path = PROC / "stat") -> Processors:
        """Nothing, where there is no such file."""
        if not path.exists():
            return cls(0, 0)
        ticks = [int(word) for word in path.read_text().splitlines()[0].split()[1 : _COLUMNS_MAX + 1]]
        idle = sum(ticks[column] for column in _IDLE_COLUMNS)
        return cls(sum(ticks) - idle, idle)

    def since(self, before: Processors) -> Processors:
        return Processors(self.busy - before.busy, self.idle - before.idle)

    @property
    def busy_s(self) -> float:
        return self.busy / TICKS_PER_S

    @property
    def busy_share(self) -> float:
        return self.busy / max(1, self.busy + self.idle)


def program_of(words: list[str]) -> str:
    """The short name of what a command line runs: a module of Python, a class of Java, any other program."""
    first, *rest = words
    # A process that gave itself a title has one word, with spaces.
    name, *title = first.split(" ")
    name = Path(name).name.rstrip(":")
    if name.startswith("python"):
        return _pythons(rest)
    if name == "java":
        return _javas(rest)
    return f"{name} {title[0]}" if name == "airflow" and title else name


def _pythons(words: list[str]) -> str:
    while words and words[0] in _PYTHONS_OPTIONS:
        words = words[1:]
    if words[:1] == ["-m"] and len(words) > 1:
        return words[1]
    if words[:1] == ["-c"]:
        return "test process" if "stdin.readline" in "".join(words[1:2]) else "python -c"
    return Path(words[0]).name if words and not words[0].startswith("-") else "python"


def _javas(words: list[str]) -> str:
    before = ""
    for word in words:
        if before == "-jar":
            return Path(word).name
        if before not in _JAVAS_PATHS and not word.startswith(("-", "@")):
            return word.rpartition(".")[2]
        before = word
    return "java"


class Programs(threading.Thread):
    """Watches from `start` until `stop`; then `seconds` are those of each program, most first."""

    def __init__(self, proc: Path = PROC) -> None:
        super().__init__(name="processor-times", daemon=True)
        self._proc = proc
        self._ending = threading.Event()
        self._known = self._processes()
        self._seen: dict[tuple[int, int], tuple[str, int, int]] = {}

    def run(self) -> None:
        while not self._ending.wait(LOOK_INTERVAL_S):
            self.look()

    def stop(self) -> None:
        self._ending.set()
        self.join()
        self.look()

    @property
    def seconds(self) -> list[tuple[str, float]]:
        sums: Counter[str] = Counter()
        for name, ticks, _ in self._seen.values():
            sums[name] += ticks
        return [(name, ticks / TICKS_PER_S) for name, ticks in sums.most_common()]

    @property
    def counts(self) -> dict[str, int]:
        """How many processes of each program were seen."""
        return Counter(name for name, _, _ in self._seen.values())

    def look(self) -> None:
        for key, ticks in self._processes().items():
            if key in self._known:
                continue
            name, _, looks = self._seen.get(key, (UNNAMED, 0, 0))
            if looks < NAMED_LOOKS:
                name = self._named(key[0]) or name
            self._seen[key] = (name, ticks, looks + 1)

    def _processes(self) -> dict[tuple[int, int], int]:
        """The ticks that each process has used, by its number and the time of its begin."""
        found = {}
        for folder in self._proc.iterdir() if self._proc.is_dir() else ():
            if folder.name.isdigit():
                with suppress(OSError):
                    fields = (folder / "stat").read_text().rpartition(")")[2].split()
                    ticks = int(fields[_USER]) + int(fields[_SYSTEM])
                    found[int(folder.name), int(fields[_BEGIN])] = ticks
        return found

    def _named(self, pid: int) -> str:
        with suppress(OSError):
            words = (self._proc / str(pid) / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
            if words != [b""]:
                return program_of([word.decode(errors="replace") for word in words])
        return ""
