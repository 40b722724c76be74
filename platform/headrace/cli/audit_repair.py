"""`headrace audit repair`: brings again what is lost, from where it still is.

Each step may be repeated, and a run that was killed is completed by the next one. What is nowhere any more
can be accepted: `cli.audit_accept`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

if TYPE_CHECKING:
    from headrace.audit.repair.repairing import Judged
    from headrace.audit.repair.resending import Resender, ResendPlan
    from headrace.audit.report.report import Report
    from headrace.audit.store.store import AuditStore

from headrace.cli.audit import check_topic, exit_code_of, publisher, reading
from headrace.cli.audit_taking import Taking, plan_taking, take
from headrace.cli.context import context, site
from headrace.cli.errors import CommandError, ExitCode
from headrace.cli.output import JsonOption, out, plain, print_json
from headrace.cli.values import is_day, parse_span_ms, parse_time_ms
from headrace.process.text import counted

HOUR_MS = 3_600_000

TopicArgument = Annotated[str, typer.Argument(help="The topic.", show_default=False)]
HourOption = Annotated[
    list[str],
    typer.Option("--hour", help="An hour of event time, such as 2015-05-17T10 (UTC); may be repeated."),
]
StoreOption = Annotated[
    str | None, typer.Option("--store", help="The audit store; by default the site's.", metavar="URL")
]


class _Steps(NamedTuple):
    """What a repair does: events that are brought again, by datacenter; what is taken from datacenters' own
    logs; how many a load brings; and the hours whose rows HDFS lost, each with what is wrong.
    """

    resends: list[tuple[Judged, ResendPlan]]
    unloaded: int
    refills: dict[int, list[str]]
    problems: list[str]
    takings: list[Taking]

    @property
    def resent(self) -> int:
        return sum(plan.record_count for _, plan in self.resends)

    def to_json(self) -> dict[str, Any]:
        from headrace.warehouse.layout import hour_name

        return {
            "events_to_bring": self.resent,
            "events_to_load": self.unloaded,
            "ranges_to_take": [
                {"datacenter": each.source.datacenter, **asdict(wanted)}
                for each in self.takings
                for wanted in each.ranges
            ],
            "hours_to_refill": {hour_name(hour_ms): why for hour_ms, why in self.refills.items()},
            "problems": self.problems,
        }


def repair(
    topic: TopicArgument,
    hour: HourOption,
    plan: Annotated[bool, typer.Option("--plan", help="Only say what would be done.")] = False,
    load: Annotated[
        bool, typer.Option("--load/--no-load", help="Load into HDFS, too; else the load's DAG will.")
    ] = True,
    wait: Annotated[
        str, typer.Option("--wait", help="How long to wait for the audit to see each step, such as 5m.")
    ] = "5m",
    state_dir: Annotated[
        Path | None,
        typer.Option("--state-dir", help="Where publishers keep journals and spools; by default as they do."),
    ] = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Bring again what is lost, from where it still is, and wait until the audit has seen it.

    Events that never reached their datacenter's log come from the spools of this host's publishers; what lies
    in a gap of the copy comes from the datacenter's own log, if that still has it; what is in the analysis
    cluster, and not in HDFS, is loaded. Safe to repeat, and after a kill. The exit code is that of
    `audit report` for these hours.
    """
    from headrace.audit.repair.resending import Resender
    from headrace.audit.report.view import print_report

    hours_ms, wait_s = [hour_start(text) for text in hour], parse_span_ms(wait, "s", option="--wait") / 1000
    resender = Resender(state_dir or publishers_state_dir())
    with reading(store) as opened:
        check_topic(opened, topic)
        steps = _plan(opened, resender, topic, hours_ms)
        if plan:
            _print_plan(steps, topic, json=json)
            return
        if not json:
            _print_plan(steps, topic, json=False)
        if steps.resent:
            _bring(opened, resender, topic, hours_ms, wait_s, quiet=json)
        if load and steps.takings:
            take(opened, topic, steps.takings, quiet=json)
        if load and steps.refills:
            _refill(opened, topic, steps.refills, quiet=json)
        if load:
            _load(opened, topic, hours_ms, wait_s, quiet=json)
        report = report_of(opened, topic, hours_ms)
    if json:
        print_json({"plan": steps.to_json(), "report": report.to_json()})
    else:
        print_report(report, out, empty=f"no tier has reported anything about these hours of {plain(topic)}")
    if code := exit_code_of(report.status):
        raise typer.Exit(code)


def publishers_state_dir() -> Path:
    """Returns where publishers of this host keep their state: as they choose it; else the site's home."""
    from headrace.events.succession import STATE_DIR_VARIABLE, default_state_dir

    of_home = site().home / "state"
    chosen = os.environ.get(STATE_DIR_VARIABLE)
    return of_home if not chosen and of_home.is_dir() else default_state_dir()


def hour_start(text: str) -> int:
    """Returns the hour's start, Unix ms; a time within an hour is refused, and so is a day, which has 24."""
    start_ms = parse_time_ms(text)
    if start_ms % HOUR_MS or is_day(text):
        raise CommandError(f"--hour {text}: give the hour itself, such as 2015-05-17T10", ExitCode.USAGE)
    return start_ms


def _plan(store: AuditStore, resender: Resender, topic: str, hours_ms: Sequence[int]) -> _Steps:
    from headrace.audit.findings import LOAD_HOP
    from headrace.audit.repair.repairing import is_unwritten, judged

    refills: dict[int, list[str]] = {}
    resends: list[tuple[Judged, ResendPlan]] = []
    problems: list[str] = []
    unloaded = 0
    found = judged(store, topic, hours_ms)
    takings = plan_taking(store, topic, found, problems)
    for each in found:
        evidence, verdict = each
        planned = resender.plan(
            evidence, verdict.findings, _partition_count(evidence.datacenter, topic, verdict)
        )
        if planned.record_count:
            resends.append((each, planned))
        problems += planned.problems
        unloaded += sum(f.record_count or 0 for f in verdict.findings if f.hop == LOAD_HOP and _waits(f))
        for finding in verdict.findings:
            if is_unwritten(finding):
                refills.setdefault(verdict.hour_ms, []).append(finding.text)
    for hour_ms, why in _unsound(store, topic, hours_ms, problems).items():
        refills.setdefault(hour_ms, []).extend(why)
    return _Steps(resends, unloaded, refills, problems, takings)


def _unsound(
    store: AuditStore, topic: str, hours_ms: Sequence[int], problems: list[str]
) -> dict[int, list[str]]:
    """Returns what is wrong with the files of these hours; adds to `problems` why that is not known."""
    from headrace.cli.warehouse import warehouse_with
    from headrace.warehouse import api
    from headrace.warehouse.errors import known_error

    if context().warehouse is None:
        return {}
    try:
        return api.unsound(warehouse_with(topic, store), topic, hours_ms)
    except Exception as error:
        problem = known_error(error, f"repair {topic}")
        if problem is None:
            raise
        problems.append(problem)
        return {}


def _waits(finding: Any) -> bool:
    from headrace.audit.findings import Status

    return finding.status in (Status.PENDING, Status.UNKNOWN)


def _partition_count(datacenter: str, topic: str, verdict: Any) -> int:
    """Returns the topic's partitions in a datacenter; asks brokers only if something was lost there."""
    from headrace.audit.findings import PRODUCER_HOP, Status
    from headrace.client import Admin

    if verdict.hops.get(PRODUCER_HOP) is not Status.LOST:
        return 1
    with Admin(context().datacenter(datacenter).bootstrap) as admin:
        return len(admin.topic(topic).partitions)


def _print_plan(steps: _Steps, topic: str, *, json: bool) -> None:
    from headrace.warehouse.layout import hour_name

    if json:
        print_json(steps.to_json())
        return
    for (_, verdict), planned in steps.resends:
        events = sum(len(each.records) for each in planned.fresh)
        begun = sum(each.resent.record_count for each in planned.begun)
        services = sorted({e.service for e in planned.fresh} | {e.service for e in planned.begun})
        again = f", {begun:,} of them begun by an earlier run" if begun else ""
        out.print(
            f"bring  {counted(events + begun, 'event')} of {plain(topic)} from the spools of "
            f"{plain(', '.join(services))} into {plain(verdict.datacenter)}'s log{again}"
        )
    if steps.resent or steps.unloaded:
        out.print(
            f"load   {counted(steps.resent + steps.unloaded, 'event')} into HDFS, once the analysis cluster "
            "has them"
        )
    for line in (line for each in steps.takings for line in each.lines(topic)):
        out.print(f"take   {plain(line)}")
    for hour_ms, why in steps.refills.items():
        out.print(f"refill {hour_name(hour_ms)} from the analysis cluster's log: {plain('; '.join(why))}")
    for problem in steps.problems:
        out.print(f"[yellow]cannot[/]  {plain(problem)}")
    if not (steps.resent or steps.unloaded or steps.refills or steps.takings or steps.problems):
        out.print("nothing to repair here")


def _bring(
    store: AuditStore, resender: Resender, topic: str, hours_ms: Sequence[int], wait_s: float, *, quiet: bool
) -> None:
    """Brings events again, and waits until datacenter and copy have them."""
    from headrace.audit.repair.repairing import author, have_arrived, judged, wait_until
    from headrace.client.exact_batches import BatchSender

    here = context()
    with resender.intents.locked(), ExitStack() as stack:
        says = stack.enter_context(publisher("repair"))
        # Planned again: another run may have brought them before this one got the lock.
        for (evidence, _), planned in _plan(store, resender, topic, hours_ms).resends:
            sender = BatchSender(here.datacenter(evidence.datacenter).bootstrap, "headrace-repair")
            stack.callback(sender.close)
            count = resender.bring(planned, sender, says, author())
            if not quiet:
                out.print(f"brought {counted(count, 'event')} into {plain(evidence.datacenter)}'s log")

    wait_until(lambda: judged(store, topic, hours_ms), have_arrived, wait_s)


def _refill(store: AuditStore, topic: str, hours: Iterable[int], *, quiet: bool) -> None:
    """Reads from the log again what HDFS lost of these hours."""
    from headrace.audit.topic.said_of_tables import RECENT
    from headrace.cli.warehouse import spark, warehouse_with
    from headrace.warehouse import api
    from headrace.warehouse.layout import hour_name

    options = warehouse_with(topic, store)
    with spark(f"refill {topic}", quiet=quiet) as session:
        results = api.refill_topic_hours(session, options, topic, hours)
    for result in results if not quiet else ():
        done = (
            f"{counted(result.rows, 'row')} there again"
            if result.sequence is not None
            else "nothing was missing"
        )
        out.print(f"refilled {hour_name(result.hour_ms)}: {plain(result.problem or done)}")
    # The audit's report has what the last verification found.
    api.verify_topics(options, [topic], audit_store=context().audit_store_url, checked=RECENT)


def _load(store: AuditStore, topic: str, hours_ms: Sequence[int], wait_s: float, *, quiet: bool) -> None:
    """Loads what the analysis cluster has and HDFS has not; waits until the audit has the load's report."""
    from headrace.audit.findings import LOAD_HOP, Status
    from headrace.audit.repair.repairing import judged, wait_until
    from headrace.cli.warehouse import spark, warehouse_with
    from headrace.warehouse import api

    def waits(found: Iterable[Judged]) -> bool:
        waiting = (Status.PENDING, Status.UNKNOWN)
        return any(each.verdict.hops.get(LOAD_HOP) in waiting for each in found)

    if not waits(judged(store, topic, hours_ms)):
        return
    with spark(f"load {topic}", quiet=quiet) as session:
        (result,) = api.load_topics(session, warehouse_with(topic, store), [topic])
    if not quiet:
        out.print(f"loaded {counted(result.rows, 'row')} into HDFS")
    wait_until(lambda: judged(store, topic, hours_ms), lambda found: not waits(found), wait_s)


def report_of(store: AuditStore, topic: str, hours_ms: Sequence[int]) -> Report:
    """Judges these hours of a topic now."""
    from headrace.audit.repair.repairing import judged
    from headrace.audit.report.report import Report
    from headrace.process.clock import now_ms

    return Report(now_ms(), tuple(each.verdict for each in judged(store, topic, hours_ms)))
