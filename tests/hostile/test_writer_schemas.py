"""Which schemas a load uses: no stranger's one stops it, or keeps it busy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from headrace.registry.urls import NamedUrl
from headrace.registry.workers import Lane
from headrace.warehouse import schemas as rules
from headrace.warehouse.decode import ADDRESS_COLUMNS, HOUR_COLUMN
from headrace.warehouse.reasons import reason
from headrace.warehouse.schema_bounds import (
    DEPTH_MAX,
    OUR_COLUMNS,
    is_shallow,
    no_table,
    unusable,
)
from headrace.warehouse.schemas import (
    FOREIGN_MAX,
    IncompatibleSchemaError,
    Registries,
    SchemasError,
    TopicSchemas,
    WriterSchema,
    with_writers,
)
from headrace.warehouse.session import python_files
from headrace.warehouse.written_out import WRITTEN_OUT_MAX

NUMBER = {"name": "n", "type": "long"}


def record(*fields: dict[str, Any], name: str = "R") -> str:
    return json.dumps({"type": "record", "name": name, "fields": list(fields)})


def doubled(levels: int, innermost: Any = "long") -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "record", "name": "D", "fields": [{"name": "x", "type": innermost}]}
    for level in range(levels):
        fields = [{"name": "one", "type": schema}, {"name": "two", "type": schema["name"]}]
        schema = {"type": "record", "name": f"D{level}", "fields": fields}
    return schema


OWN = WriterSchema(1, 1, record(NUMBER))
LINK = record({"name": "next", "type": ["null", "R"]})


class FakeRegistries(Registries):
    """Knows these texts by id; notes what is asked."""

    def __init__(self, texts: dict[int, str]) -> None:
        self.known = texts
        self.asked: list[int] = []

    def texts(self, schema_id: int) -> list[tuple[NamedUrl, str]]:
        self.asked.append(schema_id)
        text = self.known.get(schema_id)
        return [] if text is None else [(NamedUrl("http://a"), text)]


def extended(texts: dict[int, str], wanted: Sequence[int] = ()) -> TopicSchemas:
    return with_writers(TopicSchemas("s", OWN, (OWN,)), wanted or list(texts), FakeRegistries(texts))


def test_a_strangers_schema_never_refuses_a_load() -> None:
    found = extended({7: record(NUMBER, name="Other"), 8: record({"name": "more", "type": "int"}, NUMBER)})
    assert [writer.schema_id for writer in found.writers] == [1, 8]
    [(refused, problem)] = found.refused
    assert refused.schema_id == 7 and "NAME_MISMATCH" in problem
    found.refuse([1, 7, 8])
    own = TopicSchemas("s", OWN, (OWN,), ((WriterSchema(7, 2, "…"), "a problem"),))
    with pytest.raises(IncompatibleSchemaError):
        own.refuse([7])
    said = reason(b"\0\0\0\0\7", 7, 0, {1: OWN.text}, OWN.text, {7: problem})
    assert said.startswith("schema 7, not of this subject, can't be read: ") and "NAME_MISMATCH" in said


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (doubled(45), f"more than {WRITTEN_OUT_MAX} types"),
        (doubled(45, "null"), "without bytes"),
        ({"type": "array", "items": "null"}, "could have no end"),
        ("Nowhere", "can't be parsed"),
        ([], ""),
        (json.loads(LINK), ""),
        (doubled(8), ""),
    ],
    ids=["doubled", "of nothing", "endless", "unknown", "no branch", "itself", "a few"],
)
def test_schemas_that_no_load_can_use(more: Any, problem: str) -> None:
    text = json.dumps({"type": "record", "name": "X", "fields": [{"name": "more", "type": more}]})
    assert problem in unusable(text) and bool(problem) == bool(unusable(text))
    if problem and "parsed" not in problem:
        found = extended({7: record({"name": "more", "type": more}, NUMBER)})
        assert problem in found.refused[0][1]


def test_unreadable_text_is_no_schema() -> None:
    for text in ("", "{", "nonsense", "[" * 100_000, '{"type": "record"}', "7"):
        assert unusable(text)


def test_comparing_takes_no_longer_than_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hasty(Lane):
        def __init__(self, name: str) -> None:
            super().__init__(name, task_max_s=0)

    monkeypatch.setattr(rules, "Lane", Hasty)
    assert "takes more than" in extended({7: record(NUMBER)}).refused[0][1]
    monkeypatch.setattr(rules, "FOREIGN_MAX_S", -1.0)
    assert "it was not compared" in extended({7: record(NUMBER)}).refused[0][1]


def test_no_more_than_a_bound_of_ids_are_looked_up_and_the_frequent_ones_first() -> None:
    wanted = [100, *range(1_000, 1_000 + 2 * FOREIGN_MAX)]
    registries = FakeRegistries({100: record({"name": "more", "type": "int"}, NUMBER)})
    found = with_writers(TopicSchemas("s", OWN, (OWN,)), wanted, registries)
    assert registries.asked == wanted[:FOREIGN_MAX]
    assert [writer.schema_id for writer in found.writers] == [1, 100]
    assert len(found.refused) == len(wanted) - FOREIGN_MAX and "not looked up" in found.refused[0][1]
    with_writers(found, wanted[FOREIGN_MAX:], registries)
    assert len(registries.asked) == FOREIGN_MAX, "once a load"


def test_a_readers_schema_that_makes_no_table_is_an_error_that_names_it() -> None:
    for text, problem in ((LINK, "refers to itself"), (json.dumps(doubled(45)), "more than")):
        reader = WriterSchema(1, 3, text)
        with pytest.raises(SchemasError, match=f"subject s: version 3 makes no table: .*{problem}"):
            rules.with_reader(TopicSchemas("s", OWN, (OWN,)), reader)


EMPTY: Any = {"type": "record", "name": "Empty", "fields": []}
MIXED: Any = {"type": "record", "name": "Mixed", "fields": [NUMBER, {"name": "N", "type": "int"}]}
WIDE: Any = {"type": "bytes", "logicalType": "decimal", "precision": 39}


@pytest.mark.parametrize(
    ("field", "problem"),
    [
        (("f", EMPTY), "f is a record without fields"),
        (("f", {"type": "map", "values": ["null", EMPTY]}), "f is a record without fields"),
        (("f", ["null"]), "f is a union without a type besides null"),
        (("f", {"type": "array", "items": []}), "f is a union without a type besides null"),
        (("f", MIXED), "f has two fields whose names differ in case only, such as n"),
        (("f", {"type": "array", "items": WIDE}), "f is a decimal of more than 38 digits"),
        (("f", {"type": "record", "name": "I", "fields": [{"name": "g", "type": WIDE}]}), "f.g is a decimal"),
        (("N", "int"), "its field n has the name of"),
        (("_Hour", "int"), "its field _Hour has the name of"),
        (("_partition", "int"), "its field _partition has the name of"),
    ],
)
def test_a_field_that_makes_no_column_is_named(field: tuple[str, Any], problem: str) -> None:
    """Spark's error named no schema, and for an empty record in a map it was a trace of Java's."""
    reader = WriterSchema(1, 3, record(NUMBER, {"name": field[0], "type": field[1]}))
    with pytest.raises(SchemasError, match=f"version 3 makes no table: {problem}"):
        rules.with_reader(TopicSchemas("s", OWN, (OWN,)), reader)
    assert (HOUR_COLUMN, *ADDRESS_COLUMNS) == OUR_COLUMNS


@pytest.mark.parametrize("kind", ["null", {"type": "array", "items": "null"}, {**WIDE, "precision": 38}])
def test_what_does_make_a_column(kind: Any) -> None:
    assert not no_table(record(NUMBER, {"name": "f", "type": kind}))
    assert not no_table(json.dumps(EMPTY))


def test_how_deep_a_value_may_nest() -> None:
    assert is_shallow(b"\2" * (DEPTH_MAX - 2) + b"\0", LINK)
    for payload in (b"\2" * (DEPTH_MAX + 1) + b"\0", b"\2" * 1_000_000, b"\7", b""):
        assert not is_shallow(payload, LINK)
    said = reason(b"\0\0\0\0\7" + b"\2" * 100 + b"\0", 7, 0, {7: LINK})
    assert said == f"the value nests more than {DEPTH_MAX} deep by schema 7, which refers to itself"


IMPORTED_BY_EXECUTORS = """
import sys
sys.path[:0] = [sys.argv[1], sys.argv[2]]
import headrace.warehouse.reasons, headrace.warehouse.schema_bounds, headrace.warehouse.staging_task
import headrace.warehouse.source.reader
for name in ("httpx", "kazoo", "avro"):
    assert name not in sys.modules, name
print(headrace.warehouse.reasons.__file__)
"""


def test_executors_get_all_that_they_import(tmp_path: Path) -> None:
    """The reasons of dead letters were not among it: on a cluster, one bad record failed each load."""
    shipped = tmp_path / "headrace.zip"
    shipped.write_bytes(python_files())
    libraries = Path(pytest.__file__).parents[1]
    command = [sys.executable, "-S", "-c", IMPORTED_BY_EXECUTORS, str(shipped), str(libraries)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert str(shipped) in done.stdout
