"""Spark's columns of older files as columns of the newest schema (`warehouse.evolution`)."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from headrace.warehouse.evolution import (
    Days,
    Items,
    Merged,
    Part,
    Record,
    Scaled,
    Spread,
    Step,
    Text,
    is_same,
)
from headrace.warehouse.layout import DAY_MAX, DAY_MIN, TIME_MAX_US, TIME_MIN_US

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

MILLI_US: Final = 1_000


def evolved_frame(
    rows: "DataFrame", fields: Iterable[pa.Field], steps: Mapping[str, tuple[str, Step]]
) -> "DataFrame":
    """Returns the rows with these columns, of the newest schema. `steps`: of those that the rows have."""
    # Imported here because programs without Spark import this module, too.
    from pyspark.sql import functions as f
    from pyspark.sql.pandas.types import from_arrow_type

    present = {field.name: field.dataType for field in rows.schema}
    chosen: list[Column] = []
    for field in fields:
        kind = from_arrow_type(field.type, prefer_timestamp_ntz=True)
        name, step = steps.get(field.name, (field.name, None))
        if name not in present:
            chosen.append(f.lit(None).cast(kind).alias(field.name))
        elif is_same(step) and present[name].simpleString() == kind.simpleString():
            chosen.append(f.col(name).alias(field.name))
        else:
            chosen.append(evolved(f.col(name), step, kind).alias(field.name))
    return rows.select(*chosen)


def evolved(value: "Column", step: Step, kind: "DataType") -> "Column":
    """Returns the older values as those of the newest type."""
    # Imported here because programs without Spark import this module, too.
    from pyspark.sql import functions as f
    from pyspark.sql.types import ArrayType, MapType

    match step:
        case None:
            return value.cast(kind)
        case Items(inner):
            if isinstance(kind, ArrayType):
                item = kind.elementType
                return f.transform(value, lambda each: evolved(each, inner, item))
            assert isinstance(kind, MapType)
            of_key = kind.valueType
            return f.transform_values(value, lambda _, each: evolved(each, inner, of_key))
        case Scaled(unit_us, to_time):
            if not to_time:
                at = value.cast("timestamp")
                return (f.unix_millis(at) if unit_us == MILLI_US else f.unix_micros(at)).cast(kind)
            number = value.cast("long")
            is_shown = number.between(-(-TIME_MIN_US // unit_us), TIME_MAX_US // unit_us)
            return f.when(is_shown, f.timestamp_micros(number * unit_us)).cast(kind)
        case Days(to_date):
            if not to_date:
                return f.unix_date(value).cast(kind)
            return f.when(value.between(DAY_MIN, DAY_MAX), f.date_from_unix_date(value))
        case Text():
            return f.try_validate_utf8(value.cast(kind))
        case Merged(parts):
            return f.coalesce(*(_part(value, part, kind) for part in parts))
    return _struct(value, step, kind)


def _struct(value: "Column", step: Record | Spread, kind: "DataType") -> "Column":
    # Imported here because programs without Spark import this module, too.
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructType

    assert isinstance(kind, StructType)
    members: list[Column] = []
    for field in kind:
        parts: list[Part]
        if isinstance(step, Spread):
            parts = list(step.members.get(field.name, ()))
        else:
            parts = [step.members[field.name]] if field.name in step.members else []
        found = [_part(value, part, field.dataType) for part in parts]
        member = f.coalesce(*found) if found else f.lit(None).cast(field.dataType)
        members.append(member.alias(field.name))
    return f.when(value.isNotNull(), f.struct(*members))


def _part(value: "Column", part: Part, kind: "DataType") -> "Column":
    name, step = part
    return evolved(value if name is None else value.getField(name), step, kind)
