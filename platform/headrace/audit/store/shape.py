"""Whether the tables of a store are those that this program reads and writes.

A table of another shape, of a version between two releases or changed by hand, would refuse each record or
each query, and no repetition would help. Owns no table.
"""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Connection, Table, inspect
from sqlalchemy.engine.interfaces import ReflectedColumn

from headrace.audit.store.columns import metadata


def misfit(connection: Connection) -> str:
    """Returns what is wrong with the first table that this program cannot use; "" if it can use all.

    A column that it does not know is of a later version. That one can be left out if it may be null, or has
    a default.
    """
    inspector = inspect(connection)
    columns = {name: found for (_, name), found in inspector.get_multi_columns().items()}
    keys = {name: found for (_, name), found in inspector.get_multi_pk_constraint().items()}
    for table in metadata.sorted_tables:
        if table.name not in columns:
            return f"it has no table {table.name}"
        key = keys[table.name]["constrained_columns"] if table.name in keys else []
        problem = _misfit(table, columns[table.name], key)
        if problem:
            return f"its table {table.name} {problem}"
    return ""


def _misfit(table: Table, found: list[ReflectedColumn], key: Collection[str]) -> str:
    names = {each["name"] for each in found}
    lacking = [column.name for column in table.columns if column.name not in names]
    if lacking:
        return f"has no column {lacking[0]}"
    if set(key) != {column.name for column in table.primary_key.columns}:
        return f"has another primary key: {', '.join(sorted(key)) or 'none'}"
    for each in found:
        if each["name"] not in table.columns and not each["nullable"] and each.get("default") is None:
            return f"has a column {each['name']} that needs a value"
    return ""
