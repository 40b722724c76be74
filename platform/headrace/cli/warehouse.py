"""`headrace warehouse ls | plan | load`: the tables in HDFS, and loads into them.

`warehouse_upkeep` has the other commands of the group.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, cast

import typer

from headrace.cli.context import context
from headrace.cli.errors import CommandError, ExitCode
from headrace.cli.output import JsonOption, in_bytes, out, print_json, print_table
from headrace.cli.values import parse_span_ms, parse_time_ms
from headrace.process.text import counted
from headrace.warehouse.options import DEFAULT_ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.audit.store.store import AuditStore
    from headrace.warehouse.api import HourSummary
    from headrace.warehouse.loading import LoadResult
    from headrace.warehouse.made_again import Said
    from headrace.warehouse.options import WarehouseOptions

app = typer.Typer(help="The hourly tables in HDFS.", no_args_is_help=True)

TopicsArgument = Annotated[list[str], typer.Argument(help="Topics.", show_default=False)]
UntilOption = Annotated[str | None, typer.Option("--until", help="Load only records before this time.")]
AcceptGapOption = Annotated[
    bool,
    typer.Option("--accept-gap", help="Continue although records were deleted before any load read them."),
]
MadeAgainOption = Annotated[
    list[str] | None,
    typer.Option(
        "--made-again",
        metavar="WHAT",
        help="Of a topic that was deleted and made again: its log is a new one (new), or the same, copied "
        "once more (copy); new:0,2 says it of these partitions. May be repeated.",
    ),
]

RootOption = Annotated[
    str,
    typer.Option(
        "--root", help="The directory of the tables in HDFS: the output of their loads.", metavar="PATH"
    ),
]

PATIENCE_S = 5.0
WAIT_STEP_S = 2.0


def warehouse(root: str = DEFAULT_ROOT) -> WarehouseOptions:
    """Returns the context's warehouse, with the tables below this directory."""
    from headrace.tables.options import warehouse_of

    if not root.startswith("/"):
        raise CommandError(f"--root {root!r} does not begin with /: give a directory of HDFS", ExitCode.USAGE)
    return replace(warehouse_of(context(), patience_s=PATIENCE_S), root=root)


def warehouse_with(topic: str, store: AuditStore) -> WarehouseOptions:
    """Returns the warehouse that loaded the topic last, as the audit's store has it: a load may have an
    `output` of its own. Without such a load: the context's.
    """
    from headrace.audit.store.kept import last_warehouse

    options = warehouse()
    hdfs_url = options.hdfs_url.rstrip("/")
    with store.reading() as connection:
        name = last_warehouse(connection, topic) or ""
    return replace(options, root=name.removeprefix(hdfs_url)) if name.startswith(f"{hdfs_url}/") else options


@contextmanager
def spark(work: str, *, quiet: bool) -> Iterator[SparkSession]:
    """A Spark session for `work`, which starts at its first use: most refusals, and loads without news, need
    none. Errors of Spark and HDFS in it become a `CommandError` of one line.
    """
    from headrace.warehouse.errors import known_error
    from headrace.warehouse.session import SessionOnDemand

    def starting() -> None:
        if not quiet:
            out.print("starting Spark …")

    session = SessionOnDemand(f"headrace {work}", starting=starting)
    try:
        yield cast("SparkSession", session)
    except Exception as error:
        if problem := known_error(error, work):
            raise CommandError(problem) from error
        raise
    finally:
        session.stop()


def no_table(topic: str) -> CommandError:
    return CommandError(
        f"the warehouse has no table {topic!r}; `headrace warehouse load {topic}` makes one, and --root "
        "chooses another directory, if its load has an output of its own"
    )


def tables(root: str, topics: Iterable[str]) -> WarehouseOptions:
    """Returns the warehouse. Raises `CommandError` for a topic without a table there."""
    from headrace.warehouse import api

    options = warehouse(root)
    known = api.list_tables(options)
    for topic in topics:
        if topic not in known:
            raise no_table(topic)
    return options


@app.command()
def ls(
    topic: Annotated[
        str | None, typer.Argument(help="List this topic's hours; by default all topics.")
    ] = None,
    from_: Annotated[
        str | None, typer.Option("--from", help="Only hours from this one on, such as 2015-05-17T10 (UTC).")
    ] = None,
    to: Annotated[str | None, typer.Option("--to", help="Only hours before this one.")] = None,
    wait: Annotated[
        str, typer.Option("--wait", help="How long to wait until all of these hours are sealed, such as 5m.")
    ] = "0",
    root: RootOption = DEFAULT_ROOT,
    json: JsonOption = False,
) -> None:
    """List the tables, or the hours of one: rows and files by the commit log, and seals.

    With --wait the exit code is 1 unless all of the hours are sealed in the end. An hour that is not over
    cannot be: --to leaves it out.
    """
    from headrace.warehouse import api

    wait_s = parse_span_ms(wait, "s", option="--wait") / 1000
    from_ms = parse_time_ms(from_) if from_ is not None else None
    until_ms = parse_time_ms(to) if to is not None else None
    if topic is None and (wait_s or from_ms is not None or until_ms is not None):
        raise CommandError("--from, --to and --wait need a TOPIC, whose hours they choose", ExitCode.USAGE)
    options = warehouse(root)
    if topic is None:
        tables = {name: api.list_hours(options, name) for name in api.list_tables(options)}
        _print_tables(tables, json=json)
        return
    hours = _hours(options, topic, Span(from_ms, until_ms), wait_s)
    if json:
        print_json([asdict(hour) for hour in hours])
    else:
        print_table(
            ["hour (UTC)", ">rows", ">files", ">size", "sealed"],
            [(hour.hour, *_shown([hour]), _seal(hour)) for hour in hours],
            empty=f"{topic} has no hours of this time",
        )
        out.print(
            f"{counted(_sums(hours)['rows'], 'row')} in {options.url(f'{options.root}/{topic}/hourly')}"
        )
    if wait_s and not is_sealed(hours):
        unsealed = ", ".join(hour.hour for hour in hours if not is_sealed([hour])) or "no hour is there yet"
        raise CommandError(
            f"not sealed after {wait}: {unsealed}; `headrace audit report --topic {topic}` says why"
        )


class Span(NamedTuple):
    """Hours that begin at `from_ms` or later, and before `until_ms`; None: without such a bound."""

    from_ms: int | None
    until_ms: int | None

    def has(self, hour: HourSummary) -> bool:
        if self.from_ms is not None and hour.hour_ms < self.from_ms:
            return False
        return self.until_ms is None or hour.hour_ms < self.until_ms


def is_sealed(hours: Sequence[HourSummary]) -> bool:
    """Whether there are hours, and the seal of each vouches for all of its rows."""
    return bool(hours) and all(hour.sealed_version is not None and not hour.is_stale for hour in hours)


def _hours(options: WarehouseOptions, topic: str, span: Span, wait_s: float) -> list[HourSummary]:
    """Returns a table's hours in this time, as soon as they are sealed, or after `wait_s`.

    Raises `CommandError` if there is no such table then.
    """
    from headrace.warehouse import api

    until_s = time.monotonic() + wait_s
    while True:
        known = api.list_hours(options, topic)
        hours = [hour for hour in known if span.has(hour)]
        left_s = until_s - time.monotonic()
        if is_sealed(hours) or left_s <= 0:
            break
        time.sleep(min(WAIT_STEP_S, left_s))
    if not known:
        raise no_table(topic)
    return hours


def _print_tables(tables: Mapping[str, Sequence[HourSummary]], *, json: bool) -> None:
    if json:
        print_json([{"topic": name, "hours": len(hours), **_sums(hours)} for name, hours in tables.items()])
        return
    print_table(
        ["topic", ">hours", ">sealed", ">rows", ">files", ">size"],
        [
            (name, len(hours), sum(hour.sealed_version is not None for hour in hours), *_shown(hours))
            for name, hours in tables.items()
        ],
        empty="the warehouse is empty; `headrace warehouse load TOPIC` fills it",
    )


@app.command()
def plan(
    topics: TopicsArgument,
    until: UntilOption = None,
    accept_gap: AcceptGapOption = False,
    made_again: MadeAgainOption = None,
    root: RootOption = DEFAULT_ROOT,
    json: JsonOption = False,
) -> None:
    """Show the address ranges that a load would read now. Reads no record and writes nothing."""
    from headrace.warehouse import api

    until_ms = parse_time_ms(until) if until is not None else None
    said = _said(made_again or ())
    plans = api.plan_loads(warehouse(root), topics, until_ms=until_ms, accept_gap=accept_gap, said=said)
    if json:
        print_json([asdict(plan) for plan in plans])
        return
    print_table(
        ["topic", ">partition", ">from address", ">to address", ">size"],
        [
            (
                plan.topic,
                part.partition,
                f"{part.from_address:,}",
                f"{part.to_address:,}",
                in_bytes(part.size),
            )
            for plan in plans
            for part in plan.ranges
        ],
        empty="nothing new",
    )
    for plan in plans:
        for gap in plan.gaps:
            out.print(
                f"{plan.topic}-{gap.partition}: {gap.from_address:,} to {gap.to_address:,}: {gap.reason}"
            )
        _print_begun(plan.topic, plan.begun)
        for number, reason in plan.unread.items():
            out.print(f"{plan.topic}-{number} cannot be read now ({reason}): a load goes on without it")


@app.command()
def load(
    topics: TopicsArgument,
    until: UntilOption = None,
    accept_gap: AcceptGapOption = False,
    made_again: MadeAgainOption = None,
    root: RootOption = DEFAULT_ROOT,
    json: JsonOption = False,
) -> None:
    """Load new records into hourly Parquet files, exactly once. Safe to repeat, and to run concurrently."""
    from headrace.warehouse import api

    until_ms = parse_time_ms(until) if until is not None else None
    said = _said(made_again or ())
    with spark(f"load {' '.join(topics)}", quiet=json) as session:
        results = api.load_topics(
            session,
            warehouse(root),
            topics,
            until_ms=until_ms,
            accept_gap=accept_gap,
            said=said,
        )
    if json:
        print_json([asdict(result) for result in results])
    else:
        _print_loaded(results)
    if problems := [result.problem for result in results if result.problem]:
        raise CommandError("\n".join(problems))


def _print_loaded(results: Iterable[LoadResult]) -> None:
    for result in results:
        if result.sequence is None:
            out.print(f"{result.topic}: nothing new")
            continue
        dead = f", {result.dead_lettered:,} could not be decoded" if result.dead_lettered else ""
        out.print(
            f"{result.topic}: load {result.sequence} added {counted(result.rows, 'row')} to "
            f"{counted(len(result.hours), 'hour')}, {counted(result.files, 'file')}, "
            f"in {result.seconds:.1f} s{dead}"
        )
        _print_begun(result.topic, result.begun)
        if result.doubled:
            out.print(
                f"{result.topic}: {counted(result.doubled, 'row')} of these hours with another row's guid; "
                "`headrace audit report` names them, `headrace audit dedupe` removes them"
            )


def _said(words: Iterable[str]) -> Said:
    from headrace.warehouse.made_again import Said

    try:
        return Said.parsed(words)
    except ValueError as error:
        raise CommandError(f"--made-again {error}", ExitCode.USAGE) from error


def _print_begun(topic: str, begun: Mapping[int, int]) -> None:
    for number, address in sorted(begun.items()):
        out.print(f"{topic}-{number}: another log than before, from address {address:,} on")


def _sums(hours: Iterable[HourSummary]) -> dict[str, int]:
    hours = list(hours)
    return {
        "rows": sum(hour.rows for hour in hours),
        "files": sum(hour.files for hour in hours),
        "size_bytes": sum(hour.size_bytes for hour in hours),
    }


def _shown(hours: Iterable[HourSummary]) -> tuple[Any, ...]:
    sums = _sums(hours)
    return f"{sums['rows']:,}", f"{sums['files']:,}", in_bytes(sums["size_bytes"])


def _seal(hour: HourSummary) -> str:
    if hour.sealed_version is None:
        return "no"
    origin = "; counted from the log on" if hour.counted_from == "log" else ""
    return f"version {hour.sealed_version}" + origin + ("; late data since" if hour.is_stale else "")
