"""`headrace audit drill`: plants failures into the canary topic of a running site, and scores the audit."""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

if TYPE_CHECKING:
    from headrace.audit.repair.repairing import Judged
    from headrace.audit.store.store import AuditStore
    from headrace.audit.topic.drills import DrillRecord
    from headrace.drill.file_kinds import FileKind
    from headrace.drill.file_planting import FilePlanter
    from headrace.drill.kinds import Kind
    from headrace.drill.place import Place
    from headrace.drill.result import DrillResult

from headrace.cli import names
from headrace.cli.audit import publisher, reading
from headrace.cli.audit_repair import StoreOption, publishers_state_dir
from headrace.cli.context import context
from headrace.cli.errors import CommandError, ExitCode
from headrace.cli.output import JsonOption, out, plain, print_json
from headrace.cli.values import parse_span_ms
from headrace.process.text import counted

SEEN_WAIT_MAX_S = 30.0
TIMEOUT_LEAST_MS = 60_000
"""A silent publisher is named after half a minute."""
TIMEOUT_MOST_MS = 3_600_000
HDFS_PATIENCE_S = 30.0


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
    warehouse: Annotated[
        bool,
        typer.Option(
            "--warehouse/--no-warehouse",
            help="Load the topic, too, and plant in its files; if there is HDFS.",
        ),
    ] = True,
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

    Where there is a warehouse, the topic is loaded into a table of its own, whose files are harmed, too.
    Nothing else is touched, and the drill's hours are in no report of the site's own topics. The exit code is
    0 if all was named, 1 if something was missed, misplaced or named by mistake, and 3 if something was not
    named in time, or could not be planted.
    """
    from headrace.client.errors import ClientError
    from headrace.drill.errors import DrillError

    bounds = {"least_ms": TIMEOUT_LEAST_MS, "most_ms": TIMEOUT_MOST_MS}
    timeout_s = parse_span_ms(timeout, "s", option="--timeout", **bounds) / 1000
    chosen = _chosen(kind or [], warehouse=warehouse)
    try:
        with reading(store) as opened, ExitStack() as stack:
            url = store or context().audit_store_url
            held = _Held(opened, url, datacenter or [], state_dir or publishers_state_dir(), timeout_s)
            result = _drill(held, chosen, stack, quiet=json)
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


class _Chosen(NamedTuple):
    """What to plant: at producers, and in files; or why there is nothing in files. `is_named`: whether a kind
    of files was asked for by its name.
    """

    kinds: dict[str, Kind]
    files: dict[str, FileKind]
    without_warehouse: str
    is_named: bool


class _Held(NamedTuple):
    """The audit's store and its URL, and how the drill is held."""

    store: AuditStore
    url: str
    datacenters: Sequence[str]
    state_dir: Path
    timeout_s: float


def _chosen(names_: Sequence[str], *, warehouse: bool) -> _Chosen:
    from headrace.drill.file_kinds import FILE_KINDS
    from headrace.drill.kinds import KINDS, RESENT_KIND

    known = (*KINDS, *FILE_KINDS)
    if unknown := sorted(set(names_) - set(known)):
        raise CommandError(
            f"there is no kind {unknown[0]!r} of plants; there are: {', '.join(known)}", ExitCode.USAGE
        )
    kinds = {name: kind for name, kind in KINDS.items() if not names_ or name in names_}
    files = {name: kind for name, kind in FILE_KINDS.items() if not names_ or name in names_}
    why = _why_no_warehouse() if warehouse else "--no-warehouse"
    if not why and not files and RESENT_KIND not in kinds:
        why = "no chosen kind needs it"
    is_named = bool(names_ and files)
    if why and is_named:
        raise CommandError(f"{min(files)!r} needs a warehouse: {why}", ExitCode.USAGE)
    return _Chosen(kinds, {} if why else files, why, is_named)


def _why_no_warehouse() -> str:
    """Returns why the warehouse cannot be drilled from here; empty if it can."""
    here = context()
    if here.warehouse is None or here.hdfs is None or here.webhdfs is None:
        return "this context has none"
    missing = [name for name in ("hdfs", "pyarrow", "pyspark") if find_spec(name) is None]
    return f"{missing[0]} is not installed here (headrace[warehouse])" if missing else ""


def _drill(held: _Held, chosen: _Chosen, stack: ExitStack, *, quiet: bool) -> DrillResult:
    from headrace.audit.repair.repairing import author
    from headrace.drill.run import DrillRun
    from headrace.drill.truth import Truth, drills_folder
    from headrace.process.clock import now_ms

    places = _places(held.datacenters)
    began_ms = now_ms()
    run = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(began_ms / 1_000))}-{uuid.uuid4().hex[:6]}"
    folder = stack.enter_context(drills_folder(held.state_dir))
    files, why = None, chosen.without_warehouse
    if not why:
        files, why = _file_planter(held, chosen, stack, run)
    truth = Truth(folder, run, began_ms)
    if not quiet:
        where, count = ", ".join(place.datacenter for place in places), len(chosen.kinds)
        count += len(files.kinds) if files else 0
        out.print(f"planting {count} kinds in {plain(where)}; the truth: {plain(str(truth.path))}")
        if why:
            out.print(f"the warehouse is not drilled: {plain(why)}")
    drill_run = DrillRun(
        truth, places, chosen.kinds, lambda hours_ms: _judged(held.store, hours_ms), files=files
    )
    return replace(drill_run.run(held.timeout_s, author()), without_warehouse=why)


def _file_planter(held: _Held, chosen: _Chosen, stack: ExitStack, run: str) -> tuple[FilePlanter | None, str]:
    """Claims the canary's table until the stack is closed; if another drill has it, returns that instead."""
    from headrace.drill.canary_table import CanaryTable
    from headrace.drill.claim import claimed
    from headrace.drill.errors import DrillError, TableClaimedError
    from headrace.drill.file_planting import FilePlanter
    from headrace.tables.options import warehouse_of

    try:
        stack.enter_context(claimed(context().analysis.zookeeper, run))
    except TableClaimedError as error:
        if chosen.is_named:
            raise DrillError(f"{error}; repeat once it has ended") from error
        return None, str(error)
    table = CanaryTable(warehouse_of(context(), patience_s=HDFS_PATIENCE_S), held.url)
    stack.callback(table.close)
    return FilePlanter(table, chosen.files), ""


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


def _judged(store: AuditStore, hours_ms: Collection[int]) -> Iterable[Judged]:
    """Returns what the audit says of hours of the canary topic; nothing while the store cannot be read."""
    from sqlalchemy.exc import SQLAlchemyError

    from headrace.audit.repair.repairing import judged
    from headrace.audit.topic.drills import CANARY_TOPIC

    try:
        return judged(store, CANARY_TOPIC, hours_ms)
    except SQLAlchemyError:
        return []


def _say(store: AuditStore, record: DrillRecord) -> bool:
    """Tells the audit how the drill ended; returns whether the report knows it by now."""
    from headrace.audit.gathering.drills import ended_drills
    from headrace.audit.topic.publish import AuditPublishError
    from headrace.drill.errors import DrillError

    try:
        with publisher("drill") as says:
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
        out.print(f"[bold red]false[/]  named by mistake: {counted(result.record.false_count, 'event')}")
    for name, took_s in data["copied_s"].items():
        out.print(f"the copy had the events of {plain(name)} within {took_s:.0f} s, as the audit counts it")
    slowest = f", slowest {data['slowest_s']:.0f} s" if data["slowest_s"] is not None else ""
    out.print(f"the audit found {data['named']} of {data['plants']} plants{slowest}")
    if not is_seen:
        out.print("the report does not know of it yet: the auditor of the analysis cluster is behind")


def _shown(value: Any) -> str:
    return "" if value is None else f"{value:.0f}" if isinstance(value, float) else str(value)
