"""A commit of many partitions: few transactions, none too large, and none that waits for others' writes."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fix_group_offsets import store_offsets
from fix_zookeeper import ZooKeeperRoom
from headrace.broker.groups import offset_nodes
from headrace.broker.groups.offset_nodes import AT_ONCE_MAX, AT_ONCE_MAX_BYTES, Committed, Offsets
from headrace.coordination import znodes
from headrace.coordination.consumers import ConsumerRegistry
from headrace.coordination.errors import BadVersionError
from headrace.coordination.session import ZooKeeperSession
from headrace.coordination.topics import TopicRegistry
from headrace.coordination.transaction import Transaction

GROUP = "g"
KEYS = st.tuples(st.sampled_from(["t", "u" * 249]), st.integers(0, 2000))
METADATA = st.one_of(st.just(""), st.sampled_from(["words", "é" * 2000, "x" * (512 << 10)]))


class Counted(ZooKeeperSession):
    """Counts its transactions, and calls `meanwhile` before each."""

    count = 0

    def meanwhile(self, number: int, verbs: Mapping[str, str]) -> None:
        """`verbs`: what the transaction of this number does with each node."""

    def transaction(self) -> Transaction:
        self.count += 1
        made = super().transaction()
        commit = made.commit

        def interrupted(number: int = self.count) -> None:
            self.meanwhile(number, {path: verb for verb, path, _ in made._steps})
            commit()

        made.commit = interrupted  # type: ignore[method-assign]
        return made


@pytest.fixture
def session(zookeeper: ZooKeeperRoom) -> Iterator[Counted]:
    with Counted(zookeeper.hosts) as made:
        TopicRegistry(made).create("t", uuid.uuid4(), dict.fromkeys(range(1000), (1,)))
        store_offsets(made, GROUP, {("t", 0): Committed(1)})
        made.count = 0
        yield made


@pytest.mark.parametrize("metadata", ["", "words"])
def test_a_thousand_offsets_take_few_transactions(session: Counted, metadata: str) -> None:
    for again in range(2):
        offsets = {("t", number): Committed(number + again, metadata) for number in range(1000)}
        session.count = 0
        store_offsets(session, GROUP, offsets)
        # Nodes are created once it is known that they are not there.
        assert session.count == (1 if again else 2) * 1000 / AT_ONCE_MAX
        assert offset_nodes.read(session, GROUP, None) == offsets


def test_metadata_of_any_length_fits(session: Counted) -> None:
    offsets = {("t", number): Committed(number, "x" * (300 << 10)) for number in range(4)}
    store_offsets(session, GROUP, offsets)
    assert offset_nodes.read(session, GROUP, offsets) == offsets


def test_offsets_that_others_create_or_delete_meanwhile_are_stored(session: Counted) -> None:
    """Paper-style consumers commit one by one, and a topic that is deleted takes its offsets along."""
    paper = ConsumerRegistry(session, GROUP)

    def meanwhile(number: int, verbs: Mapping[str, str]) -> None:
        if number == 2:  # the first has found that most are new
            paper.commit("t", 7, 3)
        elif number == 3:
            session.delete(znodes.offset(GROUP, "t", 0))

    session.meanwhile = meanwhile  # type: ignore[method-assign]
    offsets = {("t", number): Committed(number + 10, "words") for number in range(20)}
    store_offsets(session, GROUP, offsets)
    assert session.count == 4
    assert offset_nodes.read(session, GROUP, None) == offsets


def test_one_offset_that_is_disputed_without_end_holds_up_no_other(session: Counted) -> None:
    disputed = znodes.offset(GROUP, "t", 7)

    def meanwhile(number: int, verbs: Mapping[str, str]) -> None:
        if verbs.get(disputed) == "create":
            session.create(disputed, b"3")
        elif verbs.get(disputed) == "set" and session.exists(disputed) is not None:
            session.delete(disputed)

    session.meanwhile = meanwhile  # type: ignore[method-assign]
    offsets = {("t", number): Committed(number + 10) for number in (*range(7), *range(8, 20), 7)}
    with pytest.raises(BadVersionError, match="/t/7 was created or deleted concurrently in 5 attempts"):
        store_offsets(session, GROUP, offsets)
    session.meanwhile = lambda number, verbs: None  # type: ignore[method-assign]
    found = offset_nodes.read(session, GROUP, None)
    del offsets["t", 7]
    found.pop(("t", 7), None)
    assert found == offsets


@settings(max_examples=100)
@given(st.dictionaries(KEYS, st.builds(Committed, st.integers(-1, 1 << 62), METADATA), max_size=250))
def test_every_offset_is_in_one_transaction_that_fits(offsets: Offsets) -> None:
    together: list[tuple[tuple[str, int], Committed]] = []
    for some in offset_nodes.in_transactions("集団" * 100, offsets):
        assert 0 < len(some) <= AT_ONCE_MAX
        size_bytes = sum(len(each.metadata.encode()) for each in some.values())
        assert len(some) == 1 or size_bytes <= AT_ONCE_MAX_BYTES
        together += some.items()
    assert together == list(offsets.items())
