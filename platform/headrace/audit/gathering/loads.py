"""Reads from the store what each load said of the content that it read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sqlalchemy import ColumnElement, Connection, and_, select

from headrace.audit.evidence import LoadedContent
from headrace.audit.store import tables

_KEY: Final = ("warehouse", "topic", "load_sequence", "log_partition")


def loaded_contents(
    connection: Connection, *where: ColumnElement[bool]
) -> Iterator[tuple[int, int, LoadedContent]]:
    """Yields (analysis partition, hour in ms, content) of each load. `where`: conditions on `load_rows`."""
    rows, ranges = tables.load_rows, tables.load_ranges
    columns = (
        rows.c.log_partition,
        rows.c.hour_ms,
        ranges.c.from_address,
        ranges.c.to_address,
        rows.c.distinct_offsets + rows.c.dead_lettered,
        rows.c.content,
    )
    same = and_(*(rows.c[name] == ranges.c[name] for name in _KEY))
    for log_partition, hour_ms, *values in connection.execute(
        select(*columns).join(ranges, same).where(*where)
    ):
        yield log_partition, hour_ms, LoadedContent(*values)
