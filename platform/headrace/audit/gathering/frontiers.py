"""Reads from the store how far in event time the auditors that lag have come, and of which time the events
may be that they did not count. Only reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from sqlalchemy import Connection, Select, func, select

from headrace.audit.store import tables
from headrace.audit.store.later_columns import columns_of
from headrace.audit.topic.records import DATACENTER_TIER

_PLACE: Final = ("datacenter", "partition", "topic_id")
NEIGHBOURS_MAX: Final = 100
"""Tallies on either side of a gap in which an event next to it is looked for: they may have none."""


def frontiers(connection: Connection, topic: str) -> Iterator[tuple[str, int, str, int]]:
    """Yields (datacenter, partition, id of its topic, time in ms) of each log of a datacenter of which not
    all was counted at the last heartbeat: the bucket with most events of the tally that reaches furthest.
    Single events from far ahead or behind say little.
    """
    beats, tally, spans = tables.beats, tables.tallies, tables.spans
    lags = (beats.c.tier == DATACENTER_TIER, beats.c.counted_to_address < beats.c.end_address)
    columns = [beats.c[name] for name in _PLACE]
    for place in connection.execute(select(*columns).where(beats.c.topic == topic, *lags)).all():
        of_log = (tally.c[name] == value for name, value in zip(_PLACE, place, strict=True))
        counted = select(tally.c.id).where(tally.c.topic == topic, tally.c.tier == DATACENTER_TIER, *of_log)
        newest = counted.order_by(tally.c.to_address.desc()).limit(1).scalar_subquery()
        buckets = select(spans.c.bucket_start_ms).where(spans.c.tally_id == newest)
        by_events = (func.sum(spans.c.record_count).desc(), spans.c.bucket_start_ms.desc())
        fullest = buckets.group_by(spans.c.bucket_start_ms).order_by(*by_events).limit(1)
        if (time_ms := connection.execute(fullest).scalar()) is not None:
            yield *place, int(time_ms)


def gap_times(connection: Connection, topic: str) -> Iterator[tuple[Any, int | None, int | None]]:
    """Yields each gap of a topic, and from which event time to which (ms) its events may be, of a
    datacenter's log: from those right before the gap to those right behind it, and none of later than when it
    was reported.

    If these are in no order, one of both is an event from far ahead or behind, and bounds nothing. If what
    was counted before the gap is forgotten, the gap counts as no older than what lies behind it.
    """
    table, known = tables.gaps, columns_of(connection, tables.gaps)
    columns = [column for column in table.c if column.name in known]  # an older version made the store
    for row in connection.execute(select(*columns).where(table.c.topic == topic)).all():
        if row.tier != DATACENTER_TIER:
            yield row, None, None
            continue
        said_ms = getattr(row, "said_ms", None)
        before, behind = _tallies_around(topic, row)
        first_ms, behind_ms = (
            _bucket_at_gap(connection, *each) for each in ((before, False), (behind, True))
        )
        last_ms = min((each for each in (behind_ms, said_ms) if each is not None), default=None)
        if first_ms is None and connection.execute(before).first() is not None:
            first_ms = last_ms
        if first_ms is not None and last_ms is not None and first_ms > last_ms:
            first_ms, last_ms = last_ms, said_ms
        yield row, first_ms, last_ms


def _tallies_around(topic: str, gap: Any) -> tuple[Select[tuple[int]], Select[tuple[int]]]:
    """Selects the tallies before a gap and those behind it, the nearest ones first."""
    tally = tables.tallies
    of_topic = (tally.c.topic == topic, tally.c.tier == DATACENTER_TIER, tally.c.chosen)
    of_log = select(tally.c.id).where(*of_topic, *(tally.c[name] == getattr(gap, name) for name in _PLACE))
    before = of_log.where(tally.c.to_address <= gap.from_address).order_by(tally.c.from_address.desc())
    behind = of_log.where(tally.c.from_address >= gap.to_address).order_by(tally.c.from_address)
    return before.limit(NEIGHBOURS_MAX), behind.limit(NEIGHBOURS_MAX)


def _bucket_at_gap(connection: Connection, nearest: Select[tuple[int]], is_behind: bool) -> int | None:
    """Returns the bucket of the span that is nearest to a gap, of some tallies on one side of it."""
    span, near = tables.spans, nearest.subquery()
    order = span.c.first_address if is_behind else span.c.end_address.desc()
    query = select(span.c.bucket_start_ms).where(span.c.tally_id.in_(select(near.c.id)))
    found: int | None = connection.execute(query.order_by(order).limit(1)).scalar()
    return found
