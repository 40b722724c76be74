"""Turns exceptions into one line for the user and an exit code.

Owns the exit codes. Users see no traceback unless `HEADRACE_DEBUG` is set.
"""

from __future__ import annotations

import os
import sys
from enum import IntEnum
from pathlib import Path
from typing import Final, NoReturn, TypeGuard

from rich.markup import escape

from headrace.cli.output import err
from headrace.process.disk import explained, is_full
from headrace.site.environment_variables import HOME_VARIABLE

DEBUG_VARIABLE: Final = "HEADRACE_DEBUG"
# In the name of an exception, these words mean that a service cannot be reached.
UNREACHABLE_WORDS: Final = ("Unreachable", "Unavailable", "Connection", "Network", "Timeout", "Session")
NAME_MAX_CHARS: Final = 80


class ExitCode(IntEnum):
    DONE = 0
    NEGATIVE = 1
    USAGE = 2
    UNREACHABLE = 3
    UNPARSED = 4
    INTERRUPTED = 130
    CLOSED = 141


EXIT_CODES: Final = {
    ExitCode.DONE: "done; for a question, the answer is yes: all units are ready, every hour is complete",
    ExitCode.NEGATIVE: "the result is negative: something is lost, damaged, not ready, not found, or refused",
    ExitCode.USAGE: "wrong usage: an unknown command or option, or a value that it cannot have",
    ExitCode.UNREACHABLE: "a service does not answer; or an audit report is pending or unknown",
    ExitCode.UNPARSED: "`demo` alone: nothing is lost, but more than 1 % of the log's lines did not parse",
    ExitCode.INTERRUPTED: "ended by Ctrl-C; consume and logs --follow, which nothing else ends, end with 0",
    ExitCode.CLOSED: "the reader of its output has gone, as in `headrace consume … | head`",
}
"""What each code means: docs/cli.md and the pages made from the code say the same."""


class CommandError(Exception):
    """An error with a message for the user: what is wrong, its value, and what to do."""

    def __init__(self, message: str, exit_code: ExitCode = ExitCode.NEGATIVE) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def print_error(message: str) -> None:
    """Prints a message on stderr: one line, after which the last lines of a log may follow."""
    err.print(f"[bold red]error:[/] {escape(message)}")


def print_note(message: str) -> None:
    """Prints a line for people on stderr, which programs that read the output do not see."""
    err.print(f"[dim]{escape(message)}[/]")


def exit_with(error: BaseException) -> NoReturn:
    """Ends the process with an exception's message and exit code."""
    if os.environ.get(DEBUG_VARIABLE):
        raise error
    print_error(_message(error))
    sys.exit(exit_code_of(error))


def exit_code_of(error: BaseException) -> ExitCode:
    """Returns a `CommandError`'s own code, `UNREACHABLE` if a service cannot be reached, else `NEGATIVE`."""
    if isinstance(error, CommandError):
        return error.exit_code
    if _is_of_other_bytes(error):
        return ExitCode.USAGE
    names = (cls.__name__ for cls in type(error).__mro__)
    is_unreachable = isinstance(error, ConnectionError | TimeoutError) or any(
        word in name for name in names for word in UNREACHABLE_WORDS
    )
    return ExitCode.UNREACHABLE if is_unreachable else ExitCode.NEGATIVE


def _is_of_other_bytes(error: BaseException) -> TypeGuard[UnicodeEncodeError]:
    """Whether a word of the command line is not UTF-8: Python has such bytes as lone surrogates."""
    return isinstance(error, UnicodeEncodeError) and "\udc80" <= error.object[error.start] <= "\udcff"


def _message(error: BaseException) -> str:
    if is_full(error) and isinstance(error, OSError):
        # An error of a write does not say where; most are below the home.
        home = Path(os.environ.get(HOME_VARIABLE) or ".headrace")
        return explained(error, None if error.filename else home.absolute())
    if _is_of_other_bytes(error):
        return f"{error.object[:NAME_MAX_CHARS]!r} is not UTF-8"
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror.lower()} (set {DEBUG_VARIABLE}=1 for the traceback)"
    text = str(error).strip() or type(error).__name__
    if type(error).__module__.startswith("headrace."):
        return text
    # A library's message is rarely clear without the name of its class.
    return f"{type(error).__name__}: {text} (set {DEBUG_VARIABLE}=1 for the traceback)"
