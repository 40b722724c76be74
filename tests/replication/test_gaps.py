"""The words in which accepted gaps are written down."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.replication.gaps import GAPS_MAX, AcceptedGap, parse, skipped, to_text

gaps = st.builds(
    lambda partition, start, size: AcceptedGap(partition, start, start + size),
    st.integers(0, 2_000),
    st.integers(0, 2**62),
    st.integers(1, 2**62),
)


@given(st.lists(gaps, max_size=20))
def test_what_is_written_is_read(written: list[AcceptedGap]) -> None:
    assert parse(to_text(written)) == tuple(written)


@pytest.mark.parametrize("text", ["0", "0:5-5", "0:9-5", "x:1-2", "0:1-2,", "0:-1-2", "0:1-2 ", "٣:1-2"])
def test_anything_else_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="is not PARTITION:FROM-TO with FROM before TO"):
        parse(text)


def test_a_topic_has_no_more_than_the_bound() -> None:
    assert len(parse(",".join(["0:1-2"] * GAPS_MAX))) == GAPS_MAX
    with pytest.raises(ValueError, match="1001 gaps; a topic may have 1000"):
        parse(",".join(["0:1-2"] * (GAPS_MAX + 1)))


def test_what_a_copy_has_left_behind() -> None:
    accepted = parse("0:10-20,0:10-30,0:50-60,1:5-7")
    assert skipped(accepted, 0, 9) == ()
    assert skipped(accepted, 0, 30) == (AcceptedGap(0, 10, 30),), "it had grown; the larger one counts"
    assert skipped(accepted, 0, 99) == (AcceptedGap(0, 10, 30), AcceptedGap(0, 50, 60))
    assert skipped(accepted, 1, 7) == (AcceptedGap(1, 5, 7),)
