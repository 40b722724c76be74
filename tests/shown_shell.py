"""A shell in which a test runs a page's commands, as somebody who follows the page would.

One bash keeps its folder and variables from one command to the next. A command sees no terminal and no
input; what it starts in the background ends with the shell.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple, Self

from shown_runs import Step, difference

COMMAND_MAX_S: Final = 400.0
HEADERS: Final = ("context ", "no context, ")
"""Lines on stderr that say what a command works on; pages leave them out."""
# Of the test itself, and of the make that started it.
LEFT_OUT: Final = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "HEADRACE_HOME", "VIRTUAL_ENV", "PYTHONPATH")
UNREACHABLE: Final = re.compile(
    r"could not transfer artifact|dial tcp|unknown host|no such host|name resolution|i/o timeout",
    re.IGNORECASE,
)
"""What Maven and go say where their registries are not reached."""


class CannotRunError(Exception):
    """A program that the page needs is not installed, or does not reach its registry of packages."""


class Ran(NamedTuple):
    """A command's exit code, its output (stdout and stderr as they came), and how long it took."""

    code: int
    output: str
    seconds: float


class Shell:
    def __init__(self, folder: Path, scratch: Path, variables: Mapping[str, str] | None = None) -> None:
        """`scratch`: a folder for the commands' output."""
        kept = {name: value for name, value in os.environ.items() if name not in LEFT_OUT}
        kept = {name: value for name, value in kept.items() if not name.startswith(("PYTEST_", "TF_"))}
        self.folder = folder
        self._output = scratch / "output"
        self._command = scratch / "command.sh"
        self._process = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=folder,
            env={**kept, "NO_COLOR": "1", **(variables or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, command: str, *, timeout_s: float = COMMAND_MAX_S) -> Ran:
        """Runs one line of bash. A command that does not end in time fails the test, with its output."""
        self._command.write_text(command + "\n")
        self._output.write_text("")
        begun = time.monotonic()
        assert self._process.stdin is not None and self._process.stdout is not None
        script, output = shlex.quote(str(self._command)), shlex.quote(str(self._output))
        self._process.stdin.write(f". {script} >{output} 2>&1 </dev/null; echo $?\n".encode())
        self._process.stdin.flush()
        ready, _, _ = select.select([self._process.stdout], [], [], timeout_s)
        if not ready:
            output = self._output.read_text(errors="backslashreplace")
            self.close()
            raise AssertionError(f"`{command}` did not end within {timeout_s:g} s; it printed:\n{output}")
        code = int(self._process.stdout.readline())
        return Ran(code, self._output.read_text(errors="backslashreplace"), time.monotonic() - begun)

    def follow(self, step: Step) -> Ran:
        """Runs a page's step, or writes its file. Fails unless exit code and shape are as the page says.

        Raises `CannotRunError` if the page says what the step needs, and that is not to be had here.
        """
        if step.file:
            (self.folder / step.file).write_text("\n".join(step.output) + "\n")
            return Ran(0, "", 0.0)
        if step.needs and shutil.which(step.needs) is None:
            raise CannotRunError(f"{step.needs} is not installed")
        ran = self.run(step.command)
        fetches = bool(step.needs) and step.command.startswith(f"{step.needs} ")
        if ran.code and fetches and (said := UNREACHABLE.search(ran.output)):
            raise CannotRunError(f"{step.needs} does not reach its registry of packages ({said[0]})")
        assert ran.code in step.exit_codes, f"{step} ended with {ran.code}:\n{ran.output}"
        if step.output:
            lines = ran.output.splitlines(keepends=True)
            real = "".join(line for line in lines if not line.startswith(HEADERS))
            problem = difference(step.output, real)
            assert not problem, f"{step}: {problem}. It printed:\n{real}"
        return ran

    def close(self) -> None:
        """Ends the shell and what it started in the background."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._process.stdout.close()
