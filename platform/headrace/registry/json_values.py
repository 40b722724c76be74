"""Avro values as JSON, and back: what `headrace consume` prints, `headrace produce --avro` takes. Pure.

JSON has no bytes, times or decimals. Bytes and fixed are strings with one character (up to U+00FF) for each
byte, as in Avro's own JSON; timestamps are numbers in the unit of their type, or ISO 8601 when read; dates
and times are ISO 8601, decimals are strings such as "12.30", numbers that are not finite "NaN" or "Infinity".
A value of a union stands without the name of its branch; with it, as in Avro's JSON, it is read, too.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from headrace.process.timestamps import time_problem
from headrace.registry.value_validation import SerializationError

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_NOT_FINITE: Final = ("NaN", "Infinity", "-Infinity")
_BYTES: Final = ("bytes", "fixed")
_ISO: Final[dict[str, Callable[[str], Any]]] = {
    "date": date.fromisoformat,
    "time-millis": time.fromisoformat,
    "time-micros": time.fromisoformat,
}


class JsonForm:
    """Converts values of one schema, parsed by fastavro.

    `checks_times`: refuse numbers of timestamps that are in another unit than milliseconds.
    """

    def __init__(self, schema: Any, *, checks_times: bool = True) -> None:
        self._schema = schema
        self._checks_times = checks_times
        self._named: dict[str, Any] = {}
        _collect(schema, self._named)

    def to_json(self, value: Any) -> Any:
        """Returns a value that fastavro has read, as what JSON knows. One of a union may be a pair, with the
        name of its branch.
        """
        return self._to(value, self._schema)

    def from_json(self, value: Any) -> Any:
        """Returns what fastavro writes for a value of JSON. Raises `SerializationError` with field and value.

        What fits no type is left as it is: fastavro's own check names it.
        """
        return self._from(value, self._schema, "")

    def _resolved(self, schema: Any) -> Any:
        while isinstance(schema, str) and schema in self._named:
            schema = self._named[schema]
        if isinstance(schema, dict) and isinstance(schema.get("type"), dict | list):
            return self._resolved(schema["type"])
        return schema

    # --- to JSON ---

    def _to(self, value: Any, schema: Any) -> Any:
        schema = self._resolved(schema)
        if isinstance(schema, list):
            return self._to(*self._branch_of(value, schema))
        if isinstance(value, datetime):
            return _timestamp(value, _logical(schema))
        if isinstance(value, dict) and _kind(schema) == "record":
            types = {field["name"]: field["type"] for field in schema["fields"]}
            return {name: self._to(each, types.get(name, "null")) for name, each in value.items()}
        if isinstance(value, dict) and _kind(schema) == "map":
            return {name: self._to(each, schema["values"]) for name, each in value.items()}
        if isinstance(value, list) and _kind(schema) == "array":
            return [self._to(each, schema["items"]) for each in value]
        return _plain(value)

    def _branch_of(self, value: Any, branches: list[Any]) -> tuple[Any, Any]:
        """Returns a union's value without the name of its branch, and the branch."""
        if isinstance(value, tuple):
            name, value = value
            return value, next(each for each in map(self._resolved, branches) if _name(each) == name)
        return value, next((each for each in branches if self._has(each, value)), "null")

    def _has(self, branch: Any, value: Any) -> bool:
        """Whether this branch of a union may hold the value, where its type decides what becomes of it."""
        branch = self._resolved(branch)
        kind = _kind(branch)
        if isinstance(value, datetime):
            return "timestamp" in _logical(branch)
        if isinstance(value, dict):
            names = {field["name"] for field in branch["fields"]} if kind == "record" else set()
            return kind == "map" or (kind == "record" and names == value.keys())
        if isinstance(value, list):
            return kind == "array"
        return True

    # --- from JSON ---

    def _from(self, value: Any, schema: Any, path: str) -> Any:
        schema = self._resolved(schema)
        if isinstance(schema, list):
            return self._of_union(value, schema, path)
        kind, logical = _kind(schema), _logical(schema)
        if kind == "record" and isinstance(value, dict):
            return self._record(value, schema, path)
        if kind == "map" and isinstance(value, dict):
            return {
                name: self._from(each, schema["values"], f"{path}{{{name}}}") for name, each in value.items()
            }
        if kind == "array" and isinstance(value, list):
            return [self._from(each, schema["items"], f"{path}[{at}]") for at, each in enumerate(value)]
        if logical == "decimal":
            return _decimal(value, path)
        if "timestamp" in logical:
            return self._time(value, logical, path)
        if isinstance(value, str):
            return _of_text(value, kind, logical, path)
        return value

    def _record(self, value: Mapping[str, Any], schema: Any, path: str) -> dict[str, Any]:
        types = {field["name"]: field["type"] for field in schema["fields"]}
        prefix = f"{path}." if path else ""
        for name in value.keys() - types.keys():
            near = difflib.get_close_matches(name, types, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise SerializationError(f"field {prefix}{name} is not in the schema{hint}")
        return {name: self._from(each, types[name], prefix + name) for name, each in value.items()}

    def _of_union(self, value: Any, branches: list[Any], path: str) -> Any:
        if value is None:
            return None
        resolved = [each for each in map(self._resolved, branches) if _kind(each) != "null"]
        if isinstance(value, dict) and len(value) == 1:
            (name,) = value
            for branch in resolved:
                if name == _name(branch) and not _has_field(branch, name):
                    # With the name: fastavro would choose another branch that the value fits, too.
                    return name, self._from(value[name], branch, path)
        fitting = [each for each in resolved if _takes(each, value)]
        return self._from(value, fitting[0], path) if fitting else value

    def _time(self, value: Any, logical: str, path: str) -> Any:
        if isinstance(value, str):
            found = _parsed(datetime.fromisoformat, value, logical, path)
            return found if found.tzinfo or logical.startswith("local-") else found.replace(tzinfo=UTC)
        if self._checks_times and logical.endswith("-millis") and type(value) is int:
            problem = time_problem(value)
            if "looks like" in problem:
                raise SerializationError(f"field {path}: {problem}")
        return value


# --- types ---


def _collect(schema: Any, named: dict[str, Any]) -> None:
    """Adds the definitions of named types, by full name."""
    if isinstance(schema, list):
        for branch in schema:
            _collect(branch, named)
    elif isinstance(schema, dict):
        if "name" in schema:
            named[schema["name"]] = schema
        inner = (schema.get("type"), schema.get("items"), schema.get("values"))
        for each in (*inner, *(field["type"] for field in schema.get("fields", ()))):
            _collect(each, named)


def _kind(schema: Any) -> str:
    return str(schema["type"]) if isinstance(schema, dict) else str(schema)


def _logical(schema: Any) -> str:
    return str(schema.get("logicalType", "")) if isinstance(schema, dict) else ""


def _name(branch: Any) -> str:
    """A branch's name in Avro's own JSON."""
    return str(branch.get("name", branch["type"])) if isinstance(branch, dict) else str(branch)


def _has_field(branch: Any, name: str) -> bool:
    return (
        any(field["name"] == name for field in branch.get("fields", ()))
        if isinstance(branch, dict)
        else False
    )


def _takes(branch: Any, value: Any) -> bool:
    """Whether a value of JSON may be one of this branch."""
    kind, logical = _kind(branch), _logical(branch)
    if isinstance(value, bool):
        return kind == "boolean"
    if isinstance(value, str):
        if kind == "enum":
            return value in branch["symbols"]
        if kind in ("float", "double"):
            return value in _NOT_FINITE
        return kind in ("string", *_BYTES) or bool(logical)
    if isinstance(value, dict):
        return kind == "map" or (kind == "record" and all(_has_field(branch, name) for name in value))
    if isinstance(value, list):
        return kind == "array"
    return kind in ("int", "long", "float", "double") or logical == "decimal"


# --- single values ---


def _timestamp(value: datetime, logical: str) -> int:
    # `timestamp` fails at the edges of the calendar.
    micros = ((value if value.tzinfo else value.replace(tzinfo=UTC)) - _EPOCH) // _MICROSECOND
    if logical.endswith("-micros"):
        return micros
    return micros * 1000 if logical.endswith("-nanos") else micros // 1000


def _plain(value: Any) -> Any:
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("latin-1")
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, date | time):
        return value.isoformat()
    return value if value is None or isinstance(value, bool | int | float | str | list | dict) else str(value)


def _decimal(value: Any, path: str) -> Any:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return value
    try:
        return Decimal(str(value))
    except InvalidOperation:
        raise SerializationError(f"field {path} is {value!r:.80} (expected decimal)") from None


def _of_text(value: str, kind: str, logical: str, path: str) -> Any:
    if logical in _ISO:
        return _parsed(_ISO[logical], value, logical, path)
    if kind in _BYTES:
        try:
            return value.encode("latin-1")
        except UnicodeEncodeError:
            raise SerializationError(
                f"field {path} is {value!r:.80} (expected {kind}: characters up to U+00FF, one for each byte)"
            ) from None
    return float(value) if kind in ("float", "double") and value in _NOT_FINITE else value


def _parsed(parse: Callable[[str], Any], value: str, logical: str, path: str) -> Any:
    try:
        return parse(value)
    except ValueError:
        raise SerializationError(f"field {path} is {value!r:.80} (expected {logical})") from None
