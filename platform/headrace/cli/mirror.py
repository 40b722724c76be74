"""`headrace mirror`: how far the copies are, and the way on from a gap."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.context import site
from headrace.cli.errors import CommandError, ExitCode
from headrace.cli.output import (
    JsonOption,
    in_bytes,
    out,
    print_json,
    print_table,
)

if TYPE_CHECKING:
    from headrace.site.site import MirrorRoute, Site

app = typer.Typer(help="The copies of other datacenters' topics.", no_args_is_help=True)
TIMEOUT_S = 5.0
ADMIN_TIMEOUT_MS = 8_000.0


@app.callback()
def mirror() -> None:
    """The copies of other datacenters' topics."""


@app.command()
def status(json: JsonOption = False) -> None:
    """Say how far every mirrored partition is. The exit code is 1 when one is halted."""
    here = site()
    answers = [_ask(here, each) for each in here.mirrors]
    rows = [(answer, row) for answer in answers for row in answer["partitions"]]
    if json:
        print_json(answers)
    else:
        print_table(
            ["from", "topic", ">partition", ">copied to", ">lag", ">skipped", "state"],
            [
                (
                    answer["source"],
                    row["topic"],
                    row["partition"],
                    row["target_partition"],
                    in_bytes(row["lag_bytes"]),
                    in_bytes(row["skipped_bytes"]) if row["skipped_bytes"] else "-",
                    _state(row),
                )
                for answer, row in rows
            ],
            empty="nothing is mirrored yet: no source datacenter has a topic",
        )
    halted = [row for _, row in rows if row["state"] == "halted"]
    if halted:
        if not json:
            out.print(f"[red]{len(halted)} partitions are halted[/]: nothing is copied there until you act")
        raise typer.Exit(ExitCode.NO)


@app.command("accept-gap")
def accept_gap(
    topic: Annotated[str, typer.Argument(help="A mirrored topic.")],
    partition: Annotated[int, typer.Argument(help="Its partition in the source datacenter.", min=0)],
    source: Annotated[str, typer.Option("--source", "-s", help="The source datacenter, such as east.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    json: JsonOption = False,
) -> None:
    """Let a copy that is halted over a gap go on where its source begins now.

    What the source's retention deleted will never be copied. The copy drops what it holds and begins anew, so
    load it first.
    """
    from headrace.client.admin import EARLIEST, Admin
    from headrace.replication import gaps

    here = site()
    mirror = next((each for each in here.mirrors if each.source == source), None)
    if mirror is None:
        names = ", ".join(each.source for each in here.mirrors)
        raise CommandError(f"{source!r} is not mirrored here; these are: {names}", ExitCode.USAGE)
    row = _halted_over_a_gap(_ask(here, mirror), topic, partition)
    copy, start = row["target_partition"], row["gap"]["from"]
    with Admin(here.datacenter(source).bootstrap, timeout_ms=ADMIN_TIMEOUT_MS) as admin:
        # As of now: retention may have deleted more since the mirror looked.
        end = admin.list_offsets(topic, EARLIEST, partitions=[partition])[partition].offset
    with Admin(here.datacenter(mirror.target).bootstrap, timeout_ms=ADMIN_TIMEOUT_MS) as admin:
        begins = admin.list_offsets(topic, EARLIEST, partitions=[copy])[copy].offset
        if not yes:
            typer.confirm(
                f"{topic}-{partition} of {source}: addresses {start} to {end} will never be copied, and the "
                f"copy (partition {copy} in {mirror.target}) drops what it holds, {begins} to {start}. "
                "Is that loaded, and shall it go on?",
                abort=True,
            )
        setting = admin.describe_configs(topic).get(gaps.SETTING)
        accepted = gaps.parse((setting.value if setting is not None else None) or "")
        gap = gaps.AcceptedGap(copy, start, end)
        if gap not in accepted:
            admin.alter_configs(topic, {gaps.SETTING: gaps.to_text([*accepted, gap])})
    if json:
        print_json(
            {"topic": topic, "partition": partition, "target_partition": copy, "from": start, "to": end}
        )
    else:
        out.print(
            f"{topic}-{partition} of {source} goes on at {end:,} within seconds; "
            f"{in_bytes(end - start)} are skipped. `headrace mirror status` says whether it does"
        )


def _ask(here: Site, mirror: MirrorRoute) -> dict[str, Any]:
    """A mirror's own status."""
    import httpx

    address = here.mirror_status(mirror)
    name = f"{mirror.target}-mirror-{mirror.source}"
    try:
        answer = httpx.get(f"http://{address}/status", timeout=TIMEOUT_S, trust_env=False, verify=False)
        found: dict[str, Any] = answer.json()
    except (httpx.HTTPError, ValueError) as error:
        raise CommandError(
            f"the mirror {name} does not answer at {address} ({error}); see `headrace logs {name}`",
            ExitCode.UNREACHABLE,
        ) from error
    return found


def _halted_over_a_gap(answer: dict[str, Any], topic: str, partition: int) -> dict[str, Any]:
    where = f"{topic}-{partition} of {answer['source']}"
    rows: list[dict[str, Any]] = answer["partitions"]
    row = next((row for row in rows if (row["topic"], row["partition"]) == (topic, partition)), None)
    if row is None:
        raise CommandError(f"{where} is not mirrored; `headrace mirror status` shows what is", ExitCode.NO)
    if row["gap"] is None:
        why = f", and for another reason: {row['reason']}" if row["reason"] else ""
        raise CommandError(
            f"{where} is not halted over a gap: it is {row['state'].replace('_', ' ')}{why}", ExitCode.NO
        )
    return row


def _state(row: dict[str, Any]) -> str:
    state = str(row["state"])
    if state == "halted":
        return f"[red]halted: {row['reason']}[/]"
    return f"[green]{state.replace('_', ' ')}[/]" if state == "caught_up" else state
