"""A partition's batches against a model of a broker: whatever the network does, each record arrives once."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fix_fake_log import FakeLog
from fix_ordering import closed_batch, queue
from headrace.client.batches import ProducerBatch
from headrace.wire.compression import Codec
from headrace.wire.errors import ErrorCode


class World:
    """One partition's queue, and a broker's log behind a network that loses requests and responses, by a
    seed.
    """

    def __init__(self, seed: int, batch_count: int) -> None:
        self.random = random.Random(seed)
        self.log = FakeLog(by_address=True)
        self.queue = queue(window=self.random.randint(1, 5))
        self.to_add = [
            closed_batch(*(b"%d.%d" % (i, j) for j in range(self.random.randint(1, 3))))
            for i in range(batch_count)
        ]
        self.in_flight: list[tuple[ProducerBatch, bytes]] = []  # requests not yet at the broker, in order
        self.acknowledged: list[ProducerBatch] = []
        self.given_up: list[tuple[ProducerBatch, bool]] = []  # (batch, whether it may be in the log)
        self.seen_numbers: dict[tuple[int, int, int], tuple[int, int]] = {}

    def run(self) -> None:
        for _ in range(2000):
            if not (self.to_add or len(self.queue) or self.in_flight):
                return
            self.random.choice(self.events())()
            if self.queue.can_bump:
                self.queue.bump_epoch_and_renumber((1, self.queue.producer_epoch + 1))
            waits = len(self.queue) and not self.in_flight
            assert not waits or self.queue.next_to_send(0.0) is not None, "every batch waits for another one"
        raise AssertionError("some batches never finished")

    def events(self) -> list[Callable[[], None]]:
        return [self.add, self.send, self.send, self.deliver, self.deliver, self.lose, self.end]

    def add(self) -> None:
        if self.to_add:
            batch = self.to_add.pop(0)
            self.queue.add(batch, Codec.NONE)

    def send(self) -> None:
        batch = self.queue.next_to_send(0.0)
        if batch is not None:
            self.note_number(batch)
            self.queue.on_sent(batch, 0.0)
            self.in_flight.append((batch, bytes(batch.data)))

    def note_number(self, batch: ProducerBatch) -> None:
        """A sequence number is never given to two records under one epoch."""
        identity = batch.identity
        for i in range(identity.record_count):
            number = (identity.producer_id, identity.producer_epoch, identity.base_sequence + i)
            assert self.seen_numbers.setdefault(number, (id(batch), i)) == (id(batch), i)

    def deliver(self) -> None:
        if not self.in_flight:
            return
        batch, data = self.in_flight.pop(0)
        if self.random.random() < 0.1:
            self.queue.retry_later(
                batch, at_s=0.0, maybe_appended=False
            )  # the broker refused it with a retriable error
            return
        code, _ = self.log.append(data)
        if self.random.random() < 0.2:
            self.queue.retry_later(batch, at_s=0.0, maybe_appended=True)  # the response was lost
        elif code is ErrorCode.NONE:
            self.queue.on_acknowledged(batch)
            self.acknowledged.append(batch)
        else:
            assert code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, code
            if batch.surely_appended:
                self.queue.on_acknowledged(batch)
                self.acknowledged.append(batch)
                return
            self.queue.on_gap(batch, at_s=0.0)

    def lose(self) -> None:
        """The connection breaks: all requests in flight are lost."""
        if self.random.random() < 0.3:
            for batch, _ in self.in_flight:
                self.queue.retry_later(batch, at_s=0.0, maybe_appended=True)
            self.in_flight = []

    def end(self) -> None:
        """A batch ends without being acknowledged: expired, or refused permanently."""
        idle = [b for b in self.queue.batches if not b.in_flight]
        if idle and self.random.random() < 0.05:
            batch = idle[0]
            self.queue.on_ended(batch)
            self.given_up.append((batch, batch.maybe_appended))


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 12))
def test_whatever_the_network_does_every_record_arrives_once_and_in_order(
    seed: int, batch_count: int
) -> None:
    world = World(seed, batch_count)
    world.run()
    stored = [record.value.decode() for record in world.log.records() if record.value]
    assert len(stored) == len(set(stored)), "a record is in the log twice"
    order = [tuple(map(int, value.split("."))) for value in stored]
    assert order == sorted(order)
    lost = {id(batch) for batch, _ in world.given_up}
    in_log = {value.split(".")[0] for value in stored}
    acknowledged = len(world.acknowledged)
    assert acknowledged + len(lost) == batch_count
    assert acknowledged <= len(in_log) <= acknowledged + sum(maybe for _, maybe in world.given_up)


class ForgetfulWorld(World):
    """No batch ends, but the log loses its last ones, as after an unclean election. It keeps one at least: it
    knows the producer.
    """

    def events(self) -> list[Callable[[], None]]:
        return [self.add, self.send, self.send, self.deliver, self.deliver, self.lose, self.cut]

    def cut(self) -> None:
        if self.random.random() < 0.2 and len(self.log.batches) > 1:
            kept = self.log.batches[: self.random.randrange(1, len(self.log.batches))]
            self.log = FakeLog(by_address=True)
            for batch in kept:
                assert self.log.append(batch)[0] is ErrorCode.NONE


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 12))
def test_a_log_that_loses_its_end_gets_all_later_batches_once_and_in_order(
    seed: int, batch_count: int
) -> None:
    world = ForgetfulWorld(seed, batch_count)
    world.run()
    order = [
        tuple(map(int, record.value.decode().split("."))) for record in world.log.records() if record.value
    ]
    assert order == sorted(set(order))
    assert len(world.acknowledged) == batch_count


@pytest.mark.parametrize("seed", range(5))
def test_the_model_fails_batches_and_bumps_epochs(seed: int) -> None:
    """Otherwise the property above would prove nothing."""
    worlds = [World(seed * 1000 + i, 12) for i in range(30)]
    for world in worlds:
        world.run()
    assert any(world.given_up for world in worlds)
    assert any(world.queue.producer_epoch > 0 for world in worlds)
