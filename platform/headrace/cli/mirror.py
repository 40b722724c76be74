"""`headrace mirror`: how far the mirrors have copied, and how a halted copy continues after a gap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.cluster import left_of_s, reading_until_s
from headrace.cli.context import context
from headrace.cli.errors import CommandError, ExitCode, print_error
from headrace.cli.output import JsonOption, confirm, in_bytes, out, plain, print_json, print_table
from headrace.process.background import in_background
from headrace.process.text import counted

if TYPE_CHECKING:
    from headrace.client.admin import Admin
    from headrace.site.context import ContextMirror

app = typer.Typer(help="Mirrored topics: the copies of other datacenters' topics.", no_args_is_help=True)
TIMEOUT_S = 3.5
ADMIN_TIMEOUT_MS = 8_000.0
FORGOTTEN_AT_ONCE = 100  # gaps; others may be accepted at the same time


@app.command()
def status(json: JsonOption = False) -> None:
    """Show how far every partition is copied.

    The exit code is 1 if one is halted, or a topic is not copied, and 3 if a mirror does not answer, or does
    not reach what it copies; the others are shown.
    """
    statuses, problems = _all_statuses(context().mirrors)
    rows = [(status["source"], row) for status in statuses for row in status["partitions"]]
    if json:
        print_json(statuses)
    else:
        print_table(
            ["from", "topic", ">partition", ">copied to", ">lag", ">gaps", "state"],
            [
                (
                    source,
                    row["topic"],
                    row["partition"],
                    row["target_partition"],
                    "?" if row["state"] == "locating" else in_bytes(row["lag_bytes"]),
                    in_bytes(row["skipped_bytes"]) if row["skipped_bytes"] else "-",
                    _state(row),
                )
                for source, row in rows
            ],
            empty="no mirror answers" if problems else "nothing is mirrored yet: no source has a topic",
        )
    halted = [row for _, row in rows if row["state"] == "halted"]
    if halted and not json:
        say = counted(len(halted), "partition is", "partitions are")
        out.print(f"[red]{say} halted[/]: not copied until you act")
    if not json:
        for source, row in rows:
            if row["reason"]:  # long: in the table it would widen every row
                where = plain(f"{row['topic']}-{row['partition']} of {source}")
                out.print(f"{where} is {_state(row)}: {plain(str(row['reason']))}", soft_wrap=True)
    uncopied = [problem for each in statuses for problem in _uncopied(each)]
    stopped = [problem for each in statuses for problem in _stopped(each)]
    for problem in (*uncopied, *stopped, *map(str, problems)):
        print_error(problem)
    if problems or stopped or any(row["state"] == "locating" and row["reason"] for _, row in rows):
        raise typer.Exit(ExitCode.UNREACHABLE)
    if halted or uncopied:
        raise typer.Exit(ExitCode.NEGATIVE)


def _uncopied(status: Mapping[str, Any]) -> list[str]:
    """Returns why topics are not copied: they may have no row."""
    problems = status.get("topic_troubles", {})
    return [f"topic {topic} of {status['source']}: {problems[topic]}" for topic in sorted(problems)]


def _stopped(status: Mapping[str, Any]) -> list[str]:
    """Returns what keeps a mirror from its work: what is shown of its copies is then of before."""
    problem = status.get("trouble", "")
    return [f"the mirror of {status['source']}: {problem}"] if problem else []


@app.command("accept-gap")
def accept_gap(
    topic: Annotated[str, typer.Argument(help="A mirrored topic.")],
    partition: Annotated[int, typer.Argument(help="Its partition in the source datacenter.", min=0)],
    source: Annotated[str, typer.Option("--source", "-s", help="The source datacenter, such as east.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    json: JsonOption = False,
) -> None:
    """Continue a copy that is halted over a gap, from the first good batch behind it.

    The records in the gap, which the source's retention has deleted or whose batch is damaged there, will
    never be copied. The copy drops the records that it has and starts again, so load them into the warehouse
    first.
    """
    from headrace.client.admin import EARLIEST, Admin
    from headrace.replication import gaps

    here = context()
    mirror = next((mirror for mirror in here.mirrors if mirror.source == source), None)
    if mirror is None:
        names = ", ".join(mirror.source for mirror in here.mirrors)
        raise CommandError(f"{source!r} is not a mirrored datacenter; these are: {names}", ExitCode.USAGE)
    row = _row_halted_over_gap(_status_of(mirror), topic, partition)
    copy, start = row["target_partition"], row["gap"]["from"]
    with Admin(here.datacenter(source).bootstrap, timeout_ms=ADMIN_TIMEOUT_MS) as admin:
        # Read now: retention may have deleted more since the mirror reported the gap.
        begins_now = admin.list_offsets(topic, EARLIEST, partitions=[partition])[partition].offset
        end = max(begins_now, row["gap"]["to"])
    with Admin(here.datacenter(mirror.target).bootstrap, timeout_ms=ADMIN_TIMEOUT_MS) as admin:
        begins = admin.list_offsets(topic, EARLIEST, partitions=[copy])[copy].offset
        if not yes:
            confirm(
                f"{topic}-{partition} of {source}: addresses {start} to {end} will never be copied, and the "
                f"copy (partition {copy} in {mirror.target}) drops its own addresses {begins} to {start}. "
                "Are those loaded, and shall the copy continue?"
            )
        _make_room(admin, topic)
        # Not read and written again: another command may accept another gap of the topic meanwhile.
        admin.append_configs(topic, {gaps.SETTING: gaps.to_text([gaps.AcceptedGap(copy, start, end)])})
    if json:
        print_json(
            {"topic": topic, "partition": partition, "target_partition": copy, "from": start, "to": end}
        )
    else:
        out.print(
            f"{topic}-{partition} of {source} continues at {end:,} within seconds, after a gap of "
            f"{in_bytes(end - start)}; `headrace mirror status` shows whether it does"
        )


def _make_room(admin: Admin, topic: str) -> None:
    """Of a topic that has as many accepted gaps as it may have, forgets some that nobody asks for any more:
    the first ones of those before the beginning of their copies.
    """
    from headrace.client.admin import EARLIEST
    from headrace.replication import gaps

    accepted = gaps.parse(admin.describe_configs(topic)[gaps.SETTING].value or "")
    if len(accepted) < gaps.GAPS_MAX:
        return
    begins = admin.list_offsets(topic, EARLIEST, partitions=sorted({gap.partition for gap in accepted}))
    passed = [gap for gap in accepted if gap.to_address <= begins[gap.partition].offset]
    if passed:
        admin.subtract_configs(topic, {gaps.SETTING: gaps.to_text(passed[:FORGOTTEN_AT_ONCE])})


def _all_statuses(mirrors: Sequence[ContextMirror]) -> tuple[list[dict[str, Any]], list[CommandError]]:
    """Asks all mirrors at once, for the time that `reading_until_s` gives; returns what they answer, and why
    others do not."""
    until_s = reading_until_s()
    statuses, problems = [], []
    for mirror, asked in [(each, in_background(partial(_get, each), each.source)) for each in mirrors]:
        try:
            statuses.append(_answer(mirror, asked, until_s))
        except CommandError as error:
            problems.append(error)
    return statuses, problems


def _status_of(mirror: ContextMirror) -> dict[str, Any]:
    """Returns a mirror's status, as it serves it."""
    return _answer(mirror, in_background(partial(_get, mirror), mirror.source), reading_until_s())


def _get(mirror: ContextMirror) -> dict[str, Any]:
    import httpx

    # The bound of each of its waits; looking up a name has none, so all together are bounded by the caller.
    is_secure = mirror.status_url.startswith("https")
    response = httpx.get(mirror.status_url, timeout=TIMEOUT_S, trust_env=False, verify=is_secure)
    status: dict[str, Any] = response.json()
    if not isinstance(status, dict) or not {"source", "partitions"} <= status.keys():
        raise ValueError("something else than a mirror answers there")
    return status


def _answer(mirror: ContextMirror, asked: Future[dict[str, Any]], until_s: float) -> dict[str, Any]:
    """Waits for a mirror's status. Raises `CommandError` if it does not come in time."""
    import httpx

    try:
        return asked.result(left_of_s(until_s))
    except (httpx.HTTPError, TimeoutError, ValueError) as error:
        name = f"{mirror.target}-mirror-{mirror.source}"
        cause = str(error) or "timed out"
        raise CommandError(
            f"the mirror {name} does not answer at {mirror.status_url} ({cause}); see `headrace logs {name}`",
            ExitCode.UNREACHABLE,
        ) from error


def _row_halted_over_gap(status: dict[str, Any], topic: str, partition: int) -> dict[str, Any]:
    where = f"{topic}-{partition} of {status['source']}"
    rows: list[dict[str, Any]] = status["partitions"]
    row = next((row for row in rows if (row["topic"], row["partition"]) == (topic, partition)), None)
    if row is None:
        raise CommandError(
            f"{where} is not mirrored; `headrace mirror status` lists what is", ExitCode.NEGATIVE
        )
    if row["gap"] is None:
        problem = f": {row['reason']}" if row["reason"] else ""
        state = row["state"].replace("_", " ")
        raise CommandError(f"{where} is not halted over a gap: it is {state}{problem}", ExitCode.NEGATIVE)
    return row


def _state(row: dict[str, Any]) -> str:
    state = str(row["state"])
    if state == "halted":
        return f"[red]{state}[/]"
    return f"[green]{state.replace('_', ' ')}[/]" if state == "caught_up" else state
