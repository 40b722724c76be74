"""The audit store's kinds of columns, and the `metadata` of all its tables, for SQLite and PostgreSQL.

`audit.store.tables`, `audit.store.load_tables` and `audit.store.measured_tables` have the tables.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Dialect, Integer, MetaData, String, TypeDecorator

from headrace.wire.content import from_hex, hex_of

metadata = MetaData()


def key_column(name: str, kind: type[BigInteger] | type[Integer] | type[String]) -> Column[int | str]:
    """Returns a part of the primary key."""
    return Column(name, kind, primary_key=True, autoincrement=False)


def text_column(name: str) -> Column[str]:
    return Column(name, String, nullable=False)


def number_column(name: str) -> Column[int]:
    return Column(name, BigInteger, nullable=False)


def flag_column(name: str) -> Column[bool]:
    return Column(name, Boolean, nullable=False)


class Content(TypeDecorator[int]):
    """What batches hold (`wire.content`): a number of 128 bits, kept in hexadecimal digits."""

    impl = String(32)
    cache_ok = True

    def process_bind_param(self, value: int | None, dialect: Dialect) -> str | None:
        return hex_of(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> int | None:
        return from_hex(value)
