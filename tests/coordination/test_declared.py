"""What a topic declares about its producers, and the history that the brokers keep of it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.coordination.declared import (
    ANY,
    CHANGES_MAX,
    HISTORY,
    HOUR_MS,
    PRODUCERS,
    REPORTING,
    Change,
    history_of,
    parse_history,
    with_history,
)

NOW_MS = 1_795_312_865_914  # 2026-11-22 02:01:05
NEXT_MS = 1_795_312_800_000 + HOUR_MS


def test_a_topic_that_never_changed_declares_one_thing_for_all_hours() -> None:
    assert history_of({}) == (Change(REPORTING),)
    assert history_of({PRODUCERS: ANY}) == (Change(ANY),)


def test_a_change_applies_to_the_hours_after_this_one() -> None:
    changed = with_history({}, {PRODUCERS: ANY}, NOW_MS)
    assert changed[HISTORY] == "reporting,any@2026-11-22T03Z"
    assert history_of(changed) == (Change(REPORTING), Change(ANY, NEXT_MS))
    back = with_history(changed, {HISTORY: changed[HISTORY]}, NOW_MS + HOUR_MS)
    assert history_of(back) == (Change(REPORTING), Change(ANY, NEXT_MS), Change(REPORTING, NEXT_MS + HOUR_MS))


def test_other_settings_leave_the_history_alone_even_if_all_are_replaced() -> None:
    changed = with_history({}, {PRODUCERS: ANY}, NOW_MS)
    replaced = with_history(changed, {PRODUCERS: ANY, "retention.ms": "1"}, NOW_MS + HOUR_MS)
    assert replaced == {PRODUCERS: ANY, "retention.ms": "1", HISTORY: changed[HISTORY]}
    assert with_history({}, {"retention.ms": "1"}, NOW_MS) == {"retention.ms": "1"}


def test_changes_within_one_hour_leave_the_last_one() -> None:
    there = with_history({}, {PRODUCERS: ANY}, NOW_MS)
    back = with_history(there, {}, NOW_MS + 1)
    assert history_of(back) == (Change(REPORTING),)
    assert history_of(with_history(back, {PRODUCERS: ANY}, NOW_MS + 2)) == history_of(there)


def test_no_client_writes_the_history() -> None:
    with pytest.raises(ValueError, match="written by the brokers alone"):
        with_history({}, {PRODUCERS: ANY, HISTORY: "any"}, NOW_MS)
    present = with_history({}, {PRODUCERS: ANY}, NOW_MS)
    with pytest.raises(ValueError, match="written by the brokers alone"):
        with_history(present, {PRODUCERS: ANY, HISTORY: "any"}, NOW_MS)


def test_a_topic_keeps_a_bounded_number_of_changes() -> None:
    config: dict[str, str] = {}
    for number in range(CHANGES_MAX - 1):
        wanted = {} if config.get(PRODUCERS) else {PRODUCERS: ANY}
        config = with_history(config, wanted, NOW_MS + number * HOUR_MS)
    assert len(history_of(config)) == CHANGES_MAX
    other = {} if config.get(PRODUCERS) else {PRODUCERS: ANY}
    with pytest.raises(ValueError, match="changed 500 times"):
        with_history(config, other, NOW_MS + CHANGES_MAX * HOUR_MS)


@pytest.mark.parametrize(
    "text",
    [
        "often",
        "any@2026-11-22T03Z",
        "reporting,any",
        "reporting,any@yesterday",
        "reporting,any@2026-11-22T03Z,reporting@2026-11-22T03Z",
        "reporting,any@2026-11-22T03Z,reporting@2026-11-22T02Z",
    ],
)
def test_a_history_that_cannot_be_read_asks_for_reports(text: str) -> None:
    with pytest.raises(ValueError):
        parse_history(text)
    assert history_of({PRODUCERS: ANY, HISTORY: text}) == (Change(REPORTING),)


def test_a_history_that_does_not_end_with_what_is_declared_asks_for_reports() -> None:
    assert history_of({PRODUCERS: ANY, HISTORY: "any,reporting@2026-11-22T03Z"}) == (Change(REPORTING),)


@given(st.lists(st.tuples(st.sampled_from([REPORTING, ANY]), st.integers(0, 3 * HOUR_MS)), max_size=12))
@settings(max_examples=50, deadline=None)
def test_no_change_reaches_an_hour_that_has_begun(steps: list[tuple[str, int]]) -> None:
    config: dict[str, str] = {}
    now_ms = NOW_MS
    for producers, passes_ms in steps:
        now_ms += passes_ms
        before = {hour: _declared(history_of(config), hour) for hour in _hours(now_ms)}
        config = with_history(config, {**config, PRODUCERS: producers}, now_ms)
        assert parse_history(config.get(HISTORY, "")) in ((), history_of(config))
        assert {hour: _declared(history_of(config), hour) for hour in before} == before
        assert _declared(history_of(config), now_ms - now_ms % HOUR_MS + HOUR_MS) == producers


def _hours(now_ms: int) -> range:
    this_hour = now_ms - now_ms % HOUR_MS
    return range(this_hour - 8 * HOUR_MS, this_hour + 1, HOUR_MS)


def _declared(changes: tuple[Change, ...], hour_ms: int) -> str:
    return [each.producers for each in changes if each.from_ms is None or each.from_ms <= hour_ms][-1]
