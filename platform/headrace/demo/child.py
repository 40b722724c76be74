"""A process of the demo that sends its progress to its parent: one JSON object per line on stdout.

Owns both ends: `send_progress` and `stop_event` in the child; `Child` in the parent, which keeps the newest
value of every field.
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

from headrace.agent.logs import log_tail

STOP_TIMEOUT_S: Final = 20.0
# How long a child may take until it handles SIGTERM: Python's imports, on a busy machine.
START_TIMEOUT_S: Final = 30.0
POLL_INTERVAL_S: Final = 0.05
# How often a child sends its progress.
PROGRESS_INTERVAL_S: Final = 0.25


def send_progress(**fields: Any) -> None:
    """Sends fields to the parent, at once."""
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def stop_event() -> threading.Event:
    """Returns an event that is set when the parent or the user asks this process to end."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    # While the interpreter exits it restores the signals' default actions. A SIGTERM at that moment would
    # kill a process that has done all its work.
    atexit.register(_ignore_signals)
    send_progress(handles_signals=True)
    return stop


def _ignore_signals() -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)


class Child:
    """A process of the demo, `python -m MODULE ARGUMENTS`; its stderr goes to a log of its own."""

    def __init__(self, name: str, module: str, arguments: Mapping[str, object], run_directory: Path) -> None:
        self.name = name
        self.log_path = run_directory / f"{name}.log"
        self._latest: dict[str, Any] = {}
        self._lock = threading.Lock()
        # In a session of its own: Ctrl-C reaches the demo alone, which then ends its children.
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, *_options(arguments)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        self._reader = threading.Thread(target=self._read, name=f"read-{name}", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            try:
                fields = json.loads(line)
            except ValueError:
                # Not from `send_progress`: a library has printed it.
                continue
            with self._lock:
                self._latest.update(fields)

    def latest(self, field: str, default: Any = None) -> Any:
        """Returns the newest value of a field."""
        with self._lock:
            return self._latest.get(field, default)

    def is_running(self) -> bool:
        return self.process.poll() is None

    def failure(self) -> str | None:
        """Its exit code and the last lines of its log, if it has failed; else None."""
        code = self.process.poll()
        if code in (None, 0):
            return None
        return (
            f"{self.name} ended with code {code}; last lines of {self.log_path}:\n{log_tail(self.log_path)}"
        )

    def ask_to_stop(self) -> None:
        """Asks it to exit cleanly; first waits until it handles SIGTERM, which would kill it before."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while self.is_running() and not self.latest("handles_signals") and time.monotonic() < deadline:
            time.sleep(POLL_INTERVAL_S)
        if self.is_running():
            self.process.terminate()

    def wait(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Waits for its end and its last progress; kills it after `timeout_s`."""
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join(timeout_s)
        assert self.process.stdout is not None
        self.process.stdout.close()


def stop_all(children: Sequence[Child]) -> None:
    """Asks all to stop, then waits for each."""
    for child in children:
        child.ask_to_stop()
    for child in children:
        child.wait()


def _options(arguments: Mapping[str, object]) -> list[str]:
    options = []
    for name, value in arguments.items():
        if value is not None:
            options += [f"--{name.replace('_', '-')}", str(value)]
    return options
