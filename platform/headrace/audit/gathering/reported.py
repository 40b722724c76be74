"""What any tier has reported on: the topics, their hours and their datacenters."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Connection, select

from headrace.audit.gathering.tests import unsound_files
from headrace.audit.store import load_tables, tables
from headrace.audit.store.kept import last_warehouse
from headrace.audit.times import HOUR_MS, hour_start

ANY_TIME_MS: Final = (-(2**63), 2**63 - 1)


def topics(connection: Connection) -> list[str]:
    """Returns every topic that any tier has reported on."""
    columns = (tables.hours.c.topic, tables.beats.c.topic, load_tables.load_ranges.c.topic)
    return sorted({row[0] for column in columns for row in connection.execute(select(column).distinct())})


def hours(connection: Connection, topic: str, from_ms: int | None, to_ms: int | None) -> list[int]:
    """Returns the hours of `topic` that overlap [from_ms, to_ms) and have a report, or an unsound file."""
    low = ANY_TIME_MS[0] if from_ms is None else from_ms - HOUR_MS
    high = ANY_TIME_MS[1] if to_ms is None else to_ms
    found: set[int] = set()
    for table in (tables.hours, load_tables.load_rows):
        within = (table.c.hour_ms > low, table.c.hour_ms < high)
        rows = connection.execute(select(table.c.hour_ms).where(table.c.topic == topic, *within).distinct())
        found.update(hour_start(row[0]) for row in rows)
    unsound = unsound_files(connection, topic, last_warehouse(connection, topic))
    found.update(hour_start(each) for each in unsound if low < each < high)
    return sorted(found)


def datacenters_of(connection: Connection, topic: str) -> list[str]:
    """Returns the datacenters that any tier has reported on, of a topic."""
    found: set[str] = set()
    for table in (tables.hours, tables.beats):
        query = select(table.c.datacenter).where(table.c.topic == topic).distinct()
        found.update(row[0] for row in connection.execute(query))
    return sorted(found)
