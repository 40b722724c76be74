"""Folding a recount: the store forgets what a tier reported of a log that went back; and which heartbeats an
auditor sent whose clock was set back since.

A recount begins where a heartbeat ended, and so do tallies. Only where old tallies were merged since
(`audit.store.upkeep`) may one lie on both sides: then the part before the recount is kept up to the first
span that lies on both sides, too. The rest is said to be missing until it is counted again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from sqlalchemy import Connection, case, delete, select, update

from headrace.audit.batches.tally import Span
from headrace.audit.store import kept, measured_tables, tables
from headrace.audit.store.fold_again import note_recount
from headrace.audit.store.inserting import insert_new
from headrace.audit.topic.records import DATACENTER_TIER, HeartbeatRecord, ReceivedRecord
from headrace.audit.topic.recounts import RecountRecord

_PLACE: Final = ("tier", "datacenter", "topic", "partition")


def fold_recount(connection: Connection, recount: RecountRecord, time_ms: int) -> None:
    """Forgets the tallies, gaps and corrupt batches from the recount's address on. Does it once."""
    place = {name: getattr(recount, name) for name in _PLACE}
    row = {
        **place,
        "topic_id": recount.topic_id,
        "said_ms": time_ms,
        "from_address": recount.from_address,
        "to_address": recount.counted_to_address,
        "cause": recount.cause,
    }
    note_recount(connection, row)
    if not insert_new(connection, tables.recounts, row):
        return
    table = tables.tallies
    at = _at(table, place, recount.topic_id)
    beyond = select(table).where(*at, table.c.to_address > recount.from_address)
    for tally in connection.execute(beyond).all():
        if tally.from_address < recount.from_address:
            _shorten(connection, tally, recount.from_address)
        else:
            _remove(connection, tally.id)
    for other in (tables.gaps, tables.corrupt):
        later = other.c.from_address >= recount.from_address
        connection.execute(delete(other).where(*_at(other, place, recount.topic_id), later))


def forget_later_beats(connection: Connection, received: ReceivedRecord) -> None:
    """Makes this heartbeat the newest of its auditor, whose clock was ahead when it sent those before it: for
    as long as it had been ahead, the store would have taken none. None of those was said after this one: a
    log that this one leaves out was not read since.
    """
    record, table = received.record, tables.beats
    if not isinstance(record, HeartbeatRecord):
        return
    of_auditor = [table.c.tier == record.tier, table.c.beat >= record.beat]
    if record.tier == DATACENTER_TIER:
        of_auditor.append(table.c.datacenter == received.datacenter)
    for topic in connection.execute(select(table.c.topic).where(*of_auditor).distinct()).scalars().all():
        kept.forget_topic(connection, topic)
    said_ms = case((table.c.at_ms > received.time_ms, received.time_ms), else_=table.c.at_ms)
    connection.execute(update(table).where(*of_auditor).values(beat=record.beat - 1, at_ms=said_ms))


def forget_later_clocks(connection: Connection, set_back_ms: Mapping[str, int]) -> None:
    """Forgets by how much publishers' clocks are off, of what auditors measured whose own were ahead.

    `set_back_ms`: datacenter → the time to which its auditor's clock was set back.
    """
    table = measured_tables.clocks
    for datacenter, time_ms in set_back_ms.items():
        later = (table.c.datacenter == datacenter, table.c.said_ms > time_ms)
        if connection.execute(delete(table).where(*later)).rowcount:
            kept.forget_datacenter(connection, datacenter)


def _at(table: Any, place: dict[str, Any], topic_id: str) -> list[Any]:
    """Returns the conditions of the rows at a place; without an id, of all topics that had the name."""
    conditions = [table.c[name] == value for name, value in place.items()]
    return [*conditions, table.c.topic_id.in_((topic_id, ""))] if topic_id else conditions


def _remove(connection: Connection, tally_id: int) -> None:
    connection.execute(delete(tables.spans).where(tables.spans.c.tally_id == tally_id))
    connection.execute(delete(tables.tallies).where(tables.tallies.c.id == tally_id))


def _shorten(connection: Connection, tally: Any, address: int) -> None:
    """Ends a tally at `address`, or before the first span that lies on both sides of its new end."""
    columns = [tables.spans.c[name] for name in Span._fields]
    of_tally = tables.spans.c.tally_id == tally.id
    spans = [Span(*values) for values in connection.execute(select(*columns).where(of_tally))]
    end = undivided_end(spans, address)
    if end <= tally.from_address:
        _remove(connection, tally.id)
        return
    connection.execute(delete(tables.spans).where(of_tally, tables.spans.c.first_address >= end))
    of_row = tables.tallies.c.id == tally.id
    connection.execute(update(tables.tallies).where(of_row).values(to_address=end))


def undivided_end(spans: Iterable[Span], address: int) -> int:
    """Returns the greatest address up to `address` on both sides of which no span lies."""
    end = address
    for span in sorted(spans, key=lambda each: each.end_address, reverse=True):
        if span.first_address < end < span.end_address:
            end = span.first_address
    return end
