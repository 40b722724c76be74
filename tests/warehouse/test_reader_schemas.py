"""Which schema a table is read with: renames, registries that disagree or are silent. No Spark, no HDFS."""

import json
from dataclasses import replace

import pytest

from headrace.coordination.errors import ZooKeeperUnavailableError
from headrace.registry.client import RegisteredSchema, SchemaConflictError
from headrace.registry.errors import (
    SCHEMA_NOT_FOUND,
    SUBJECT_NOT_FOUND,
    RegistryError,
    RegistryUnavailableError,
)
from headrace.warehouse import by_datacenter, schemas, tables
from headrace.warehouse.by_datacenter import Share, for_each_source
from headrace.warehouse.decode import ADDRESS_COLUMNS
from headrace.warehouse.errors import known_error
from headrace.warehouse.evolution import columns
from headrace.warehouse.manifest import (
    FileSchema,
)
from headrace.warehouse.options import WarehouseOptions
from headrace.warehouse.schemas import Registries, SchemasError, in_field_names, topic_schemas


def test_renames_follow_aliases_only() -> None:
    old = '{"type":"record","name":"E","fields":[{"name":"a","type":"int"},{"name":"b","type":"int"}]}'
    new = (
        '{"type":"record","name":"E","fields":[{"name":"c","type":"int","aliases":["a","z"]},'
        '{"name":"b","type":"int","aliases":["a"]}]}'
    )
    found = columns(new, old)
    assert {old: new for new, (old, _) in found.items() if old != new} == {"a": "c"}


def test_pointers_into_a_schema_become_field_names() -> None:
    inner = {"type": "record", "name": "I", "fields": [{"name": "b", "type": "int"}]}
    schema = json.dumps({"type": "record", "name": "E", "fields": [{"name": "a", "type": inner}]})
    assert in_field_names("bad at /fields/0/type/fields/0/type", schema) == "bad at field a.b"
    assert in_field_names("bad at /fields/9/type", schema) == "bad at /fields/9/type"


V1 = '{"type":"record","name":"E","fields":[{"name":"a","type":"int"}]}'
V2 = (
    '{"type":"record","name":"E","fields":[{"name":"a","type":"int"},'
    '{"name":"b","type":["null","int"],"default":null}]}'
)
KNOWN = {
    "http://one": {"s": [(1, 11, V1)]},
    "http://two": {"s": [(1, 11, V1), (2, 12, V2)]},
    "http://none": {},
}


class FakeRegistry:
    """A registry that has `KNOWN[url]`, or does not answer."""

    def __init__(self, url: str, **_: object) -> None:
        self.url = url

    def versions(self, subject: str) -> list[int]:
        if self.url not in KNOWN:
            raise RegistryUnavailableError(f"{self.url} doesn't answer")
        if subject not in KNOWN[self.url]:
            raise RegistryError(SUBJECT_NOT_FOUND, "no subject")
        return [version for version, _, _ in KNOWN[self.url][subject]]

    def version(self, subject: str, version: int) -> RegisteredSchema:
        [found] = [each for each in KNOWN[self.url][subject] if each[0] == version]
        return RegisteredSchema(subject, *found)

    def get_by_id(self, schema_id: int) -> str:
        self.versions("s")
        for _, known_id, text in KNOWN[self.url]["s"]:
            if known_id == schema_id:
                return text
        raise RegistryError(SCHEMA_NOT_FOUND, "no schema")

    def close(self) -> None:
        pass


def test_the_reader_is_from_the_registry_with_the_most_versions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(schemas, "SchemaRegistryClient", FakeRegistry)
    for urls in ("http://one,http://none,http://two", "http://two,http://one"):
        with Registries(urls) as registries:
            found = topic_schemas("s", registries)
            assert (found.reader.schema_id, [each.schema_id for each in found.writers]) == (12, [11, 12])
            assert registries.text(12) == V2
            assert registries.text(13) is None
            registries.check_all_answered()
            with pytest.raises(SchemasError, match="no registry has the subject other"):
                topic_schemas("other", registries)


def test_an_unavailable_registry_is_skipped_if_another_has_the_schema(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(schemas, "SchemaRegistryClient", FakeRegistry)
    with Registries("http://down,http://two") as registries:
        assert topic_schemas("s", registries).reader.schema_id == 12
        with pytest.raises(RegistryUnavailableError):
            registries.check_all_answered()
    with Registries("http://none,http://down") as registries, pytest.raises(RegistryUnavailableError):
        topic_schemas("s", registries)


def test_two_schemas_for_one_id_name_both_datacenters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schemas, "SchemaRegistryClient", FakeRegistry)
    monkeypatch.setitem(KNOWN, "http://three", {"s": [(1, 11, V1.replace('"E"', '"F"'))]})
    with Registries("east=http://one,west=http://three") as registries:
        named = r"id 11 is E at east \(http://one\) and F at west \(http://three\)"
        with pytest.raises(SchemaConflictError, match=named):
            registries.text(11)
        with pytest.raises(SchemaConflictError, match="id 11 is"):
            topic_schemas("s", registries)
        with registries.of_datacenter("west") as west:
            assert '"F"' in (west.text(11) or "")
        with pytest.raises(SchemasError, match="north=http"):
            registries.of_datacenter("north")


def test_a_table_is_read_with_the_schema_that_its_files_were_written_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(schemas, "SchemaRegistryClient", FakeRegistry)
    other = V1.replace('"a"', '"z"')
    monkeypatch.setitem(KNOWN, "http://three", {"s": [(1, 11, other)]})
    with Registries("east=http://one,west=http://three") as registries:
        assert tables._text(registries, FileSchema(11, "west"), None) == other
        assert tables._text(registries, FileSchema(11, "east"), None) == V1
        # The files are older than the contradiction: their columns tell.
        assert tables._text(registries, FileSchema(11), ["z", *ADDRESS_COLUMNS]) == other
        assert tables._text(registries, FileSchema(11), ["a", *ADDRESS_COLUMNS]) == V1
        for columns in (None, ["b", *ADDRESS_COLUMNS]):
            with pytest.raises(SchemaConflictError, match="id 11 is"):
                tables._text(registries, FileSchema(11), columns)
        with pytest.raises(SchemasError, match="no registry knows schema id 12"):
            tables._text(registries, FileSchema(12, "east"), None)


SHARED = (V1, V1.replace('"a"', '"z"'))


@pytest.fixture
def two_meanings(monkeypatch: pytest.MonkeyPatch) -> WarehouseOptions:
    """East and west mean different schemas by id 11; north has the newest version."""
    monkeypatch.setattr(schemas, "SchemaRegistryClient", FakeRegistry)
    monkeypatch.setitem(KNOWN, "http://east", {"s": [(1, 11, SHARED[0])]})
    monkeypatch.setitem(KNOWN, "http://west", {"s": [(1, 11, SHARED[1])]})
    monkeypatch.setitem(KNOWN, "http://north", {"s": [(1, 11, SHARED[0]), (2, 12, V2)]})
    monkeypatch.setattr(by_datacenter, "_sources", lambda *_: ["west", "east", "west"])
    urls = "east=http://east,west=http://west,north=http://north"
    return WarehouseOptions("", "", "", urls, datacenter="north")


def work_of(share: Share) -> tuple[str | None, list[int], str, str | None]:
    found = share.schemas("s")
    numbers = [number for number in range(4) if share.has(number)]
    return share.datacenter, numbers, found.writers[0].text if found.writers else "", found.reader.datacenter


def test_work_is_done_for_each_source_where_registries_contradict(two_meanings: WarehouseOptions) -> None:
    done = for_each_source(two_meanings, "t", "s", lambda: [0, 1, 2], work_of)
    # The table's columns are the same, whichever partitions have news.
    assert {each[3] for each in done} == {"east"}
    assert [each[:2] for each in done] == [("west", [0, 2]), ("east", [1])]
    assert done[1][2] == SHARED[0]
    [(name, numbers, _, reader)] = for_each_source(two_meanings, "t", "s", lambda: [2], work_of)
    assert (name, numbers, reader) == ("west", [2], "east")
    # A partition without a source is the warehouse's own, with the newest version of all.
    done = for_each_source(two_meanings, "t", "s", lambda: [0, 3], work_of)
    assert [each[:2] for each in done] == [("west", [0]), ("north", [3])]
    assert {each[3] for each in done} == {"north"}


def test_work_is_done_once_where_registries_agree(two_meanings: WarehouseOptions) -> None:
    agreeing = replace(two_meanings, registry_url="east=http://east,north=http://north")
    [(name, numbers, _, reader)] = for_each_source(agreeing, "t", "s", list, work_of)
    assert (name, numbers, reader) == (None, [0, 1, 2, 3], None)


def test_a_zookeeper_that_is_down_is_named_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """A load under Airflow ended with a traceback."""
    monkeypatch.setattr(schemas, "SchemaRegistryClient", FakeRegistry)
    monkeypatch.setattr(by_datacenter, "CONNECT_TIMEOUT_S", 0.5)
    monkeypatch.setitem(KNOWN, "http://three", {"s": [(1, 11, V1.replace('"E"', '"F"'))]})
    nobody = WarehouseOptions("", "", "", "east=http://one,west=http://three", zookeeper="127.0.0.1:1")
    with pytest.raises(ZooKeeperUnavailableError) as caught:
        for_each_source(nobody, "t", "s", list, work_of)
    line = known_error(caught.value, "load t")
    assert line == "load t: no ZooKeeper answered at 127.0.0.1:1 within 0.5 s; is it running there?"
