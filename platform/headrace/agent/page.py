"""The agent's page for people: all units of its host. Pure: reports in, a page out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from headrace.agent.report import UnitReport
from headrace.process.page import Cell, Link, Mark, Page, Table, Tone, duration, size

COLUMNS: Final = ("unit", "kind", "state", "running for", "process", "addresses", "free on its disk")


def page(
    about: Mapping[str, Any],
    reports: Sequence[UnitReport],
    urls: Mapping[str, str | None],
    problem: str = "",
) -> Page:
    """Shows the units of each datacenter. `about`: what `/v1/version` answers; `urls`: the pages of units, by
    name; `problem`: why there are no reports.
    """
    ready_count = sum(report.is_ready for report in reports)
    problems = [problem] if problem else []
    problems += [f"{report.name}: {report.problem}" for report in reports if report.problem is not None]
    state = Mark(f"{ready_count} of {len(reports)} units ready", Tone.BAD if problems else Tone.GOOD)
    by_datacenter: dict[str, list[UnitReport]] = {}
    for report in reports:
        by_datacenter.setdefault(report.datacenter, []).append(report)
    return Page(
        title=f"Agent of {about['host']}",
        state=state,
        about=f"It keeps the units of {about['home']} running.",
        problems=problems,
        figures=(("version", about["version"]), ("running since", _instant(str(about["started"])))),
        tables=[
            Table(datacenter, COLUMNS, [_row(report, urls.get(report.name)) for report in found])
            for datacenter, found in sorted(by_datacenter.items())
        ],
    )


def locked() -> Page:
    """What a browser shows whose user gave no token."""
    return Page(
        title="Agent of a headrace host",
        state=Mark("locked", Tone.WARN),
        about=(
            "This page asks for a token: the user name is arbitrary, the password is the text in the file "
            "agent/token-read of the agent's home."
        ),
    )


def _instant(text: str) -> str:
    """`2026-11-23T02:00:05Z` as pages show times."""
    return text.replace("T", " ").replace("Z", " UTC")


def _row(report: UnitReport, url: str | None) -> tuple[Cell, ...]:
    return (
        report.name if url is None else Link(report.name, url),
        report.kind,
        Mark(report.problem, Tone.BAD) if report.problem is not None else Mark("ready", Tone.GOOD),
        duration(report.uptime_s) if report.pid is not None else None,
        None if report.pid is None else str(report.pid),
        ", ".join(report.listens),
        _disk(report),
    )


def _disk(report: UnitReport) -> Cell:
    disk = report.disk
    if disk is None:
        return None
    free = size(disk.free_bytes)
    return Mark(f"{free.text}: nearly full", Tone.WARN) if disk.is_nearly_full else free
