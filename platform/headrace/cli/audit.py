"""`headrace audit`: the report of what each tier counted, and what was lost between which tiers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from headrace.audit.findings import Status
    from headrace.audit.report.report import Report
    from headrace.audit.store.store import AuditStore
    from headrace.audit.topic.publish import AuditPublisher
    from headrace.site.context import ContextDatacenter

from headrace.cli.context import context, site
from headrace.cli.errors import CommandError, ExitCode, print_note
from headrace.cli.output import JsonOption, out, print_json
from headrace.cli.suggestions import did_you_mean
from headrace.cli.values import parse_span_ms, parse_time_ms

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
    wait: Annotated[
        str,
        typer.Option("--wait", help="How long to wait while something is pending or unknown, such as 5m."),
    ] = "0",
    store: Annotated[
        str | None,
        typer.Option("--store", help="The audit store; by default the site's.", metavar="URL"),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Compare the counts of the four tiers, hour by hour.

    The exit code is 0 if all rows are complete, 1 if something is lost, duplicated, altered or corrupt, and 3
    if nothing is, but something is pending or unknown, or if the store cannot be read.
    """
    from headrace.audit.report.report import report as judge_all
    from headrace.audit.report.report import wait_until_resolved

    from_ms = parse_time_ms(from_) if from_ is not None else None
    until_ms = parse_time_ms(to) if to is not None else None
    if from_ms is not None and until_ms is not None and until_ms <= from_ms:
        raise CommandError(f"--to {to} is not behind --from {from_}", ExitCode.USAGE)
    wait_s = parse_span_ms(wait, "s", option="--wait") / 1000
    with reading(store) as opened:
        judged = wait_until_resolved(lambda: judge_all(opened, topic, from_ms, until_ms), wait_s)
        if topic is not None and (problem := unknown_topic(opened, topic)):
            print_note(problem)
    show(judged, json=json, empty="no tier has reported anything for these hours")


def show(judged: Report, *, json: bool, empty: str = "") -> None:
    """Prints a report, or `empty` if it has no rows, and ends the command with the report's exit code."""
    from headrace.audit.report.view import print_report

    if json:
        print_json(judged.to_json())
    else:
        print_report(judged, out, empty=empty)
    if code := exit_code_of(judged.status):
        raise typer.Exit(code)


def exit_code_of(status: Status) -> ExitCode:
    """Returns the exit code of a report: whether something is wrong, or nobody can say yet."""
    from headrace.audit.findings import Status

    if status is Status.COMPLETE:
        return ExitCode.DONE
    return ExitCode.UNREACHABLE if status in (Status.PENDING, Status.UNKNOWN) else ExitCode.NEGATIVE


def unknown_topic(store: AuditStore, topic: str) -> str:
    """Returns what to say of a topic on which no tier ever reported; "" of any other one."""
    from headrace.audit.gathering.reported import topics

    with store.reading() as connection:
        known = topics(connection)
    if topic in known:
        return ""
    hint = did_you_mean(topic, known, "headrace audit report")
    return f"no tier has ever reported anything about a topic {topic!r}{hint}"


def check_topic(store: AuditStore, topic: str) -> None:
    """Raises `CommandError` for a topic on which no tier ever reported, such as one that is mistyped."""
    if problem := unknown_topic(store, topic):
        raise CommandError(problem)


@contextmanager
def reading(url: str | None) -> Iterator[AuditStore]:
    """Opens the store for reading alone; creates nothing. Errors become a `CommandError` of one line."""
    from sqlalchemy.exc import SQLAlchemyError

    from headrace.audit.store.store import AuditStore, StoreError, StoreMissingError, parsed_url, problem_now

    if url is not None:
        try:
            parsed_url(url)
        except StoreError as error:
            raise CommandError(f"--store: {error}", ExitCode.USAGE) from error
    store = None
    try:
        store = AuditStore(url or context().audit_store_url, must_exist=True)
        yield store
    except StoreMissingError as error:
        way_out = "give another --store"
        if url is None:
            way_out = (
                f"the site's home is {site().home} (from $HEADRACE_HOME, or else .headrace of the working "
                "directory): run this where the site is, set HEADRACE_HOME, or give --store; a new site has "
                "a store once its auditor runs (`headrace up`)"
            )
        raise CommandError(f"{error}; {way_out}", ExitCode.UNREACHABLE) from error
    except StoreError as error:
        raise CommandError(str(error), ExitCode.UNREACHABLE) from error
    except SQLAlchemyError as error:
        raise CommandError(problem_now(error), ExitCode.UNREACHABLE) from error
    finally:
        if store is not None:
            store.close()


def publisher(
    service: str, datacenter: ContextDatacenter | None = None, *, speaks_for: str | None = None
) -> AuditPublisher:
    """Returns a publisher of audit records, to close after use: into the topic of a datacenter, by default of
    the analysis cluster. `service`: in whose name it speaks; `speaks_for`: for another datacenter.
    """
    from headrace.audit.topic.publish import AuditPublisher
    from headrace.audit.topic.records import ANALYSIS_AUDIT_TOPIC, AUDIT_TOPIC

    analysis = context().analysis
    told = datacenter or analysis
    return AuditPublisher(
        bootstrap=told.bootstrap,
        registry_url=told.registry,
        datacenter=speaks_for or told.name,
        service=service,
        topic=ANALYSIS_AUDIT_TOPIC if told.name == analysis.name else AUDIT_TOPIC,
    )
