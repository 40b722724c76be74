"""The copy of all subjects in memory: what it reads again, and that it shows what was answered."""

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from fix_zookeeper import ZooKeeperRoom
from headrace.coordination.errors import CorruptNodeError
from headrace.coordination.session import ZooKeeperSession
from headrace.registry.store import SchemaStore
from headrace.registry.subjects import SUBJECTS, StoredSchema, Subject, SubjectVersion
from headrace.registry.view import SubjectsView

COUNT = 300


class Counting(ZooKeeperSession):
    """Notes which nodes are read."""

    def __init__(self, hosts: str) -> None:
        super().__init__(hosts, timeout_s=4.0, call_timeout_s=20.0, name="counting")
        self.read: list[str] = []

    def get_many(self, paths: Iterable[str], *, fired: Callable[[Any], None] | None = None) -> Any:
        listed = list(paths)
        self.read += listed
        return super().get_many(listed, fired=fired)


@pytest.fixture
def session(zookeeper: ZooKeeperRoom) -> Iterator[Counting]:
    with Counting(zookeeper.hosts) as session:
        yield session


@pytest.fixture
def other(zookeeper: ZooKeeperRoom) -> Iterator[SchemaStore]:
    """Another registry's store."""
    with zookeeper.session() as session:
        store = SchemaStore(session)
        store.prepare()
        yield store


def add(store: SchemaStore, name: str, schema_id: int) -> SubjectVersion:
    schema = StoredSchema(json.dumps({"type": "string", "n": schema_id}))
    return store.add(name, schema_id, schema, is_same=lambda _: True, decide=lambda _: None)


def without_versions(subject: Subject) -> Subject:
    return Subject(subject.name, (), subject.last)


def test_a_change_reads_one_subject_again(session: Counting, other: SchemaStore) -> None:
    for number in range(COUNT):
        add(other, f"s{number:03d}", number)
    view = SubjectsView(session, lambda _: None)
    assert [subject.name for subject in view.current().subjects] == [f"s{n:03d}" for n in range(COUNT)]
    assert len(session.read) == COUNT
    session.read.clear()
    assert view.current() is view.current() and session.read == [], "nothing changed, nothing is read"
    for round_ in range(20):
        add(other, "s007", 1_000 + round_)
        assert view.current().by_name["s007"].last == round_ + 2, "at once"
        assert session.read == [f"{SUBJECTS}/s007"]
        session.read.clear()
    add(other, "new", 7)
    assert view.current().users[7] == {"new", "s007"}
    other.change("s007", without_versions)
    assert "s007" not in view.current().by_name and view.current().users[7] == {"new"}
    assert 1_000 not in view.current().users
    assert set(session.read) <= {f"{SUBJECTS}/new", f"{SUBJECTS}/s007"}


def test_names_of_any_spelling_are_followed(session: Counting, other: SchemaStore) -> None:
    view = SubjectsView(session, lambda _: None)
    names = ["a/b", "..", ".", "ü%2F", "a b"]
    for number, name in enumerate(names):
        add(other, name, number)
        assert name in view.current().by_name
    for name in names:
        add(other, name, 99)
        assert view.current().by_name[name].last == 2
    assert view.current().users[99] == set(names)


def test_after_a_lost_session_everything_is_read_again(
    session: Counting, other: SchemaStore, zookeeper: ZooKeeperRoom
) -> None:
    add(other, "s", 1)
    view = SubjectsView(session, lambda _: None)
    view.current()
    zookeeper.expire(session)
    assert session.wait_connected(60)
    add(other, "s", 2)
    add(other, "t", 3)
    assert [v.schema_id for v in view.present().by_name["s"].versions] == [1, 2]
    add(other, "t", 4)
    assert view.present().by_name["t"].last == 2, "its watches are set again"


def test_a_node_that_rotted_is_left_out_and_the_others_are_listed(
    session: Counting, other: SchemaStore
) -> None:
    add(other, "good", 1)
    for name, data in (("bad", b"\xff"), ("worse", b"[]"), ("worst", b'{"version":1,"versions":[[1]]}')):
        session.create(f"{SUBJECTS}/{name}", data)
    view = SubjectsView(session, lambda _: None)
    assert [subject.name for subject in view.current().subjects] == ["good"]
    with pytest.raises(CorruptNodeError, match="bad"):
        other.subject("bad")


def test_a_schema_that_another_subject_got_meanwhile_is_not_deleted(
    session: Counting, other: SchemaStore
) -> None:
    store = SchemaStore(session)
    add(store, "a", 1)
    add(other, "b", 1)
    store.change("a", without_versions)
    assert store.schema(1) is not None and other.schema(1) is not None
    other.change("b", without_versions)
    assert other.schema(1) is None
