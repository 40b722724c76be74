"""A copy under every kind of failure, in a simulation: late, lost and error responses, restarts, bad batches.

It never skips and never repeats a byte.
"""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fix_audit_world import HOUR_A, PartitionBytes
from headrace.mirror import copying
from headrace.mirror.copying import (
    AHEAD_MAX_BYTES,
    APPENDS_IN_FLIGHT_MAX,
    Chunk,
    CopyState,
    PartitionCopy,
)
from headrace.replication.pull import DamagedBatchError, Fetched, sound_prefix
from headrace.wire.records import Record, encode_batch


def source_log(rng: random.Random, count: int) -> PartitionBytes:
    log = PartitionBytes()
    for _ in range(count):
        log.append(encode_batch([Record(0, HOUR_A, None, rng.randbytes(rng.randint(1, 60)))]))
    return log


class Target:
    """A mirror partition: accepts only a chunk that begins at its end address; an empty one accepts any."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.start = 0

    @property
    def end(self) -> int:
        return self.start + len(self.data)

    def append(self, chunk: Chunk) -> bool:
        if not self.data:
            self.start = chunk.address
        if chunk.address != self.end:
            return False
        self.data += chunk.data
        return True


class Simulation:
    """The copy between a growing source and a target, over a network that delays and loses requests."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.source = source_log(self.rng, 40)
        self.visible = 0
        self.target = Target()
        self.now_s = 0.0
        self.in_flight: list[Chunk] = []
        self.ghosts: list[Chunk] = []
        self.fetches: list[tuple[int, int]] = []
        self.copy = self.new_copy()

    def new_copy(self) -> PartitionCopy:
        return PartitionCopy("t", 0, 0, draw=self.rng.random)

    def step(self) -> None:
        self.now_s += self.rng.uniform(0, 0.5)
        act = self.rng.choice(
            [
                self.grow,
                self.locate,
                self.fetch,
                self.respond_to_fetch,
                self.send,
                self.respond,
                self.respond,
                self.haunt,
                self.fail,
            ]
        )
        act()
        assert self.copy.ahead_bytes <= AHEAD_MAX_BYTES + len(self.source.data)
        assert self.target.start == 0, "the beginning was skipped"
        assert bytes(self.target.data) == self.source.data[: len(self.target.data)]

    def grow(self) -> None:
        self.visible = min(len(self.source.cuts) - 1, self.visible + self.rng.randint(0, 6))

    @property
    def end(self) -> int:
        return self.source.cuts[self.visible]

    def locate(self) -> None:
        if self.copy.needs_locating(self.now_s):
            self.copy.located(self.target.end, self.end, is_empty=not self.target.data)

    def fetch(self) -> None:
        address = self.copy.next_fetch_address()
        if address is not None:
            self.fetches.append((self.copy.generation, address))

    def respond_to_fetch(self) -> None:
        if self.fetches:
            generation, address = self.fetches.pop(self.rng.randrange(len(self.fetches)))
            upto = min(self.end, address + self.rng.randint(1, 400))
            self.copy.fetched(
                generation, address, Fetched(bytes(self.source.data[address:upto]), 0, self.end), self.now_s
            )

    def send(self) -> None:
        if self.copy.wants_append():
            self.in_flight.append(self.copy.next_append())
            assert len(self.in_flight) <= APPENDS_IN_FLIGHT_MAX

    def respond(self) -> None:
        """The oldest request arrives, and may be refused for now; its response may be lost."""
        if self.in_flight:
            chunk = self.in_flight.pop(0)
            taken = self.rng.random() < 0.8 and self.target.append(chunk)
            if taken and self.rng.random() < 0.8:
                self.copy.appended(chunk, self.now_s)
            else:
                self.copy.append_failed(chunk, "rejected or not answered", self.now_s)

    def haunt(self) -> None:
        """A request of a killed process arrives."""
        if self.ghosts:
            self.target.append(self.ghosts.pop(0))

    def fail(self) -> None:
        if self.rng.random() < 0.3:
            self.restart() if self.rng.random() < 0.5 else self.break_connection()

    def break_connection(self) -> None:
        for chunk in self.in_flight:
            self.copy.append_failed(chunk, "the connection broke", self.now_s)
        self.ghosts += self.in_flight
        self.in_flight.clear()

    def restart(self) -> None:
        """SIGKILL: requests in flight may still arrive, at any time."""
        self.ghosts += self.in_flight
        self.in_flight.clear()
        self.fetches.clear()
        self.copy = self.new_copy()


@given(seed=st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_after_any_failures_the_copy_is_a_prefix_and_catches_up(seed: int) -> None:
    simulation = Simulation(seed)
    for _ in range(300):
        simulation.step()
    simulation.visible = len(simulation.source.cuts) - 1
    for _ in range(2_000):
        if len(simulation.target.data) == simulation.end:
            break
        simulation.now_s += 10.0
        for act in (
            simulation.locate,
            simulation.fetch,
            simulation.respond_to_fetch,
            simulation.send,
            simulation.respond,
        ):
            act()
    assert simulation.target.data == simulation.source.data
    while simulation.in_flight:
        simulation.respond()
    simulation.now_s += 10.0
    simulation.locate()
    assert (simulation.copy.state, simulation.copy.copied_to) == (CopyState.COPYING, simulation.end)


def test_an_empty_copy_gets_its_first_chunk_alone() -> None:
    """The target takes any address as its first: a chunk behind a refused one would begin the copy."""
    source, now_s = source_log(random.Random(2), 3), 0.0
    copy, target = PartitionCopy("t", 0, 0, draw=lambda: 0.5), Target()
    copy.located(0, source.end, is_empty=True)
    for begin, end in itertools.pairwise(source.cuts[:3]):
        copy.fetched(1, begin, Fetched(bytes(source.data[begin:end]), 0, source.end), now_s)
    refused = copy.next_append()
    assert not copy.wants_append()
    copy.append_failed(refused, "NOT_ENOUGH_REPLICAS", now_s)
    copy.located(target.end, source.end, is_empty=True)
    for begin, end in itertools.pairwise(source.cuts):
        copy.fetched(copy.generation, begin, Fetched(bytes(source.data[begin:end]), 0, source.end), now_s)
    first = copy.next_append()
    assert target.append(first)
    copy.appended(first, now_s)
    for _ in range(2):
        assert target.append(copy.next_append())
    assert target.data == source.data


def test_many_small_batches_are_appended_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """The target's other clients wait while it checks and stores the batches of one request."""
    monkeypatch.setattr(copying, "CHUNK_BATCHES_MAX", 2)
    source = source_log(random.Random(3), 5)
    copy, target = PartitionCopy("t", 0, 0, draw=lambda: 0.5), Target()
    copy.located(0, source.end)
    copy.fetched(1, 0, Fetched(bytes(source.data), 0, source.end), 0.0)
    assert copy.next_fetch_address() == source.end
    counts = []
    while copy.wants_append():
        chunk = copy.next_append()
        counts.append(chunk.batch_count)
        assert target.append(chunk), "pieces end where batches do"
        copy.appended(chunk, 0.0)
    assert counts == [2, 2, 1]
    assert (target.data, copy.copied_to, copy.ahead_bytes) == (source.data, source.end, 0)


def test_a_copy_that_was_located_before_its_target_was_connected_is_located_again() -> None:
    """The broker may have come back with an empty disk since: there any address is taken as the first."""
    source = source_log(random.Random(4), 2)
    copy = PartitionCopy("t", 0, 0, draw=lambda: 0.5)
    copy.located(0, source.end, asked_s=10.0)
    copy.fetched(1, 0, Fetched(bytes(source.data), 0, source.end), 11.0)
    assert not copy.locate_if_before(9.0)
    assert copy.wants_append()
    assert copy.locate_if_before(12.0)
    assert not copy.wants_append()
    assert copy.needs_locating(12.0)
    copy.located(0, source.end, asked_s=12.5)
    assert not copy.locate_if_before(12.0)


def test_a_bad_batch_stops_the_copy_just_there_once_all_before_it_is_copied() -> None:
    rng = random.Random(1)
    log = source_log(rng, 3)
    bad = log.cuts[1]
    copy = PartitionCopy("t", 0, 0, draw=rng.random)
    copy.located(0, log.end)
    forged = bytearray(log.data)
    forged[bad + 70] ^= 1
    copy.fetched(copy.generation, 0, Fetched(bytes(forged), 0, log.end), 0.0)
    assert (copy.state, copy.next_fetch_address()) == (CopyState.COPYING, None)
    chunk = copy.next_append()
    assert chunk.data == log.data[:bad]
    copy.appended(chunk, 1.0)
    assert (copy.state, copy.suspect, copy.copied_to) == (CopyState.LOCATING, bad, bad)
    assert f"addresses {bad} to {log.cuts[2]} is damaged" in copy.problem
    assert "CRC" in copy.problem
    assert not copy.wants_append()
    # The second read was good: the bit had flipped on the way.
    copy.located(bad, log.end)
    assert (copy.suspect, copy.next_fetch_address()) == (None, bad)


def test_a_batch_that_would_end_behind_the_log_is_bad_and_its_end_unknown() -> None:
    log = source_log(random.Random(1), 2)
    forged = bytearray(log.data)
    forged[log.cuts[1] + 8] = 0x40  # batchLength: over a gigabyte
    copy = PartitionCopy("t", 0, 0, draw=random.Random(1).random)
    copy.located(log.cuts[1], log.end)
    copy.fetched(copy.generation, log.cuts[1], Fetched(forged[log.cuts[1] :], 0, log.end), 0.0)
    assert copy.suspect == log.cuts[1]
    assert f"but the source ends at {log.end}" in copy.problem


def test_a_flipped_length_that_leads_to_a_later_batch_costs_one_batch() -> None:
    log = source_log(random.Random(341), 6)
    for start, end in itertools.pairwise(log.cuts[:-2]):
        for later in log.cuts:
            if later <= end or later == log.end:
                continue
            forged = bytearray(log.data)
            forged[start + 8 : start + 12] = (later - start - 12).to_bytes(4, "big")
            error = sound_prefix(bytes(forged), 0).problem
            assert isinstance(error, DamagedBatchError) and error.end_address == end


@given(st.integers(0, 2**32), st.data())
@settings(max_examples=200, deadline=None)
def test_flipped_bits_cost_at_most_the_batch_they_are_in(seed: int, choices: st.DataObject) -> None:
    log = source_log(random.Random(seed), 6)
    at = choices.draw(st.integers(0, log.end - 1))
    forged = bytearray(log.data)
    forged[at] ^= 1 << choices.draw(st.integers(0, 7))
    start = max(cut for cut in log.cuts if cut <= at)
    _, size_bytes, error = sound_prefix(bytes(forged), 0)
    if at - start in range(12, 16):
        assert (size_bytes, error) == (log.end, None)  # the leader's epoch: no CRC covers it
        return
    assert size_bytes == start
    if isinstance(error, DamagedBatchError):
        end = log.cuts[log.cuts.index(start) + 1]
        # A wrong length is believed by nobody, unless the batch behind it happens to be there.
        assert error.end_address in (end, None)


def test_addresses_that_are_missing_in_the_middle_stop_the_copy_just_there() -> None:
    log = source_log(random.Random(1), 4)
    copy = PartitionCopy("t", 0, 0, draw=random.Random(1).random)
    copy.located(log.cuts[1], log.end)
    copy.fetched(copy.generation, log.cuts[1], Fetched(bytes(log.data[log.cuts[3] :]), 0, log.end), 0.0)
    assert (copy.state, copy.suspect) == (CopyState.LOCATING, log.cuts[1])
    assert f"no longer holds addresses {log.cuts[1]} to {log.cuts[3]}" in copy.problem
