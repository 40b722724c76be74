"""Permanent deletions: nothing is left of what they delete."""

import json
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from fix_zookeeper import ZooKeeperRoom
from headrace.registry.store import SchemaStore
from headrace.registry.subjects import SETTINGS, StoredSchema, Subject, subject_path

SCHEMA = StoredSchema(json.dumps("string"))
WAIT_MAX_S = 20.0


@pytest.fixture
def stores(zookeeper: ZooKeeperRoom) -> Iterator[list[SchemaStore]]:
    """Those of two registries."""
    with zookeeper.session() as one, zookeeper.session() as other:
        made = [SchemaStore(session) for session in (one, other)]
        made[0].prepare()
        yield made


def add(store: SchemaStore, name: str) -> None:
    store.add(name, 1, SCHEMA, is_same=lambda _: True, decide=lambda _: None)


def without_versions(subject: Subject) -> Subject:
    return Subject(subject.name, (), subject.last)


def test_the_subjects_settings_end_with_it(stores: list[SchemaStore], zookeeper: ZooKeeperRoom) -> None:
    store = stores[0]
    for name in ("a", "b"):
        add(store, name)
    store.set("a", compatibility="FULL", mode="READONLY")
    for name in ("a", "b"):
        store.change(name, without_versions, ends_settings=True)
    with zookeeper.session() as session:
        assert session.children(SETTINGS) == []
    assert store.settings("a").mode is None


def test_settings_of_which_none_is_left_leave_no_node(
    stores: list[SchemaStore], zookeeper: ZooKeeperRoom
) -> None:
    store = stores[0]
    store.set("a", mode=None)
    store.set("b", mode="READONLY", normalize=True)
    store.set("b", mode=None)
    with zookeeper.session() as session:
        assert session.children(SETTINGS) == ["s-b"]
        store.set("b", normalize=None)
        assert session.children(SETTINGS) == []


def test_two_deletions_at_once_leave_no_schema_to_each_other(
    stores: list[SchemaStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each finds the other's subject with the schema, and leaves it alone."""
    for store, name in zip(stores, "ab", strict=True):
        add(store, name)
    both_have_looked = threading.Barrier(2)

    def look(self: SchemaStore, name: str, schema_ids: Iterable[int]) -> frozenset[int]:
        found = used_elsewhere(self, name, schema_ids)
        both_have_looked.wait(WAIT_MAX_S)
        return found

    used_elsewhere = SchemaStore._used_elsewhere
    monkeypatch.setattr(SchemaStore, "_used_elsewhere", look)
    with ThreadPoolExecutor(2) as pool:
        deletions = [
            pool.submit(store.change, name, without_versions)
            for store, name in zip(stores, "ab", strict=True)
        ]
        for deletion in deletions:
            deletion.result(WAIT_MAX_S)
    assert stores[0].schema(1) is None


def test_a_schema_that_an_unreadable_subject_may_have_is_kept(
    stores: list[SchemaStore], zookeeper: ZooKeeperRoom
) -> None:
    """The subject counted as one without schemas: once it was mended, nothing read its events any more."""
    store = stores[0]
    for name in ("a", "b"):
        add(store, name)
    with zookeeper.session() as session:
        path = subject_path("b")
        sound = session.get(path).data
        session.set(path, b"\xff")
        store.change("a", without_versions)
        session.set(path, sound)
    assert [version.schema_id for version in store.subject("b").versions] == [1]
    assert store.schema(1) is not None
    store.change("b", without_versions)
    assert store.schema(1) is None
