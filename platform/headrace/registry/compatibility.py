"""The compatibility levels, by the checker of the Apache `avro` package, with problems in words. Pure.

Nothing here bounds the time of a check: the registry runs them in `registry.workers`."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from avro.compatibility import (
    ReaderWriterCompatibilityChecker,
    SchemaCompatibilityResult,
    SchemaCompatibilityType,
    SchemaIncompatibilityType,
    incompatible,
    schema_name_equals,
)
from avro.schema import NamedSchema, UnionSchema

from headrace.registry.level import Level as Level
from headrace.registry.schemas import parse_for_rules

DEFAULT_LEVEL: Final = Level.BACKWARD
LISTED_MAX: Final = 50
"""Problems, or places, that one message lists."""

_BACKWARD: Final = {Level.BACKWARD, Level.BACKWARD_TRANSITIVE, Level.FULL, Level.FULL_TRANSITIVE}
_FORWARD: Final = {Level.FORWARD, Level.FORWARD_TRANSITIVE, Level.FULL, Level.FULL_TRANSITIVE}

_MEANING: Final = {
    SchemaIncompatibilityType.name_mismatch: (
        "NAME_MISMATCH",
        "the type's name differs, and the reader has no alias for it",
    ),
    SchemaIncompatibilityType.fixed_size_mismatch: (
        "FIXED_SIZE_MISMATCH",
        "the size of a fixed type differs",
    ),
    SchemaIncompatibilityType.missing_enum_symbols: (
        "MISSING_ENUM_SYMBOLS",
        "the reader's enum lacks symbols that the writer may write, and has no default",
    ),
    SchemaIncompatibilityType.reader_field_missing_default_value: (
        "READER_FIELD_MISSING_DEFAULT_VALUE",
        "the reader has a field that the writer does not write, and no default for it",
    ),
    SchemaIncompatibilityType.type_mismatch: ("TYPE_MISMATCH", "the reader's type cannot read the writer's"),
    SchemaIncompatibilityType.missing_union_branch: (
        "MISSING_UNION_BRANCH",
        "the reader's union lacks a branch that the writer may write",
    ),
}


def incompatibilities(level: Level, new: str, earlier: Sequence[tuple[int, str]]) -> list[str]:
    """Returns the incompatibilities of schema text `new` with `earlier`: (version, text), oldest first."""
    if level is Level.NONE or not earlier:
        return []
    found: list[str] = []
    for version, old in reversed(earlier if level.transitive else earlier[-1:]):
        against = f"version {version}"
        if level in _BACKWARD:
            found += _problems(f"the new schema (reader) and {against} (writer)", reader=new, writer=old)
        if level in _FORWARD:
            found += _problems(f"{against} (reader) and the new schema (writer)", reader=old, writer=new)
    return [*found, f"compatibility: {level.value}"] if found else []


def _problems(pair: str, *, reader: str, writer: str) -> list[str]:
    checker = _Checker()
    result = checker.get_compatibility(parse_for_rules(reader), parse_for_rules(writer))
    if result.compatibility is not SchemaCompatibilityType.incompatible:
        return []
    return [f"{pair}: {_described(result)}"]


def can_read(reader: Any, writer: Any) -> bool:
    """Whether one type reads whatever the other one writes; both are types of the `avro` package."""
    result = _Checker().get_compatibility(reader, writer)
    return result.compatibility is SchemaCompatibilityType.compatible


class _Checker(ReaderWriterCompatibilityChecker):  # type: ignore[misc]
    """The library compares each writer's type with every branch of a reader's union in full. Only a branch
    of the same kind and name can read a named type, so the others are left out: seconds become
    milliseconds."""

    def calculate_compatibility(self, reader: Any, writer: Any, location: list[str]) -> Any:
        if not (isinstance(reader, UnionSchema) and isinstance(writer, NamedSchema)):
            return super().calculate_compatibility(reader, writer, location)
        for branch in reader.schemas:
            if branch.type == writer.type and schema_name_equals(branch, writer):
                result = self.get_compatibility(branch, writer)
                if result.compatibility is SchemaCompatibilityType.compatible:
                    return result
        return incompatible(
            SchemaIncompatibilityType.missing_union_branch,
            f"reader union lacking writer type {writer.type}",
            location,
        )


def _described(result: SchemaCompatibilityResult) -> str:
    # The library does not keep which message belongs to which place, so both are listed in full.
    kinds = Counter(_MEANING[kind] for kind in result.incompatibilities)
    problems = "; ".join(
        f"{name}{f' ({count} times)' if count > 1 else ''}: {meaning}"
        for (name, meaning), count in sorted(kinds.items())
    )
    places = sorted(result.locations - {"/"}) or ["/"]
    return f"{problems}: {_listed(sorted(result.messages))} at {_listed(places)}"


def _listed(items: list[str]) -> str:
    more = len(items) - LISTED_MAX
    return ", ".join(items[:LISTED_MAX]) + (f" and {more} more" if more > 0 else "")
