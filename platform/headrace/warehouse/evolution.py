"""How values in files of an older schema become values of the newest one, at any depth. Pure.

A load decodes each event to the schema that is the newest then, and a file keeps those columns. Who reads
files of several schemas resolves the rest here, by Avro's rules for a writer's and a reader's schema: fields
and named types go by their names, and else by aliases; the members of a union go by their types, since their
places may have changed. What an older file lacks is null.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from headrace.registry.decimals import is_decimal
from headrace.warehouse.types import LOGICAL, WIDER
from headrace.warehouse.written_out import written_out


class Record(NamedTuple):
    """Of a record: by the newest name of each member that the older one has, its older name and step."""

    members: "Mapping[str, tuple[str, Step]]"


class Items(NamedTuple):
    """Of an array or a map: the step of each item."""

    step: "Step"


class Spread(NamedTuple):
    """To a union of several types, which is a struct with a member for each: where each member comes from."""

    members: "Mapping[str, Sequence[Part]]"


class Merged(NamedTuple):
    """From a union of several types to one of them: the first member that is there."""

    parts: "Sequence[Part]"


class Scaled(NamedTuple):
    """Between plain numbers and times, of which one unit is `unit_us`. `to_time`: numbers become times."""

    unit_us: int
    to_time: bool


class Days(NamedTuple):
    """Between plain numbers and dates. `to_date`: numbers become dates."""

    to_date: bool


class Text(NamedTuple):
    """From bytes to text. Bytes that are no UTF-8 become null."""


Step = Record | Items | Spread | Merged | Scaled | Days | Text | None
"""How a value changes. None: not at all, or it becomes wider."""
Part = tuple[str | None, Step]
"""A member of the older union, or the older value itself, and its step."""

_REALS: Final = ("float", "double")
_NAMED_KINDS: Final = ("record", "error", "enum", "fixed")
_PROMOTED: Final[Mapping[str, tuple[str, ...]]] = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
    "record": ("record",),
}
_UNITS_US: Final = {
    "timestamp-millis": 1_000,
    "timestamp-micros": 1,
    "local-timestamp-millis": 1_000,
    "local-timestamp-micros": 1,
}


def columns(newest: str, older: str) -> "Mapping[str, tuple[str, Step]]":
    """Returns the columns of `newest` that files of `older` have: the name there, and the values' step.

    Both are Avro schemas of events. There are none if one of them is no record.
    """
    new, old = written_out(newest), written_out(older)
    if _kind(new) != "record" or _kind(old) != "record":
        return {}
    return _record(new, old).members


def is_same(step: Step) -> bool:
    """Whether names and places stay: only types may become wider."""
    match step:
        case None:
            return True
        case Record(members):
            return all(old == new and is_same(inner) for new, (old, inner) in members.items())
        case Items(inner):
            return is_same(inner)
    return False


def _branches(schema: Any) -> list[Any]:
    """Returns the types that a value may have, but for null. Numbers of two widths are one."""
    found = _plain_type(schema)
    if not isinstance(found, list):
        return [found]
    others = [branch for branch in found if branch != "null"]
    if all(isinstance(each, str) for each in others) and frozenset(others) in WIDER:
        return [WIDER[frozenset(others)]]
    return [_plain_type(each) for each in others]


def _plain_type(schema: Any) -> Any:
    """Returns what a type within a type stands for."""
    while isinstance(schema, dict) and isinstance(schema["type"], dict | list):
        schema = schema["type"]
    return schema


def _step(to: Any, source: Any) -> Step:
    """Returns how values of the older type `source` become those of the newest type `to`."""
    targets, sources = _branches(to), _branches(source)
    is_struct = len(sources) != 1
    if len(targets) != 1:
        members: dict[str, list[Part]] = {f"member{index}": [] for index in range(len(targets))}
        for index, each in enumerate(sources):
            if (chosen := _chosen(targets, each)) is not None:
                step = _step(targets[chosen], each)
                members[f"member{chosen}"].append((f"member{index}" if is_struct else None, step))
        return Spread(members)
    if is_struct:
        return Merged([(f"member{at}", _step(targets[0], each)) for at, each in enumerate(sources)])
    return _plain(targets[0], sources[0])


def _plain(to: Any, source: Any) -> Step:
    kinds = (_kind(to), _kind(source))
    if kinds == ("record", "record"):
        return _record(to, source)
    for kind, inner in (("array", "items"), ("map", "values")):
        if kinds == (kind, kind):
            return Items(_step(to[inner], source[inner]))
    meanings = (_meaning(to), _meaning(source))
    if all(meanings) or not any(meanings):
        is_text = kinds == ("string", "bytes") and not (isinstance(source, dict) and is_decimal(source))
        return Text() if is_text else None
    # One of both is a number: it counts the units of the other, as in Avro's bytes.
    logical = meanings[0] or meanings[1]
    if kinds[1 if meanings[0] else 0] not in ("int", "long", *_REALS):
        return None
    if logical == "date":
        return Days(to_date=bool(meanings[0]))
    return Scaled(_UNITS_US[logical], to_time=bool(meanings[0]))


def _record(to: Any, source: Any) -> Record:
    old_types = {field["name"]: field["type"] for field in source["fields"]}
    new_names = {field["name"] for field in to["fields"]}
    members: dict[str, tuple[str, Step]] = {}
    for field in to["fields"]:
        for name in _names(field, new_names):
            if name in old_types:
                members[field["name"]] = (name, _step(field["type"], old_types[name]))
                break
    return Record(members)


def _names(field: Any, new_names: set[str]) -> Iterator[str]:
    """Yields the names by which an older record may have this field, its own one first."""
    yield field["name"]
    yield from (alias for alias in field.get("aliases", ()) if alias not in new_names)


def _chosen(targets: Sequence[Any], source: Any) -> int | None:
    """Returns which of these types values of the older type `source` get; None if they fit none."""
    for fits in (_is_same, _is_alike, _is_promoted):
        for index, target in enumerate(targets):
            if fits(target, source):
                return index
    return None


def _is_same(target: Any, source: Any) -> bool:
    is_named = _kind(target) in _NAMED_KINDS and _kind(source) in _NAMED_KINDS
    return is_named and target["name"] == source["name"] and _kind(target) == _kind(source)


def _is_alike(target: Any, source: Any) -> bool:
    if _kind(target) != _kind(source):
        return False
    if _kind(target) not in _NAMED_KINDS:
        return True
    names = [_short(target["name"]), *map(_short, target.get("aliases", ()))]
    return _short(source["name"]) in names


def _is_promoted(target: Any, source: Any) -> bool:
    return _kind(target) in _PROMOTED.get(_kind(source), ())


def _meaning(schema: Any) -> str:
    """Returns the logical type of a time or a date; "" if it is none."""
    logical = schema.get("logicalType") if isinstance(schema, dict) else None
    return str(logical) if (_kind(schema), logical) in LOGICAL else ""


def _kind(schema: Any) -> str:
    found = schema["type"] if isinstance(schema, dict) else schema
    return "record" if found == "error" else str(found)


def _short(name: str) -> str:
    return name.rsplit(".", 1)[-1]
