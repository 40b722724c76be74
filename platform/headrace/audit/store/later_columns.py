"""Columns that tables got after stores were made with them, and rows of tables that came later: a store of an
earlier version is given them when it is opened for writing. Owns no table.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import Column, Connection, Table, exists, insert, inspect, select
from sqlalchemy.exc import NoSuchTableError
from sqlalchemy.schema import CreateColumn

from headrace.audit.store import measured_tables, tables

LATER: Final[tuple[Column[object], ...]] = (
    measured_tables.missing_reports.c.made_ms,
    tables.gaps.c.said_ms,
    tables.declarations.c.deleted_ms,
    tables.declarations.c.partitions,
)
"""Each is null, or has a default, in the rows of the earlier version."""


def add_later_columns(connection: Connection) -> None:
    """Adds the columns that a store lacks. Call it once all tables are there."""
    for column in LATER:
        if column.name in columns_of(connection, column.table):
            continue
        quoted = connection.dialect.identifier_preparer.format_table(column.table)
        # Another program may open the same PostgreSQL store just now. SQLite, which has no such words, has
        # locked the whole store.
        unless = "IF NOT EXISTS " if connection.dialect.name == "postgresql" else ""
        definition = CreateColumn(column).compile(dialect=connection.dialect)
        connection.exec_driver_sql(f"ALTER TABLE {quoted} ADD COLUMN {unless}{definition}")


def fill_published(connection: Connection) -> None:
    """Adds to the table of who has published what what the store's hours say: an earlier version, to which an
    operator went back for a while, folds without it.
    """
    names = [column.name for column in measured_tables.published.c]
    told = [tables.handovers.c[name] for name in names]
    known = [column == measured_tables.published.c[column.name] for column in told]
    lacking = select(*told).distinct().where(~exists().where(*known))
    connection.execute(insert(measured_tables.published).from_select(names, lacking))


def columns_of(connection: Connection, table: Table) -> set[str]:
    """Returns the names of the columns that a table has in this store; none if it is not there."""
    try:
        return {each["name"] for each in inspect(connection).get_columns(table.name)}
    except NoSuchTableError:
        return set()
