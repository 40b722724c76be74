"""Where a command goes: the site, a datacenter's addresses, or an address given by hand.

Owns the options that say so, and the topics, times and key=value words that several commands read.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from headrace.site.site import Datacenter, Site

from headrace.cli.errors import CommandError, ExitCode

DatacenterOption = Annotated[
    str | None,
    typer.Option(
        "--datacenter", "-d", help="A datacenter of the site, such as east.", envvar="HEADRACE_DATACENTER"
    ),
]
BootstrapOption = Annotated[
    str | None,
    typer.Option(
        "--bootstrap", "-b", help="Brokers as host:port,…, instead of a datacenter's.", metavar="ADDRESSES"
    ),
]


def site() -> Site:
    """The site of `$HEADRACE_HOME`, else of `.headrace` in the working directory."""
    from headrace.site.site import Site

    return Site.load()


def datacenter(name: str | None) -> Datacenter:
    """The named datacenter; without a name the first one that services publish in."""
    here = site()
    return here.datacenter(name) if name else here.sources[0]


def bootstrap(datacenter_name: str | None, given: str | None) -> str:
    """The brokers to ask first."""
    if given and datacenter_name:
        raise CommandError("give --datacenter or --bootstrap, not both", ExitCode.USAGE)
    return given or datacenter(datacenter_name).bootstrap


def parse_pairs(words: Iterable[str]) -> dict[str, str]:
    """`["retention.ms=1000"]` → `{"retention.ms": "1000"}`."""
    pairs = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise CommandError(f"{word!r} is not NAME=VALUE", ExitCode.USAGE)
        pairs[name] = value
    return pairs


def parse_time_ms(text: str) -> int:
    """Unix ms of `2015-05-17`, `2015-05-17T10`, `2015-05-17T10:05:00Z` or Unix ms; UTC if no zone is said."""
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
