"""The site and the addresses that a command connects to, from its options and the context.

Owns the options of several commands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from headrace.site.context import Context, ContextDatacenter
    from headrace.site.site import Site

from headrace.cli import names
from headrace.cli.errors import CommandError, ExitCode
from headrace.cli.selection import current, tell
from headrace.cli.values import registry_urls, where_given

DatacenterOption = Annotated[
    str | None,
    typer.Option(
        "--datacenter",
        "-d",
        help="A datacenter of the context, such as east.",
        envvar="HEADRACE_DATACENTER",
        callback=where_given("--datacenter"),
        autocompletion=names.datacenters,
    ),
]
BootstrapOption = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        "-b",
        help="Brokers as host:port,…, instead of the datacenter's.",
        metavar="ADDRESSES",
        callback=where_given("--bootstrap"),
    ),
]
RegistryOption = Annotated[
    str | None,
    typer.Option(
        "--registry",
        "-r",
        help="A schema registry, instead of the datacenter's.",
        metavar="URL",
        callback=registry_urls,
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
    if not given:
        return datacenter(datacenter_name).bootstrap
    _check_addresses(given)
    tell(f"no context, brokers {given}")
    return given


def _check_addresses(given: str) -> None:
    from headrace.client.cluster import parse_bootstrap

    try:
        parse_bootstrap(given)
    except ValueError as error:
        raise CommandError(f"--bootstrap: {error}", ExitCode.USAGE) from None
