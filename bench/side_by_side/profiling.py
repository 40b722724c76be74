"""`PROFILE=1`: where the broker's threads spend their time, by py-spy, while a round runs.

Writes the sampled stacks beside the other files of the bench, and prints the functions that took most,
the loop's thread apart from the workers'. A profiled run is slower, so it judges nothing.
"""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from side_by_side.process import PinnedProcess
from side_by_side.screen import say

SAMPLES_PER_S: Final = 200
SHOWN_MAX: Final = 12
MAIN_THREAD: Final = "MainThread"
WAITS: Final = (
    "Condition.wait (threading.py",
    "EpollSelector.select (selectors.py",
    "EventLoop.turn (broker/loop.py",  # its own time is that of epoll_wait
    "Workers._run (broker/workers.py",  # of the queue
)
"""Functions in which a thread waits for work. py-spy takes waits in C for work where it cannot read the
thread's state from the kernel.
"""


class NoProfilerError(Exception):
    """py-spy is not installed. The message says how to get it."""


@contextmanager
def profiled(pids: Collection[int], folder: Path, name: str, cores: Collection[int]) -> Iterator[None]:
    """Profiles the Python processes among `pids` while the block runs. Raises `NoProfilerError`."""
    profiler = shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")
    if profiler is None:
        raise NoProfilerError(
            "PROFILE=1 needs py-spy: .venv/bin/uv pip install --python .venv/bin/python py-spy"
        )
    folder.mkdir(parents=True, exist_ok=True)
    files = {pid: folder / f"{name}-{pid}.txt" for pid in pids}
    command = (profiler, "record", "--format", "raw", "--threads", "--rate", str(SAMPLES_PER_S))
    running = [
        PinnedProcess(
            [*command, "--duration", "unlimited", "--output", str(file), "--pid", str(pid)],
            cores=cores,
            log=folder / "py-spy.log",
        )
        for pid, file in files.items()
    ]
    try:
        yield
    finally:
        for process in running:
            process.interrupt()
    for file in files.values():
        if file.exists():
            for line in summary(file.read_text()):
                say(line)


def summary(stacks: str) -> list[str]:
    """Returns lines of text: each function's share of the loop's thread, then of all other threads.

    `stacks`: py-spy's raw format: a line is frames joined by semicolons, the thread first, and a count.
    """
    own: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}
    for line in stacks.splitlines():
        frames, _, count = line.rpartition(" ")
        if not count.isdigit() or ";" not in frames:
            continue
        thread, *_, innermost = frames.split(";")
        if not innermost.strip().startswith(WAITS):
            own[MAIN_THREAD in thread][innermost.strip()] += int(count)
    lines = []
    for is_loop, title in ((True, "the loop's thread"), (False, "the workers")):
        total = sum(own[is_loop].values())
        lines.append(f"  {title}: {total} samples at work")
        lines += [f"    {100 * n / total:5.1f} %  {name}" for name, n in own[is_loop].most_common(SHOWN_MAX)]
    return lines
