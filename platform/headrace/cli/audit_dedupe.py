"""`headrace audit dedupe`: writes the next version of hours in which events are more than once, by guid."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from headrace.audit.repair.repairing import Judged
    from headrace.warehouse.doubles import DedupeResult, Doubles

from headrace.cli.audit import exit_code_of, reading, unknown_topic
from headrace.cli.audit_repair import HourOption, StoreOption, TopicArgument, hour_start, report_of
from headrace.cli.errors import CommandError, ExitCode, print_note
from headrace.cli.output import JsonOption, out, plain, print_json
from headrace.cli.values import parse_span_ms
from headrace.process.text import counted


def dedupe(
    topic: TopicArgument,
    hour: HourOption,
    plan: Annotated[bool, typer.Option("--plan", help="Only say what would be removed.")] = False,
    wait: Annotated[str, typer.Option("--wait", help="How long to wait for the audit to see it.")] = "1m",
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Remove events from a table that are there more than once, by the guid in their header.

    Of equal guids the row at the lowest partition and offset stays. The hours' files become a next version;
    the log keeps what it has. Safe to repeat, and after a kill. The exit code is that of `audit report` for
    these hours.
    """
    from headrace.audit.repair.repairing import judged, wait_until
    from headrace.audit.report.view import print_report
    from headrace.cli.warehouse import warehouse_with
    from headrace.warehouse import api
    from headrace.warehouse.layout import hour_name

    hours_ms, wait_s = (
        sorted({hour_start(text) for text in hour}),
        parse_span_ms(wait, "s", option="--wait") / 1000,
    )
    with reading(store) as opened:
        if problem := unknown_topic(opened, topic):
            print_note(problem)
        options = warehouse_with(topic, opened)
    if not plan:
        # A run that was killed may have committed a change whose files and report are not in place yet.
        api.dedupe_topic_hours(options, topic, [])
    found = api.doubles_of(options, topic, hours_ms)
    if not json:
        for each in found:
            out.print(f"{hour_name(each.hour_ms)}: {plain(_found(each))}")
    if problems := [each.problem for each in found if each.problem]:
        raise CommandError(f"{topic}: {'; '.join(problems)}", ExitCode.NEGATIVE)
    if plan:
        if json:
            print_json({"plan": [asdict(each) for each in found]})
        return
    results: list[DedupeResult] = []
    if any(each.extra for each in found):
        results = api.dedupe_topic_hours(options, topic, hours_ms)
        if problems := [each.problem for each in results if each.problem]:
            raise CommandError(f"{topic}: {'; '.join(problems)}", ExitCode.NEGATIVE)
    with reading(store) as opened:
        wait_until(lambda: judged(opened, topic, hours_ms), _is_seen, wait_s)
        report = report_of(opened, topic, hours_ms)
    if json:
        done = [asdict(result) for result in results]
        print_json({"plan": [asdict(each) for each in found], "done": done, "report": report.to_json()})
    else:
        for result in results:
            if result.removed:
                out.print(f"{hour_name(result.hour_ms)}: removed {counted(result.removed, 'row')}")
        print_report(report, out, empty=f"no tier has reported anything about these hours of {plain(topic)}")
    if code := exit_code_of(report.status):
        raise typer.Exit(code)


def _is_seen(found: Iterable[Judged]) -> bool:
    return all(run.is_removed for each in found for run in each.evidence.doubled)


def _found(doubles: Doubles) -> str:
    if not doubles.extra:
        return "no event is there more than once"
    events = "1 event is" if doubles.events == 1 else f"{doubles.events:,} events are"
    rows = "1 row is" if doubles.extra == 1 else f"{doubles.extra:,} rows are"
    return f"{events} there more than once; {rows} to be removed"
