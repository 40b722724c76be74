"""Schemas with each type written out wherever it is used, and how large they may become. Pure.

Anybody may register a schema. One of a kilobyte, in which each type uses the one before twice, would take all
memory when it is written out.
"""

import json
from typing import Any, Final

import fastavro.schema

WRITTEN_OUT_MAX: Final = 10_000
"""Types of a schema with each one written out wherever it is referred to."""
TOO_MANY: Final = f"with each type written out where it is used, it has more than {WRITTEN_OUT_MAX} types"


class TypeUnknownError(ValueError):
    """The Avro schema has a type that is recursive or not defined, or too many types."""


def written_out(schema: str) -> Any:
    """Returns an Avro schema with full names, and each type written out wherever it is used: types of several
    namespaces may have one short name. Raises `TypeUnknownError`.
    """
    tree = json.loads(schema)
    try:
        # Nothing is read by defaults here, and other registries took any.
        if type_count(fastavro.schema.parse_schema(tree, _ignore_default_error=True)) > WRITTEN_OUT_MAX:
            raise TypeUnknownError(f"the schema is too large: {TOO_MANY}")
        return fastavro.schema.parse_schema(
            tree, expand=True, _write_hint=False, _force=True, _ignore_default_error=True
        )
    except fastavro.schema.UnknownType as error:
        raise TypeUnknownError(f"the schema has a type {error.name!r} that is not defined") from None


def type_count(schema: Any) -> int:
    """Returns the types of a parsed schema, written out, or one more than `WRITTEN_OUT_MAX` if they are more.
    Each definition is counted once.
    """
    return _count(schema, {})


def _count(schema: Any, known: dict[str, int]) -> int:
    """`known`: the types of each named type so far. One that is not complete counts as 1."""
    if isinstance(schema, str):
        return known.get(schema, 1)
    if isinstance(schema, list):
        return sum(_count(branch, known) for branch in schema)
    name = schema.get("name")
    if name is not None:
        known[name] = 1
    kind = schema["type"]
    parts = [schema[key] for key in ("items", "values") if key in schema]
    parts += [kind] if isinstance(kind, dict | list) else []
    parts += [field["type"] for field in schema.get("fields", ())]
    total = min(1 + sum(_count(part, known) for part in parts), WRITTEN_OUT_MAX + 1)
    if name is not None:
        known[name] = total
    return total
