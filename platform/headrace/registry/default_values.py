"""The defaults of a reader's schema, as reading gives values. Pure.

fastavro puts a field's default into a record as JSON spells it: text for bytes, a number for a time, and of a
record only the fields that the default names. A reader would get another type in old events than in new ones.
"""

from __future__ import annotations

import copy
from typing import Any, Final

from fastavro.read import LOGICAL_READERS

NAMED: Final = ("record", "error", "enum", "fixed")


def with_default_values(schema: Any) -> Any:
    """Returns a copy of a parsed schema whose fields' defaults are values instead of JSON."""
    copied, named, changed = copy.deepcopy(schema), definitions(schema), {}
    for name, definition in named.items():
        for field in definition.get("fields", ()):
            if "default" in field:
                changed[name, field["name"]] = _value(field["type"], field["default"], named)
    for name, definition in definitions(copied).items():
        for field in definition.get("fields", ()):
            if "default" in field:
                field["default"] = changed[name, field["name"]]
    return copied


def definitions(schema: Any) -> dict[str, Any]:
    """Returns the named types of a parsed schema, by full name."""
    found: dict[str, Any] = {}
    left = [schema]
    while left:
        part = left.pop()
        if isinstance(part, list):
            left += part
        elif isinstance(part, dict):
            if part.get("type") in NAMED:
                found[part["name"]] = part
            left += [part.get("type"), part.get("items"), part.get("values")]
            left += [field["type"] for field in part.get("fields", ())]
    return found


def _value(schema: Any, default: Any, named: dict[str, Any]) -> Any:
    if isinstance(schema, str):
        schema = named.get(schema, schema)
    if isinstance(schema, list):
        branch = next((each for each in schema if _takes(each, default, named)), "null")
        return _value(branch, default, named)
    kind = schema["type"] if isinstance(schema, dict) else schema
    if isinstance(kind, dict | list):
        return _value(kind, default, named)
    if kind == "array":
        return [_value(schema["items"], each, named) for each in default]
    if kind == "map":
        return {key: _value(schema["values"], each, named) for key, each in default.items()}
    if kind in ("record", "error"):
        return {
            field["name"]: _value(field["type"], default.get(field["name"], field.get("default")), named)
            for field in schema["fields"]
        }
    return _single(schema, kind, default)


def _single(schema: Any, kind: str, default: Any) -> Any:
    if kind in ("bytes", "fixed"):
        default = default.encode("latin-1")
    elif kind in ("float", "double"):
        default = float(default)
    logical = schema.get("logicalType") if isinstance(schema, dict) else None
    read = LOGICAL_READERS.get(f"{kind}-{logical}")
    try:
        return default if read is None else read(default, schema, None)
    except Exception:
        return default  # no calendar has such a time: its readers name it


def _takes(branch: Any, default: Any, named: dict[str, Any]) -> bool:
    """Whether the default of a union is one of this branch."""
    branch = named.get(branch, branch) if isinstance(branch, str) else branch
    kind = branch["type"] if isinstance(branch, dict) else branch
    if default is None or isinstance(default, bool):
        return bool(kind == ("null" if default is None else "boolean"))
    if isinstance(default, str):
        return kind in ("string", "bytes", "fixed") or (kind == "enum" and default in branch["symbols"])
    if isinstance(default, list):
        return bool(kind == "array")
    if isinstance(default, dict):
        return kind in ("map", "record", "error")
    return kind in ("float", "double") or (kind in ("int", "long") and isinstance(default, int))
