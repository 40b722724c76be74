"""Where a reset puts a group, decided without a broker."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.errors import CommandError, ExitCode
from headrace.cli.group_reset import Change, Target, plan, target_of
from headrace.client.survey import LogRange

KEY, OTHER = ("t", 0), ("t", 1)
RANGES = {KEY: LogRange(100, 900), OTHER: LogRange(0, 50)}
STORED = {KEY: 400}


def afters(target: Target, by_time: dict[tuple[str, int], int] | None = None) -> dict[int, int]:
    return {change.partition: change.after for change in plan(target, STORED, RANGES, by_time or {})}


def test_places() -> None:
    assert (
        afters(target_of("earliest", None, None))
        == afters(target_of("beginning", None, None))
        == {0: 100, 1: 0}
    )
    assert afters(target_of("latest", None, None)) == afters(target_of("end", None, None)) == {0: 900, 1: 50}


def test_a_time_behind_the_last_record_is_the_end() -> None:
    assert afters(target_of("2015-05-17", None, None), {KEY: 300, OTHER: -1}) == {0: 300, 1: 50}


def test_a_shift_moves_what_is_stored_and_ends_at_the_logs_ends() -> None:
    assert afters(target_of(None, None, "-100")) == {0: 300}
    assert afters(target_of(None, None, "-1KiB")) == {0: 100}
    assert afters(target_of(None, None, "+10MiB")) == {0: 900}
    with pytest.raises(CommandError, match="nothing to shift"):
        plan(target_of(None, None, "1"), {}, RANGES, {})


def test_an_offset_must_be_in_the_log() -> None:
    (change,) = plan(target_of(None, 900, None), STORED, {KEY: RANGES[KEY]}, {})
    assert change == Change("t", 0, 400, 900, 900)
    with pytest.raises(
        CommandError, match="--to-offset 99 is not in the log of t-0, which goes from 100 to 900"
    ):
        plan(target_of(None, 99, None), STORED, {KEY: RANGES[KEY]}, {})


@pytest.mark.parametrize(
    "given", [(None, None, None), ("latest", 5, None), ("latest", None, "1"), (None, 5, "1")]
)
def test_exactly_one_target_is_needed(given: tuple[str | None, int | None, str | None]) -> None:
    with pytest.raises(CommandError, match="give one of --to earliest") as caught:
        target_of(*given)
    assert caught.value.exit_code is ExitCode.USAGE


def test_a_wrong_target_is_told_at_once() -> None:
    with pytest.raises(CommandError, match="'soon' is not a time"):
        target_of("soon", None, None)
    with pytest.raises(CommandError, match="'far' is not a size"):
        target_of(None, None, "far")


@given(st.integers(0, 2000), st.integers(-3000, 3000), st.integers(0, 1000), st.integers(0, 1000))
def test_no_reset_leaves_the_log(stored: int, shift: int, start: int, size: int) -> None:
    log = LogRange(start, start + size)
    (change,) = plan(Target(shift_bytes=shift), {KEY: stored}, {KEY: log}, {})
    assert log.start <= change.after <= log.end
