"""`headrace warehouse ls | plan | load`: the tables in HDFS, and loads into them.

`warehouse_upkeep` has the other commands of the group.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from headrace.cli.context import context
from headrace.cli.errors import CommandError
from headrace.cli.output import JsonOption, in_bytes, out, print_json, print_table
from headrace.cli.values import parse_time_ms

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.warehouse.api import HourSummary
    from headrace.warehouse.options import WarehouseOptions

app = typer.Typer(help="The hourly tables in HDFS.", no_args_is_help=True)

TopicsArgument = Annotated[list[str], typer.Argument(help="Topics.", show_default=False)]
UntilOption = Annotated[str | None, typer.Option("--until", help="Load only records before this time.")]
AcceptGapOption = Annotated[
    bool,
    typer.Option("--accept-gap", help="Continue although records were deleted before any load read them."),
]

PATIENCE_S = 5.0


def warehouse() -> WarehouseOptions:
    """Returns the context's warehouse."""
    from headrace.tables.options import warehouse_of

    return warehouse_of(context(), patience_s=PATIENCE_S)


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
    return CommandError(f"the warehouse has no table {topic!r}; `headrace warehouse load {topic}` makes one")


@app.command()
def ls(
    topic: Annotated[
        str | None, typer.Argument(help="List this topic's hours; by default all topics.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """List the tables, or the hours of one: rows and files by the commit log, and seals."""
    from headrace.warehouse import api

    options = warehouse()
    if topic is None:
        tables = {name: api.list_hours(options, name) for name in api.list_tables(options)}
        if json:
            print_json(
                [{"topic": name, "hours": len(hours), **_sums(hours)} for name, hours in tables.items()]
            )
            return
        print_table(
            ["topic", ">hours", ">sealed", ">rows", ">files", ">size"],
            [
                (name, len(hours), sum(hour.sealed_version is not None for hour in hours), *_shown(hours))
                for name, hours in tables.items()
            ],
            empty="the warehouse is empty; `headrace warehouse load TOPIC` fills it",
        )
        return
    hours = api.list_hours(options, topic)
    if not hours:
        raise no_table(topic)
    if json:
        print_json([asdict(hour) for hour in hours])
        return
    print_table(
        ["hour (UTC)", ">rows", ">files", ">size", "sealed"],
        [(hour.hour, *_shown([hour]), _seal(hour)) for hour in hours],
        empty="",
    )
    out.print(f"{_sums(hours)['rows']:,} rows in {options.url(f'{options.root}/{topic}/hourly')}")


@app.command()
def plan(
    topics: TopicsArgument,
    until: UntilOption = None,
    accept_gap: AcceptGapOption = False,
    json: JsonOption = False,
) -> None:
    """Show the address ranges that a load would read now. Reads no record and writes nothing."""
    from headrace.warehouse import api

    until_ms = parse_time_ms(until) if until else None
    plans = api.plan_loads(warehouse(), topics, until_ms=until_ms, accept_gap=accept_gap)
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


@app.command()
def load(
    topics: TopicsArgument,
    until: UntilOption = None,
    accept_gap: AcceptGapOption = False,
    json: JsonOption = False,
) -> None:
    """Load new records into hourly Parquet files, exactly once. Safe to repeat, and to run concurrently."""
    from headrace.warehouse import api

    until_ms = parse_time_ms(until) if until else None
    with spark(f"load {' '.join(topics)}", quiet=json) as session:
        results = api.load_topics(session, warehouse(), topics, until_ms=until_ms, accept_gap=accept_gap)
    if json:
        print_json([asdict(result) for result in results])
        return
    for result in results:
        if result.sequence is None:
            out.print(f"{result.topic}: nothing new")
            continue
        dead = f", {result.dead_lettered:,} could not be decoded" if result.dead_lettered else ""
        out.print(
            f"{result.topic}: load {result.sequence} added {result.rows:,} rows to {len(result.hours)} "
            f"hours, {result.files} files, in {result.seconds:.1f} s{dead}"
        )
        if result.doubled:
            out.print(
                f"{result.topic}: {result.doubled:,} rows of these hours have the guid of another row; "
                "`headrace audit report` names them, `headrace audit dedupe` removes them"
            )


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
