"""`headrace topics`: the topics of a datacenter, their partitions and settings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from headrace.client.admin import Admin
    from headrace.client.cluster import PartitionInfo
    from headrace.client.survey import Survey

from headrace.cli.cluster import CHANGE_TIMEOUT_MS, READ_TIMEOUT_MS, brokers_of, exit_if_incomplete
from headrace.cli.context import BootstrapOption, DatacenterOption
from headrace.cli.errors import CommandError, ExitCode
from headrace.cli.output import JsonOption, confirm, in_bytes, out, plain, print_json, print_table
from headrace.cli.values import parse_settings

app = typer.Typer(help="Topics: their partitions and settings.", no_args_is_help=True)

TopicArgument = Annotated[str, typer.Argument(help="A topic's name.", show_default=False)]


@contextmanager
def _admin(
    where: str | None, brokers: str | None, *, timeout_ms: float = CHANGE_TIMEOUT_MS
) -> Iterator[Admin]:
    from headrace.client.admin import Admin

    with Admin(brokers_of(where, brokers).bootstrap, timeout_ms=timeout_ms) as admin:
        yield admin


@app.command("list")
def list_(
    where: DatacenterOption = None,
    brokers: BootstrapOption = None,
    all_: Annotated[bool, typer.Option("--all", help="Also topics whose names begin with _.")] = False,
    json: JsonOption = False,
) -> None:
    """List the topics: number of partitions, and bytes; what a silent broker has is marked."""
    with _admin(where, brokers, timeout_ms=READ_TIMEOUT_MS) as admin:
        survey = admin.survey(known=brokers_of(where, brokers).known)
    rows: list[dict[str, Any]] = [
        {
            "topic": name,
            "partitions": len(info.partitions),
            "bytes": sum(found.size_bytes for found in survey.ranges_of(name).values()),
            "unknown_partitions": sorted(survey.problems_of(name)),
        }
        for name, info in sorted(survey.topics.items())
        if all_ or not name.startswith("_")
    ]
    if json:
        print_json(rows)
    else:
        print_table(
            ["topic", ">partitions", ">size", *(["not known"] if survey.problems else [])],
            [
                (row["topic"], row["partitions"], _size(row), _partitions(row["unknown_partitions"]))[
                    : 4 if survey.problems else 3
                ]
                for row in rows
            ],
            empty="there are no topics (--all lists internal ones, too)",
        )
    exit_if_incomplete(survey)


def _size(row: dict[str, Any]) -> str:
    if len(row["unknown_partitions"]) == row["partitions"] > 0:
        return "-"
    return ("more than " if row["unknown_partitions"] else "") + in_bytes(row["bytes"])


def _partitions(numbers: list[int]) -> str:
    """Returns `partitions 1, 4`; "" without any."""
    if not numbers:
        return ""
    return f"partition{'' if len(numbers) == 1 else 's'} {', '.join(map(str, numbers))}"


@app.command()
def create(
    topic: TopicArgument,
    partitions: Annotated[
        int, typer.Option("--partitions", "-p", min=1, max=10_000, help="How many partitions.")
    ] = 3,
    replication_factor: Annotated[
        int, typer.Option("--replication-factor", "-f", min=1, max=100, help="Replicas of each partition.")
    ] = 1,
    config: Annotated[
        list[str] | None,
        typer.Option(
            "--config",
            "-c",
            help="A setting, such as retention.ms=7d; may be repeated.",
            metavar="NAME=VALUE",
        ),
    ] = None,
    where: DatacenterOption = None,
    brokers: BootstrapOption = None,
) -> None:
    """Create a topic; its partitions are distributed over the brokers."""
    settings = parse_settings(config or [])
    with _admin(where, brokers) as admin:
        admin.create_topic(topic, partitions, replication_factor, settings)
    replicas = "one replica" if replication_factor == 1 else f"{replication_factor} replicas"
    out.print(f"created {plain(topic)}: {partitions} partitions, {replicas} each")


@app.command()
def describe(
    topic: TopicArgument,
    where: DatacenterOption = None,
    brokers: BootstrapOption = None,
    json: JsonOption = False,
) -> None:
    """Show leader, replicas and addresses of each partition, and the topic's settings."""
    with _admin(where, brokers, timeout_ms=READ_TIMEOUT_MS) as admin:
        survey = admin.survey([topic], known=brokers_of(where, brokers).known)
        info = survey.topic(topic)
        settings = admin.describe_configs(topic)
    partitions = [
        _partition_row(survey, topic, info.partitions[number]) for number in sorted(info.partitions)
    ]
    own = {entry.name: entry.value for entry in settings.values() if entry.is_own}
    defaults = {entry.name: entry.value for entry in settings.values() if not entry.is_own}
    if json:
        print_json(
            {
                "topic": topic,
                "id": str(info.topic_id),
                "partitions": partitions,
                "config": own,
                "defaults": defaults,
            }
        )
    else:
        out.print(f"[bold]{plain(topic)}[/] ({info.topic_id})")
        _print_partitions(partitions)
        for name, value in sorted(own.items()):
            out.print(f"  {name} = {value}", markup=False)
        if not own:
            out.print("all settings have the brokers' defaults (--json lists them)")
    exit_if_incomplete(survey)


def _partition_row(survey: Survey, topic: str, part: PartitionInfo) -> dict[str, Any]:
    found = survey.ranges.get((topic, part.partition))
    return {
        "partition": part.partition,
        "leader": part.leader,
        "replicas": list(part.replicas),
        "in_sync": list(part.isr),
        "start_address": found.start if found else None,
        "end_address": found.end if found else None,
        "problem": survey.problems.get((topic, part.partition)),
    }


def _print_partitions(rows: list[dict[str, Any]]) -> None:
    has_problems = any(row["problem"] for row in rows)
    columns = [">partition", ">leader", "replicas", "in sync", ">start address", ">end address", ">size"]
    print_table(
        [*columns, *(["problem"] if has_problems else [])],
        [
            (
                row["partition"],
                row["leader"] if row["leader"] >= 0 else "none",
                ",".join(map(str, row["replicas"])),
                ",".join(map(str, row["in_sync"])),
                "-" if row["start_address"] is None else f"{row['start_address']:,}",
                "-" if row["end_address"] is None else f"{row['end_address']:,}",
                "-" if row["end_address"] is None else in_bytes(row["end_address"] - row["start_address"]),
                *([f"[red]{plain(row['problem'] or '')}[/]"] if has_problems else []),
            )
            for row in rows
        ],
        empty="the topic has no partitions",
    )


@app.command()
def alter(
    topic: TopicArgument,
    config: Annotated[
        list[str] | None,
        typer.Option("--config", "-c", help="A new value; NAME= restores the default.", metavar="NAME=VALUE"),
    ] = None,
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", "-p", min=1, help="The new, larger number."),
    ] = None,
    where: DatacenterOption = None,
    brokers: BootstrapOption = None,
) -> None:
    """Change a topic's settings, or add partitions."""
    changes = {name: value or None for name, value in parse_settings(config or []).items()}
    if not changes and partitions is None:
        raise CommandError("nothing to change: give --config NAME=VALUE or --partitions N", ExitCode.USAGE)
    with _admin(where, brokers) as admin:
        if changes:
            admin.alter_configs(topic, changes)
            out.print(f"changed {plain(', '.join(changes))} of {plain(topic)}")
        if partitions is not None:
            admin.create_partitions(topic, partitions)
            out.print(f"{plain(topic)} has {partitions} partitions now; keys may move to other partitions")


@app.command()
def delete(
    topic: TopicArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    where: DatacenterOption = None,
    brokers: BootstrapOption = None,
) -> None:
    """Delete a topic and all its records. Records that were mirrored or loaded stay there."""
    if not yes:
        confirm(f"delete {topic} and all its records?")
    with _admin(where, brokers) as admin:
        admin.delete_topic(topic)
    out.print(f"deleted {plain(topic)}")
