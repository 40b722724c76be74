"""Which fields of a record do not fit its schema. Pure.

Adds to fastavro's writer what it lacks: a check of ranges, and messages that name the field.
"""

import math
import struct
from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from numbers import Number
from typing import Any, Final
from uuid import UUID

import fastavro.validation

INT_MIN: Final = -(2**31)
INT_MAX: Final = 2**31 - 1
FLOAT_END: Final = (2 - 2**-24) * 2.0**127
"""From here on a number is written as infinity in a `float`, which has 32 bits."""
_TIMES: Final = frozenset((datetime, date, time))
"""What values of logical types are, and no numbers."""
_NO_ARRAYS: Final = (str, bytes, bytearray, memoryview, Mapping)
"""Of these fastavro writes each letter, byte or key as an item."""
VALUE_SHOWN_MAX: Final = 80
"""Characters of a value that an error message shows."""

_NUMBERS: Final = frozenset(("int", "long", "float", "double"))

Guard = Callable[[Any], None]


class SerializationError(ValueError):
    """Caused by the caller: a record does not fit its schema. The message names the field and its value."""


def explain(schema: Any, record: Any) -> str | None:
    """Returns which fields of `record` do not fit the parsed `schema`, for a person; None if all fit."""
    try:
        fastavro.validation.validate(record, schema, raise_errors=True)
    except fastavro.validation.ValidationError as error:
        wanted: dict[str, list[str]] = {}
        values: dict[str, Any] = {}
        for problem in error.errors:
            wanted.setdefault(problem.field, []).append(_type_name(problem.schema))
            values[problem.field] = problem.datum
        return "; ".join(_problem(field, values[field], types) for field, types in wanted.items())
    except Exception as error:
        # fastavro does not check the types of what it is given: an invalid value can raise anything.
        return f"{type(error).__name__}: {error}"
    return _half_pair(record, str(schema.get("name", "")) if isinstance(schema, dict) else "")


def _half_pair(value: Any, path: str) -> str | None:
    """Returns where a string has half of a surrogate pair, as JSON's escapes can make it; None if nowhere."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            half = ord(value[error.start])
            expected = f"a string that UTF-8 can hold; \\u{half:04x} is half of a surrogate pair"
            return _problem(path, value, [expected])
    elif isinstance(value, Mapping):
        for name, each in value.items():
            at = f"{path}.{name}" if path else str(name)
            if problem := _half_pair(name, f"{path}, a key") or _half_pair(each, at):
                return problem
    elif isinstance(value, list | tuple):
        for number, each in enumerate(value):
            if problem := _half_pair(each, f"{path}[{number}]"):
                return problem
    return None


def value_guard(schema: Any) -> Guard | None:
    """Returns a check that a record is written as it was given; None if the schema has nothing to check.

    fastavro writes 5 for 5.7, true for "no", ["n", "o"] for it in an array, and any Python integer as an int,
    except in a union, where the value decides the branch. Nobody would notice that the event is another one;
    and of an int of more than 32 bits other readers (Java's, Spark's) reject the record, or read a wrong
    value. The check expects a record that fastavro has written, and raises `SerializationError`.
    """
    named = schema.get("__named_schemas", {}) if isinstance(schema, dict) else {}
    return _guard(schema, "", named, {})


def _guard(
    schema: Any, path: str, named: Mapping[str, Any], open_records: dict[str, list[Guard]]
) -> Guard | None:
    if isinstance(schema, str):
        schema = named.get(schema, schema)
    kind = schema.get("type") if isinstance(schema, dict) else schema
    if isinstance(schema, list):
        return _union_guard(schema, path, named, open_records)
    if not isinstance(kind, str):
        return None
    if kind in ("int", "long"):
        is_day = kind == "int" and _type_name(schema) == "date"
        return _integer_guard(path, kind, is_day=is_day)
    if kind == "string" and _type_name(schema) == "uuid":
        return _single_guard(path, "uuid", _is_no_uuid)
    if kind in _CHANGES:
        return _single_guard(path, kind, _CHANGES[kind])
    if kind == "record":
        return _record_guard(schema, named, open_records)
    if kind == "array":
        return _array_guard(path, _guard(schema["items"], path, named, open_records))
    if kind == "map":
        inner = _guard(schema["values"], path, named, open_records)
        return None if inner is None else _values_guard(inner)
    return None


def _integer_guard(path: str, kind: str, *, is_day: bool) -> Guard:
    low, high = (INT_MIN, INT_MAX) if kind == "int" else (-math.inf, math.inf)

    def guard(value: Any) -> None:
        given = type(value)
        if given is int:
            if not low <= value <= high:
                raise SerializationError(_problem(path, value, ["int of 32 bits"]))
        elif given not in _TIMES and isinstance(value, Number):
            if value != int(value):  # type: ignore[call-overload]
                raise SerializationError(_problem(path, value, [kind]))
            guard(int(value))  # type: ignore[call-overload]
        elif is_day and isinstance(value, datetime) and value.time() != time.min:
            raise SerializationError(_problem(path, value, ["date, without a time of the day"]))

    return guard


def _single_guard(path: str, kind: str, changes: Callable[[Any], bool]) -> Guard:
    def guard(value: Any) -> None:
        if changes(value):
            raise SerializationError(_problem(path, value, [kind]))

    return guard


def _is_text_or_too_large(value: Any) -> bool:
    return isinstance(value, str | bytes) or FLOAT_END <= abs(value) < math.inf


def _is_no_uuid(value: Any) -> bool:
    """fastavro writes any text, and reads none but this."""
    try:
        return isinstance(value, str) and not UUID(value)
    except ValueError:
        return True


_CHANGES: Final[dict[str, Callable[[Any], bool]]] = {
    "null": lambda value: value is not None,
    "boolean": lambda value: type(value) is not bool and value not in (0, 1),
    "float": _is_text_or_too_large,
    "double": lambda value: isinstance(value, str | bytes),
}
"""Whether fastavro writes another value than this one, by the kind of its type."""


def _union_guard(
    branches: list[Any], path: str, named: Mapping[str, Any], open_records: dict[str, list[Guard]]
) -> Guard | None:
    """Of a value with the name of its branch, a pair; of others, whether fastavro chooses well: the rest of
    those it checks itself.
    """
    guards: dict[str, Guard] = {}
    for branch in branches:
        guard = None if branch == "null" else _guard(branch, path, named, open_records)
        if guard is not None:
            guards[str(branch.get("name", branch["type"]) if isinstance(branch, dict) else branch)] = guard

    choice = _choice_guard(branches, path)
    kinds = [branch.get("type") if isinstance(branch, dict) else branch for branch in branches]
    text = None if "enum" in kinds or any(each in named for each in kinds) else guards.get("string")

    def guard_value(value: Any) -> None:
        if type(value) is tuple:
            if (inner := guards.get(value[0])) is not None:
                inner(value[1])
        elif text is not None and type(value) is str:
            text(value)
        elif choice is not None:
            choice(value)

    return guard_value if guards or choice is not None else None


def _choice_guard(branches: list[Any], path: str) -> Guard | None:
    """Of a value without the name of its branch: fastavro takes the first one that fits, also if it loses the
    time of a day, or digits, and a later one would not.
    """
    names = [_type_name(branch) for branch in branches]
    moments = [name for name in names if name.startswith("timestamp-")]
    is_day_first = bool(moments) and "date" in names[: names.index(moments[0])]
    numbers = [name for name in names if name in _NUMBERS]
    if not is_day_first and not ({"float", "double"} & {*numbers} and {"int", "long"} & {*numbers}):
        return None

    def guard(value: Any) -> None:
        if is_day_first and isinstance(value, datetime):
            raise SerializationError(_problem(path, value, [f'{moments[0]}, as ("long", value)']))
        if type(value) is int and (exact := _exact_branch(numbers, value)):
            raise SerializationError(_problem(path, value, [f'{exact}, as ("{exact}", value)']))

    return guard


def _exact_branch(numbers: list[str], value: int) -> str | None:
    """Returns the branch that holds an integer, if fastavro takes an earlier one that does not."""
    fitting = [name for name in numbers if name != "int" or INT_MIN <= value <= INT_MAX]
    exact = next((name for name in fitting if name in ("int", "long")), None)
    if exact is None or fitting[0] == exact:
        return None
    written = float(value) if "double" in fitting else struct.unpack("f", struct.pack("f", value))[0]
    return exact if written != value else None


def _array_guard(path: str, inner: Guard | None) -> Guard:
    def guard(value: Any) -> None:
        if isinstance(value, _NO_ARRAYS):
            raise SerializationError(_problem(path, value, ["array, such as a list"]))
        if inner is not None and isinstance(value, list | tuple):
            for item in value:
                inner(item)

    return guard


def _values_guard(inner: Guard) -> Guard:
    def guard(value: Any) -> None:
        if isinstance(value, Mapping):
            for each in value.values():
                inner(each)

    return guard


def _record_guard(
    schema: Mapping[str, Any], named: Mapping[str, Any], open_records: dict[str, list[Guard]]
) -> Guard | None:
    name = schema["name"]
    if name in open_records:  # a recursive type: its guard is added to this list below
        own_guard = open_records[name]
        return lambda value: own_guard[0](value) if own_guard else None
    open_records[name] = []
    guards: list[tuple[str, Guard]] = []
    for field in schema["fields"]:
        guard = _guard(field["type"], f"{name}.{field['name']}", named, open_records)
        if guard is not None:
            guards.append((field["name"], guard))
    if not guards:
        return None

    def guard_fields(value: Any) -> None:
        if type(value) is dict or isinstance(value, Mapping):  # the first is much cheaper
            for field_name, guard in guards:
                if field_name in value:
                    guard(value[field_name])

    open_records[name].append(guard_fields)
    return guard_fields


def _problem(field: str, value: Any, types: list[str]) -> str:
    what = f"field {field}" if field else "the record"
    expected = " or ".join(types)
    if value is None:
        return f"{what} is missing (expected {expected})"
    text = repr(value)
    shown = text if len(text) <= VALUE_SHOWN_MAX else f"{text[:VALUE_SHOWN_MAX]}…"
    return f"{what} is {shown} (expected {expected})"


def _type_name(schema: Any) -> str:
    if isinstance(schema, dict):
        return str(schema.get("logicalType") or schema.get("name") or schema["type"])
    return str(schema)
