"""What a run of the demo is judged by: findings of its own, and rows that it must find in HDFS."""

from __future__ import annotations

from collections import Counter

from headrace.audit.findings import LOAD_HOP, PRODUCER_HOP, Counts, Finding, Status, Verdict
from headrace.audit.report.report import Report
from headrace.demo.outcome import brought_back, differences

HOUR = 1_431_856_800_000
NEXT = HOUR + 3_600_000


def lost(count: int, producer: int, *, hop: str = PRODUCER_HOP, text: str = "lost") -> Finding:
    return Finding(Status.LOST, hop, text, count, 0, producer, 0, sequences=(0, count - 1), after_address=9)


def report(*hours: tuple[int, tuple[Finding, ...]]) -> Report:
    verdicts = [Verdict("page-view", "west", hour, Status.LOST, Counts(), {}, found) for hour, found in hours]
    return Report(0, tuple(verdicts))


def test_rows_that_a_repair_brings_back_of_earlier_runs_are_expected() -> None:
    """`make demo DROP=7`, then `make demo DROP=7 REPAIR=1`: the second run's repair brings all fourteen."""
    before = report((HOUR, (lost(7, 1), lost(3, 2), lost(5, 1, hop=LOAD_HOP))), (NEXT, (lost(2, 4),)))
    after = report((HOUR, (lost(3, 2, text="lost, said a minute later"),)))
    found = brought_back(before, after, {HOUR})
    assert found == {HOUR: 7}
    published = Counter({HOUR: 100})
    assert differences(published + found, {HOUR: (107, 107)}) == []
    assert brought_back(before, before, {HOUR, NEXT}) == {}
