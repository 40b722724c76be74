"""`headrace audit`: the report of what each tier counted, and what was lost between which tiers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from headrace.audit.store import AuditStore

from headrace.cli.context import context, site
from headrace.cli.errors import CommandError, ExitCode
from headrace.cli.output import JsonOption, out, print_json
from headrace.cli.values import parse_time_ms

app = typer.Typer(no_args_is_help=True)


@app.callback()
def audit() -> None:
    """Account for every event, from its producer to the warehouse."""


@app.command()
def report(
    topic: Annotated[str | None, typer.Option("--topic", "-t", help="A topic; by default all.")] = None,
    from_: Annotated[
        str | None,
        typer.Option("--from", help="Only hours from this one on, such as 2015-05-17T10 (UTC)."),
    ] = None,
    to: Annotated[str | None, typer.Option("--to", help="Only hours before this one.")] = None,
    store: Annotated[
        str | None,
        typer.Option("--store", help="The audit store; by default the site's.", metavar="URL"),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Compare the counts of the four tiers, hour by hour. The exit code is 0 only if all are complete."""
    from headrace.audit.evidence import Status
    from headrace.audit.report import report as judge_all
    from headrace.audit.report_view import print_report

    from_ms = parse_time_ms(from_) if from_ else None
    until_ms = parse_time_ms(to) if to else None
    opened = _open(store)
    try:
        judged = judge_all(opened, topic, from_ms, until_ms)
    finally:
        opened.close()
    if json:
        print_json(judged.to_json())
    else:
        print_report(judged, out, empty="no tier has reported anything for these hours")
    if judged.status is not Status.COMPLETE:
        raise typer.Exit(ExitCode.NEGATIVE)


def _open(url: str | None) -> AuditStore:
    """Opens the store to read it; creates nothing."""
    from headrace.audit.store import AuditStore, StoreMissingError

    try:
        return AuditStore(url or context().audit_store_url, must_exist=True)
    except StoreMissingError as error:
        way_out = "give another --store"
        if url is None:
            way_out = (
                f"the site's home is {site().home} (from $HEADRACE_HOME, or else .headrace of the working "
                "directory): run this where the site is, set HEADRACE_HOME, or give --store; a new site has "
                "a store once its auditor runs (`headrace up`)"
            )
        raise CommandError(f"{error}; {way_out}") from error
