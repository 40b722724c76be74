"""`headrace groups`: consumer groups of Kafka's protocol and of ZooKeeper: members, offsets and lag."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

import typer

from headrace.cli import names
from headrace.cli.cluster import answering, exit_if_silent, left_of_s, reading_until_s
from headrace.cli.context import BootstrapOption, DatacenterOption
from headrace.cli.errors import CommandError, ExitCode, print_error
from headrace.cli.group_reset import Change, Target, offsets_at, plan, target_of
from headrace.cli.group_state import (
    all_groups,
    ask_zookeeper,
    group_admin,
    group_in_zookeeper,
    one_group,
    stored_offsets,
    told,
    zookeeper,
    zookeeper_hosts,
)
from headrace.cli.group_view import (
    NOT_KNOWN,
    as_json,
    partition_rows,
    print_changes,
    print_members,
    print_partitions,
)
from headrace.cli.output import JsonOption, confirm, out, plain, print_json, print_table
from headrace.cli.suggestions import did_you_mean

if TYPE_CHECKING:
    from headrace.client.cluster import TopicPartition
    from headrace.client.group_admin import GroupAdmin
    from headrace.client.survey import LogRange, Survey
    from headrace.coordination.session import ZooKeeperSession

COUNT_LATE_MAX_S: Final = 0.5
"""How long records are counted if asking has taken all of its time, as it does beside a hung broker."""

app = typer.Typer(help="Consumer groups of both kinds: their members, offsets and lag.", no_args_is_help=True)


def _group_name(name: str) -> str:
    from headrace.coordination.consumers import check_group_name

    try:
        check_group_name(name)
    except ValueError as error:
        raise CommandError(str(error), ExitCode.USAGE) from None
    return name


GroupArgument = Annotated[
    str, typer.Argument(help="A group's name.", autocompletion=names.groups, callback=_group_name)
]
SureOption = Annotated[
    bool,
    typer.Option(
        "--yes", "-y", help="Say that no member runs: needed where members in ZooKeeper cannot be seen."
    ),
]


@app.command("list")
def list_(where: DatacenterOption = None, brokers: BootstrapOption = None, json: JsonOption = False) -> None:
    """List the groups: kind (kafka or zookeeper), state, number of members, topics.

    What a silent broker or ZooKeeper would tell is missing or "not known"; the exit code is then 3. Where no
    ZooKeeper is known, the brokers alone are asked: members that coordinate through it are "not known".
    """
    found, silent, problem = all_groups(where, brokers)
    if json:
        print_json(
            [
                {
                    "group": group.name,
                    "kind": group.kind,
                    "state": group.state,
                    "members": None if group.members is None else len(group.members),
                    "topics": group.topics,
                }
                for group in found
            ]
        )
    else:
        print_table(
            ["group", "kind", "state", ">members", "topics"],
            [
                (
                    plain(group.name),
                    group.kind,
                    group.state,
                    NOT_KNOWN if group.members is None else len(group.members),
                    plain(", ".join(group.topics)),
                )
                for group in found
            ],
            empty="no group is known" if silent or problem else "there are no groups",
        )
    if problem:
        print_error(f"{problem} (groups and members that only ZooKeeper knows are missing)")
    exit_if_silent(silent)
    if problem:
        raise typer.Exit(ExitCode.UNREACHABLE)


@app.command()
def describe(
    group: GroupArgument,
    where: DatacenterOption = None,
    brokers: BootstrapOption = None,
    json: JsonOption = False,
) -> None:
    """Show the members with their clients, and each partition's stored offset, lag and reader.

    Lag in bytes is exact. Records are counted from batch headers, for at most a second; a number with ~ is an
    estimate. The lag in time is the age of the first unread batch, by its own timestamp. What a silent broker
    or ZooKeeper would tell is missing or "not known"; the exit code is then 3.
    """
    from headrace.client.lag import COUNT_MAX_S, lags

    until_s = reading_until_s()
    read = partial(group_in_zookeeper, group=group)
    asked = ask_zookeeper(zookeeper_hosts(where, brokers), read, until_s)
    with group_admin(where, brokers) as (admin, known):
        survey = admin.survey(known=known.known)
        there = told(asked, until_s)
        found = one_group(there.found, admin, group, survey.silent, problem=there.problem)
        stored = stored_offsets(there.found, admin, group, survey.silent)
    ranges = {key: log for key, log in survey.ranges.items() if key[0] in found.topics}
    count_max_s = min(COUNT_MAX_S, left_of_s(until_s + COUNT_LATE_MAX_S))
    behind = lags(answering(survey), stored, ranges, count_max_s=count_max_s)
    rows = partition_rows(found, survey, stored, behind)
    if json:
        print_json(as_json(found, rows))
    else:
        print_members(found)
        print_partitions(rows)
    if there.problem:
        print_error(f"{there.problem} (members that only ZooKeeper knows are missing)")
    exit_if_silent(survey.silent)
    if there.problem:
        raise typer.Exit(ExitCode.UNREACHABLE)


@app.command()
def reset(
    group: GroupArgument,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            "-t",
            help="A topic; may be repeated. By default all that the group has read.",
            autocompletion=names.topics,
        ),
    ] = None,
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", min=0, help="Only this partition of one topic; may be repeated."),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option("--to", help="earliest, latest, or a time such as 2015-05-17T10 or -1h."),
    ] = None,
    to_offset: Annotated[
        int | None, typer.Option("--to-offset", min=0, help="An offset, which is a byte address.")
    ] = None,
    shift_by: Annotated[
        str | None,
        typer.Option("--shift-by", help="Bytes to go back (-10MiB) or forward (1MiB).", metavar="SIZE"),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would change, and change nothing.")
    ] = False,
    yes: SureOption = False,
    where: DatacenterOption = None,
    brokers: BootstrapOption = None,
    json: JsonOption = False,
) -> None:
    """Set the offsets at which a group continues. Refused while it has members: stop them first."""
    target = target_of(to, to_offset, shift_by)
    if partition and (topic is None or len(topic) != 1):
        raise CommandError("--partition needs exactly one --topic", ExitCode.USAGE)
    with _session(where, brokers) as session, group_admin(where, brokers, changes=True) as (admin, known):
        survey = admin.survey(known=known.known)
        here = None if session is None else group_in_zookeeper(session, group)
        stored = stored_offsets(here, admin, group, survey.silent)
        ranges = _selected(group, survey, stored, topic, partition)
        found = one_group(here, admin, group, survey.silent, must_exist=False)
        changes = _planned(admin, target, stored, ranges)
        if dry_run:
            print_changes(group, changes, is_done=False, json=json)
            found.refuse_if_live("reset", is_sure=yes)
            return
        found.refuse_if_live("reset", is_sure=yes)
        _store(admin, group, changes)
        print_changes(group, changes, is_done=True, json=json)
        _refuse_if_joined(session, group)


@app.command()
def delete(
    group: GroupArgument,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            "-t",
            help="Only its offsets of this topic; may be repeated.",
            autocompletion=names.topics,
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    where: DatacenterOption = None,
    brokers: BootstrapOption = None,
    json: JsonOption = False,
) -> None:
    """Delete a group and its offsets. Refused while it has members: stop them first.

    With --topic, only offsets of that topic; refused while members read it.
    """
    with _session(where, brokers) as session, group_admin(where, brokers, changes=True) as (admin, known):
        survey = admin.survey([], known=known.known)
        here = None if session is None else group_in_zookeeper(session, group)
        found = one_group(here, admin, group, survey.silent)
        if topic:
            _delete_offsets(admin, group, topic, is_sure=yes)
        else:
            # The broker refuses while members of either kind live.
            found.refuse_if_live("delete", is_sure=True)
            if not yes:
                confirm(f"delete group {group} and its offsets of {', '.join(found.topics) or 'no topic'}?")
            _delete(admin, group)
    if json:
        print_json({"group": group, "deleted": True, "topics": topic or []})
    elif topic:
        out.print(f"deleted the offsets of group {plain(group)} of {', '.join(map(plain, topic))}")
    else:
        out.print(f"deleted group {plain(group)}")


# --- reset and delete ---


def _session(where: str | None, brokers: str | None) -> AbstractContextManager[ZooKeeperSession | None]:
    """The session of a command that changes something; None where no ZooKeeper is known."""
    hosts = zookeeper_hosts(where, brokers)
    return nullcontext() if hosts is None else zookeeper(hosts)


def _selected(
    group: str,
    survey: Survey,
    stored: Mapping[TopicPartition, int],
    topics: list[str] | None,
    partitions: list[int] | None,
) -> dict[TopicPartition, LogRange]:
    """Returns the logs of the chosen partitions. Raises `CommandError` if one cannot be asked."""
    chosen = topics or sorted({topic for topic, _ in stored})
    if not chosen:
        raise CommandError(f"group {group} has stored no offsets; give --topic", ExitCode.USAGE)
    keys = []
    for topic in chosen:
        if topic not in survey.topics:
            hint = did_you_mean(topic, survey.topics, "headrace topics list")
            raise CommandError(f"there is no topic {topic!r}{hint}")
        numbers = sorted(survey.topic(topic).partitions)
        if wrong := sorted(set(partitions or ()) - set(numbers)):
            raise CommandError(
                f"{topic} has no partition {wrong[0]}, only 0 to {len(numbers) - 1}", ExitCode.USAGE
            )
        keys += [(topic, number) for number in partitions or numbers]
    for key in keys:
        if key in survey.problems:
            raise CommandError(
                f"{key[0]}-{key[1]} cannot be reset: {survey.problems[key]}; nothing was changed "
                "(--topic and --partition choose others)",
                ExitCode.UNREACHABLE,
            )
    return {key: survey.ranges[key] for key in keys}


def _planned(
    admin: GroupAdmin,
    target: Target,
    stored: Mapping[TopicPartition, int],
    ranges: dict[TopicPartition, LogRange],
) -> list[Change]:
    return plan(target, stored, ranges, offsets_at(admin, target.time_ms, ranges))


def _refuse_if_joined(session: ZooKeeperSession | None, group: str) -> None:
    """Raises `CommandError` if members came in ZooKeeper; brokers refuse the others by themselves."""
    from headrace.coordination.consumers import ConsumerRegistry

    if session is not None and (joined := ConsumerRegistry(session, group).members()):
        raise CommandError(
            f"group {group}: {', '.join(sorted(joined))} joined meanwhile and may overwrite these "
            "offsets; stop it, and reset the group again"
        )


def _store(admin: GroupAdmin, group: str, changes: list[Change]) -> None:
    from headrace.client.errors import BrokerError
    from headrace.wire.errors import ErrorCode

    try:
        admin.commit_offsets(group, {(change.topic, change.partition): change.after for change in changes})
    except BrokerError as error:
        if error.code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            raise CommandError(
                f"group {group}: a member joined meanwhile, so the broker refused; stop it, and try again"
            ) from error
        raise


def _delete(admin: GroupAdmin, group: str) -> None:
    from headrace.client.errors import BrokerError
    from headrace.wire.errors import ErrorCode

    try:
        admin.delete_group(group)
    except BrokerError as error:
        if error.code == ErrorCode.NON_EMPTY_GROUP:
            raise CommandError(
                f"group {group}: a member joined meanwhile, so the broker refused; stop it, and try again"
            ) from error
        raise


def _delete_offsets(admin: GroupAdmin, group: str, topics: list[str], *, is_sure: bool) -> None:
    from headrace.client.errors import BrokerError
    from headrace.wire.errors import ErrorCode

    stored = sorted(key for key in admin.group_offsets(group) if key[0] in topics)
    if unread := sorted(set(topics) - {topic for topic, _ in stored}):
        raise CommandError(f"group {group} has stored no offsets of {', '.join(unread)}; nothing was deleted")
    if not is_sure:
        confirm(f"delete the offsets of group {group} of {', '.join(topics)}?")
    for at, topic in enumerate(topics):
        try:
            admin.delete_offsets(group, [key for key in stored if key[0] == topic])
        except BrokerError as error:
            if error.code in (ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.NON_EMPTY_GROUP):
                before = f"; its offsets of {', '.join(topics[:at])} are deleted" if at else ""
                raise CommandError(
                    f"group {group}: members read {topic}; stop them, and try again{before}"
                ) from error
            raise
