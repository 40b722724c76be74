"""Arrow's values of older files as values of the newest schema (`warehouse.evolution`)."""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from headrace.warehouse.evolution import Days, Items, Merged, Part, Record, Scaled, Spread, Step, Text
from headrace.warehouse.layout import DAY_MAX, DAY_MIN, TIME_MAX_US, TIME_MIN_US


def evolved(array: pa.Array, kind: pa.DataType, step: Step) -> pa.Array:
    """Returns the older values as those of the newest type. Raises Arrow's errors."""
    match step:
        case None:
            return as_type(array, kind)
        case Items(inner):
            if pa.types.is_map(kind):
                return _with_items(array, kind, evolved(array.items, kind.item_type, inner))
            return _rebuilt(array, kind, [evolved(array.values, kind.value_type, inner)])
        case Scaled():
            return _scaled(array, kind, step)
        case Days(to_date):
            days = array.cast(pa.int32())
            return _within(days, DAY_MIN, DAY_MAX).cast(kind) if to_date else as_type(days, kind)
        case Text():
            return _text(array, kind)
        case Merged(parts):
            return _first(array, kind, parts)
        case Record(members):
            found = [
                _first(array, each.type, [members[each.name]] if each.name in members else [])
                for each in kind
            ]
        case Spread(spread):
            found = [_first(array, each.type, spread.get(each.name, ())) for each in kind]
    return pa.StructArray.from_arrays(found, fields=list(kind), mask=array.is_null())


def _first(array: pa.Array, kind: pa.DataType, parts: Sequence[Part]) -> pa.Array:
    """Returns the first of these parts of a value that is there."""
    found = [
        evolved(array if name is None else pc.struct_field(array, name), kind, step) for name, step in parts
    ]
    if not found:
        return pa.nulls(len(array), kind)
    return found[0] if len(found) == 1 else pc.coalesce(*found)


def _scaled(array: pa.Array, kind: pa.DataType, step: Scaled) -> pa.Array:
    numbers = array.cast(pa.int64())
    if not step.to_time:
        return as_type(pc.divide(numbers, step.unit_us), kind)
    shown = _within(numbers, -(-TIME_MIN_US // step.unit_us), TIME_MAX_US // step.unit_us)
    return pc.multiply(shown, step.unit_us).cast(kind)


def _within(numbers: pa.Array, least: int, most: int) -> pa.Array:
    """Returns the numbers in this range; null for others."""
    is_shown = pc.and_(pc.greater_equal(numbers, least), pc.less_equal(numbers, most))
    return pc.if_else(is_shown, numbers, pa.scalar(None, numbers.type))


def _text(array: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return array.cast(kind)
    except pa.ArrowInvalid:
        return pa.array([_utf8(each) for each in array.to_pylist()], kind)


def _utf8(data: bytes | None) -> str | None:
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError:
        return None


def as_type(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Returns the values with this type: members of structs by their names, null where there is none."""
    if array.type.equals(kind, check_metadata=True):
        return array
    if pa.types.is_struct(kind) and pa.types.is_struct(array.type):
        names = {member.name: index for index, member in enumerate(array.type)}
        # `field`, not `flatten`: a null struct hides its members, and `mask` says where.
        members = [
            as_type(array.field(names[member.name]), member.type)
            if member.name in names
            else pa.nulls(len(array), member.type)
            for member in kind
        ]
        return pa.StructArray.from_arrays(members, fields=list(kind), mask=array.is_null())
    if pa.types.is_list(kind) and pa.types.is_list(array.type):
        values = as_type(array.values, kind.value_type)
        return _rebuilt(array, kind, [values])
    if pa.types.is_map(kind) and pa.types.is_map(array.type):
        return _with_items(array, kind, as_type(array.items, kind.item_type))
    # Of a large number a float has the nearest one, as in Spark: there is no exact one.
    return array.cast(kind, safe=not pa.types.is_floating(kind))


def _with_items(array: pa.MapArray, kind: pa.MapType, items: pa.Array) -> pa.Array:
    keys = array.keys.cast(kind.key_type)
    entries = pa.StructArray.from_arrays([keys, items], fields=[kind.key_field, kind.item_field])
    return _rebuilt(array, kind, [entries])


def _rebuilt(array: pa.Array, kind: pa.DataType, children: Sequence[pa.Array]) -> pa.Array:
    """The same lists or maps over other children: offsets and nulls stay as they are."""
    validity, offsets = array.buffers()[:2]
    return pa.Array.from_buffers(
        kind, len(array), [validity, offsets], offset=array.offset, children=list(children)
    )
