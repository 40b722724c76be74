"""The text form of accepted gaps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.replication.gaps import GAPS_MAX, AcceptedGap, parse, passed, to_text

gaps = st.builds(
    lambda partition, start, size: AcceptedGap(partition, start, start + size),
    st.integers(0, 2_000),
    st.integers(0, 2**62),
    st.integers(1, 2**62),
)


@given(st.lists(gaps, max_size=20))
def test_the_text_round_trips(written: list[AcceptedGap]) -> None:
    assert parse(to_text(written)) == tuple(written)


@pytest.mark.parametrize("text", ["0", "0:5-5", "0:9-5", "x:1-2", "0:1-2,", "0:-1-2", "0:1-2 ", "٣:1-2"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not PARTITION:FROM-TO with FROM before TO"):
        parse(text)


def test_the_number_of_gaps_is_bounded() -> None:
    assert len(parse(",".join(["0:1-2"] * GAPS_MAX))) == GAPS_MAX
    with pytest.raises(ValueError, match="1001 gaps; a topic may have 1000"):
        parse(",".join(["0:1-2"] * (GAPS_MAX + 1)))


def test_gaps_that_a_copy_has_passed() -> None:
    accepted = parse("0:10-20,0:10-30,0:50-60,1:5-7")
    assert passed(accepted, 0, 9) == ()
    assert passed(accepted, 0, 30) == (AcceptedGap(0, 10, 30),), "the gap grew: the larger one counts"
    assert passed(accepted, 0, 99) == (AcceptedGap(0, 10, 30), AcceptedGap(0, 50, 60))
    assert passed(accepted, 1, 7) == (AcceptedGap(1, 5, 7),)
