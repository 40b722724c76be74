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
    from headrace.fleet.declare import Declared
    from headrace.fleet.topics.removing import RemovedLoad

from headrace.cli import names
from headrace.cli.cluster import (
    CHANGE_TIMEOUT_MS,
    NoTopicError,
    ReplicationFactorOption,
    brokers_of,
    exit_if_incomplete,
    naming_setting,
    naming_topic,
    reading,
)
from headrace.cli.context import BootstrapOption, DatacenterOption, context, site
from headrace.cli.errors import CommandError, ExitCode
from headrace.cli.output import JsonOption, confirm, out, plain, print_json
from headrace.cli.topics_view import offline_logs, partition_rows, print_partitions, print_topics
from headrace.cli.values import PARTITIONS_MAX, parse_settings
from headrace.coordination import declared

app = typer.Typer(help="Topics: their partitions and settings.", no_args_is_help=True)

TopicArgument = Annotated[str, typer.Argument(help="A topic's name.", show_default=False)]
ExistingTopic = Annotated[
    str, typer.Argument(help="A topic's name.", show_default=False, autocompletion=names.topics)
]


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
    settings = parse_settings(config or [])
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

    with Admin(brokers_of(where, brokers).bootstrap, timeout_ms=CHANGE_TIMEOUT_MS) as admin:
        yield admin


@app.command("list")
def list_(
    where: DatacenterOption = None,
    brokers: BootstrapOption = None,
    all_: Annotated[bool, typer.Option("--all", help="Also topics whose names begin with _.")] = False,
    json: JsonOption = False,
) -> None:
    """List the topics: number of partitions, and bytes.

    What a silent broker has is marked, and what has fewer replicas in sync than it should.
    """
    with reading(brokers_of(where, brokers)) as admin:
        survey = admin.survey(known=brokers_of(where, brokers).known)
    rows: list[dict[str, Any]] = [
        {
            "topic": name,
            "partitions": len(info.partitions),
            "bytes": sum(found.size_bytes for found in survey.ranges_of(name).values()),
            "unknown_partitions": sorted(survey.problems_of(name)),
            "under_replicated_partitions": survey.under_replicated(name),
        }
        for name, info in sorted(survey.topics.items())
        if all_ or not name.startswith("_")
    ]
    if json:
        print_json(rows)
    else:
        print_topics(rows)
    exit_if_incomplete(survey)


@app.command()
def create(
    topic: TopicArgument,
    partitions: Annotated[
        int, typer.Option("--partitions", "-p", min=1, max=PARTITIONS_MAX, help="How many partitions.")
    ] = 3,
    replication_factor: ReplicationFactorOption = None,
    config: Annotated[
        list[str] | None,
        typer.Option(
            "--config",
            "-c",
            help="A setting, such as retention.ms=7d; may be repeated.",
            metavar="NAME=VALUE",
        ),
    ] = None,
    producers: ProducersOption = None,
    where: DatacenterOption = None,
    brokers: BootstrapOption = None,
    json: JsonOption = False,
) -> None:
    """Create a topic; its partitions are distributed over the brokers."""
    settings = _settings(config, producers)
    with _admin(where, brokers) as admin, naming_setting(settings, admin):
        admin.create_topic(topic, partitions, replication_factor, settings)
        count = len(admin.topic(topic).partitions[0].replicas)
    if json:
        made = {"partitions": partitions, "replication_factor": count, "config": settings}
        print_json({"topic": topic, **made, "created": True})
        return
    replicas = "one replica" if count == 1 else f"{count} replicas"
    out.print(f"created {plain(topic)}: {partitions} partitions, {replicas} each")


@app.command()
def describe(
    topic: ExistingTopic,
    where: DatacenterOption = None,
    brokers: BootstrapOption = None,
    json: JsonOption = False,
) -> None:
    """Show leader, epoch, replicas, their lag and addresses of each partition, and the topic's settings."""
    with reading(brokers_of(where, brokers)) as admin:
        survey = admin.survey([topic], known=brokers_of(where, brokers).known, with_replicas=True)
        with naming_topic(topic, admin):
            info = survey.topic(topic)
        problems = survey.problems_of(topic) | offline_logs(admin, topic, survey)
        settings = admin.describe_configs(topic)
        eligible = admin.eligible_replicas(topic)
    partitions = partition_rows(survey, topic, problems, eligible)
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
    else:
        out.print(f"[bold]{plain(topic)}[/] ({info.topic_id})")
        print_partitions(topic, partitions)
        out.print(_declaration({name: value or "" for name, value in own.items()}), markup=False)
        for name, value in sorted(own.items()):
            out.print(f"  {name} = {value}", markup=False)
        if not own:
            out.print("all settings have the brokers' defaults (--json lists them)")
    exit_if_incomplete(survey)


@app.command()
def alter(
    topic: ExistingTopic,
    config: Annotated[
        list[str] | None,
        typer.Option("--config", "-c", help="A new value; NAME= restores the default.", metavar="NAME=VALUE"),
    ] = None,
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", "-p", min=1, help="How many partitions it shall have: more than now."),
    ] = None,
    producers: ProducersOption = None,
    where: DatacenterOption = None,
    brokers: BootstrapOption = None,
    json: JsonOption = False,
) -> None:
    """Change a topic's settings, or add partitions.

    A change of --producers applies to the hours that begin afterwards.
    """
    changes = {name: value or None for name, value in _settings(config, producers).items()}
    if not changes and partitions is None:
        raise CommandError(
            "nothing to change: give --config NAME=VALUE, --producers or --partitions N", ExitCode.USAGE
        )
    with _admin(where, brokers) as admin, naming_topic(topic, admin), naming_setting(changes, admin):
        if changes:
            admin.alter_configs(topic, changes)
        if partitions is not None:
            admin.create_partitions(topic, partitions)
    if json:
        print_json({"topic": topic, "config": changes, "partitions": partitions, "changed": True})
        return
    if changes:
        out.print(f"changed {plain(', '.join(changes))} of {plain(topic)}")
    if declared.PRODUCERS in changes:
        out.print("it applies to the hours that begin from now on; `topics describe` shows it")
    if partitions is not None:
        out.print(f"{plain(topic)} has {partitions} partitions now; keys may move to other partitions")


@app.command()
def declare(
    file: Annotated[
        Path | None, typer.Argument(help="A topics.yaml; by default that of the DAGs.", show_default=False)
    ] = None,
    json: JsonOption = False,
) -> None:
    """Put the field `producers` of a topics.yaml into the topics' settings, in every datacenter of services.

    The exit code is 0 only if every topic declares it.
    """
    outcomes = declare_topics(file, quiet=json)
    is_declared = not any(each.problem for each in outcomes)
    if json:
        print_json({"declared": is_declared, "topics": [each._asdict() for each in outcomes]})
    if not is_declared:
        raise typer.Exit(ExitCode.NEGATIVE)


def declare_topics(file: Path | None = None, *, quiet: bool = False) -> list[Declared]:
    """Declares what the file says, and returns what became of each topic; prints changes and problems."""
    from headrace.agent.airflow_environment import dags_folder
    from headrace.airflow.topics import read_declarations
    from headrace.fleet.declare import declare

    if file is not None and not file.exists():
        raise CommandError(f"there is no file {file}")
    wanted = read_declarations(file or dags_folder() / "topics.yaml")
    outcomes = list(declare(site(), wanted))
    for each in [] if quiet else outcomes:
        if each.problem:
            out.print(f"[yellow]not declared[/]  {plain(each.problem)}")
        elif each.changed:
            where = f"{plain(each.topic)} of {plain(each.datacenter)}"
            out.print(f"{where}: producers {each.producers}, for hours from now on")
    return outcomes


@app.command()
def delete(
    topic: ExistingTopic,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    where: DatacenterOption = None,
    brokers: BootstrapOption = None,
    json: JsonOption = False,
) -> None:
    """Delete a topic and all its records. Records that were mirrored or loaded stay there.

    Its load, and with it its DAGs, goes once no datacenter of the site has the topic any more.
    """
    if not yes:
        confirm(f"delete {topic} and all its records?")
    is_deleted = True
    try:
        with _admin(where, brokers) as admin, naming_topic(topic, admin):
            admin.delete_topic(topic)
    except NoTopicError:
        # An earlier command may have deleted the topic, and not reached its load.
        removed = None if brokers else _remove_load(topic)
        if removed is None or not removed.is_removed:
            raise
        is_deleted = False
    else:
        removed = None if brokers else _remove_load(topic)
    if json:
        load = (
            None if removed is None else {"removed": removed.is_removed, "still_in": list(removed.still_in)}
        )
        print_json({"topic": topic, "deleted": is_deleted, "load": load})
        return
    out.print(f"deleted {plain(topic)}" if is_deleted else f"there was no topic {plain(topic)} any more")
    if removed is not None and removed.is_removed:
        out.print("its load is removed, and with it its DAGs; what is in HDFS stays")
    elif removed is not None:
        out.print(f"its load stays: {plain(', '.join(removed.still_in))} may still have the topic")


def _remove_load(topic: str) -> RemovedLoad | None:
    """Returns what became of the topic's load; None if the context is not this site, or there is none."""
    from headrace.fleet.topics.removing import remove_load
    from headrace.site.context import SITE

    here = context()
    return remove_load(here, site().home, topic) if here.name == SITE else None
