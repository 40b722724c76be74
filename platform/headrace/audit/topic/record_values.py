"""A record's fields by name, to and from Avro."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any


def values_of(record: Any) -> dict[str, Any]:
    """Returns a record's fields by name, nested values as they are."""
    return {field.name: getattr(record, field.name) for field in fields(record)}


def values_for(kind: Any, data: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values in `data` for the fields of `kind`, without the header. Older records lack some."""
    return {field.name: data[field.name] for field in fields(kind) if field.name in data}
