"""What differs between two schemas: every field by its path, and which readers that breaks."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.registry.compatibility import Level, incompatibilities
from headrace.registry.differences import Change, Comparison, Difference, Side, compare
from headrace.registry.schemas import InvalidSchemaError

MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
MICROS = {"type": "long", "logicalType": "timestamp-micros"}


def field(kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": "x", "type": kind, **more}


def record(*fields: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": "a.R", "fields": list(fields), **more}


def enum(*symbols: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "E", "symbols": list(symbols), **more}


def comparison(old: Any, new: Any) -> Comparison:
    return compare(json.dumps(old), json.dumps(new))


def only(old: Any, new: Any) -> Difference:
    (found,) = comparison(old, new).differences
    return found


def test_the_same_schema_has_no_difference() -> None:
    same = comparison(record(field(MILLIS)), record(field(MILLIS)))
    assert same == Comparison((), True, True)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ((), (field("int"),), ("x", Change.ADDED, None, "int", False, True)),
        ((), (field("int", default=0),), ("x", Change.ADDED, None, "int = 0", True, True)),
        ((field("int"),), (), ("x", Change.REMOVED, "int", None, True, False)),
        ((field("int", default=0),), (), ("x", Change.REMOVED, "int = 0", None, True, True)),
        ((field("int"),), (field("long"),), ("x", Change.CHANGED, "int", "long", True, False)),
        ((field("int"),), (field("string"),), ("x", Change.CHANGED, "int", "string", False, False)),
        (
            (field("string"),),
            (field(["null", "string"], default=None),),
            ("x", Change.CHANGED, "string", "null | string = null", True, False),
        ),
        (
            (field("int", default=0),),
            (field("int", default=1),),
            ("x", Change.CHANGED, "int = 0", "int = 1", True, True),
        ),
        (
            (field(enum("A")),),
            (field(enum("A", "B")),),
            ("x", Change.CHANGED, "enum a.E (A)", "enum a.E (A, B)", True, False),
        ),
        (
            (field(enum("A", default="A")),),
            (field(enum("A", "B", default="A")),),
            ("x", Change.CHANGED, "enum a.E (A, default A)", "enum a.E (A, B, default A)", True, True),
        ),
        (
            (field({"type": "fixed", "name": "F", "size": 8}),),
            (field({"type": "fixed", "name": "F", "size": 16}),),
            ("x", Change.CHANGED, "fixed a.F (8 bytes)", "fixed a.F (16 bytes)", False, False),
        ),
        (
            (field({"type": "array", "items": "int"}),),
            (field({"type": "array", "items": "long"}),),
            ("x[]", Change.CHANGED, "int", "long", True, False),
        ),
        (
            (field({"type": "map", "values": record(field("int")) | {"name": "I"}}),),
            (field({"type": "map", "values": record() | {"name": "I"}}),),
            ("x{}.x", Change.REMOVED, "int", None, True, False),
        ),
        (
            (field(["null", record(field("int")) | {"name": "I"}]),),
            (field(["null", record(field("int"), {"name": "y", "type": "int"}) | {"name": "I"}]),),
            ("x.y", Change.ADDED, None, "int", False, True),
        ),
    ],
)
def test_a_field_and_what_it_breaks(old: Any, new: Any, expected: tuple[object, ...]) -> None:
    found = only(record(*old), record(*new))
    sides = [None if side is None else str(side) for side in (found.before, found.after)]
    assert (found.path, found.change, *sides, found.new_reads_old, found.old_reads_new) == expected
    whole = comparison(record(*old), record(*new))
    assert (whole.new_reads_old, whole.old_reads_new) == (found.new_reads_old, found.old_reads_new)


def test_a_renamed_field_is_one_difference() -> None:
    new = {"name": "y", "type": "long", "aliases": ["x"]}
    found = only(record(field("int")), record(new))
    assert (found.path, found.change, found.before, found.after) == (
        "y",
        Change.RENAMED,
        Side("int"),
        Side("long"),
    )
    assert (found.new_reads_old, found.old_reads_new) == (True, False)
    assert "it was x" in found.note


def test_another_meaning_of_the_same_bytes_is_said() -> None:
    """Avro's rules allow it, at every level."""
    found = only(record(field(["null", MILLIS])), record(field(["null", MICROS])))
    assert (found.new_reads_old, found.old_reads_new) == (True, True)
    assert "the same bytes mean something else" in found.note
    old, new = ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": n} for n in (2, 3))
    assert str(only(record(field(old)), record(field(new))).after) == "bytes (decimal 9,3)"


def test_documentation_alone_breaks_nothing() -> None:
    found = only(record(field("int", doc="a")), record(field("int", doc="b")))
    assert (found.change, found.note, found.new_reads_old) == (Change.DOCUMENTED, "other doc", True)
    assert only(record(doc="a"), record(doc="b")).path == ""


def test_the_name_of_the_record() -> None:
    renamed = only(record(), {**record(), "name": "a.S"})
    assert (renamed.path, renamed.new_reads_old, renamed.old_reads_new) == ("", False, False)
    aliased = only(record(), {**record(), "name": "a.S", "aliases": ["a.R"]})
    assert (aliased.new_reads_old, aliased.old_reads_new) == (True, False)


def test_types_that_contain_themselves_end() -> None:
    def tree(kind: str) -> dict[str, Any]:
        children = {"name": "children", "type": {"type": "array", "items": "a.R"}}
        return record(field(kind), children)

    assert only(tree("int"), tree("long")).path == "x"


def test_what_is_no_schema_is_refused() -> None:
    for text in ("", "{", '{"type": "record"}', '"nothing"', "[" * 100_000):
        with pytest.raises(InvalidSchemaError):
            compare('"int"', text)


FIELD_TYPES = st.recursive(
    st.sampled_from(["null", "int", "long", "double", "string", "bytes", MILLIS, enum("A"), enum("A", "B")]),
    lambda inner: st.one_of(
        inner.map(lambda each: {"type": "array", "items": each}),
        inner.map(lambda each: {"type": "map", "values": each}),
        st.tuples(st.sampled_from(["null", "string"]), st.sampled_from(["int", "long"])).map(list),
    ),
    max_leaves=3,
)
RECORDS = st.dictionaries(st.sampled_from("pqrs"), FIELD_TYPES, max_size=3).map(
    lambda types: record(
        *(
            {"name": name, "type": _once(kind, f"E{number}")}
            for number, (name, kind) in enumerate(types.items())
        )
    )
)


def _once(kind: Any, name: str) -> Any:
    """The type with another name for its enum: a name is defined once in a schema."""
    return json.loads(json.dumps(kind).replace('"E"', f'"{name}"'))


@settings(deadline=None)
@given(RECORDS, RECORDS)
def test_the_differences_explain_what_breaks(old: Any, new: Any) -> None:
    """Something breaks if and only if a field says so, and the registry's own check agrees."""
    whole = comparison(old, new)
    assert whole.new_reads_old == all(each.new_reads_old for each in whole.differences)
    assert whole.old_reads_new == all(each.old_reads_new for each in whole.differences)
    may_follow = {
        Level.BACKWARD: whole.new_reads_old,
        Level.FORWARD: whole.old_reads_new,
        Level.FULL: whole.new_reads_old and whole.old_reads_new,
        Level.NONE: True,
    }
    for level, is_allowed in may_follow.items():
        problems = incompatibilities(level, json.dumps(new), [(1, json.dumps(old))])
        assert is_allowed is not bool(problems)
