"""`headrace agent`: the agent of this host, in the foreground."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.context import site
from headrace.cli.errors import CommandError, ExitCode
from headrace.cli.values import given_path


def agent(
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen",
            help="The address to serve on; by default the site's.",
            metavar="HOST:PORT",
        ),
    ] = None,
    tls_certificate: Annotated[
        Path | None,
        typer.Option("--tls-certificate", help="Serve over TLS with this certificate (PEM, with its chain)."),
    ] = None,
    tls_key: Annotated[Path | None, typer.Option("--tls-key", help="The certificate's key (PEM).")] = None,
    allow_plain: Annotated[
        bool, typer.Option("--allow-plain", help="Serve without TLS on an address outside loopback.")
    ] = False,
    ends_units: Annotated[
        bool,
        typer.Option("--ends-units", help="Stop the units when the agent ends, until its next start."),
    ] = False,
    allow_path: Annotated[
        list[Path] | None,
        typer.Option(
            "--allow-path",
            help="A folder that configurations may name, besides the home; may be repeated.",
            metavar="FOLDER",
            parser=given_path,
        ),
    ] = None,
) -> None:
    """Run the agent of this host, which runs its units, in the foreground; its state is in $HEADRACE_HOME."""
    from headrace.agent.configuration import parse_address
    from headrace.agent.process import AgentOptions, run_agent

    here = site()
    try:
        address = parse_address(listen) if listen else here.agent_address
    except ValueError as error:
        raise CommandError(f"--listen: {listen!r}: {error}", ExitCode.USAGE) from None
    paths = tuple(path.absolute() for path in allow_path or ())
    run_agent(
        AgentOptions(
            here.home,
            address,
            tls_certificate,
            tls_key,
            allow_plain,
            ends_units=ends_units,
            allow_paths=paths,
        )
    )
