"""Which batches must wait for a refused one."""

from uuid import uuid4

import pytest

from headrace.broker.produce.refusals import (
    ENTRIES_MAX,
    KEPT_MS,
    WAITED_MAX_MS,
    Refusals,
    SequencedBatch,
    StoredSequence,
    precedes,
    sequenced_batch,
)
from headrace.wire.batch import SEQUENCE_SPAN, read_header, readdress
from headrace.wire.errors import ErrorCode
from headrace.wire.records import Record, encode_batch

GONE = ErrorCode.LEADER_NOT_AVAILABLE


def batch(first_sequence: int, epoch: int = 0, producer_id: int = 5) -> SequencedBatch:
    return SequencedBatch(producer_id, epoch, first_sequence)


def test_later_batches_wait_until_the_refused_one_is_sent_again() -> None:
    refusals = Refusals()
    refusals.note("t", 0, batch(4), GONE, 0)
    refusals.note("t", 0, batch(6), GONE, 0)
    assert refusals.awaited_before("t", 0, batch(8), 1) == 4
    assert refusals.awaited_before("t", 0, batch(2), 1) is None, "a copy of what is stored"
    assert refusals.awaited_before("t", 1, batch(8), 1) is None, "another partition"
    assert refusals.awaited_before("t", 0, batch(8, producer_id=6), 1) is None, "another producer"
    assert refusals.awaited_before("t", 0, batch(4), 1) is None
    assert refusals.awaited_before("t", 0, batch(6), 1) is None
    assert not len(refusals)


def test_a_batch_that_another_leader_has_stored_meanwhile_is_not_awaited() -> None:
    refusals = Refusals()
    refusals.note("t", 0, batch(4), GONE, 0)
    assert refusals.awaited_before("t", 0, batch(8), 1, StoredSequence(0, 3)) == 4
    assert refusals.awaited_before("t", 0, batch(8), 1, StoredSequence(1, 9)) == 4, "of another epoch"
    assert refusals.awaited_before("t", 0, batch(8), 1, StoredSequence(0, 7)) is None
    assert not len(refusals)


def test_a_producer_that_never_sends_the_refused_batch_again_is_not_held_back_for_ever() -> None:
    """Another leader has acknowledged it, and an unclean election has lost it. Each later batch that waits
    for it is refused, too: that makes the memory of the first refusal no younger.
    """
    refusals = Refusals()
    refusals.note("t", 0, batch(4), GONE, 0)
    begun_ms = 60_000
    for now_ms in range(begun_ms, begun_ms + WAITED_MAX_MS, 500):
        assert refusals.awaited_before("t", 0, batch(8), now_ms) == 4
        refusals.note("t", 0, batch(8), GONE, now_ms)
    assert refusals.awaited_before("t", 0, batch(8), begun_ms + WAITED_MAX_MS) is None
    assert not len(refusals)


def test_a_batch_that_is_refused_again_is_waited_for_anew() -> None:
    refusals = Refusals()
    for now_ms in (0, WAITED_MAX_MS - 1):
        refusals.note("t", 0, batch(4), GONE, now_ms)
        assert refusals.awaited_before("t", 0, batch(8), now_ms) == 4
    assert refusals.awaited_before("t", 0, batch(8), WAITED_MAX_MS + 1) == 4


def test_a_producer_that_starts_a_new_epoch_is_not_held_back() -> None:
    refusals = Refusals()
    refusals.note("t", 0, batch(4), GONE, 0)
    assert refusals.awaited_before("t", 0, batch(9, epoch=1), 1) is None
    assert not len(refusals)


@pytest.mark.parametrize(
    "code", [ErrorCode.NONE, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.MESSAGE_TOO_LARGE]
)
def test_stored_and_permanently_refused_batches_delay_no_other(code: ErrorCode) -> None:
    refusals = Refusals()
    refusals.note("t", 0, batch(4), code, 0)
    assert not len(refusals)


def test_old_refusals_expire_and_their_number_is_bounded() -> None:
    refusals = Refusals()
    refusals.note("t", 0, batch(4), GONE, 0)
    assert refusals.awaited_before("t", 0, batch(5), KEPT_MS - 1) == 4
    assert refusals.awaited_before("t", 0, batch(5), KEPT_MS) is None
    assert not len(refusals)
    for number in range(ENTRIES_MAX + 5):
        refusals.note("t", 0, batch(0, producer_id=number), GONE, 0)
    assert len(refusals) == ENTRIES_MAX
    assert refusals.awaited_before("t", 0, batch(1, producer_id=4), 1) is None
    assert refusals.awaited_before("t", 0, batch(1, producer_id=5), 1) == 0


def test_sequence_numbers_wrap() -> None:
    assert precedes(SEQUENCE_SPAN - 1, 0)
    assert not precedes(0, SEQUENCE_SPAN - 1)
    assert not precedes(3, 3)


def test_only_an_idempotent_producers_own_batch_has_a_place_in_an_order() -> None:
    record = Record(0, 1_000, None, b"v")
    mine = encode_batch([record], producer_id=5, producer_epoch=1, base_sequence=2)
    assert sequenced_batch(read_header(mine)) == (5, 1, 2)
    assert sequenced_batch(read_header(encode_batch([record]))) is None
    copied = bytearray(mine)
    readdress(copied, 0, 100, leader_epoch=0)
    assert sequenced_batch(read_header(copied)) is None, "a mirror's copy has its order from its address"


def test_a_refusal_concerns_its_own_producer_alone() -> None:
    refusals = Refusals()
    refusals.note("t", 0, batch(4), GONE, 0)
    refusals.note("u", 1, batch(4), GONE, 0)
    refusals.note("u", 1, batch(6), GONE, 0)
    assert refusals.concern(5) and not refusals.concern(6)
    refusals.awaited_before("t", 0, batch(4), 1)
    assert refusals.concern(5), "another partition's batch is still awaited"
    refusals.awaited_before("u", 1, batch(4), 1)
    assert not refusals.concern(5)
    refusals.note("t", 0, batch(4), GONE, 0)
    refusals.awaited_before("t", 0, batch(1, producer_id=7), KEPT_MS)
    assert not refusals.concern(5), "expired"


def test_names_that_no_topic_can_have_are_not_remembered() -> None:
    """Their batches come for no topic that will be there; and 10,000 such names may take gigabytes."""
    refusals = Refusals()
    refusals.note("x" * 1_000_000, 0, batch(0), GONE, 0)
    assert len(refusals) == 0
    refusals.note("x" * 249, 0, batch(0), GONE, 0)
    refusals.note(str(uuid4()), 0, batch(0), GONE, 0)
    assert len(refusals) == 2
