"""Which installation a command works on: the context, and the line on stderr that says so.

Owns the option `--context`, which `in_context` gives to commands, and the order in which the context is
chosen: the option, `$HEADRACE_CONTEXT`, `headrace context use`, and else this home's own site.
"""

from __future__ import annotations

import functools
import inspect
import io
import logging
import os
import re
from collections.abc import Callable, Iterable
from contextlib import redirect_stderr, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from headrace.cli.errors import CommandError, ExitCode, print_note
from headrace.cli.values import where_given
from headrace.site.environment_variables import CONTEXT_VARIABLE

if TYPE_CHECKING:
    from headrace.site.context import Context
    from headrace.site.context_store import ContextStore

COMPLETED_MAX: Final = 500
# Shells evaluate what they get, zsh by `eval`: names with other characters are left out.
_SAFE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

Complete = Callable[[typer.Context, str], list[str]]

_given: ContextVar[str | None] = ContextVar("given", default=None)
_told: ContextVar[set[str] | None] = ContextVar("told", default=None)


def completes(find: Callable[[dict[str, Any]], Iterable[str]]) -> Complete:
    """Makes a function for `autocompletion` of what finds names by the options that were given so far.

    Prints nothing on stderr; a problem of any kind means that there is nothing to complete.
    """

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        logging.disable(logging.CRITICAL)
        with suppress(Exception), redirect_stderr(io.StringIO()):
            choose(ctx.params.get("context_name"))
            found = sorted(name for name in find(ctx.params) if name.startswith(incomplete))
            return [name for name in found if _SAFE.fullmatch(name)][:COMPLETED_MAX]
        return []

    return complete


@completes
def complete_contexts(given: dict[str, Any]) -> Iterable[str]:
    """The contexts of this home."""
    return store().names()


ContextOption = Annotated[
    str | None,
    typer.Option(
        "--context",
        help="A context, as `headrace context list` shows them; by default the one in use.",
        metavar="NAME",
        envvar=CONTEXT_VARIABLE,
        callback=where_given("--context"),
        autocompletion=complete_contexts,
    ),
]


def in_context(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a command the option `--context`, which decides what `current` returns in it."""

    @functools.wraps(command)
    def run(*arguments: Any, context_name: str | None = None, **options: Any) -> Any:
        choose(context_name)
        return command(*arguments, **options)

    signature = inspect.signature(command, eval_str=True)
    option = inspect.Parameter(
        "context_name", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=ContextOption
    )
    run.__signature__ = signature.replace(parameters=[*signature.parameters.values(), option])  # type: ignore[attr-defined]
    return run


def choose(name: str | None) -> None:
    """Makes `current` return the named context; None: the one that `--context` would not have named."""
    _given.set(name)
    _told.set(set())


def store() -> ContextStore:
    """The contexts of `$HEADRACE_HOME`."""
    from headrace.site.context_store import ContextStore
    from headrace.site.environment_variables import HOME_VARIABLE

    return ContextStore(Path(os.environ.get(HOME_VARIABLE) or ".headrace"))


def current() -> Context:
    """The context of this command.

    Raises `CommandError` where nobody has chosen one, and this home's units are not those of its site.
    """
    from headrace.agent.chosen_context import ContextUnclearError, chosen_context

    try:
        return chosen_context(store(), _given.get())
    except ContextUnclearError as error:
        raise CommandError(str(error), ExitCode.USAGE) from None


def tell(line: str) -> None:
    """Prints a line on stderr that says what the command works on, once a command."""
    told = _told.get()
    if told is None:
        _told.set(told := set())
    if line not in told:
        told.add(line)
        print_note(line)
