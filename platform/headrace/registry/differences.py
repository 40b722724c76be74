"""What differs between two schemas, field by field, and which readers each difference breaks. Pure.

A field is named by its path: `header.time`, `tags[]` for the items of an array, `labels{}` for the values of
a map. Which schema reads what the other one wrote is decided by the checker of `registry.compatibility`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from avro.compatibility import schema_name_equals

from headrace.registry.compatibility import can_read
from headrace.registry.schemas import parse, parse_for_rules

SYMBOLS_SHOWN_MAX: Final = 12
_NAMED: Final = ("record", "enum", "fixed")
_MEANING: Final = ("logicalType", "precision", "scale")
_WITH_EFFECT: Final = frozenset(
    ("type", "name", "namespace", "default", "fields", "symbols", "size", "items", "values", *_MEANING)
)


class Change(StrEnum):
    """What happened to a field. DOCUMENTED: only its doc, aliases, order or other attributes changed."""

    ADDED = "added"
    REMOVED = "removed"
    RENAMED = "renamed"
    CHANGED = "changed"
    DOCUMENTED = "documented"


@dataclass(frozen=True, slots=True)
class Side:
    """A field in one of the two schemas; `default` is JSON, None without one."""

    type: str
    default: str | None = None

    def __str__(self) -> str:
        return self.type if self.default is None else f"{self.type} = {self.default}"


@dataclass(frozen=True, slots=True)
class Difference:
    """One field, or with the path "" the schema itself; a side is None where the field is not there.

    `new_reads_old`: whether readers with the new schema read this field of old records.
    """

    path: str
    change: Change
    before: Side | None
    after: Side | None
    new_reads_old: bool
    old_reads_new: bool
    note: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """All differences, and whether each schema as a whole reads what the other one writes."""

    differences: tuple[Difference, ...]
    new_reads_old: bool
    old_reads_new: bool


def compare(old: str, new: str) -> Comparison:
    """Compares two schemas by their texts. Raises `InvalidSchemaError`."""
    before, after = _parsed(old), _parsed(new)
    found = tuple(_Walk().types(before, after, ""))
    return Comparison(found, can_read(after, before), can_read(before, after))


def _parsed(text: str) -> Any:
    return parse_for_rules(parse(text).text)


class _Walk:
    """Walks both schemas at once.

    A pair of types is compared at its first place alone: types may contain themselves, and each other often.
    """

    def __init__(self) -> None:
        self._seen: set[tuple[int, int]] = set()

    def types(
        self, old: Any, new: Any, path: str, old_field: Any = None, new_field: Any = None
    ) -> Iterator[Difference]:
        """Yields how two types at one path differ, with the fields that have them (None: no field)."""
        before, after = _side(old, old_field), _side(new, new_field)
        notes = [_meaning(old, new), _attributes(old_field, new_field), _attributes(old, new)]
        note = "; ".join(dict.fromkeys(filter(None, notes)))
        if old.type == new.type and old.type in ("array", "map"):
            is_changed, reads = before.default != after.default, (True, True)  # the rest lies below
        elif old.type == new.type == "record":
            is_changed, reads = before != after, (schema_name_equals(new, old), schema_name_equals(old, new))
        else:
            is_changed, reads = before != after, (can_read(new, old), can_read(old, new))
        if is_changed:
            yield Difference(path, Change.CHANGED, before, after, *reads, note)
        elif note:
            yield Difference(path, Change.DOCUMENTED, before, after, True, True, note)
        yield from self._below(old, new, path)

    def _below(self, old: Any, new: Any, path: str) -> Iterator[Difference]:
        if old.type != new.type or (id(old), id(new)) in self._seen:
            return
        self._seen.add((id(old), id(new)))
        if old.type == "record":
            yield from self._fields(old, new, path)
        elif old.type == "array":
            yield from self.types(old.items, new.items, f"{path}[]")
        elif old.type == "map":
            yield from self.types(old.values, new.values, f"{path}{{}}")
        elif old.type == "union":
            for branch, other in _common_branches(old, new):
                yield from self._below(branch, other, path)

    def _fields(self, old: Any, new: Any, path: str) -> Iterator[Difference]:
        prefix = f"{path}." if path else ""
        left = {field.name: field for field in old.fields}
        for field in new.fields:
            name = field.name if field.name in left else _first(_aliases(field), left)
            before = left.pop(name, None) if name is not None else None
            if before is None:
                has_default = bool(field.has_default)
                yield Difference(
                    prefix + field.name, Change.ADDED, None, _side(field.type, field), has_default, True
                )
            elif before.name != field.name:
                yield self._renamed(before, field, prefix)
                yield from self._below(before.type, field.type, prefix + field.name)
            else:
                yield from self.types(before.type, field.type, prefix + field.name, before, field)
        for field in left.values():
            has_default = bool(field.has_default)
            yield Difference(
                prefix + field.name, Change.REMOVED, _side(field.type, field), None, True, has_default
            )

    def _renamed(self, old: Any, new: Any, prefix: str) -> Difference:
        # An old reader knows the new name only if it has that as an alias.
        known = new.name in _aliases(old)
        old_reads_new = can_read(old.type, new.type) if known else bool(old.has_default)
        return Difference(
            prefix + new.name,
            Change.RENAMED,
            _side(old.type, old),
            _side(new.type, new),
            can_read(new.type, old.type),
            old_reads_new,
            f"it was {old.name}; the alias lets new readers find it",
        )


# --- one type, in words ---


def _side(schema: Any, field: Any) -> Side:
    has_default = field is not None and field.has_default
    return Side(_text(schema), json.dumps(field.default, ensure_ascii=False) if has_default else None)


def _text(schema: Any) -> str:
    """A type in words: `null | long (timestamp-millis)`, `array of record Item`, `enum Kind (A, B)`."""
    if schema.type == "union":
        return " | ".join(_text(branch) for branch in schema.schemas)
    if schema.type == "array":
        return f"array of {_text(schema.items)}"
    if schema.type == "map":
        return f"map of {_text(schema.values)}"
    kind = str(schema.type)
    words = f"{kind} {schema.fullname}" if kind in _NAMED else kind
    details = _details(schema, kind)
    return f"{words} ({', '.join(details)})" if details else words


def _details(schema: Any, kind: str) -> list[str]:
    props = schema.props
    details = []
    if kind == "enum":
        details = list(schema.symbols[:SYMBOLS_SHOWN_MAX])
        if len(schema.symbols) > SYMBOLS_SHOWN_MAX:
            details.append(f"{len(schema.symbols) - SYMBOLS_SHOWN_MAX} more")
        if props.get("default") is not None:
            details.append(f"default {props['default']}")
    if kind == "fixed":
        details.append(f"{schema.size} bytes")
    if logical := props.get("logicalType"):
        scale = f" {props.get('precision')},{props.get('scale', 0)}" if logical == "decimal" else ""
        details.append(f"{logical}{scale}")
    return details


def _meaning(old: Any, new: Any) -> str:
    """Says that the same bytes mean something else: Avro's rules do not look at logical types."""
    if old.type == new.type == "union":
        return next((note for pair in _common_branches(old, new) if (note := _meaning(*pair))), "")
    if old.type != new.type:
        return ""
    if [old.props.get(key) for key in _MEANING] == [new.props.get(key) for key in _MEANING]:
        return ""
    return "the same bytes mean something else; no level refuses that"


def _attributes(old: Any, new: Any) -> str:
    """Names the attributes without effect on bytes that differ, such as doc."""
    if old is None or new is None:
        return ""
    names = (old.props.keys() | new.props.keys()) - _WITH_EFFECT
    changed = [name for name in names if old.props.get(name) != new.props.get(name)]
    return f"other {', '.join(sorted(changed))}" if changed else ""


# --- pairs ---


def _common_branches(old: Any, new: Any) -> Iterator[tuple[Any, Any]]:
    """The branches of two unions that are of one kind, and of one name if they have names."""
    others = {_branch_key(branch): branch for branch in new.schemas}
    for branch in old.schemas:
        if (other := others.get(_branch_key(branch))) is not None:
            yield branch, other


def _branch_key(branch: Any) -> tuple[str, str]:
    return str(branch.type), branch.fullname if branch.type in _NAMED else ""


def _aliases(field: Any) -> list[str]:
    aliases = field.props.get("aliases")
    return [str(alias) for alias in aliases] if isinstance(aliases, list) else []


def _first(names: list[str], among: dict[str, Any]) -> str | None:
    return next((name for name in names if name in among), None)
