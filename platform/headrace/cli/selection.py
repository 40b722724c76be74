"""Which installation a command works on: the context, and the line on stderr that says so.

Owns the option `--context`, which `in_context` gives to commands, and the order in which the context is
chosen: the option, `$HEADRACE_CONTEXT`, `headrace context use`, and else this home's own site.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from headrace.cli.errors import CommandError, ExitCode, print_note

if TYPE_CHECKING:
    from headrace.site.context import Context
    from headrace.site.context_store import ContextStore
    from headrace.site.site import Site

VARIABLE: Final = "HEADRACE_CONTEXT"
UNITS_SHOWN_MAX: Final = 3

ContextOption = Annotated[
    str | None,
    typer.Option(
        "--context",
        help="A context, as `headrace context list` shows them; by default the one in use.",
        metavar="NAME",
        envvar=VARIABLE,
    ),
]

_given: ContextVar[str | None] = ContextVar("given", default=None)
_told: ContextVar[set[str] | None] = ContextVar("told", default=None)


def in_context(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a command the option `--context`, which decides what `current` returns in it."""

    @functools.wraps(command)
    def run(*arguments: Any, context_name: str | None = None, **options: Any) -> Any:
        _given.set(context_name)
        _told.set(set())
        return command(*arguments, **options)

    signature = inspect.signature(command, eval_str=True)
    option = inspect.Parameter(
        "context_name", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=ContextOption
    )
    run.__signature__ = signature.replace(parameters=[*signature.parameters.values(), option])  # type: ignore[attr-defined]
    return run


def store() -> ContextStore:
    """The contexts of `$HEADRACE_HOME`."""
    from headrace.site.context_store import ContextStore
    from headrace.site.environment_variables import HOME_VARIABLE

    return ContextStore(Path(os.environ.get(HOME_VARIABLE) or ".headrace"))


def current() -> Context:
    """The context of this command.

    Raises `CommandError` where nobody has chosen one, and this home's units are not those of its site.
    """
    contexts = store()
    name = _given.get() or os.environ.get(VARIABLE) or contexts.in_use()
    if name is not None:
        return contexts.load(name)
    from headrace.site.context import SITE, context_of
    from headrace.site.site import Site

    site = Site.load(contexts.home)
    if others := _brokers_of_others(site):
        more = f" and {len(others) - UNITS_SHOWN_MAX} more" if len(others) > UNITS_SHOWN_MAX else ""
        raise CommandError(
            f"which installation is meant? Terraform made the brokers of {contexts.home} "
            f"({', '.join(others[:UNITS_SHOWN_MAX])}{more}), and its site.yaml, or the default, describes "
            "others. Make a context of Terraform's outputs (`terraform output -json | headrace context "
            f"import NAME`), or give --context {SITE}",
            ExitCode.USAGE,
        )
    return context_of(site)


def _brokers_of_others(site: Site) -> list[str]:
    """The brokers of this home, with their addresses, that Terraform made and the site does not describe."""
    from headrace.agent.desired import brokers_made_by
    from headrace.agent.home import AgentHome

    described = {str(address) for each in site.datacenters for address in each.brokers.values()}
    made = brokers_made_by("terraform", AgentHome(site.home).units)
    return [f"{name} at {address}" for name, address in made.items() if address not in described]


def tell(line: str) -> None:
    """Prints a line on stderr that says what the command works on, once a command."""
    told = _told.get()
    if told is None:
        _told.set(told := set())
    if line not in told:
        told.add(line)
        print_note(line)
