"""Keeping in the store what was not believed of the audit topics, within the caller's transaction."""

from __future__ import annotations

from sqlalchemy import Connection, select

from headrace.audit.store import tables
from headrace.audit.store.inserting import upsert
from headrace.audit.topic.set_aside import SetAside, added


def add_set_aside(connection: Connection, more: SetAside) -> None:
    """Adds records that were not believed to those of their partition."""
    table = tables.set_aside
    place = (table.c.topic == more.topic, table.c.partition == more.partition)
    row = connection.execute(select(table).where(*place)).one_or_none()
    known = None if row is None else SetAside(*row)
    upsert(connection, table, [added(known, more)._asdict()])


def read_set_aside(connection: Connection) -> list[SetAside]:
    """Returns what was set aside, by (topic, partition)."""
    table = tables.set_aside
    rows = connection.execute(select(table).order_by(table.c.topic, table.c.partition))
    return [SetAside(*row) for row in rows]
