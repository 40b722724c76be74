"""Reads from the store how far in event time the auditors that lag have come. Only reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sqlalchemy import Connection, func, select

from headrace.audit.store import tables
from headrace.audit.topic.records import DATACENTER_TIER

_PLACE: Final = ("datacenter", "partition", "topic_id")


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
