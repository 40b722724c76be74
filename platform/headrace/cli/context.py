"""The site and the addresses that a command connects to, from its options or the site's description.

Owns the options of several commands.
"""

from __future__ import annotations

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
        "--bootstrap", "-b", help="Brokers as host:port,…, instead of the datacenter's.", metavar="ADDRESSES"
    ),
]


def site() -> Site:
    """Loads the site of `$HEADRACE_HOME`, by default `.headrace` in the working directory."""
    from headrace.site.site import Site

    return Site.load()


def datacenter(name: str | None) -> Datacenter:
    """Returns the named datacenter; without a name the first one that has services."""
    here = site()
    return here.datacenter(name) if name else here.sources[0]


def bootstrap(datacenter_name: str | None, given: str | None) -> str:
    """Returns the bootstrap brokers: the given ones, or those of the datacenter."""
    if given and datacenter_name:
        raise CommandError("give either --datacenter or --bootstrap, not both", ExitCode.USAGE)
    return given or datacenter(datacenter_name).bootstrap
