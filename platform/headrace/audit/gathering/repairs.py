"""Reads from the store what was brought again, and what is accepted. Only reads."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from sqlalchemy import ColumnElement, Connection, select

from headrace.audit.evidence import Acceptance, Claim, Handover
from headrace.audit.store import tables
from headrace.audit.topic.recounts import is_asked_for
from headrace.audit.topic.resent import NO_NUMBER

RECOUNTS_MAX: Final = 100


class AskedRecount(NamedTuple):
    """A tier counted a source partition again from an address on, because somebody asked for it."""

    tier: str
    datacenter: str
    topic: str
    partition: int
    from_address: int
    said_ms: int
    cause: str


def resent_rows(connection: Connection, *conditions: ColumnElement[bool]) -> Iterator[Any]:
    """Yields what was brought again."""
    table = tables.resent
    query = select(table).where(*conditions)
    order = (table.c.datacenter, table.c.partition, table.c.producer_id, table.c.first_sequence)
    yield from connection.execute(query.order_by(*order))


def moved_claims(row: Any) -> list[Claim]:
    """Returns the claim of the new numbers, and the withdrawn one of the old numbers if there were any."""
    new = (row.partition, row.producer_id, row.producer_epoch, row.first_sequence, row.last_sequence)
    claims = [Claim(row.publisher, *new, withdrawn=False, reported_ms=row.said_ms)]
    if row.old_producer_id != NO_NUMBER:
        last = row.old_first_sequence + row.last_sequence - row.first_sequence
        old = (row.partition, row.old_producer_id, row.old_producer_epoch, row.old_first_sequence, last)
        claims.append(Claim(row.publisher, *old, withdrawn=True, reported_ms=row.said_ms))
    return claims


def with_numbers(handovers: Iterable[Handover], publisher: str, count: int) -> list[Handover]:
    """Returns the handovers after `count` events of a publisher that had no number got one."""
    found: list[Handover] = []
    for handover in handovers:
        lacking = handover.handed_over_count - handover.sequenced_count
        given = min(count, lacking) if handover.publisher == publisher else 0
        count -= given
        found.append(handover._replace(sequenced_count=handover.sequenced_count + given))
    return found


def asked_recounts(connection: Connection, topic: str | None) -> list[AskedRecount]:
    """Returns the newest counts that people had made again, of a topic or of all; at most `RECOUNTS_MAX`."""
    table = tables.recounts
    of_topic = () if topic is None else (table.c.topic == topic,)
    rows = connection.execute(select(table).where(*of_topic).order_by(table.c.said_ms.desc()))
    asked = (row for row in rows if is_asked_for(row.cause))
    return [
        AskedRecount(*(getattr(row, name) for name in AskedRecount._fields))
        for row in itertools.islice(asked, RECOUNTS_MAX)
    ]


def acceptances_of(connection: Connection, topic: str, from_ms: int, to_ms: int) -> dict[str, Acceptance]:
    """Returns what is accepted of the hours in [from_ms, to_ms), by the findings' digests."""
    table = tables.acceptances
    in_window = (table.c.hour_ms >= from_ms, table.c.hour_ms < to_ms)
    query = select(table).where(table.c.topic == topic, *in_window, table.c.withdrawn.is_(False))
    return {row.digest: Acceptance(row.said_by, row.said_ms, row.reason) for row in connection.execute(query)}
