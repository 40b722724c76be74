"""Records of an audit topic that are read once more, from its start: its copy was made again, or went back.

Nearly all of them may be folded any number of times. But a recount takes back what comes before it, once:
when that is read again, it must not count again until the recount comes, too, nor after it.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, delete, insert, or_, select

from headrace.audit.store import measured_tables, tables
from headrace.audit.topic.records import CorruptRecord, GapRecord, RangeTally, ReceivedRecord

_AWAITED: Final = measured_tables.awaited
_PLACE: Final = ("tier", "datacenter", "topic", "partition")


def await_recounts(connection: Connection) -> None:
    """All recounts that are known are to come again, with what they took back before them."""
    names = [column.name for column in _AWAITED.c]
    connection.execute(delete(_AWAITED))
    known = select(*(tables.recounts.c[name] for name in names))
    connection.execute(insert(_AWAITED).from_select(names, known))


def is_any_awaited(connection: Connection) -> bool:
    """Whether recounts are to come again."""
    return connection.execute(select(_AWAITED.c.topic).limit(1)).first() is not None


def note_recount(connection: Connection, row: dict[str, Any]) -> None:
    """Notes that a recount was read, once more or for the first time: what comes now was said after it."""
    of_row = (column == row[column.name] for column in _AWAITED.c)
    connection.execute(delete(_AWAITED).where(*of_row))


def is_taken_back(connection: Connection, received: ReceivedRecord) -> bool:
    """Whether a record is one that a recount took back which is to come again. Both are of one log, in which
    they keep their order; so do their times, unless a clock was set back.
    """
    record = received.record
    if not isinstance(record, RangeTally | GapRecord | CorruptRecord):
        return False
    conditions: list[ColumnElement[bool]] = [_AWAITED.c[name] == getattr(record, name) for name in _PLACE]
    conditions.append(_AWAITED.c.said_ms >= received.time_ms)
    if record.topic_id:
        conditions.append(or_(_AWAITED.c.topic_id == record.topic_id, _AWAITED.c.topic_id == ""))
    if isinstance(record, RangeTally):
        conditions.append(_AWAITED.c.from_address < record.to_address)
    else:
        conditions.append(_AWAITED.c.from_address <= record.from_address)
    return connection.execute(select(_AWAITED.c.topic).where(*conditions).limit(1)).first() is not None
