"""The DDL of a table over a topic's hourly folders, for Hive and for Spark SQL. Pure.

Hive's grammar: https://cwiki.apache.org/confluence/display/Hive/LanguageManual+DDL. The comments are the docs
of the Avro schema, at every depth.
"""

import re
from collections.abc import Iterable
from typing import Final

import pyarrow as pa

from headrace.warehouse.dialect import Dialect
from headrace.warehouse.types import comment_of

PARTITIONS: Final = ("dt", "hour")
"""The columns that readers make of the folders' names; a field of an event with such a name is hidden."""
_PARTITION_TYPES: Final = {"dt": "DATE", "hour": "INT"}
_NAME: Final = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)?")
_PLAIN: Final[tuple[tuple[pa.DataType, str], ...]] = (
    (pa.bool_(), "BOOLEAN"),
    (pa.int32(), "INT"),
    (pa.int64(), "BIGINT"),
    (pa.float32(), "FLOAT"),
    (pa.float64(), "DOUBLE"),
    (pa.binary(), "BINARY"),
    (pa.string(), "STRING"),
    (pa.date32(), "DATE"),
    (pa.timestamp("us", "UTC"), "TIMESTAMP"),
)


class TableNameError(ValueError):
    """A name that a table of Hive or Spark cannot have."""


class NoTypeError(ValueError):
    """A column has a type that the dialect does not have."""


def create_table(name: str, fields: Iterable[pa.Field], location: str, dialect: Dialect) -> str:
    """Returns two statements: the table, and the search for its partitions.

    `name`: the table's, or `database.table`. Raises `TableNameError`, `NoTypeError`.
    """
    if not re.fullmatch(_NAME, name):
        raise TableNameError(
            f"{name!r} is no name of a table: it has letters, digits and _ alone, as TABLE or DATABASE.TABLE"
        )
    table = ".".join(map(_quoted, name.split(".")))
    columns = [_column(each, dialect) for each in fields if each.name not in PARTITIONS]
    partitions = [f"{_quoted(each)} {_PARTITION_TYPES[each]}" for each in PARTITIONS]
    head = "CREATE EXTERNAL TABLE IF NOT EXISTS"
    body = [f"PARTITIONED BY ({', '.join(partitions)})", "STORED AS PARQUET", f"LOCATION {_text(location)};"]
    if dialect is Dialect.SPARK:
        # Spark lists partition columns among the columns, and keeps nothing below a table with a location.
        head = "CREATE TABLE IF NOT EXISTS"
        columns += partitions
        by = ", ".join(map(_quoted, PARTITIONS))
        body = ["USING PARQUET", f"PARTITIONED BY ({by})", f"LOCATION {_text(location)};"]
    joined = ",\n".join(f"  {each}" for each in columns)
    lines = [f"{head} {table} (", joined, ")", *body, f"MSCK REPAIR TABLE {table};"]
    return "\n".join(lines) + "\n"


def table_name(topic: str) -> str:
    """Returns a name that needs no quotes: `page_view` for page-view."""
    name = re.sub(r"[^a-z0-9_]", "_", topic.lower())
    return name if name[0].isalpha() else f"t_{name}"


def _column(field: pa.Field, dialect: Dialect) -> str:
    return f"{_quoted(field.name)} {_type(field.type, dialect)}{_comment(field)}"


def _comment(field: pa.Field) -> str:
    comment = comment_of(field)
    return f" COMMENT {_text(comment)}" if comment else ""


def _type(kind: pa.DataType, dialect: Dialect) -> str:
    if pa.types.is_struct(kind):
        inner = (f"{_quoted(each.name)}: {_type(each.type, dialect)}{_comment(each)}" for each in kind)
        return f"STRUCT<{', '.join(inner)}>"
    if pa.types.is_list(kind):
        return f"ARRAY<{_type(kind.value_type, dialect)}>"
    if pa.types.is_map(kind):
        return f"MAP<STRING, {_type(kind.item_type, dialect)}>"
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision}, {kind.scale})"
    if kind == pa.timestamp("us"):
        return "TIMESTAMP_NTZ" if dialect is Dialect.SPARK else "TIMESTAMP"
    for known, name in _PLAIN:
        if kind == known:
            return name
    raise NoTypeError(f"{dialect.value} has no type for a column of {kind}")


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _text(text: str) -> str:
    """A string in both grammars, in one line; control characters and quotes are escaped."""
    escapes = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    return "'" + "".join(escapes.get(each, each if each.isprintable() else " ") for each in text) + "'"
