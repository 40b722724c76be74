"""Sequence checks, compared with a model that keeps the whole history."""

import json
from functools import partial

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.log import checkpoint, producers
from headrace.log.producers import (
    BATCHES_KEPT,
    PACKED_AFTER_MS,
    Checked,
    ProducerEntry,
    ProducerStates,
    SequenceVerdict,
    StoredBatch,
    advance,
    check_sequence,
    follows,
    pack,
    unpack,
)
from headrace.wire.batch import SEQUENCE_SPAN, BatchHeader

# (epoch, how far from the expected sequence, records)
attempts = st.lists(st.tuples(st.integers(0, 2), st.integers(-4, 2), st.integers(1, 3)), max_size=40)


@settings(max_examples=200)
@given(attempts=attempts, start=st.sampled_from([0, 7, SEQUENCE_SPAN - 5]))
def test_the_next_sequence_is_accepted_and_the_last_five_batches_are_duplicates(
    attempts: list[tuple[int, int, int]], start: int
) -> None:
    entry: ProducerEntry | None = None
    epoch, history, address = 0, list[tuple[int, int, int]](), 0
    for new_epoch, distance, count in attempts:
        expected = (history[-1][1] + 1) % SEQUENCE_SPAN if history else start
        first = (expected + distance) % SEQUENCE_SPAN if entry is not None else start
        last = (first + count - 1) % SEQUENCE_SPAN
        got = check_sequence(entry, new_epoch, first, last)
        is_next = got.verdict is SequenceVerdict.ACCEPT and (entry is None or new_epoch == entry.epoch)
        assert follows(entry, new_epoch, first) == is_next
        copy = next((at for *span, at in history[-BATCHES_KEPT:] if span == [first, last]), None)
        if entry is None:
            assert got.verdict is SequenceVerdict.ACCEPT, "an unknown producer may begin anywhere (KIP-360)"
        elif new_epoch < epoch:
            assert got == Checked(SequenceVerdict.FENCED)
        elif new_epoch > epoch:
            assert (got.verdict is SequenceVerdict.ACCEPT) == (first == 0)
        elif first == expected:
            assert got.verdict is SequenceVerdict.ACCEPT
        elif copy is not None:
            assert got == Checked(SequenceVerdict.DUPLICATE, copy)
        else:
            assert got == Checked(SequenceVerdict.OUT_OF_ORDER, expected_sequence=expected)
        if got.verdict is SequenceVerdict.ACCEPT:
            if new_epoch != epoch or entry is None:
                history = []
            epoch = new_epoch
            history.append((first, last, address))
            entry = advance(entry, epoch, first, last, address, now_ms=5)
            address += 100
            assert entry.batches == tuple(StoredBatch(*each) for each in history[-BATCHES_KEPT:])


stored = st.builds(
    partial(
        BatchHeader,
        batch_length=100,
        partition_leader_epoch=0,
        magic=2,
        crc=0,
        attributes=0,
        last_offset_delta=0,
        base_timestamp_ms=0,
        max_timestamp_ms=0,
        record_count=1,
    ),
    base_offset=st.integers(0, 1 << 40),
    producer_id=st.integers(-1, 3),
    producer_epoch=st.integers(0, 2),
    base_sequence=st.integers(0, 50),
)


@settings(max_examples=300)
@given(before=st.lists(stored, max_size=6), together=st.lists(stored, max_size=30))
def test_batches_that_are_noted_together_are_known_as_if_each_came_alone(
    before: list[BatchHeader], together: list[BatchHeader]
) -> None:
    one_by_one, at_once = ProducerStates(clock_ms=lambda: 5), ProducerStates(clock_ms=lambda: 5)
    for header in before:
        one_by_one.note(header, header.base_offset)
        at_once.note(header, header.base_offset)
    known = dict(at_once)
    for header in together:
        one_by_one.note(header, header.base_offset)
    undo = at_once.note_all(together)
    assert list(at_once) == list(one_by_one)
    for producer_id, entry in reversed(undo):
        at_once.restore(producer_id, entry)
    assert dict(at_once) == known


def test_an_epoch_bump_restarts_at_zero() -> None:
    entry = advance(None, 3, 40, 41, 1_000, 1)
    assert check_sequence(entry, 4, 42, 42) == Checked(SequenceVerdict.OUT_OF_ORDER, expected_sequence=0)
    assert check_sequence(entry, 4, 0, 0).verdict is SequenceVerdict.ACCEPT
    assert check_sequence(entry, 2, 42, 42).verdict is SequenceVerdict.FENCED


def test_the_producer_that_was_silent_longest_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producers, "PRODUCERS_MAX", 3)
    states = ProducerStates()
    for number in (1, 2, 3, 1, 4):
        states.put(number, ProducerEntry(0, (StoredBatch(0, 0, 0),), number))
    assert sorted(number for number, _ in states) == [1, 3, 4]


def test_a_silent_producer_expires_by_the_clock_that_nobody_sets() -> None:
    now_ms = 250
    states = ProducerStates(
        [(1, ProducerEntry(0, (), 100)), (2, ProducerEntry(0, (), 200))], clock_ms=lambda: now_ms
    )
    states.expire(silent_max_ms=100)
    assert [number for number, _ in states] == [2]
    now_ms = 301
    states.expire(silent_max_ms=100)
    assert not len(states)


def test_a_restart_adds_nothing_to_a_producer_s_silence() -> None:
    """Two processes' clocks have nothing in common: what counts is how old an entry was when it was saved."""
    saved = [(1, ProducerEntry(0, (), 5_000)), (2, ProducerEntry(0, (), 5_900))]
    states = ProducerStates.restored(saved, saved_ms=6_000, clock_ms=lambda: 70)
    assert [(number, entry.last_append_ms) for number, entry in states] == [(1, -930), (2, -30)]
    states.expire(silent_max_ms=500)
    assert [number for number, _ in states] == [2]


def test_producers_of_a_checkpoint_without_its_time_are_kept() -> None:
    """Such a file has times of the wall clock, which may have been set since."""
    saved = [(1, ProducerEntry(0, (), 1_700_000_000_000)), (2, ProducerEntry(0, (), 0))]
    states = ProducerStates.restored(saved, saved_ms=None, clock_ms=lambda: 70)
    states.expire(silent_max_ms=0)
    assert [number for number, _ in states] == [1, 2]


entries = st.builds(
    ProducerEntry,
    epoch=st.integers(-1, 2**15 - 1),
    batches=st.lists(
        st.builds(
            StoredBatch, st.integers(-1, 2**31 - 1), st.integers(-1, 2**31 - 1), st.integers(0, 2**63 - 1)
        ),
        max_size=BATCHES_KEPT,
    ).map(tuple),
    last_append_ms=st.integers(-(2**62), 2**62),
)


@given(entries)
def test_a_packed_producer_is_the_same_again(entry: ProducerEntry) -> None:
    assert unpack(pack(entry)) == entry


@settings(max_examples=300)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["note", "note all", "undo", "pack", "expire"]), stored, st.integers(0, 40_000)
        ),
        max_size=30,
    )
)
def test_packing_changes_nothing_that_is_known(steps: list[tuple[str, BatchHeader, int]]) -> None:
    """Beside one that never packs; in the same order, by which the ones that are silent longest go."""
    now_ms = 0
    plain, packing = (ProducerStates(clock_ms=lambda: now_ms) for _ in range(2))
    for what, header, later_ms in steps:
        now_ms += later_ms
        for states in (plain, packing):
            if what == "note":
                states.note(header, header.base_offset)
            elif what in ("note all", "undo"):
                undo = states.note_all([header])
                for producer_id, entry in undo if what == "undo" else ():
                    states.restore(producer_id, entry)
            elif what == "pack" and states is packing:
                states.pack_silent(2)
            elif what == "expire":
                states.expire(90_000)
        assert dict(packing) == dict(plain) and len(packing) == len(plain)
        for producer_id in range(4):
            assert packing.get(producer_id) == plain.get(producer_id)


def test_a_packed_one_is_forgotten_before_any_recent_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producers, "PRODUCERS_MAX", 2)
    now_ms = 0
    states = ProducerStates(clock_ms=lambda: now_ms)

    def put(number: int) -> None:
        states.put(number, ProducerEntry(0, (StoredBatch(0, 0, 0),), now_ms))

    put(1)
    put(2)
    now_ms = PACKED_AFTER_MS
    assert states.pack_silent(9) == 2
    put(1)
    put(3)
    assert [number for number, _ in states] == [1, 3]


def test_producers_that_were_silent_before_a_restart_are_packed_after_it() -> None:
    now_ms = 7
    saved: list[tuple[int, ProducerEntry | bytes]] = [
        (1, ProducerEntry(0, (StoredBatch(0, 0, 5),), 1_000)),
        (2, pack(ProducerEntry(0, (StoredBatch(1, 2, 6),), 2_000))),
        (3, ProducerEntry(0, (StoredBatch(3, 4, 7),), PACKED_AFTER_MS + 1_999)),
    ]
    states = ProducerStates.restored(saved, saved_ms=PACKED_AFTER_MS + 2_000, clock_ms=lambda: now_ms)
    assert [number for number, _ in states.packed_ones()] == [1, 2]
    assert [number for number, _ in states] == [1, 2, 3]
    assert states.get(2) == ProducerEntry(0, (StoredBatch(1, 2, 6),), 7 - PACKED_AFTER_MS)
    assert states.saved()[2] == (3, ProducerEntry(0, (StoredBatch(3, 4, 7),), 6))


@pytest.mark.parametrize(
    "saved", [[1, 2**15, 5, []], [1, 0, 2**63, []], [1, 0, 5, [[0, 2**31, 0]]], [1, 0, 5, [[0]]]]
)
def test_a_checkpoint_with_producers_that_nobody_can_have_saved_is_none(saved: list[object]) -> None:
    """Its checksum is right: somebody has edited it."""
    body = json.dumps(
        {"version": 2, "recovery_point": 0, "max_timestamps_ms": [], "producers": [saved], "saved_ms": 9}
    ).encode()
    assert checkpoint.decode(b"%08x\n" % crc32c(body) + body) is None


def test_the_longest_silence_that_a_checkpoint_can_tell_is_restored() -> None:
    saved = [(1, pack(ProducerEntry(0, (), -(2**63))))]
    states = ProducerStates.restored(saved, saved_ms=2**63 - 1, clock_ms=lambda: 7)
    states.expire(silent_max_ms=2**59)
    assert not len(states)
