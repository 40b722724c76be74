"""`headrace mirror status`: how far the copies are."""

from __future__ import annotations

from typing import Any

import typer

from .context import site
from .errors import CommandError, ExitCode
from .output import JsonOption, in_bytes, out, print_json, print_table

app = typer.Typer(help="The copies of other datacenters' topics.", no_args_is_help=True)
TIMEOUT_S = 5.0


@app.callback()
def mirror() -> None:
    """The copies of other datacenters' topics."""


@app.command()
def status(json: JsonOption = False) -> None:
    """Say how far every mirrored partition is. The exit code is 1 when one is halted."""
    import httpx

    here = site()
    answers: list[dict[str, Any]] = []
    for each in here.mirrors:
        address = here.mirror_status(each)
        name = f"{each.target}-mirror-{each.source}"
        try:
            answer = httpx.get(f"http://{address}/status", timeout=TIMEOUT_S, trust_env=False)
            answers.append(answer.json())
        except (httpx.HTTPError, ValueError) as error:
            raise CommandError(
                f"the mirror {name} does not answer at {address} ({error}); see `headrace logs {name}`",
                ExitCode.UNREACHABLE,
            ) from error
    rows = [(answer, row) for answer in answers for row in answer["partitions"]]
    if json:
        print_json(answers)
    else:
        print_table(
            ["from", "topic", ">partition", ">copied to", ">lag", "state"],
            [
                (
                    answer["source"],
                    row["topic"],
                    row["partition"],
                    row["target_partition"],
                    in_bytes(row["lag_bytes"]),
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


def _state(row: dict[str, Any]) -> str:
    state = str(row["state"])
    if state == "halted":
        return f"[red]halted: {row['reason']}[/]"
    return f"[green]{state.replace('_', ' ')}[/]" if state == "caught_up" else state
