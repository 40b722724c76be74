"""Locating copies while others work on them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID, uuid4

import pytest

from headrace.client.errors import NetworkError
from headrace.log.epochs import EpochEnd
from headrace.mirror.locating import Located, RecreatedError, locate
from headrace.mirror.side import RESUME_MAX_S, Bounds, MirrorSide
from headrace.replication.gaps import AcceptedGap
from headrace.replication.pull import DivergedError, Fetched
from headrace.wire.batch import read_header, readdress
from headrace.wire.records import Record, encode_batch

TOPIC_ID = uuid4()
BATCH = encode_batch([Record(0, 1_000, b"k", b"value")])


class Side:
    """A cluster with one partition, whose log grows by a batch whenever anybody asks for its bounds."""

    def __init__(self, count: int, growing: tuple[Side, ...] = (), epoch: int = 0) -> None:
        self.content = bytearray()
        self.growing = (self, *growing)
        self.epoch = epoch
        for _ in range(count):
            self.grow()

    def grow(self) -> None:
        batch = bytearray(BATCH)
        readdress(batch, 0, len(self.content), leader_epoch=self.epoch)
        self.content += batch

    def topic_id(self, _: str) -> UUID:
        return TOPIC_ID

    def bounds(self, _: str, partitions: list[int]) -> dict[int, Bounds]:
        found = dict.fromkeys(partitions, Bounds(0, len(self.content)))
        for side in self.growing:
            side.grow()
        return found

    def accepted_gaps(self, _: str) -> tuple[AcceptedGap, ...]:
        return ()

    def fetch(self, _topic: str, _partition: int, address: int, _max_bytes: int) -> Fetched:
        at = address // len(BATCH) * len(BATCH)
        size = read_header(self.content, at).size_bytes
        return Fetched(bytes(self.content[at : at + size]), 0, len(self.content))

    def epoch_ends(self, _: str, epochs: dict[int, int]) -> dict[int, EpochEnd]:
        return {
            partition: EpochEnd(epoch, len(self.content) if epoch == self.epoch else 0)
            for partition, epoch in epochs.items()
        }


def located(source: Side, target: Side, copied: UUID = TOPIC_ID) -> object:
    sides = cast(MirrorSide, source), cast(MirrorSide, target)
    return locate(*sides, "t", {0: 3}, copied_ids={3: copied})[0]


def test_a_second_mirror_that_appends_meanwhile_halts_nothing() -> None:
    target = Side(5)
    source = Side(5, growing=(target,))
    target.growing = (target, source)
    found = located(source, target)
    assert isinstance(found, Located)
    assert (found.address, found.topic_id) == (5 * len(BATCH), TOPIC_ID)


@pytest.mark.parametrize("count", [0, 3])
def test_a_topic_that_was_made_again_halts_copies_that_hold_something(count: int) -> None:
    found = located(Side(9), Side(count), copied=uuid4())
    assert isinstance(found, RecreatedError if count else Located)


def test_a_copy_of_another_leader_s_bytes_halts() -> None:
    found = located(Side(9, epoch=1), Side(3))
    assert isinstance(found, DivergedError)
    assert "leader epoch 0 ends at 0" in str(found)


def test_a_broker_that_does_not_answer_keeps_no_other_s_partitions_waiting() -> None:
    """Copies are located one after another: each would wait for it anew."""
    side = MirrorSide("127.0.0.1:1", client_id="test")
    asked: list[tuple[int, ...]] = []

    def list_offsets(_topic: str, _which: int, *, partitions: list[int]) -> dict[int, Any]:
        asked.append(tuple(partitions))
        if 0 in partitions:
            raise NetworkError("no response within the time allowed")
        return {each: SimpleNamespace(offset=7) for each in partitions}

    led = {0: SimpleNamespace(leader=1), 1: SimpleNamespace(leader=2), 2: SimpleNamespace(leader=-1)}
    side.admin.close()
    side.admin = cast(Any, SimpleNamespace(topic=lambda _: SimpleNamespace(partitions=led)))
    side.admin.list_offsets = cast(Any, list_offsets)  # type: ignore[method-assign]
    side.admin.close = lambda: None  # type: ignore[method-assign]
    for topic in ("one", "two"):
        found = side.bounds(topic, [0, 1, 2])
        assert found.keys() == {0, 1}
        assert isinstance(found[0], NetworkError)
        assert found[1] == Bounds(7, 7)
    assert asked == [(0,), (1,), (1,), (1,), (1,)], "the hung one was asked once"
    assert "broker 1 did not answer; it is asked again in" in str(found[0])
    side.close()


def test_a_partition_whose_leader_does_not_answer_keeps_no_other_of_its_topic_waiting() -> None:
    class Torn(Side):
        def bounds(self, topic: str, partitions: list[int]) -> dict[int, Any]:
            return {**super().bounds(topic, partitions), 0: NetworkError("no response")}

    sides = cast(MirrorSide, Torn(3)), cast(MirrorSide, Side(2))
    found = locate(*sides, "t", {0: 3, 1: 4})
    assert isinstance(found[0], NetworkError)
    assert isinstance(found[1], Located)


def test_what_lies_behind_damage_is_looked_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator restored a batch within the damage: the gap that is offered must not leave it out."""
    now_s, looked, found = 100.0, [], 500

    def first_good_after(_topic: str, _partition: int, address: int, _end: int) -> int:
        looked.append(address)
        return found

    monkeypatch.setattr("headrace.mirror.side.time.monotonic", lambda: now_s)
    side = MirrorSide("127.0.0.1:1", client_id="test")
    raw = SimpleNamespace(first_good_after=first_good_after, is_readable=lambda *_: True, close=lambda: None)
    side._raw.close()
    monkeypatch.setattr(side, "_raw", raw)
    assert [side.readable_after("t", 0, 10, 900) for _ in range(3)] == [500, 500, 500]
    assert looked == [10], "not at each look at a halted copy"
    now_s, found = now_s + RESUME_MAX_S, 300
    assert side.readable_after("t", 0, 10, 900) == 300
    side.close()
