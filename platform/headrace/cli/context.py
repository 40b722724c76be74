"""The site and the addresses that a command connects to, from its options and the context.

Owns the options of several commands, and the parsing of times and NAME=VALUE pairs.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from headrace.site.context import Context, ContextDatacenter
    from headrace.site.site import Site

from headrace.cli.errors import CommandError, ExitCode
from headrace.cli.selection import current, tell

DatacenterOption = Annotated[
    str | None,
    typer.Option(
        "--datacenter", "-d", help="A datacenter of the context, such as east.", envvar="HEADRACE_DATACENTER"
    ),
]
BootstrapOption = Annotated[
    str | None,
    typer.Option(
        "--bootstrap", "-b", help="Brokers as host:port,…, instead of the datacenter's.", metavar="ADDRESSES"
    ),
]


def site() -> Site:
    """Loads the site of `$HEADRACE_HOME`, by default `.headrace` in the working directory."""
    from headrace.site.site import Site

    return Site.load()


def context() -> Context:
    """Returns the context, for commands that concern more than one datacenter."""
    found = current()
    tell(f"context {found.name}")
    return found


def datacenter(name: str | None) -> ContextDatacenter:
    """Returns the named datacenter of the context; without a name the first one that has services."""
    here = current()
    found = here.datacenter(name) if name else here.default_datacenter
    tell(f"context {here.name}, datacenter {found.name} ({found.bootstrap})")
    return found


def bootstrap(datacenter_name: str | None, given: str | None) -> str:
    """Returns the bootstrap brokers: the given ones, or those of the datacenter."""
    if given and datacenter_name:
        raise CommandError("give either --datacenter or --bootstrap, not both", ExitCode.USAGE)
    if given:
        tell(f"no context, brokers {given}")
    return given or datacenter(datacenter_name).bootstrap


def parse_pairs(words: Iterable[str]) -> dict[str, str]:
    """Parses `["retention.ms=1000"]` into `{"retention.ms": "1000"}`."""
    pairs = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise CommandError(f"{word!r} is not NAME=VALUE", ExitCode.USAGE)
        pairs[name] = value
    return pairs


def parse_time_ms(text: str) -> int:
    """Returns Unix ms of `2015-05-17`, `2015-05-17T10`, `2015-05-17T10:05:00Z` or Unix ms; by default UTC."""
    if text.isdigit() and len(text) >= 11:
        return int(text)
    candidate = f"{text}:00" if len(text) == len("2015-05-17T10") else text
    try:
        moment = datetime.fromisoformat(candidate)
    except ValueError:
        raise CommandError(
            f"{text!r} is not a time; write 2015-05-17T10, 2015-05-17T10:05:00Z or Unix milliseconds",
            ExitCode.USAGE,
        ) from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
