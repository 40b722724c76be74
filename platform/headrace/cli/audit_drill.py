"""`headrace audit drill`: plants failures into the canary topic of a running site, and scores the audit."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from headrace.audit.evidence import Verdict
    from headrace.audit.store.store import AuditStore
    from headrace.audit.topic.drills import DrillRecord
    from headrace.drill.place import Place
    from headrace.drill.run import DrillResult

from headrace.cli import names
from headrace.cli.audit import reading
from headrace.cli.audit_repair import StoreOption, publishers_state_dir
from headrace.cli.context import context
from headrace.cli.errors import CommandError, ExitCode
from headrace.cli.output import JsonOption, out, plain, print_json
from headrace.cli.values import parse_span_ms

SEEN_WAIT_MAX_S = 30.0
TIMEOUT_LEAST_MS = 60_000
"""A silent publisher is named after half a minute."""
TIMEOUT_MOST_MS = 3_600_000


def drill(
    datacenter: Annotated[
        list[str] | None,
        typer.Option(
            "--datacenter",
            "-d",
            help="Plant only in this datacenter; may be repeated. By default in all that have services.",
            autocompletion=names.datacenters,
        ),
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option("--kind", help="Plant only this kind; may be repeated. By default all.", metavar="KIND"),
    ] = None,
    timeout: Annotated[
        str, typer.Option("--timeout", help="How long the audit may take to name all, such as 5m.")
    ] = "5m",
    state_dir: Annotated[
        Path | None,
        typer.Option("--state-dir", help="Where to write the truth; by default where publishers do."),
    ] = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Plant failures into the topic headrace-drill, and see whether the audit names each of them.

    Nothing else is touched, and the drill's hours are in no report of the site's own topics. The exit code is
    0 if all was named, 1 if something was missed, misplaced or named by mistake, and 3 if something was not
    named in time, or could not be planted.
    """
    from headrace.client.errors import ClientError
    from headrace.drill.errors import DrillError

    bounds = {"least_ms": TIMEOUT_LEAST_MS, "most_ms": TIMEOUT_MOST_MS}
    timeout_s = parse_span_ms(timeout, "s", option="--timeout", **bounds) / 1000
    try:
        with reading(store) as opened:
            result = _drill(opened, datacenter or [], kind or [], state_dir, timeout_s, quiet=json)
            is_seen = _say(opened, result.record)
    except (DrillError, ClientError, OSError) as error:
        raise CommandError(f"the drill could not be held: {error}", ExitCode.UNREACHABLE) from error
    if json:
        print_json(result.to_json())
    else:
        _print(result, is_seen=is_seen)
    if result.is_wrong:
        raise typer.Exit(ExitCode.NEGATIVE)
    if result.is_open:
        raise typer.Exit(ExitCode.UNREACHABLE)


def _drill(
    store: AuditStore,
    datacenters: Sequence[str],
    kinds: Sequence[str],
    state_dir: Path | None,
    timeout_s: float,
    *,
    quiet: bool,
) -> DrillResult:
    from headrace.audit.repair.repairing import author
    from headrace.drill.kinds import KINDS
    from headrace.drill.run import DrillRun
    from headrace.drill.truth import Truth, drills_folder
    from headrace.process.clock import now_ms

    if unknown := sorted(set(kinds) - KINDS.keys()):
        raise CommandError(
            f"there is no kind {unknown[0]!r} of plants; there are: {', '.join(KINDS)}", ExitCode.USAGE
        )
    chosen = {name: kind for name, kind in KINDS.items() if not kinds or name in kinds}
    places = _places(datacenters)
    began_ms = now_ms()
    run = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(began_ms / 1_000))}-{uuid.uuid4().hex[:6]}"
    with drills_folder(state_dir or publishers_state_dir()) as folder:
        truth = Truth(folder, run, began_ms)
        if not quiet:
            where = ", ".join(place.datacenter for place in places)
            out.print(f"planting {len(chosen)} kinds in {plain(where)}; the truth: {plain(str(truth.path))}")
        held = DrillRun(truth, places, chosen, lambda hour_ms: _verdicts(store, hour_ms))
        return held.run(timeout_s, author())


def _places(datacenters: Sequence[str]) -> list[Place]:
    """Returns where to plant: the datacenters in which services publish."""
    from headrace.drill.place import Place

    here = context()
    chosen = [here.datacenter(name) for name in dict.fromkeys(datacenters)] or list(here.sources)
    if not chosen:
        raise CommandError("no datacenter of this context is mirrored: give --datacenter", ExitCode.USAGE)
    if copied := [each.name for each in chosen if each not in here.sources]:
        raise CommandError(f"{copied[0]} has no services: nothing mirrors it", ExitCode.USAGE)
    return [
        Place(each.name, each.balancer or each.bootstrap, each.bootstrap, each.registry) for each in chosen
    ]


def _verdicts(store: AuditStore, hour_ms: int) -> Iterable[Verdict]:
    """Returns what the audit says of an hour of the canary topic; nothing while the store cannot be read."""
    from sqlalchemy.exc import SQLAlchemyError

    from headrace.audit.repair.repairing import judged
    from headrace.audit.topic.drills import CANARY_TOPIC

    try:
        return [each.verdict for each in judged(store, CANARY_TOPIC, [hour_ms])]
    except SQLAlchemyError:
        return []


def _say(store: AuditStore, record: DrillRecord) -> bool:
    """Tells the audit how the drill ended; returns whether the report knows it by now."""
    from headrace.audit.gathering.drills import ended_drills
    from headrace.audit.topic.publish import AuditPublisher, AuditPublishError
    from headrace.audit.topic.records import ANALYSIS_AUDIT_TOPIC
    from headrace.drill.errors import DrillError

    here = context()
    try:
        with AuditPublisher(
            bootstrap=here.analysis.bootstrap,
            registry_url=here.analysis.registry,
            datacenter=here.analysis.name,
            service="drill",
            topic=ANALYSIS_AUDIT_TOPIC,
        ) as says:
            says.publish(record)
            says.flush()
    except AuditPublishError as error:
        raise DrillError(f"its score was not published: {error}") from error
    deadline_s = time.monotonic() + SEEN_WAIT_MAX_S
    while time.monotonic() < deadline_s:
        with store.reading() as connection:
            if any(each.run == record.run for each in ended_drills(connection)):
                return True
        time.sleep(0.5)
    return False


def _print(result: DrillResult, *, is_seen: bool) -> None:
    from rich.table import Table

    data = result.to_json()
    columns = ("plants", "named", "missed", "wrong place", "unknown", "slowest_s")
    table = Table("kind", *columns, box=None, pad_edge=False)
    for name, each in data["kinds"].items():
        table.add_row(plain(name), *(_shown(each[column]) for column in columns))
    out.print(table)
    for plant in result.record.plants:
        if plant.outcome != "named":
            out.print(f"[bold red]{plant.outcome}[/]  {plain(plant.kind)}: service {plain(plant.service)}")
    if result.record.false_count:
        out.print(f"[bold red]false[/]  {result.record.false_count:,} events were named by mistake")
    slowest = f", slowest {data['slowest_s']:.0f} s" if data["slowest_s"] is not None else ""
    out.print(f"the audit found {data['named']} of {data['plants']} plants{slowest}")
    if not is_seen:
        out.print("the report does not know of it yet: the auditor of the analysis cluster is behind")


def _shown(value: Any) -> str:
    return "" if value is None else f"{value:.0f}" if isinstance(value, float) else str(value)
