"""The content of batches: sums that no order changes, in which equal batches do not cancel each other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.wire.batch import readdress, renumber
from headrace.wire.content import (
    CONTENT_SPAN,
    NO_BATCHES,
    added,
    content_of,
    from_bytes,
    from_hex,
    hex_of,
    subtracted,
    to_bytes,
    total,
)
from headrace.wire.records import Record, encode_batch

CONTENTS = st.one_of(st.none(), st.integers(0, CONTENT_SPAN - 1))


def batch_of(value: bytes = b"v", *, sequence: int = 0, time_ms: int = 1_000) -> bytes:
    return encode_batch(
        [Record(0, time_ms, None, value)], producer_id=7, producer_epoch=0, base_sequence=sequence
    )


@given(values=st.lists(st.binary(max_size=4), max_size=6), data=st.data())
def test_the_order_of_batches_does_not_matter_and_parts_add_up(
    values: list[bytes], data: st.DataObject
) -> None:
    contents = [content_of(batch_of(value)) for value in values]
    cut = data.draw(st.integers(0, len(contents)))
    whole = total(contents)
    assert total(data.draw(st.permutations(contents))) == whole
    assert added(total(contents[:cut]), total(contents[cut:])) == whole
    assert subtracted(whole, total(contents[:cut])) == total(contents[cut:])


def test_equal_batches_do_not_cancel() -> None:
    content = content_of(batch_of())
    sums = [total([content] * times) for times in range(6)]
    assert sums[0] == NO_BATCHES
    assert len(set(sums)) == 6


def test_it_is_the_same_wherever_a_broker_puts_the_batch() -> None:
    stored = bytearray(b"\0" * 5 + batch_of())
    readdress(stored, 5, 4_096, leader_epoch=3)
    assert content_of(stored, 5) == content_of(memoryview(stored), 5) == content_of(batch_of())


@pytest.mark.parametrize(
    "other",
    [batch_of(b"w"), batch_of(sequence=1), batch_of(time_ms=1_001), batch_of(b"vv")],
    ids=["another payload", "another number", "another time", "another size"],
)
def test_every_other_batch_has_another_content(other: bytes) -> None:
    assert content_of(other) != content_of(batch_of())


def test_a_batch_that_gets_new_numbers_has_another_content() -> None:
    batch = bytearray(batch_of())
    renumber(batch, 0, 7, 1, 0)
    assert content_of(batch) != content_of(batch_of())


@given(content=CONTENTS)
def test_it_survives_records_and_documents(content: int | None) -> None:
    assert from_bytes(to_bytes(content)) == content
    assert from_hex(hex_of(content)) == content


@given(one=CONTENTS, other=CONTENTS)
def test_what_is_not_known_stays_so(one: int | None, other: int | None) -> None:
    is_known = one is not None and other is not None
    assert (added(one, other) is not None) is is_known
    assert (subtracted(one, other) is not None) is is_known


@pytest.mark.parametrize("text", ["", "0", "x" * 32, "0" * 31, "0" * 33, "-" + "0" * 31])
def test_other_texts_are_no_content(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        from_hex(text)
