"""The rules of a partition's batches against a model of a broker: whatever the network does, each record
arrives once.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from math import inf
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fix_fake_log import FakeLog
from headrace.client.batches import ProducerBatch
from headrace.client.ordering import EPOCH_MAX, KNOWN_MAX_S, NO_PRODUCER, PartitionQueue
from headrace.wire.batch import read_header
from headrace.wire.compression import Codec
from headrace.wire.errors import ErrorCode


def closed_batch(*values: bytes, created_s: float = 0.0) -> ProducerBatch:
    batch = ProducerBatch("t", 0, limit_bytes=10_000, created_s=created_s, bucket=None, record_limit=None)
    for value in values:
        batch.builder.append(1000, None, value)
    return batch


def queue(producer_id: int = 1, epoch: int = 0, window: int = 5) -> PartitionQueue:
    return PartitionQueue("t", 0, producer_id=producer_id, producer_epoch=epoch, window=window)


def filled(count: int, **options: Any) -> tuple[PartitionQueue, list[ProducerBatch]]:
    """Returns a queue of `count` batches, whose epoch the broker knows already, and the batches."""
    made = queue(**options)
    made._known_s = 0.0
    batches = [closed_batch(b"%d" % i, b"%d." % i) for i in range(count)]
    for batch in batches:
        made.add(batch, Codec.NONE)
    return made, batches


def sequences(made: PartitionQueue) -> list[tuple[int, int]]:
    return [(b.identity.producer_epoch, b.identity.base_sequence) for b in made.batches]


def test_batches_are_numbered_and_sent_in_order() -> None:
    made, batches = filled(3)
    assert sequences(made) == [(0, 0), (0, 2), (0, 4)]
    for batch in batches:
        assert made.next_to_send(0.0) is batch
        made.on_sent(batch, 0.0)
    assert made.next_to_send(0.0) is None
    header = read_header(batches[1].data)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (1, 0, 2)


def test_only_one_batch_is_sent_until_the_broker_knows_the_epoch() -> None:
    made, batches = filled(2)
    made._known_s = -inf
    made.on_sent(batches[0], 0.0)
    assert made.next_to_send(0.0) is None
    made.on_acknowledged(batches[0])
    assert made.next_to_send(0.0) is batches[1]


def test_after_a_silence_the_broker_may_have_forgotten_the_producer() -> None:
    """The first batch waits at a leader that hangs; the next one would take the second for its first one."""
    made, batches = filled(4)
    made.on_sent(batches[0], 1.0)
    made.on_acknowledged(batches[0])
    late_s = 1.0 + KNOWN_MAX_S
    assert made.next_to_send(late_s) is batches[1]
    made.on_sent(batches[1], late_s + 0.1)
    assert made.next_to_send(late_s) is batches[2], "until then"
    assert made.next_to_send(late_s + 0.1) is None
    made.on_acknowledged(batches[1])
    assert made.next_to_send(late_s + 0.1) is batches[2]


def test_a_batch_that_a_later_one_proves_says_nothing_of_when_the_broker_knew() -> None:
    made, batches = filled(4)
    for batch in batches[:2]:
        made.on_sent(batch, 1.0)
    made.retry_later(batches[0], at_s=0.0, maybe_appended=True)
    made.on_acknowledged(batches[1])
    made.on_sent(batches[0], 100.0)
    made.on_acknowledged(batches[0])
    made.on_sent(batches[2], 100.0)
    assert made.next_to_send(100.0) is None


def test_a_retry_is_sent_before_later_batches() -> None:
    made, batches = filled(3)
    made.on_sent(batches[0], 0.0)
    made.on_sent(batches[1], 0.0)
    made.retry_later(batches[0], at_s=5.0, maybe_appended=True)
    assert made.next_to_send(4.9) is None
    assert made.retry_at_s() == 5.0
    assert made.next_to_send(5.0) is batches[0]


def test_no_more_than_the_window_is_sent_ahead_of_the_oldest() -> None:
    made, batches = filled(7)
    for batch in batches[:5]:
        made.on_sent(batch, 0.0)
    assert made.next_to_send(0.0) is None
    made.on_acknowledged(batches[1])
    assert made.next_to_send(0.0) is batches[5]
    made.on_sent(batches[5], 0.0)
    assert made.next_to_send(0.0) is None


def test_after_a_gap_later_batches_continue_under_the_next_epoch() -> None:
    made, batches = filled(3)
    made.on_sent(batches[0], 0.0)
    made.on_ended(batches[0])
    assert made.next_to_send(0.0) is None
    assert made.can_bump
    changes = made.bump_epoch_and_renumber()
    assert [(old.base_sequence, new.producer_epoch, new.base_sequence) for old, new in changes] == [
        (2, 1, 0),
        (4, 1, 2),
    ]
    assert made.next_to_send(0.0) is batches[1]
    assert read_header(batches[2].data).base_sequence == 2
    made.add(closed_batch(b"x"), Codec.NONE)
    assert sequences(made)[-1] == (1, 4)


def test_a_batch_whose_fate_is_unknown_is_resolved_before_it_is_renumbered() -> None:
    made, batches = filled(2)
    for batch in batches:
        made.on_sent(batch, 0.0)
    made.on_ended(batches[0])
    assert not made.can_bump
    made.retry_later(batches[1], at_s=0.0, maybe_appended=True)
    assert not made.can_bump
    assert made.next_to_send(0.0) is batches[1]
    made.on_sent(batches[1], 0.0)
    made.on_gap(batches[1], at_s=0.0)
    assert made.can_bump
    assert [new.base_sequence for _, new in made.bump_epoch_and_renumber()] == [0]


def test_out_of_order_is_no_gap_while_an_older_batch_is_unfinished() -> None:
    made, batches = filled(2)
    for batch in batches:
        made.on_sent(batch, 0.0)
    made.retry_later(batches[0], at_s=0.0, maybe_appended=False)
    made.on_gap(batches[1], at_s=0.0)
    assert not made.bump_wanted
    assert made.next_to_send(0.0) is batches[0]


def test_an_acknowledgement_proves_that_earlier_batches_are_appended() -> None:
    made, batches = filled(3)
    for batch in batches:
        made.on_sent(batch, 0.0)
    made.retry_later(batches[0], at_s=0.0, maybe_appended=True)
    made.on_acknowledged(batches[1])
    assert [batch.surely_appended for batch in batches] == [True, False, False]


def test_a_batch_that_was_refused_is_not_proved_to_be_appended_by_a_later_one() -> None:
    """The log has forgotten the producer, and took the later batch for its first one (KIP-360)."""
    made, batches = filled(2)
    for batch in batches:
        made.on_sent(batch, 0.0)
    made.retry_later(batches[0], at_s=0.0, maybe_appended=False)
    made.on_acknowledged(batches[1])
    assert not batches[0].surely_appended


def test_a_log_that_lacks_the_oldest_batch_lacks_those_after_it() -> None:
    """A leader died before it answered two batches, and the next one has neither. The second one's fate is no
    longer unknown: it would wait for the first, and the first for it, until the delivery timeout.
    """
    made, batches = filled(2)
    for batch in batches:
        made.on_sent(batch, 0.0)
    for batch in batches:
        made.retry_later(batch, at_s=0.0, maybe_appended=True)
    for batch in batches:
        assert made.next_to_send(0.0) is batch
        made.on_sent(batch, 0.0)
    for batch in batches:
        made.on_gap(batch, at_s=0.0)
    assert made.can_bump
    made.bump_epoch_and_renumber()
    assert sequences(made) == [(1, 0), (1, 2)]
    assert made.next_to_send(0.0) is batches[0]


def test_a_refused_batch_before_a_gap_does_not_wait_for_one_behind_it() -> None:
    made, batches = filled(3)
    for batch in batches:
        made.on_sent(batch, 0.0)
    made.retry_later(batches[0], at_s=0.0, maybe_appended=False)
    made.on_ended(batches[1])
    made.retry_later(batches[2], at_s=0.0, maybe_appended=True)
    assert made.can_bump
    made.bump_epoch_and_renumber()
    assert sequences(made) == [(1, 0), (1, 2)]


def test_used_up_epochs_need_another_producer_id() -> None:
    made, batches = filled(2, epoch=EPOCH_MAX)
    made.on_ended(batches[0])
    assert made.needs_new_id
    [(old, new)] = made.bump_epoch_and_renumber((77, 0))
    assert (old.producer_id, new.producer_id, new.producer_epoch, new.base_sequence) == (1, 77, 0, 0)


def test_a_fenced_producer_needs_another_id() -> None:
    made, batches = filled(1)
    made.on_sent(batches[0], 0.0)
    made.on_fenced(batches[0], at_s=0.0)
    assert made.can_bump
    assert made.needs_new_id
    made.bump_epoch_and_renumber((78, 3))
    batch = made.next_to_send(0.0)
    assert batch is not None and batch.identity.producer_id == 78


def test_sequences_wrap() -> None:
    made = queue()
    made.next_sequence = 2**31 - 1
    first, second = closed_batch(b"a", b"b"), closed_batch(b"c")
    made.add(first, Codec.NONE)
    made.add(second, Codec.NONE)
    assert sequences(made) == [(0, 2**31 - 1), (0, 1)]


def test_without_a_producer_id_there_is_nothing_to_bump() -> None:
    made, batches = filled(2, producer_id=NO_PRODUCER, epoch=-1)
    assert sequences(made) == [(-1, -1), (-1, -1)]
    made.on_ended(batches[0])
    assert not made.bump_wanted
    assert made.next_to_send(0.0) is batches[1]


def test_expired_batches_are_those_not_in_flight() -> None:
    made = queue()
    old, young = closed_batch(b"a", created_s=1.0), closed_batch(b"b", created_s=9.0)
    made.add(old, Codec.NONE)
    made.add(young, Codec.NONE)
    assert made.expired(5.0) == [old]
    made.on_sent(old, 0.0)
    assert made.expired(5.0) == []


class World:
    """One partition's queue, a broker's log behind a network that loses requests and responses, a seeded
    fate.
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
