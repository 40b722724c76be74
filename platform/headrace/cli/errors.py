"""From exceptions to one line and an exit code.

Owns the meaning of exit codes: 0 done, 1 the answer is no (or the service refused), 2 wrong usage, 3 what is
needed does not answer. No traceback meets a user, unless `HEADRACE_DEBUG` is set.
"""

from __future__ import annotations

import os
import sys
from enum import IntEnum
from typing import Final, NoReturn

from rich.console import Console
from rich.markup import escape

DEBUG_VARIABLE: Final = "HEADRACE_DEBUG"
# Rooms name their errors in the field's words; these words mean that somebody does not answer.
UNREACHABLE_WORDS: Final = ("Unreachable", "Unavailable", "Connection", "Network", "Timeout", "Session")


class ExitCode(IntEnum):
    DONE = 0
    NO = 1
    USAGE = 2
    UNREACHABLE = 3


class CommandError(Exception):
    """What a command tells its user: the thing, its value, the way out."""

    def __init__(self, message: str, exit_code: ExitCode = ExitCode.NO) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def say_error(message: str) -> None:
    """One line on stderr, in red where there are colours; a log's tail may follow on lines of its own."""
    Console(stderr=True, soft_wrap=True, highlight=False).print(f"[bold red]error:[/] {escape(message)}")


def give_up(error: BaseException) -> NoReturn:
    """Ends the process with the line and the code that belong to an exception."""
    if os.environ.get(DEBUG_VARIABLE):
        raise error
    say_error(_message(error))
    sys.exit(exit_code_of(error))


def exit_code_of(error: BaseException) -> ExitCode:
    """What a command chose; else `UNREACHABLE` for trouble with the network or a service, else `NO`."""
    if isinstance(error, CommandError):
        return error.exit_code
    names = (cls.__name__ for cls in type(error).__mro__)
    is_unreachable = isinstance(error, ConnectionError | TimeoutError) or any(
        word in name for name in names for word in UNREACHABLE_WORDS
    )
    return ExitCode.UNREACHABLE if is_unreachable else ExitCode.NO


def _message(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    if type(error).__module__.startswith("headrace."):
        return text
    # Not one of ours: its words alone rarely say what they are about.
    return f"{type(error).__name__}: {text} (set {DEBUG_VARIABLE}=1 for the traceback)"
