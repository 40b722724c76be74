"""Spark's conditions for events that `from_avro` decoded, and that no reader of the table could show.

`from_avro` passes on a string's bytes as they are, and any number as a time. The compiled decoder refuses the
same events (`source.events`): strings that are not UTF-8, times outside of the years 1 to 9999.
"""

from functools import reduce
from typing import TYPE_CHECKING, cast

from headrace.warehouse.layout import DAY_MAX, DAY_MIN, TIME_MAX_US, TIME_MIN_US

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType


def is_showable(column: "Column", kind: "DataType") -> "Column | None":
    """Returns the condition that all strings and times in a column of this type can be read.

    None if it has no strings and no times. Null can be read.
    """
    refused = _refused(column, kind)
    return None if refused is None else ~refused


def _refused(column: "Column", kind: "DataType") -> "Column | None":
    """Returns the condition, never null, that a value cannot be read."""
    # Imported here because commands without Spark import this module, too.
    from pyspark.sql import functions as f
    from pyspark.sql import types as t

    found: list[Column | None] = []
    if isinstance(kind, t.StructType):
        found = [_refused(column.getField(field.name), field.dataType) for field in kind.fields]
    elif isinstance(kind, t.ArrayType):
        found = [_any_refused(column, kind.elementType)]
    elif isinstance(kind, t.MapType):
        found = [_any_refused(f.map_keys(column), kind.keyType)]
        found += [_any_refused(f.map_values(column), kind.valueType)]
    elif isinstance(kind, t.StringType):
        found = [~f.is_valid_utf8(column)]
    elif isinstance(kind, t.DateType):
        found = [~f.unix_date(column).between(DAY_MIN, DAY_MAX)]
    elif isinstance(kind, t.TimestampType):
        found = [~f.unix_micros(column).between(TIME_MIN_US, TIME_MAX_US)]
    elif isinstance(kind, t.TimestampNTZType):
        first, last = "TIMESTAMP_NTZ'0001-01-01 00:00:00'", "TIMESTAMP_NTZ'9999-12-31 23:59:59.999999'"
        found = [~column.between(f.expr(first), f.expr(last))]
    conditions = [f.coalesce(each, f.lit(False)) for each in found if each is not None]
    return reduce(lambda one, other: one | other, conditions) if conditions else None


def _any_refused(column: "Column", kind: "DataType") -> "Column | None":
    """Returns the condition that one of the elements of an array cannot be read; null if the array is."""
    # Imported here because commands without Spark import this module, too.
    from pyspark.sql import functions as f

    if _refused(column, kind) is None:
        return None
    return f.exists(column, lambda each: cast("Column", _refused(each, kind)))
