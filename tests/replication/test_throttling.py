"""How fast replicas that are not in sync are copied: the quota, and whom it concerns."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.replication.throttling import BURST_S, UNBOUNDED, WAIT_MAX_MS, Quota, parse


def quota(bytes_per_s: int) -> Quota:
    made = Quota()
    made.set_rate(bytes_per_s, 0.0)
    return made


def test_replicas_are_named_by_partition_and_broker() -> None:
    some = parse(" 0:1,10:2 ")
    assert some.cover(0, 1) and some.cover(10, 2)
    assert not some.cover(1, 0) and not some.cover(0, 2)
    assert parse("*").cover(7, 9)
    assert not parse("").cover(0, 1)


@pytest.mark.parametrize("text", ["1", "1:2,", "1:2;3:4", "a:b", "1:-2", "**", "1:2:3", "99999999999:1"])
def test_what_names_no_replicas_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="PARTITION:BROKER"):
        parse(text)


def test_without_a_rate_nothing_is_bounded() -> None:
    free = Quota()
    assert not free.is_bounded and free.bytes_per_s == UNBOUNDED
    free.set_rate(5, 0.0)
    assert free.is_bounded
    free.set_rate(UNBOUNDED, 0.0)
    assert not free.is_bounded


def test_a_batch_beyond_the_rate_is_paid_back() -> None:
    made = quota(1_000)
    made.took(3_000)
    assert made.available_bytes(0.0) == 0 and made.wait_ms(0.0) == WAIT_MAX_MS
    assert made.available_bytes(2_000.0) == 0
    assert 0 < made.wait_ms(2_000.0) < 2
    assert made.available_bytes(2_500.0) == 500 and made.wait_ms(2_500.0) == 0
    assert made.available_bytes(60_000.0) == 1_000 * BURST_S, "what was not used is not kept for long"


def test_a_rate_of_nothing_lets_nothing_through() -> None:
    made = quota(0)
    assert made.available_bytes(10**9) == 0 and made.wait_ms(10**9) == WAIT_MAX_MS


def test_a_new_rate_forgets_the_debt() -> None:
    made = quota(10)
    made.took(10**9)
    made.set_rate(1_000, 5.0)
    assert made.available_bytes(5.0) == 1_000


@given(st.integers(1, 10**7), st.lists(st.tuples(st.integers(0, 5_000), st.integers(1, 10**6)), max_size=50))
def test_over_time_the_rate_holds(rate: int, steps: list[tuple[int, int]]) -> None:
    made, now_ms, taken, last = quota(rate), 0.0, 0, 0
    for wait_ms, wanted in steps:
        now_ms += wait_ms
        if made.available_bytes(now_ms):
            made.took(wanted)
            taken, last = taken + wanted, wanted
    assert taken - last <= rate * (now_ms / 1000 + BURST_S) + 1
