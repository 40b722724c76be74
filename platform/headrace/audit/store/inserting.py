"""Inserting rows into the tables of an audit store, in SQLite and in PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy import Connection, Table, case
from sqlalchemy.dialects import postgresql, sqlite


def insert_new(connection: Connection, table: Table, values: Mapping[str, Any]) -> bool:
    """Inserts a row unless its key exists; returns whether it was new."""
    statement = _insert_new_statement(connection.dialect.name, table)
    return bool(connection.execute(statement, dict(values)).rowcount)


def upsert(
    connection: Connection,
    table: Table,
    rows: Sequence[Mapping[str, Any]],
    newer_by: str | None = None,
) -> None:
    """Inserts or replaces rows by primary key; with `newer_by`, replaces only those where it is lower."""
    if rows:
        statement = _upsert_statement(connection.dialect.name, table, newer_by)
        connection.execute(statement, [dict(row) for row in rows])


def widen(
    connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]], lowest: str, highest: str
) -> None:
    """Inserts rows by primary key; of one that exists, lowers the column `lowest` and raises `highest`."""
    if rows:
        statement = _widen_statement(connection.dialect.name, table, lowest, highest)
        connection.execute(statement, [dict(row) for row in rows])


# Statements are built once, because building one costs more than executing it.


def _insert(dialect: str, table: Table) -> Any:
    return (postgresql.insert if dialect == "postgresql" else sqlite.insert)(table)


@cache
def _insert_new_statement(dialect: str, table: Table) -> Any:
    return _insert(dialect, table).on_conflict_do_nothing()


@cache
def _upsert_statement(dialect: str, table: Table, newer_by: str | None) -> Any:
    statement = _insert(dialect, table)
    excluded = statement.excluded
    keys = [column.name for column in table.primary_key]
    replaced = {column.name: excluded[column.name] for column in table.c if column.name not in keys}
    newer = None if newer_by is None else table.c[newer_by] < excluded[newer_by]
    return statement.on_conflict_do_update(index_elements=keys, set_=replaced, where=newer)


@cache
def _widen_statement(dialect: str, table: Table, lowest: str, highest: str) -> Any:
    statement = _insert(dialect, table)
    low, new_low = table.c[lowest], statement.excluded[lowest]
    high, new_high = table.c[highest], statement.excluded[highest]
    return statement.on_conflict_do_update(
        index_elements=[column.name for column in table.primary_key],
        set_={
            lowest: case((new_low < low, new_low), else_=low),
            highest: case((new_high > high, new_high), else_=high),
        },
    )
