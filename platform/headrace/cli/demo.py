"""`headrace demo`: the whole pipeline on this machine, with events of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.values import parse_span_ms

PUBLISHING_MAX_MS = 86_400_000


def demo(
    access_log: Annotated[
        Path | None,
        typer.Option("--access-log", help="Publish the lines of this access log (Combined Log Format)."),
    ] = None,
    drop: Annotated[int, typer.Option("--drop", min=0, help="Lose so many events on purpose.")] = 0,
    kill: Annotated[
        bool, typer.Option("--kill", help="Kill a broker for good in the middle, and see who takes over.")
    ] = False,
    repair: Annotated[
        bool, typer.Option("--repair", help="Then run the repairs that the report names, and report again.")
    ] = False,
    count: Annotated[
        int, typer.Option("--count", min=100, help="Page views to generate, without --access-log.")
    ] = 20_000,
    seconds: Annotated[
        str, typer.Option("--seconds", help="How long the services publish: seconds, or such as 2m.")
    ] = "15",
) -> None:
    """Run the whole pipeline, and account for every event. The exit code is 0 only if all is complete."""
    from headrace.demo.main import run_demo

    publishing_s = (
        parse_span_ms(seconds, "s", option="--seconds", least_ms=1000, most_ms=PUBLISHING_MAX_MS) / 1000
    )
    code = run_demo(
        access_log=access_log,
        drop=drop,
        kills=kill,
        repairs=repair,
        event_count=count,
        publishing_s=publishing_s,
    )
    raise typer.Exit(code)
