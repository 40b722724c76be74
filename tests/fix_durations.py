"""Where the time of a run went: the last lines of a run of a minute or more in several test processes.

They name the seconds of each process and how long it was idle in the end, those of each group of files that
share something costly, those of the folders of all other files, the programs that used the processors most,
and the slowest files. Each file's seconds, and those of each test that took a second or more, are kept until
the next run, in `.pytest_cache/d/durations/run.json`, with the CPU seconds of its test process and of the
processes that this started and saw end; and how many processes each program had.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from processor_times import Processors, Programs
from run_order import group_of

RUN_MIN_S: Final = 60.0
"""A shorter run shows nothing: it is somebody's look at a few tests."""
TEST_MIN_S: Final = 1.0
FILES_SHOWN_MAX: Final = 10
FOLDERS_SHOWN_MAX: Final = 12
PROGRAMS_SHOWN_MAX: Final = 12


class Span(NamedTuple):
    """A piece of a test (its set-up, its body or its tear-down) in one of the processes."""

    process: str
    nodeid: str
    begun_s: float
    ended_s: float
    cpu_s: float = 0.0

    @property
    def seconds(self) -> float:
        return self.ended_s - self.begun_s

    @property
    def file(self) -> str:
        return self.nodeid.partition("::")[0]

    @property
    def is_grouped(self) -> bool:
        """Whether its file shares something costly with others."""
        return group_of(self.nodeid) != self.file


@dataclass
class Run:
    """The spans of a run, and when it began, on the same clock: the time of day."""

    begun_s: float
    spans: list[Span] = field(default_factory=list)

    def lines(
        self, ended_s: float, processors: Processors, programs: Sequence[tuple[str, float]]
    ) -> Iterator[str]:
        """The report of a run that ended then; nothing of a run in one process, or of a short one.

        `processors` and `programs`: what was used meanwhile.
        """
        processes = sorted({span.process for span in self.spans})
        if len(processes) < 2 or ended_s - self.begun_s < RUN_MIN_S:
            return
        before_s = min(span.begun_s for span in self.spans) - self.begun_s
        yield (
            f"where the time went: {ended_s - self.begun_s:.0f} s, {before_s:.0f} s before the first test"
            f"; processors busy for {processors.busy_share:.0%}"
        )
        for process in processes:
            spans = [span for span in self.spans if span.process == process]
            last = max(spans, key=lambda span: span.ended_s)
            yield (
                f"  {process}: {sum(span.seconds for span in spans):.0f} s in tests, "
                f"idle for {ended_s - last.ended_s:.0f} s in the end, after {last.file}"
            )
        grouped = [span for span in self.spans if span.is_grouped]
        others = [span for span in self.spans if not span.is_grouped]
        folders = seconds_by(others, lambda span: str(Path(span.file).parent))
        yield "  groups: " + _listed(seconds_by(grouped, lambda span: group_of(span.nodeid)))
        yield "  other files: " + _listed(folders[:FOLDERS_SHOWN_MAX])
        unseen_s = max(0.0, processors.busy_s - sum(seconds for _, seconds in programs))
        yield f"  CPU: {_listed([*programs[:PROGRAMS_SHOWN_MAX], ('too brief to be seen', unseen_s)])}"
        yield "  slowest files:"
        for file, seconds in seconds_by(self.spans, lambda span: span.file)[:FILES_SHOWN_MAX]:
            yield f"  {seconds:6.1f} s  {file}"

    def details(self) -> dict[str, Any]:
        """Each file's process, begin and seconds, and each slow test's seconds."""
        first = {span.file: span for span in sorted(self.spans, key=lambda span: -span.begun_s)}
        cpu_s = sums_by((span.file, span.cpu_s) for span in self.spans)
        return {
            "files": [
                {
                    "file": file,
                    "seconds": round(seconds, 1),
                    "cpu_s": round(cpu_s[file], 1),
                    "begun_s": round(first[file].begun_s - self.begun_s, 1),
                    "process": first[file].process,
                }
                for file, seconds in seconds_by(self.spans, lambda span: span.file)
            ],
            "tests": {
                test: round(seconds, 1)
                for test, seconds in seconds_by(self.spans, lambda span: span.nodeid)
                if seconds >= TEST_MIN_S
            },
        }


def seconds_by(spans: Iterable[Span], name: Callable[[Span], str]) -> list[tuple[str, float]]:
    """The seconds of all spans of one name, most first."""
    sums = sums_by((name(span), span.seconds) for span in spans)
    return sorted(sums.items(), key=lambda each: -each[1])


def sums_by(rows: Iterable[tuple[str, float]]) -> dict[str, float]:
    sums: dict[str, float] = defaultdict(float)
    for name, seconds in rows:
        sums[name] += seconds
    return sums


def _listed(rows: Iterable[tuple[str, float]]) -> str:
    return ", ".join(f"{name} {seconds:.0f} s" for name, seconds in rows) or "none"


class Watch:
    """Collects the reports that the test processes send; registered in the process that prints."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._run = Run(time.time())
        self._before = Processors.read()
        self._programs = Programs()
        self._programs.start()

    def pytest_runtest_logreport(self, report: Any) -> None:
        node = getattr(report, "node", None)
        if node is not None:
            cpu_s = getattr(report, "cpu_s", 0.0)
            self._run.spans.append(Span(node.gateway.id, report.nodeid, report.start, report.stop, cpu_s))

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        self._programs.stop()
        used = Processors.read().since(self._before)
        lines = list(self._run.lines(time.time(), used, self._programs.seconds))
        for line in lines:
            terminalreporter.write_line(line)
        cache = getattr(self._config, "cache", None)  # not there with `-p no:cacheprovider`
        if lines and cache is not None:
            counts = self._programs.counts
            programs = {
                name: {"cpu_s": cpu_s, "processes": counts[name]} for name, cpu_s in self._programs.seconds
            }
            details = self._run.details() | {"programs": programs}
            (cache.mkdir("durations") / "run.json").write_text(json.dumps(details, indent=1))


class Meter:
    """Adds to each report the CPU seconds since the one before; registered in the test processes."""

    def __init__(self) -> None:
        self._before_s = _used_s()

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self) -> Iterator[None]:
        made = yield
        now_s = _used_s()
        made.get_result().cpu_s = now_s - self._before_s  # type: ignore[attr-defined]
        self._before_s = now_s


def _used_s() -> float:
    """This process's CPU seconds, and those of all that it started and that have ended."""
    return sum(os.times()[:4])


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        config.pluginmanager.register(Meter())
    elif getattr(config.option, "numprocesses", None):
        config.pluginmanager.register(Watch(config))
