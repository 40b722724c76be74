"""Values read by another schema than they were written by: they stay what they are, and mean what it says."""

from __future__ import annotations

import copy
import json
import random
import time
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pytest

from fuzzing.avro import AvroWriter
from headrace.registry.resolving import TooManyPartsError, resolved
from headrace.registry.value_reading import ValueReader

LATER = {"name": "later", "type": "int", "default": 7}
MOMENT = {"type": "long", "logicalType": "timestamp-millis"}
DAY = {"type": "int", "logicalType": "date"}
PRICE = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}


def record(*fields: Any, name: str = "a.R") -> Any:
    return {"type": "record", "name": name, "fields": list(fields)}


def field(kind: Any, name: str = "f", **others: Any) -> Any:
    return {"name": name, "type": kind, **others}


def read(payload: bytes, writer: Any, reader: Any = None) -> Any:
    parsed = None if reader is None else fastavro.parse_schema(copy.deepcopy(reader))
    value, left = ValueReader(json.dumps(writer), parsed).read(payload)
    assert left == 0
    return value


def written(schema: Any, value: Any) -> bytes:
    return AvroWriter(random.Random(1), schema, 0).write(value)


X = [record(field("int", "q"), name=f"{space}.X") for space in "ab"]
NEWER_X = [
    record(field("int", "q"), field("string", "w", default=space), name=f"{space}.X") for space in "ab"
]
E = [{"type": "enum", "name": f"{space}.E", "symbols": [symbol]} for space, symbol in ("aP", "bQ")]


@pytest.mark.parametrize(
    ("kind", "data", "value"),
    [
        (["null", "double", "long"], b"\x04" + written("long", 2**53 + 1), 2**53 + 1),
        (["null", "string", "bytes"], b"\x04\x02\xff", b"\xff"),
        (["null", "string", "bytes"], b"\x04\x02a", b"a"),
        (["null", "bytes", "string"], b"\x04\x02a", "a"),
        (["bytes", {"type": "string", "avro.java.string": "String"}, X[0]], b"\x02\x02a", "a"),
        (["null", "string", X[1], "bytes"], b"\x06\x02a", b"a"),
        (["null", *E], b"\x04\x00", "Q"),
        ({"type": "array", "items": ["double", "long"]}, b"\x02\x02\x03\x00", [-2]),
        ({"type": "map", "values": ["string", "bytes"]}, b"\x02\x02k\x02\x02a\x00", {"k": b"a"}),
    ],
)  # fmt: skip
def test_a_field_that_nobody_changed_is_read_as_before(kind: Any, data: bytes, value: Any) -> None:
    """Another field was added: 2**53 + 1 was read as a double, bytes as text or not at all, and of two types
    with one name in two namespaces the other one was expected.
    """
    for reader in (record(field(kind), LATER), record(LATER, field(kind))):
        found = read(data, record(field(kind)), reader)
        assert found == {"f": value, "later": 7}
        assert type(found["f"]) is type(value)


def test_a_record_is_read_by_the_one_of_its_own_namespace() -> None:
    """What it lacks was filled with the default of the other one."""
    old, new = record(field(["null", *X])), record(field(["null", *NEWER_X]))
    assert read(b"\x04\x06", old, new) == {"f": {"q": 3, "w": "b"}}
    assert read(b"\x02\x06", old, new) == {"f": {"q": 3, "w": "a"}}


@pytest.mark.parametrize(
    ("old", "new", "data", "value"),
    [
        ("long", MOMENT, b"\xd0\x0f", datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)),
        (["null", "long"], ["null", MOMENT], b"\x02\xd0\x0f", datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)),
        ("int", ["null", DAY], b"\x02", date(1970, 1, 2)),
        ("bytes", PRICE, b"\x02\x7b", Decimal("1.23")),
        (MOMENT, "long", b"\xd0\x0f", 1000),
        (DAY, "long", b"\x02", 1),
        (PRICE, "bytes", b"\x02\x7b", b"\x7b"),
        (MOMENT, {**MOMENT, "logicalType": "timestamp-micros"}, b"\xd0\x0f",
         datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)),
        ("int", ["float", "long"], b"\x82\x80\x80\x10", 2**24 + 1),
        ("long", ["string", "double"], b"\x02", 1.0),
        (["int", "string"], "double", b"\x00\x02", 1.0),
    ],
)  # fmt: skip
def test_what_old_bytes_mean_is_the_readers_to_say(old: Any, new: Any, data: bytes, value: Any) -> None:
    """A field that was a long, and became a time, was a number in old events and a time in new ones."""
    found = read(data, record(field(old)), record(field(new)))["f"]
    assert (found, type(found)) == (value, type(value))


def test_aliases_and_types_that_hold_themselves() -> None:
    tree = record(field("int", "n"), field(["null", "a.Tree"], "next"), name="a.Tree")
    newer = {
        **record(
            field("string", "doc", default="?"),
            field(["null", "b.Node"], "child", aliases=["next"], default=None),
            field("long", "number", aliases=["n"]),
            name="b.Node",
        ),
        "aliases": ["a.Tree"],
    }
    inner = {"number": 2, "child": None, "doc": "?"}
    assert read(b"\x02\x02\x04\x00", tree, newer) == {"number": 1, "child": inner, "doc": "?"}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("int", "string"),
        (X[0], E[0]),
        (X[0], record(name="a.Y")),
        ("string", ["null", "int"]),
        (["null"], "int"),
    ],
)
def test_what_the_reader_cannot_read_is_an_error(old: Any, new: Any) -> None:
    with pytest.raises(Exception, match=r"(?i)mismatch"):
        read(b"\x00\x00", record(field(old)), record(field(new)))


def kind(rng: random.Random, names: list[str], depth: int = 0) -> Any:
    """A random type; `names`: of those that were defined before."""
    choice = rng.randrange(12 if depth < 3 else 6)
    if choice < 5:
        return rng.choice(
            ["int", "long", "float", "double", "string", "bytes", "boolean", MOMENT, DAY, PRICE]
        )
    if choice == 5:
        return rng.choice(names) if names else "null"
    if choice == 6:
        return {"type": "array", "items": kind(rng, names, depth + 1)}
    if choice == 7:
        return {"type": "map", "values": kind(rng, names, depth + 1)}
    if choice < 10:
        branches = {str(each): each for each in (kind(rng, names, depth + 1) for _ in range(4))}
        listed = [each for each in branches.values() if not isinstance(each, list)]
        kinds: dict[str, Any] = {}
        for each in listed:
            own = each if isinstance(each, str) else each.get("name", each["type"])
            kinds.setdefault(own, each)
        return list(kinds.values()) or "null"
    name = f"{rng.choice('ab')}.{rng.choice('XYZ')}"
    if name in names:
        return name
    names.append(name)
    if choice == 10:
        return {"type": "enum", "name": name, "symbols": ["P", "Q", "S"]}
    return record(*(field(kind(rng, names, depth + 1), f"f{i}") for i in range(3)), name=name)


def test_any_value_is_the_same_by_a_schema_with_one_more_field() -> None:
    compared = 0
    for seed in range(70):
        rng, names = random.Random(seed), list[str]()
        schema = record(*(field(kind(rng, names), f"g{i}") for i in range(3)), name="c.Top")
        try:
            fastavro.parse_schema(copy.deepcopy(schema))
            payload = AvroWriter(rng, schema, 0).write()
            before = read(payload, schema)
        except Exception:
            continue  # no schema, or a value that is in no calendar
        after = read(payload, schema, {**schema, "fields": [*schema["fields"], LATER]})
        assert repr(after) == repr({**before, "later": 7}), f"seed {seed}"
        compared += 1
    assert compared > 30


def test_thousands_of_branches_take_no_time() -> None:
    many = record(field([{"type": "fixed", "name": f"F{i}", "size": 1} for i in range(3_000)]))
    parsed = fastavro.parse_schema(many)
    began_s = time.process_time()
    resolved(parsed, parsed)
    assert time.process_time() - began_s < 5


def test_a_writers_schema_that_asks_for_millions_of_pairs_is_refused_soon() -> None:
    """Each of its 2,500 records has the name of the reader's one, and is read by its hundred fields."""
    fields = [field("int", f"f{i}") for i in range(100)]
    parsed = fastavro.parse_schema(record(field(record(*fields, name="a.X"))))
    many = record(field([record(*fields, name=f"n{i}.X") for i in range(2_500)]))
    began_s = time.process_time()
    with pytest.raises(TooManyPartsError, match="more than 200,000 parts"):
        resolved(fastavro.parse_schema(many), parsed)
    assert time.process_time() - began_s < 20


@pytest.mark.parametrize("names", ["ab", "ba"])
def test_a_field_that_is_there_by_its_own_name_is_not_found_by_an_alias(names: str) -> None:
    """Writers have both while a field is renamed. The old one's value was shown as the new one's if it came
    first; tables, and the rules of compatibility, take the own name in any order.
    """
    both = record(*(field("string", name) for name in names))
    payload = "".join({"a": "\x02A", "b": "\x02B"}[name] for name in names).encode()
    assert read(payload, both, record(field("string", "b", aliases=["a"]))) == {"b": "B"}
    third = record(field("string", "b", aliases=["a"]), field("string", "c", aliases=["a"]))
    assert read(payload, both, third) == {"b": "B", "c": "A"}
