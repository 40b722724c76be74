"""The rules of a partition's batches, one by one. `test_client_ordering_model` lets a network break them."""

from __future__ import annotations

from math import inf
from typing import Any

from fix_ordering import closed_batch, queue
from headrace.client.batches import ProducerBatch
from headrace.client.ordering import EPOCH_MAX, KNOWN_MAX_S, NO_PRODUCER, PartitionQueue
from headrace.wire.batch import read_header
from headrace.wire.compression import Codec


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
