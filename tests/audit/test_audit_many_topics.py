"""A report over many topics reads what is known of publishers once, not once for each topic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from sqlalchemy import event

from fix_audit_world import HOUR_A, NOW_MS, REPORTED_MS, Batch, received, report_of
from headrace.audit.report.naming import name_findings
from headrace.audit.report.report import report
from headrace.audit.store.store import AuditStore


def store_with(topics: int) -> AuditStore:
    """Two publishers of each topic have reported."""
    store = AuditStore("sqlite://")
    for number in range(2 * topics):
        made = report_of(f"publisher-{number}", [Batch(0, number, 0, 0, 5, HOUR_A)])
        tallies = tuple(each._replace(topic=f"topic-{number % topics}") for each in made.tallies)
        store.fold([received(replace(made, tallies=tallies))])
    return store


def readings(topics: int, look: Callable[[AuditStore], object], table: str) -> int:
    """Returns how many statements read all rows of a datacenter from a table."""
    store = store_with(topics)
    found: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_more: object) -> None:
        found.append(statement)

    event.listen(store._engine, "before_cursor_execute", note)
    look(store)
    store.close()
    return sum(f"FROM {table} \nWHERE {table}.datacenter = ?" in each for each in found)


@pytest.mark.parametrize("table", ["publishers", "producer_ids", "counting_publishers"])
@pytest.mark.parametrize(
    "look",
    [lambda store: report(store, now_ms=NOW_MS), lambda store: name_findings(store, REPORTED_MS + 60_000, 0)],
    ids=["report", "naming"],
)
def test_publishers_are_read_once_for_all_topics(look: Callable[[AuditStore], object], table: str) -> None:
    assert readings(1, look, table) == readings(20, look, table) == 1
