"""What the report says of verified tables, of how fast the audit is, and of drills. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from headrace.audit import phrases
from headrace.audit.gathering.tests import VerifiedTable
from headrace.audit.report.drill_scores import DrillScore
from headrace.audit.report.naming import DetectionTime

PROBLEMS_SHOWN_MAX: Final = 10


def tested_lines(
    verified: Sequence[VerifiedTable], detection: Sequence[DetectionTime], drill: DrillScore | None
) -> Iterator[tuple[str, str]]:
    """Yields (label with its style, sentence) of tables with problems, the sound ones, the times, drills."""
    for each in verified:
        if each.problem_count:
            yield from _unsound(each)
    if sound := [each for each in verified if not each.problem_count]:
        yield "[green]verified[/]", _sound(sound)
    for times in detection:
        noun = "finding" if times.findings == 1 else "findings"
        took = f"p50 {times.p50_ms / 1_000:.0f} s, p99 {times.p99_ms / 1_000:.0f} s"
        sentence = f"{times.hop}: {times.findings:,} {noun} of the last 24 hours, {took} after the report"
        yield "[cyan]named[/]", f"{sentence} that shows them"
    if drill is not None:
        yield ("[green]drill[/]" if drill.is_good else "[bold red]drill[/]"), drill.sentence()


def _unsound(table: VerifiedTable) -> Iterator[tuple[str, str]]:
    problems = "1 problem" if table.problem_count == 1 else f"{table.problem_count:,} problems"
    at = phrases.instant(table.said_ms)
    command = f"headrace warehouse verify {table.topic}"
    yield "[bold red]unsound[/]", f"{table.topic}: {problems}, found at {at}; `{command}` looks again"
    for each in table.of_no_hour[:PROBLEMS_SHOWN_MAX]:
        yield "[bold red]unsound[/]", f"{table.topic}: {each.text}"


def _sound(tables: Sequence[VerifiedTable]) -> str:
    oldest_ms = min(each.said_ms for each in tables)
    names = ", ".join(each.topic for each in tables[:PROBLEMS_SHOWN_MAX])
    more = f" and {len(tables) - PROBLEMS_SHOWN_MAX:,} more" if len(tables) > PROBLEMS_SHOWN_MAX else ""
    files, rows = (sum(getattr(each, name) for each in tables) for name in ("files", "rows"))
    since = phrases.instant(oldest_ms)
    return (
        f"{files:,} files of {names}{more} with {rows:,} rows were read again and are sound (since {since})"
    )
