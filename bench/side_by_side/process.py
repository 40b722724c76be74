"""A process of the bench: pinned to cores, logging to a file, ended with its parent."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import IO, Final

STOP_WAIT_MAX_S: Final = 30.0
LOG_TAIL_BYTES: Final = 3000
_PR_SET_PDEATHSIG: Final = 1
_LIBC: Final = ctypes.CDLL(None)


class ProcessFailedError(Exception):
    """A process of the bench ended or did not answer. The message names it and shows the end of its log."""


class PinnedProcess:
    """A running process. `stop` or `kill` ends it, and so does the end of the bench."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        cores: Collection[int],
        log: Path,
        env: Mapping[str, str] | None = None,
        pipe_output: bool = False,
        cwd: Path | None = None,
    ) -> None:
        """Starts `command` on `cores`. With `pipe_output` its standard output is read from `output`."""
        log.parent.mkdir(parents=True, exist_ok=True)
        self.name = Path(command[0]).name
        self.log = log

        def prepare() -> None:
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            os.sched_setaffinity(0, cores)

        with log.open("ab") as file:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if pipe_output else file,
                stderr=file,
                env={**os.environ, **(env or {})},
                cwd=cwd,
                preexec_fn=prepare,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def output(self) -> IO[bytes]:
        assert self._process.stdout is not None, "started without pipe_output"
        return self._process.stdout

    def check_running(self) -> None:
        """Raises `ProcessFailedError` if the process has ended."""
        if self._process.poll() is not None:
            raise ProcessFailedError(
                f"{self.name} ended with {self._process.returncode}; the end of {self.log}: {self.log_tail()}"
            )

    def wait(self, timeout_s: float) -> int:
        """Returns the exit code. Raises `ProcessFailedError` if the process still runs after `timeout_s`."""
        try:
            return self._process.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise ProcessFailedError(
                f"{self.name} still runs after {timeout_s:.0f} s; the end of {self.log}: {self.log_tail()}"
            ) from None

    def interrupt(self) -> None:
        """Ends the process by SIGINT, as Ctrl-C does; it may still write its results."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=STOP_WAIT_MAX_S)
        self.kill()

    def stop(self) -> None:
        """Ends the process by SIGTERM, and all of its group by SIGKILL if that takes too long."""
        if self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=STOP_WAIT_MAX_S)
        self.kill()

    def kill(self) -> None:
        """Ends the process and what it has started by SIGKILL."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def memory_bytes(self) -> int:
        """Returns the resident memory of the process, without shared file pages."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
        return 0

    def log_tail(self) -> str:
        return self.log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")
