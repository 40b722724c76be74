"""How a process of the demo tells its parent how far it is: one JSON object a line on stdout.

Owns both ends: `tell` in the child; `Child` in the parent, which keeps the newest value of every field.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from headrace.fleet.operate import log_tail

STOP_TIMEOUT_S: Final = 20.0
# How long a child may take (Python's imports, on a busy machine) until it can be asked to stop.
START_TIMEOUT_S: Final = 30.0
POLL_INTERVAL_S: Final = 0.05


def tell(**fields: Any) -> None:
    """Says something to the parent, at once."""
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def until_told_to_stop() -> threading.Event:
    """An event that is set when the parent (or the user) asks this process to end."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    # At its very end the interpreter gives signals their defaults back: told to stop just then, a process
    # that has done all its work would die of it.
    atexit.register(_be_deaf)
    tell(listens=True)
    return stop


def _be_deaf() -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)


class Child:
    """A process of the demo: `python -m MODULE ARGUMENTS`; its stderr goes to a log of its own."""

    def __init__(self, name: str, module: str, arguments: Mapping[str, object], run_directory: Path) -> None:
        self.name = name
        self.log_path = run_directory / f"{name}.log"
        self.history: list[dict[str, Any]] = []
        self._said: dict[str, Any] = {}
        self._lock = threading.Lock()
        # A session of its own: Ctrl-C reaches the demo alone, which then ends its children in order.
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, *_words(arguments)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        self._reader = threading.Thread(target=self._listen, name=f"listen-{name}", daemon=True)
        self._reader.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            try:
                fields = json.loads(line)
            except ValueError:
                fields = {"odd_line": line.decode(errors="replace")}
            with self._lock:
                self._said.update(fields)
                self.history.append(fields)

    def said(self, field: str, default: Any = None) -> Any:
        """The newest value of a field."""
        with self._lock:
            return self._said.get(field, default)

    def is_running(self) -> bool:
        return self.process.poll() is None

    def failure(self) -> str | None:
        """Why it ended other than in order, with the last lines of its log; None when it did not."""
        code = self.process.poll()
        if code in (None, 0):
            return None
        return (
            f"{self.name} ended with code {code}; last lines of {self.log_path}:\n{log_tail(self.log_path)}"
        )

    def ask_to_stop(self) -> None:
        """Asks it to end in order. Before it listens, SIGTERM would end it at once, its work undone."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while self.is_running() and not self.said("listens") and time.monotonic() < deadline:
            time.sleep(POLL_INTERVAL_S)
        if self.is_running():
            self.process.terminate()

    def wait(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Waits for its end and for its last words; kills it when it takes longer."""
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join(timeout_s)
        assert self.process.stdout is not None
        self.process.stdout.close()


def end_all(children: Sequence[Child]) -> None:
    """Asks all to stop, then waits for each."""
    for child in children:
        child.ask_to_stop()
    for child in children:
        child.wait()


def _words(arguments: Mapping[str, object]) -> list[str]:
    words = []
    for name, value in arguments.items():
        if value is not None:
            words += [f"--{name.replace('_', '-')}", str(value)]
    return words
