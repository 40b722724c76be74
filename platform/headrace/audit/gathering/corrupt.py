"""Reads damaged batches from the store: which of them still count, and to which hours they belong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from sqlalchemy import Connection, select

from headrace.audit.evidence import CorruptRange
from headrace.audit.intervals import Interval, covers
from headrace.audit.store import tables
from headrace.audit.times import corrupt_hours, hour_start

NOT_COUNTED: Final = "it was damaged when it was to be counted; it is whole again, and not counted since"
CORRUPT_MAX: Final = 10_000  # damaged batches of one topic that a report reads; the newest reports count


def corrupt_rows(connection: Connection, topic: str) -> Iterator[tuple[Any, CorruptRange]]:
    """Yields every damaged batch of the topic, with its row, by address."""
    table = tables.corrupt
    query = select(table).where(table.c.topic == topic).order_by(table.c.reported_ms.desc())
    rows = connection.execute(query.limit(CORRUPT_MAX)).all()
    for row in sorted(rows, key=lambda row: (row.tier, row.datacenter, row.partition, row.from_address)):
        fields = (getattr(row, name) for name in CorruptRange._fields[2:])
        yield row, CorruptRange(row.from_address, row.to_address, *fields)


def as_counted_now(corrupt: CorruptRange, counted: list[Interval]) -> CorruptRange | None:
    """Returns a damaged batch as the tallies of its tier have it; None if nothing is wrong there any more.
    `counted`: their ranges, from `union`.

    A batch that was set aside is repaired once a tally covers it. One that was counted first and rotted then
    is whole again once a record without a cause says so.
    """
    is_counted = covers(counted, corrupt.start, corrupt.end)
    if not corrupt.cause:
        return None if is_counted else corrupt._replace(cause=NOT_COUNTED, in_tally=False)
    if corrupt.in_tally:
        return corrupt._replace(in_tally=is_counted)
    return None if is_counted else corrupt


def hours_of(connection: Connection, row: Any) -> tuple[int, ...]:
    """Returns the hours of a damaged batch: by its header; else those that were counted there before it was
    damaged; else those of its neighbours in the log; else the hour of the report.
    """
    if known := corrupt_hours(row.first_ms, row.last_ms):
        return known
    span, tally = tables.spans, tables.tallies
    names = ("topic", "datacenter", "tier", "partition", "topic_id")
    query = (
        select(span.c.bucket_start_ms)
        .join(tally, tally.c.id == span.c.tally_id)
        .where(
            *(tally.c[name] == getattr(row, name) for name in names),
            tally.c.chosen,
        )
    )
    there = query.where(span.c.first_address < row.to_address, span.c.end_address > row.from_address)
    found = {hour_start(time_ms) for time_ms in connection.execute(there.distinct()).scalars()}
    if found and row.in_tally:
        return tuple(sorted(found))
    query = query.limit(1)
    before = query.where(span.c.end_address <= row.from_address).order_by(span.c.end_address.desc())
    after = query.where(span.c.first_address >= row.to_address).order_by(span.c.first_address)
    times = [connection.execute(each).scalar() for each in (before, after)]
    neighbours = {hour_start(time_ms) for time_ms in times if time_ms is not None}
    return tuple(sorted(neighbours)) or (hour_start(row.reported_ms),)
