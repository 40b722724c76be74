"""`headrace topics`: the topics of a datacenter, their partitions and settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from headrace.client.admin import Admin
    from headrace.client.cluster import TopicInfo

from headrace.cli.context import BootstrapOption, DatacenterOption, bootstrap, parse_pairs, site
from headrace.cli.errors import CommandError, ExitCode
from headrace.cli.output import JsonOption, in_bytes, out, plain, print_json, print_table, printable
from headrace.coordination import declared

app = typer.Typer(help="Topics: their partitions and settings.", no_args_is_help=True)

TopicArgument = Annotated[str, typer.Argument(help="A topic's name.", show_default=False)]
TIMEOUT_MS = 8_000.0


class Producers(StrEnum):
    """Whether all producers of a topic report their counts to the audit."""

    REPORTING = declared.REPORTING
    ANY = declared.ANY


ProducersOption = Annotated[
    Producers | None,
    typer.Option(
        "--producers",
        help="Whether all producers report their counts to the audit; any: it counts from the log on.",
    ),
]


def _settings(config: list[str] | None, producers: Producers | None) -> dict[str, str]:
    """Returns the settings of both options."""
    settings = parse_pairs(config or [])
    if producers is None:
        return settings
    if declared.PRODUCERS in settings:
        raise CommandError(f"give either --producers or --config {declared.PRODUCERS}", ExitCode.USAGE)
    return {**settings, declared.PRODUCERS: producers.value}


def _declaration(settings: Mapping[str, str]) -> str:
    """Returns what a topic declares about its producers, in words."""
    changes = declared.history_of(settings)
    last = changes[-1]
    words = "counted from the log on" if last.producers == declared.ANY else "every producer reports"
    text = f"producers: {last.producers} ({words})"
    if last.from_ms is None:
        return text
    since = datetime.fromtimestamp(last.from_ms / 1000, UTC).strftime("%Y-%m-%d %H:00")
    return f"{text} for hours from {since} UTC on; {changes[-2].producers} before"


@contextmanager
def _admin(where: str | None, brokers: str | None) -> Iterator[Admin]:
    from headrace.client.admin import Admin

    with Admin(bootstrap(where, brokers), timeout_ms=TIMEOUT_MS) as admin:
        yield admin


def _addresses(admin: Admin, topic: str, info: TopicInfo) -> dict[int, tuple[int, int]]:
    """Returns the first address and the end address of each partition's log that has a leader."""
    from headrace.client.admin import EARLIEST, LATEST

    led = [part.partition for part in info.partitions.values() if part.leader >= 0]
    starts = admin.list_offsets(topic, EARLIEST, partitions=led)
    ends = admin.list_offsets(topic, LATEST, partitions=led)
    return {partition: (starts[partition].offset, ends[partition].offset) for partition in ends}


def _problems(admin: Admin, topic: str, info: TopicInfo) -> dict[int, str]:
    """Returns why partitions have no leader: what their brokers say of their logs."""
    from headrace.client.errors import ClientError
    from headrace.wire.errors import ErrorCode

    found: dict[int, str] = {}
    unled = [part for part in info.partitions.values() if part.leader < 0]
    by_broker: dict[int, list[int]] = {}
    for part in unled:
        found[part.partition] = "its broker is down"
        for broker_id in part.replicas[:1]:
            found[part.partition] = f"broker {broker_id} is down, or has just started"
            by_broker.setdefault(broker_id, []).append(part.partition)
    live = admin.describe_cluster().brokers if by_broker else {}
    for broker_id in by_broker.keys() & live.keys():
        try:
            folders = admin.describe_log_dirs(broker_id, {topic: by_broker[broker_id]})
        except ClientError as error:
            found |= dict.fromkeys(by_broker[broker_id], f"broker {broker_id} does not answer: {error}")
            continue
        for folder in folders:
            if folder.error is not ErrorCode.NONE:
                why = folder.problem or f"{folder.path}: {folder.error.name}"
                found |= {
                    partition: f"offline: {why}" for name, partition in folder.sizes_bytes if name == topic
                }
    return found


@app.command("list")
def list_(
    where: DatacenterOption = None,
    brokers: BootstrapOption = None,
    all_: Annotated[bool, typer.Option("--all", help="Also topics whose names begin with _.")] = False,
    json: JsonOption = False,
) -> None:
    """List the topics: number of partitions, and bytes."""
    with _admin(where, brokers) as admin:
        rows = []
        for name, info in sorted(admin.topics().items()):
            if name.startswith("_") and not all_:
                continue
            size = sum(end - start for start, end in _addresses(admin, name, info).values())
            rows.append((name, len(info.partitions), size))
    if json:
        print_json([{"topic": name, "partitions": count, "bytes": size} for name, count, size in rows])
        return
    print_table(
        ["topic", ">partitions", ">size"],
        [(name, count, in_bytes(size)) for name, count, size in rows],
        empty="there are no topics (--all lists internal ones, too)",
    )


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
        typer.Option("--config", "-c", help="A setting; may be repeated.", metavar="NAME=VALUE"),
    ] = None,
    producers: ProducersOption = None,
    where: DatacenterOption = None,
    brokers: BootstrapOption = None,
) -> None:
    """Create a topic; its partitions are distributed over the brokers."""
    settings = _settings(config, producers)
    with _admin(where, brokers) as admin:
        admin.create_topic(topic, partitions, replication_factor, settings)
    replicas = "one replica" if replication_factor == 1 else f"{replication_factor} replicas"
    out.print(f"created {topic}: {partitions} partitions, {replicas} each")


@app.command()
def describe(
    topic: TopicArgument,
    where: DatacenterOption = None,
    brokers: BootstrapOption = None,
    json: JsonOption = False,
) -> None:
    """Show leader, replicas and addresses of each partition, and the topic's settings."""
    with _admin(where, brokers) as admin:
        info = admin.topic(topic)
        addresses = _addresses(admin, topic, info)
        problems = _problems(admin, topic, info)
        settings = admin.describe_configs(topic)
    partitions: list[dict[str, Any]] = [
        {
            "partition": part.partition,
            "leader": part.leader,
            "replicas": list(part.replicas),
            "in_sync": list(part.isr),
            "start_address": addresses.get(part.partition, (None, None))[0],
            "end_address": addresses.get(part.partition, (None, None))[1],
            "problem": problems.get(part.partition),
        }
        for part in sorted(info.partitions.values(), key=lambda part: part.partition)
    ]
    own = {entry.name: entry.value for entry in settings.values() if entry.is_own}
    defaults = {entry.name: entry.value for entry in settings.values() if not entry.is_own}
    if json:
        print_json(
            {
                "topic": topic,
                "id": str(info.topic_id),
                "partitions": partitions,
                "producers": own.get(declared.PRODUCERS, declared.REPORTING),
                "config": own,
                "defaults": defaults,
            }
        )
        return
    out.print(f"[bold]{topic}[/] ({info.topic_id})")
    print_table(
        [">partition", ">leader", "replicas", "in sync", ">start address", ">end address", ">size"],
        [
            (
                part["partition"],
                part["leader"] if part["leader"] >= 0 else "none",
                ",".join(map(str, part["replicas"])),
                ",".join(map(str, part["in_sync"])),
                *_range(part["start_address"], part["end_address"]),
            )
            for part in partitions
        ],
        empty="the topic has no partitions",
    )
    for partition, problem in sorted(problems.items()):
        out.print(f"[red]{plain(topic)}-{partition} is not served[/]: {plain(problem)}")
    out.print(_declaration({name: value or "" for name, value in own.items()}), markup=False)
    for name, value in sorted(own.items()):
        out.print(f"  {name} = {value}", markup=False)
    if not own:
        out.print("all settings have the brokers' defaults (--json lists them)")


def _range(start: int | None, end: int | None) -> tuple[str, str, str]:
    """Returns a log's addresses and size as text."""
    if start is None or end is None:
        return "-", "-", "-"
    return f"{start:,}", f"{end:,}", in_bytes(end - start)


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
    producers: ProducersOption = None,
    where: DatacenterOption = None,
    brokers: BootstrapOption = None,
) -> None:
    """Change a topic's settings, or add partitions.

    A change of --producers applies to the hours that begin afterwards.
    """
    changes = {name: value or None for name, value in _settings(config, producers).items()}
    if not changes and partitions is None:
        raise CommandError(
            "nothing to change: give --config NAME=VALUE, --producers or --partitions N", ExitCode.USAGE
        )
    with _admin(where, brokers) as admin:
        if changes:
            admin.alter_configs(topic, changes)
            out.print(f"changed {', '.join(changes)} of {topic}")
            if declared.PRODUCERS in changes:
                out.print("it applies to the hours that begin from now on; `topics describe` shows it")
        if partitions is not None:
            admin.create_partitions(topic, partitions)
            out.print(f"{topic} has {partitions} partitions now; keys may move to other partitions")


@app.command()
def declare(
    file: Annotated[
        Path | None, typer.Argument(help="A topics.yaml; by default that of the DAGs.", show_default=False)
    ] = None,
) -> None:
    """Put the field `producers` of a topics.yaml into the topics' settings, in every datacenter of services.

    The exit code is 0 only if every topic declares it.
    """
    if not declare_topics(file):
        raise typer.Exit(ExitCode.NEGATIVE)


def declare_topics(file: Path | None = None) -> bool:
    """Returns whether every topic declares now what the file says; prints changes and problems."""
    from headrace.agent.airflow_environment import dags_folder
    from headrace.airflow.topics import read_declarations
    from headrace.fleet.declare import declare

    if file is not None and not file.exists():
        raise CommandError(f"there is no file {file}")
    wanted = read_declarations(file or dags_folder() / "topics.yaml")
    outcomes = list(declare(site(), wanted))
    for each in outcomes:
        if each.problem:
            out.print(f"[yellow]not declared[/]  {printable(each.problem)}")
        elif each.changed:
            out.print(f"{each.topic} of {each.datacenter}: producers {each.producers}, for hours from now on")
    return not any(each.problem for each in outcomes)


@app.command()
def delete(
    topic: TopicArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    where: DatacenterOption = None,
    brokers: BootstrapOption = None,
) -> None:
    """Delete a topic and all its records. Records that were mirrored or loaded stay there."""
    if not yes:
        typer.confirm(f"delete {topic} and all its records?", abort=True)
    with _admin(where, brokers) as admin:
        admin.delete_topic(topic)
    out.print(f"deleted {topic}")
