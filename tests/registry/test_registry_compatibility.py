"""Schema identity and compatibility levels, as pure functions."""

import json
import re
import uuid
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.registry.compatibility import Level, incompatibilities
from headrace.registry.schemas import SCHEMA_ID_MAX, InvalidSchemaError, id_of_guid, parse, record_name

V1: dict[str, Any] = {"type": "record", "name": "a.R", "fields": [{"name": "x", "type": "int"}]}


def with_field(default: bool = True, kind: Any = "string", schema: dict[str, Any] = V1) -> str:
    field: dict[str, Any] = {"name": "y", "type": kind}
    if default:
        field["default"] = "" if kind == "string" else None
    return json.dumps({**schema, "fields": [*schema["fields"], field]})


@pytest.mark.parametrize(
    "same",
    [
        json.dumps(V1, indent=4),
        '{"name":"R","namespace":"a","type":"record","fields":[{"type":"int","name":"x"}]}',
        '{"name":"a.R","type":"record","fields":[{"type":{"type":"int"},"name":"x"}]}',
        json.dumps({**V1, "aliases": []}),
        json.dumps({**V1, "fields": [{"name": "x", "type": "int", "order": "ascending", "aliases": []}]}),
        json.dumps({**V1, "__fastavro_parsed": True, "__named_schemas": {"a.R": V1}}),
        json.dumps(fastavro.parse_schema(V1, _write_hint=True)),
    ],
)
def test_spelling_does_not_change_the_id(same: str) -> None:
    """Neither does what Java's Avro leaves out when it prints a schema."""
    assert parse(same).schema_id == parse(json.dumps(V1)).schema_id
    assert parse(same).is_same_as(parse(json.dumps(V1)))


@pytest.mark.parametrize(
    "other",
    [
        {**V1, "doc": "words"},
        {**V1, "name": "b.R"},
        {**V1, "aliases": ["Q"]},
        {**V1, "fields": [{"name": "x", "type": "int", "default": 0}]},
        {**V1, "fields": [{"name": "x", "type": {"type": "int", "logicalType": "date"}}]},
        {**V1, "fields": [{"name": "x", "type": "int", "team": "web"}]},
    ],
)
def test_every_meaningful_change_changes_the_id(other: dict[str, Any]) -> None:
    assert parse(json.dumps(other)).schema_id != parse(json.dumps(V1)).schema_id


def test_an_empty_namespace_is_that_without_a_name() -> None:
    """Within a record of another namespace, too: Java's Avro prints types without a namespace so."""
    inner = {
        "type": "record",
        "name": "In",
        "namespace": "",
        "fields": [
            {"name": "next", "type": ["null", "In"]},
            {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["B"]}, "default": "B"},
        ],
    }
    fields: list[dict[str, Any]] = [
        {"name": "one", "type": {"type": "enum", "name": "E", "symbols": ["A"]}},
        {"name": "in", "type": inner},
        {"name": "two", "type": "E", "default": "A"},
    ]
    parsed = parse(json.dumps({"type": "record", "name": "x.Outer", "fields": fields}))
    again = parse(parsed.normal_text)
    assert again.is_same_as(parsed)
    assert again.normal_text == parsed.normal_text
    assert '"name":"x.E"' in parsed.normal_text
    assert '"name":"E","namespace":""' not in parsed.normal_text, "the record around it has none either"
    assert not incompatibilities(Level.FULL, parsed.normal_text, [(1, parsed.text)])
    fields[2]["default"] = "B"
    with pytest.raises(InvalidSchemaError, match="Default value 'B' does not fit its type 'E'"):
        parse(json.dumps({"type": "record", "name": "x.Outer", "fields": fields}))


def test_an_alias_is_one_in_short_and_in_full() -> None:
    short, full = ({**V1, "aliases": [name]} for name in ("Q", "a.Q"))
    assert parse(json.dumps(short)).is_same_as(parse(json.dumps(full)))
    assert not parse(json.dumps(short)).is_same_as(parse(json.dumps({**V1, "aliases": ["b.Q"]})))


def test_fastavros_marks_are_not_stored() -> None:
    inner = {"type": "record", "name": "I", "fields": [], "__fastavro_parsed": True}
    marked = {**V1, "fields": [{"name": "i", "type": inner}], "__named_schemas": {}}
    assert "__" not in parse(json.dumps(marked)).text


@pytest.mark.parametrize(("one", "other"), [("1", "true"), ("0", "false"), ("1", '"1"')])
def test_values_that_python_takes_for_equal_make_two_schemas(one: str, other: str) -> None:
    """In Python, 1 == True."""
    first, second = (parse(f'{{"type":"string","custom":{value}}}') for value in (one, other))
    assert not first.is_same_as(second) and first.guid != second.guid


def test_a_guid_is_a_uuid_that_leads_to_the_id() -> None:
    parsed = parse(json.dumps(V1))
    assert uuid.UUID(parsed.guid).version == 8 and uuid.UUID(parsed.guid).variant == uuid.RFC_4122
    assert id_of_guid(parsed.guid) == id_of_guid(parsed.guid.upper()) == parsed.schema_id
    assert id_of_guid("no guid") is None


def test_ids_are_the_same_on_every_machine() -> None:
    # Written down: a change would make every value framed so far unreadable.
    assert parse('"string"').schema_id == 1_776_665_033
    assert parse(json.dumps(V1)).schema_id == 446_091_024


@given(st.text(min_size=1, max_size=20))
def test_an_id_is_a_positive_int32_and_the_normal_form_is_stable(doc: str) -> None:
    parsed = parse(json.dumps({**V1, "doc": doc}))
    assert 1 <= parsed.schema_id <= SCHEMA_ID_MAX
    again = parse(parsed.normal_text)
    assert (again.schema_id, again.normal_text) == (parsed.schema_id, parsed.normal_text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "Expecting value"),
        ("{", "Expecting property name"),
        ("5", "int"),
        ("null", "NoneType"),
        ("{}", "type"),
        ('{"type":"nope"}', "nope"),
        ('{"type":"array"}', "lacks its attribute 'items'"),
        ('{"type":"record","name":"1x","fields":[{"name":"a","type":"int"}]}', "1x"),
        ('{"type":"record","name":"R","fields":[{"name":"a","type":"int","default":"x"}]}', "Default value"),
        (
            '{"type":"record","name":"R","fields":[{"name":"a","type":"int"},{"name":"a","type":"int"}]}',
            "already in use",
        ),
        ('["int","int"]', "already in Union"),
        ('{"type":"enum","name":"E","symbols":["a","a"]}', "unique"),
        ("[" * 100_000, "nested too deeply"),
        ('"' + "x" * 1_000_000 + '"', "longer than 900000 bytes"),
    ],
)
def test_invalid_schemas_are_refused_with_the_problem(text: str, problem: str) -> None:
    with pytest.raises(InvalidSchemaError, match=problem):
        parse(text)


@settings(max_examples=200)
@given(
    st.recursive(
        st.none() | st.booleans() | st.text(max_size=6) | st.integers(-3, 3),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["type", "name", "fields", "items", "symbols", "size", "values", "x"]), inner
            )
        ),
    )
)
def test_any_json_is_accepted_as_a_schema_or_refused(tree: Any) -> None:
    try:
        parsed = parse(json.dumps(tree))
    except InvalidSchemaError as error:
        assert str(error)
    else:
        assert parse(parsed.text).schema_id == parsed.schema_id


def test_record_names() -> None:
    assert record_name(json.dumps(V1)) == "a.R"
    assert record_name('"string"') == record_name('{"type":"string"}') == "string"
    with pytest.raises(InvalidSchemaError, match="union has no name"):
        record_name('["null","int"]')


OLD = json.dumps(V1)
ADDED_WITHOUT_DEFAULT = with_field(default=False)
ADDED_WITH_DEFAULT = with_field()


@pytest.mark.parametrize(
    ("level", "old", "new", "may"),
    [
        (Level.BACKWARD, OLD, ADDED_WITH_DEFAULT, True),
        (Level.BACKWARD, OLD, ADDED_WITHOUT_DEFAULT, False),
        (Level.BACKWARD, ADDED_WITHOUT_DEFAULT, OLD, True),
        (Level.FORWARD, OLD, ADDED_WITHOUT_DEFAULT, True),
        (Level.FORWARD, ADDED_WITHOUT_DEFAULT, OLD, False),
        (Level.FORWARD, ADDED_WITH_DEFAULT, OLD, True),
        (Level.FULL, OLD, ADDED_WITH_DEFAULT, True),
        (Level.FULL, OLD, ADDED_WITHOUT_DEFAULT, False),
        (Level.FULL, ADDED_WITHOUT_DEFAULT, OLD, False),
        (Level.NONE, OLD, '"string"', True),
        (Level.BACKWARD, '"int"', '"long"', True),
        (Level.FORWARD, '"int"', '"long"', False),
    ],
)
def test_levels(level: Level, old: str, new: str, may: bool) -> None:
    assert (incompatibilities(level, new, [(1, old)]) == []) is may


def named(kind: str, name: str, namespace: str = "", aliases: tuple[str, ...] = ()) -> dict[str, Any]:
    rests: dict[str, Any] = {
        "record": {"fields": []},
        "enum": {"symbols": ["A"]},
        "fixed": {"size": 4},
    }
    return {"type": kind, "name": name, "namespace": namespace, "aliases": list(aliases), **rests[kind]}


@pytest.mark.parametrize("kind", ["record", "enum", "fixed"])
@pytest.mark.parametrize(
    ("old_namespace", "alias", "may"),
    [("x", "Old", True), ("x", "x.Old", True), ("", "Old", False), ("y", "Old", False), ("y", "y.Old", True)],
)
def test_an_alias_without_a_dot_is_in_its_types_own_namespace(
    kind: str, old_namespace: str, alias: str, may: bool
) -> None:
    old, new = named(kind, "Old", old_namespace), named(kind, "New", "x", (alias,))
    for wrap in (lambda each: each, lambda each: ["null", each], lambda each: inside(each)):
        found = incompatibilities(Level.BACKWARD, json.dumps(wrap(new)), [(1, json.dumps(wrap(old)))])
        assert (not found) is may, found


def inside(each: dict[str, Any]) -> dict[str, Any]:
    """A record with a field of this type, which is in the record's namespace and does not name it."""
    kept = {key: value for key, value in each.items() if key != "namespace"}
    fields = [{"name": "f", "type": kept}]
    return {"type": "record", "name": "Outer", "namespace": each["namespace"], "fields": fields}


def test_only_transitive_levels_check_versions_before_the_last() -> None:
    history = [(1, OLD), (2, ADDED_WITH_DEFAULT)]
    new = ADDED_WITHOUT_DEFAULT  # follows version 2, but cannot read version 1
    assert incompatibilities(Level.BACKWARD, new, history) == []
    reasons = incompatibilities(Level.BACKWARD_TRANSITIVE, new, history)
    assert len(reasons) == 2 and "version 1 (writer)" in reasons[0]


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (OLD, ADDED_WITHOUT_DEFAULT, "READER_FIELD_MISSING_DEFAULT_VALUE: .*: y at /fields/1"),
        (OLD, json.dumps({**V1, "name": "a.Q"}), r"NAME_MISMATCH: .*: expected: a\.R at /name"),
        (
            '"string"',
            '"int"',
            "TYPE_MISMATCH: .*: reader type: int not compatible with writer type: string at /",
        ),
        ('["null","int"]', '["null","string"]', "MISSING_UNION_BRANCH: .*INT at /1"),
        (
            '{"type":"enum","name":"E","symbols":["A","B"]}',
            '{"type":"enum","name":"E","symbols":["A"]}',
            "MISSING_ENUM_SYMBOLS: .*'B'.* at /symbols",
        ),
        (
            '{"type":"fixed","name":"F","size":4}',
            '{"type":"fixed","name":"F","size":8}',
            "FIXED_SIZE_MISMATCH: .*: expected: 4, found: 8 at /size",
        ),
    ],
)
def test_problems_name_their_kind_their_subject_and_their_place(old: str, new: str, problem: str) -> None:
    (reason, level) = incompatibilities(Level.BACKWARD, new, [(3, old)])
    assert reason.startswith("the new schema (reader) and version 3 (writer): ")
    assert re.search(problem, reason), reason
    assert level == "compatibility: BACKWARD"


def test_all_of_several_problems_are_listed() -> None:
    new = json.dumps({**V1, "fields": [{"name": n, "type": "int"} for n in ("x", "p", "q")]})
    (reason, _) = incompatibilities(Level.BACKWARD, new, [(1, OLD)])
    assert "(2 times)" in reason and "p, q at /fields/1, /fields/2" in reason
