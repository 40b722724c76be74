"""`headrace warehouse replay | compact | retain | move | verify`: the upkeep of tables; and `ddl`.

Each change is committed by the commit log: readers see all of it or nothing, and commands may be repeated.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Annotated

import typer

from headrace.cli.context import context
from headrace.cli.errors import CommandError, ExitCode
from headrace.cli.output import JsonOption, in_time, out, print_json, write
from headrace.cli.values import is_day, parse_span_ms, parse_time_ms
from headrace.cli.warehouse import RootOption, TopicsArgument, no_table, spark, tables, warehouse
from headrace.process.text import counted
from headrace.warehouse.dialect import Dialect
from headrace.warehouse.options import DEFAULT_ROOT

HOUR_MS = 3_600_000


def replay(topics: TopicsArgument, root: RootOption = DEFAULT_ROOT, json: JsonOption = False) -> None:
    """Load the records that could not be decoded, after the cause has been removed."""
    from headrace.warehouse import api

    options = tables(root, topics)
    with spark(f"replay {' '.join(topics)}", quiet=json) as session:
        results = api.replay_topics(session, options, topics)
    if json:
        print_json([asdict(result) for result in results])
        return
    for result in results:
        still = f"; {result.still_dead:,} still cannot be decoded" if result.still_dead else ""
        done = "nothing replayed" if result.sequence is None else f"{counted(result.rows, 'row')} replayed"
        out.print(f"{result.topic}: {done}{still}")


def compact(
    topics: TopicsArgument,
    hour: Annotated[
        list[str] | None,
        typer.Option("--hour", help="Only this hour, such as 2026-11-20T18; may be repeated."),
    ] = None,
    grace_hours: Annotated[
        str,
        typer.Option("--grace-hours", help="Only hours that ended so long ago: hours, or such as 2d."),
    ] = "0",
    root: RootOption = DEFAULT_ROOT,
    json: JsonOption = False,
) -> None:
    """Rewrite the small files of past hours into few large ones."""
    from headrace.warehouse import api

    hours = [_hour_ms(text) for text in hour] if hour else None
    grace_ms = parse_span_ms(grace_hours, "h", option="--grace-hours")
    options = tables(root, topics)
    with spark(f"compact {' '.join(topics)}", quiet=json) as session:
        results = api.compact_topics(session, options, topics, hours=hours, grace_ms=grace_ms)
    if json:
        print_json([asdict(result) for result in results])
    for result in results if not json else ():
        if result.sequence is not None:
            out.print(
                f"{result.topic}: {counted(result.files_before, 'file')} became {result.files_after} in "
                f"{counted(len(result.hours), 'hour')}, {counted(result.rows, 'row')}"
            )
        elif not result.problems:
            out.print(f"{result.topic}: no hour has enough small files to compact")
    if problems := [f"{result.topic}, {each}" for result in results for each in result.problems]:
        raise CommandError("; ".join(problems))


def retain(
    topics: TopicsArgument,
    keep_hours: Annotated[
        str | None,
        typer.Option(
            "--keep-hours", help="Delete hours that are older: hours, or such as 30d; by default none."
        ),
    ] = None,
    root: RootOption = DEFAULT_ROOT,
    json: JsonOption = False,
) -> None:
    """Delete old hours, and the files that killed loads and old changes have left."""
    from headrace.warehouse import api

    keep_ms = (
        None
        if keep_hours is None
        else parse_span_ms(keep_hours, "h", option="--keep-hours", least_ms=HOUR_MS)
    )
    results = api.retain_topics(tables(root, topics), topics, keep_ms=keep_ms)
    if json:
        print_json([asdict(result) for result in results])
        return
    for result in results:
        deleted = (
            f"{counted(result.rows, 'row')} of {_hours_text(result.hours)}" if result.hours else "no hour"
        )
        out.print(
            f"{result.topic}: deleted {deleted}, "
            f"{counted(len(result.orphans), 'orphaned staging directory', 'orphaned staging directories')} "
            f"and the trash of {counted(len(result.trash), 'change')}"
        )


def move(topics: TopicsArgument, root: RootOption = DEFAULT_ROOT, json: JsonOption = False) -> None:
    """Move hours that an older headrace stored as YYYY/MM/DD/HH to dt=YYYY-MM-DD/hour=HH."""
    from headrace.warehouse import api

    results = api.move_topics(tables(root, topics), topics)
    if json:
        print_json([asdict(result) for result in results])
        return
    for result in results:
        if not result.files:
            out.print(f"{result.topic}: every file is in its place")
        else:
            hours = counted(len(result.hours), "hour")
            out.print(f"{result.topic}: moved {counted(result.files, 'file')} of {hours}")


def verify(
    topics: TopicsArgument,
    without_audit: Annotated[bool, typer.Option("--without-audit", help="Leave the audit out.")] = False,
    recent: Annotated[
        bool,
        typer.Option("--recent", help="Read only hours with new files, and a share of the others."),
    ] = False,
    root: RootOption = DEFAULT_ROOT,
    json: JsonOption = False,
) -> None:
    """Compare files with manifests, and manifests with the audit; `audit report` shows what was found.

    The exit code is 1 if they differ.
    """
    from sqlalchemy.exc import SQLAlchemyError

    from headrace.audit.store.store import StoreMissingError, problem_now
    from headrace.audit.topic.said_of_tables import ALL, RECENT
    from headrace.warehouse import api

    store = None if without_audit else context().audit_store_url
    try:
        results = api.verify_topics(
            warehouse(root), topics, audit_store=store, checked=RECENT if recent else ALL
        )
    except StoreMissingError as error:
        raise CommandError(f"{error}; --without-audit verifies without it", ExitCode.UNREACHABLE) from error
    except SQLAlchemyError as error:
        problem = f"{problem_now(error)}; --without-audit verifies without it"
        raise CommandError(problem, ExitCode.UNREACHABLE) from error
    for result in results:
        if result.is_sound and not result.changes:
            raise no_table(result.topic)
    if json:
        print_json([{**asdict(result), "is_sound": result.is_sound} for result in results])
    else:
        for result in results:
            problems = counted(len(result.problems), "problem")
            state = "[green]sound[/]" if result.is_sound else f"[red]{problems}[/]"
            out.print(
                f"{result.topic}: {state}: {counted(result.rows, 'row')} in {counted(result.files, 'file')} "
                f"of {counted(result.changes, 'change')}, {counted(result.audited_hours, 'hour')} "
                "compared with the audit"
            )
            for problem in result.problems:
                out.print(f"  {problem}", markup=False)
    if not all(result.is_sound for result in results):
        raise typer.Exit(ExitCode.NEGATIVE)


def _hours_text(hours_ms: Iterable[int]) -> str:
    """Formats hours as `2026-11-20 18h, 2026-11-20 19h`."""
    return ", ".join(f"{in_time(hour_ms)[:13]}h" for hour_ms in sorted(hours_ms))


def _hour_ms(text: str) -> int:
    moment_ms = parse_time_ms(text)
    if moment_ms % HOUR_MS or is_day(text):
        raise CommandError(f"{text!r} is not the start of an hour; write 2026-11-20T18", ExitCode.USAGE)
    return moment_ms


def ddl(
    topic: Annotated[str, typer.Argument(help="A topic of which something is loaded.", show_default=False)],
    dialect: Annotated[
        Dialect, typer.Option("--dialect", help="Whose statements; Spark SQL's tables are of its own format.")
    ] = Dialect.HIVE,
    name: Annotated[
        str | None,
        typer.Option("--name", help="TABLE or DATABASE.TABLE; by default the topic's, with underscores."),
    ] = None,
    root: RootOption = DEFAULT_ROOT,
    json: JsonOption = False,
) -> None:
    """Print the statements for a table of Hive or Spark SQL over the hours: types, comments, partitions.

    The comments are the docs of the Avro schema. The table shows every loaded row, sealed or not; the last
    statement finds the hours, and is repeated for new ones.
    """
    from headrace.tables.table import Table
    from headrace.warehouse.versions import Wanted

    text = Table(warehouse(root), topic, Wanted(is_sealed=False)).ddl(dialect, name)
    if json:
        print_json({"topic": topic, "dialect": dialect.value, "ddl": text})
    else:
        write(text)
