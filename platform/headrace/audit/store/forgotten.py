"""Which hours the store has forgotten: of what it knows of them since, a part may be missing.

Ranges of hours, by topic and datacenter. Where there are too many, the nearest ones become one: events of the
far past or future, which anybody may send, do not make today's hours forgotten.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from sqlalchemy import Connection, delete, insert, inspect, select

from headrace.audit.intervals import Interval, overlaps, union
from headrace.audit.store.measured_tables import forgotten as _table
from headrace.audit.times import HOUR_MS

RANGES_MAX: Final = 1_000
"""Of one topic and datacenter: somebody may send events of hours that are far apart."""


class ForgottenHours:
    """What is forgotten of one topic."""

    def __init__(self, connection: Connection, topic: str) -> None:
        self._ranges: defaultdict[str, list[Interval]] = defaultdict(list)
        if inspect(connection).has_table(_table.name):  # an older store has none
            for row in connection.execute(select(_table).where(_table.c.topic == topic)):
                self._ranges[row.datacenter].append((row.from_ms, row.to_ms))

    def has(self, datacenter: str, hour_ms: int) -> bool:
        """Whether the store has forgotten an hour, at some time."""
        return overlaps(self._ranges.get(datacenter, ()), hour_ms, hour_ms + HOUR_MS)


def note_forgotten(connection: Connection, hours: Iterable[tuple[str, str, int]]) -> None:
    """Notes that these hours, each with its topic and datacenter, are forgotten."""
    found: defaultdict[tuple[str, str], list[Interval]] = defaultdict(list)
    for topic, datacenter, hour_ms in hours:
        found[topic, datacenter].append((hour_ms, hour_ms + HOUR_MS))
    for (topic, datacenter), new in found.items():
        place = (_table.c.topic == topic, _table.c.datacenter == datacenter)
        rows = connection.execute(select(_table.c.from_ms, _table.c.to_ms).where(*place))
        ranges = _bounded(union([*new, *(tuple(row) for row in rows)]))
        connection.execute(delete(_table).where(*place))
        values = [
            {"topic": topic, "datacenter": datacenter, "from_ms": start, "to_ms": end}
            for start, end in ranges
        ]
        connection.execute(insert(_table), values)


def _bounded(ranges: list[Interval]) -> list[Interval]:
    """Returns at most `RANGES_MAX` ranges: the smallest gaps between them are closed, the oldest first."""
    excess = max(0, len(ranges) - RANGES_MAX)
    gaps = sorted((ranges[at][0] - ranges[at - 1][1], at) for at in range(1, len(ranges)))
    closed = {at for _, at in gaps[:excess]}
    found: list[Interval] = []
    for at, (start, end) in enumerate(ranges):
        if at in closed:
            found[-1] = (found[-1][0], end)
        else:
            found.append((start, end))
    return found
