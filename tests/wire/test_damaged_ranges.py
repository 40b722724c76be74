"""What a broker says of its disk survives the way to the auditor; nothing that others write there ends it."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headrace.wire.damaged_ranges import CAUSE_MAX_CHARS, PREFIX, DamagedRange, parse

ADDRESSES = st.tuples(st.integers(0, 2**62), st.integers(0, 2**61)).map(lambda pair: (pair[0], sum(pair)))
RANGES = st.builds(
    lambda topic, partition, place, cause, found_ms, is_mended: DamagedRange(
        topic, partition, place[0], place[1], cause, found_ms, is_mended
    ),
    st.text(max_size=249),
    st.integers(0, 2**31 - 1),
    ADDRESSES,
    st.text(max_size=2 * CAUSE_MAX_CHARS),
    st.integers(0, 2**50),
    st.booleans(),
)


@given(RANGES)
def test_a_range_survives_its_entry(damaged: DamagedRange) -> None:
    kept = damaged._replace(cause=damaged.cause[:CAUSE_MAX_CHARS])
    assert parse(damaged.name, damaged.value()) == kept


@given(st.text(), st.none() | st.text() | st.recursive(st.none() | st.integers(), st.lists).map(repr))
def test_other_entries_are_no_ranges(name: str, value: str | None) -> None:
    assert parse(name, value) is None
    assert parse(PREFIX + name, value) is None


def test_impossible_ranges_are_none() -> None:
    good = DamagedRange("t", 0, 5, 9, "c", 1, False)
    changes: tuple[dict[str, Any], ...] = (
        {"end": 4},
        {"start": -1},
        {"end": 1 << 63},
        {"partition": -1},
        {"partition": "x"},
    )
    for change in changes:
        assert parse(good.name, good._replace(**change).value()) is None
    assert parse(good.name, good.value().replace('"c"', "[" * 3 + "]" * 3)) is not None
    assert parse(good.name, "[" * 100_000) is None
