"""A copy that cannot go on: it is located again, halts, and passes the gap that was accepted, no other."""

from __future__ import annotations

import random
from uuid import UUID

import pytest

from headrace.mirror.copying import (
    BEHIND_MAX_S,
    EMPTY_FETCHES_MAX,
    GAP_RECHECK_S,
    CopyState,
    PartitionCopy,
)
from headrace.mirror.locating import SourceGapError, _decide
from headrace.mirror.side import Bounds
from headrace.replication.gaps import AcceptedGap
from headrace.replication.pull import Fetched
from headrace.wire.primitives import NO_UUID


def test_a_source_that_does_not_hold_the_address_is_located_again() -> None:
    copy = PartitionCopy("t", 0, 0, draw=random.Random(1).random)
    copy.located(100, 100)
    copy.fetched(copy.generation, 100, Fetched(b"", 0, 50), 1.0)
    assert (copy.state, copy.problem) == (
        CopyState.LOCATING,
        "address 100 is not in the source, which holds 0 to 50",
    )
    assert not copy.needs_locating(1.0)
    assert copy.needs_locating(2.0)


def test_a_halted_copy_is_located_again_after_a_while() -> None:
    copy = PartitionCopy("t", 0, 3, draw=random.Random(1).random)
    copy.halt("the source ends behind", 10.0)
    assert copy.status()["state"] == "halted"
    assert not copy.needs_locating(60.0)
    assert copy.needs_locating(71.0)
    copy.located(5, 9)
    assert copy.status() == {
        "topic": "t",
        "partition": 0,
        "target_partition": 3,
        "source_topic_id": str(NO_UUID),
        "target_topic_id": str(NO_UUID),
        "address": 5,
        "source_end": 9,
        "lag_bytes": 4,
        "bytes_copied": 0,
        "state": "copying",
        "reason": "",
        "gap": None,
        "skipped": [],
        "skipped_bytes": 0,
    }


@pytest.mark.parametrize("now", [NO_UUID, UUID(int=8)])
def test_a_halted_copy_whose_topic_was_deleted_at_the_target_is_halted_no_more(now: UUID) -> None:
    """Its reason was the deleted topic's, and `headrace topics new` would give it as the new one's."""
    before = UUID(int=7)
    copy = PartitionCopy("t", 0, 0, draw=random.Random(1).random, seen_id=before)
    copy.halt("the copy is of another topic", 10.0)
    copy.target_is(before, 11.0)
    assert (copy.state, copy.needs_locating(11.0)) == (CopyState.HALTED, False)
    assert copy.status()["target_topic_id"] == str(before)
    copy.target_is(now, 12.0)
    assert (copy.state, copy.needs_locating(12.0)) == (CopyState.LOCATING, True)
    copy.halt("the copy is of another topic", 13.0)
    assert copy.status()["target_topic_id"] == str(now)


def test_a_copy_that_is_halted_over_a_gap_is_located_again_soon() -> None:
    copy = PartitionCopy("t", 3, 1, draw=random.Random(1).random)
    copy.halt("the source lost its log", 0.0)
    assert copy.status()["gap"] is None
    assert not copy.needs_locating(GAP_RECHECK_S)
    copy.halt("addresses 10 to 30 were deleted", 100.0, (10, 30))
    status = copy.status()
    assert (status["state"], status["address"], status["gap"]) == ("halted", 10, {"from": 10, "to": 30})
    assert copy.needs_locating(100.0 + GAP_RECHECK_S)
    copy.located(30, 90, (AcceptedGap(1, 10, 30),))
    status = copy.status()
    assert (status["state"], status["gap"], status["reason"]) == ("copying", None, "")
    assert (status["skipped"], status["skipped_bytes"]) == ([{"from": 10, "to": 30}], 20)
    copy.back_off("the target is away", 200.0)
    assert copy.status()["skipped_bytes"] == 20


def test_only_the_gap_that_was_accepted_is_passed() -> None:
    copy = Bounds(0, 10)
    assert _decide(Bounds(5, 90), copy, 1, ()) == 10
    for accepted in ((), (AcceptedGap(0, 10, 30),), (AcceptedGap(1, 9, 30),), (AcceptedGap(1, 10, 29),)):
        with pytest.raises(SourceGapError, match="addresses 10 to 30 were deleted"):
            _decide(Bounds(30, 90), copy, 1, accepted)
    assert _decide(Bounds(30, 90), copy, 1, (AcceptedGap(1, 10, 20), AcceptedGap(1, 10, 30))) == 30


def test_an_accepted_gap_over_a_bad_batch_is_passed_although_the_source_still_has_it() -> None:
    source = Bounds(5, 90)
    assert _decide(source, Bounds(0, 10), 1, (AcceptedGap(1, 10, 20), AcceptedGap(1, 30, 40))) == 20
    # The next batch is bad as well: accepted from the copy's end, because that has not moved.
    assert _decide(source, Bounds(0, 10), 1, (AcceptedGap(1, 10, 20), AcceptedGap(1, 10, 25))) == 25
    # The very first batch of the source is bad, and the copy is empty.
    assert _decide(source, Bounds(0, 0), 1, (AcceptedGap(1, 5, 20),)) == 20
    # The source was recreated, and has not come so far.
    assert _decide(source, Bounds(0, 10), 1, (AcceptedGap(1, 10, 91),)) == 10


def test_addresses_that_are_missing_at_the_sources_end_stop_the_copy_too() -> None:
    copy = PartitionCopy("t", 0, 0, draw=random.Random(1).random)
    copy.located(100, 300)
    for _ in range(EMPTY_FETCHES_MAX - 1):
        copy.fetched(copy.generation, 100, Fetched(b"", 0, 300), 0.0, is_all_empty=True)
    # Other partitions have filled the response: that says nothing about this one.
    copy.fetched(copy.generation, 100, Fetched(b"", 0, 300), 0.0)
    for _ in range(EMPTY_FETCHES_MAX):
        assert copy.state is CopyState.COPYING
        copy.fetched(copy.generation, 100, Fetched(b"", 0, 300), 0.0, is_all_empty=True)
    assert (copy.state, copy.suspect) == (CopyState.LOCATING, 100)
    assert "no longer holds addresses 100 to 300" in copy.problem
    copy.located(300, 300)
    for _ in range(2 * EMPTY_FETCHES_MAX):
        copy.fetched(copy.generation, 300, Fetched(b"", 0, 300), 0.0, is_all_empty=True)
    assert copy.state is CopyState.COPYING


def test_a_source_that_is_behind_for_a_moment_halts_nothing() -> None:
    """A leader that was deposed, and cut off from ZooKeeper, shows less than its successor did."""
    copy = PartitionCopy("t", 0, 0, draw=lambda: 0.5)
    for now_s in (100.0, 110.0, 100.0 + BEHIND_MAX_S - 1):
        copy.source_is_behind("the source ends at 1, the copy at 2", now_s)
        assert copy.state is CopyState.LOCATING
        assert not copy.needs_locating(now_s) and copy.needs_locating(now_s + 10)
    copy.located(2, 2)
    copy.source_is_behind("again", 200.0)
    assert copy.state is CopyState.LOCATING, "it was well meanwhile"
    copy.source_is_behind("still", 200.0 + BEHIND_MAX_S)
    status = copy.status()
    assert (status["state"], status["reason"]) == ("halted", "still")
