"""Times, durations, sizes and settings as users write them."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.errors import CommandError, ExitCode
from headrace.cli.values import (
    parse_duration_ms,
    parse_settings,
    parse_signed,
    parse_size_bytes,
    parse_span_ms,
    parse_time_ms,
)

AT_MS = 1_431_856_800_000


@pytest.mark.parametrize(
    ("text", "moment_ms"),
    [
        ("now", AT_MS),
        ("-1h", AT_MS - 3_600_000),
        ("-1h30m", AT_MS - 5_400_000),
        ("-7d", AT_MS - 7 * 86_400_000),
        ("+10s", AT_MS + 10_000),
        ("2015-05-17T10", AT_MS),
    ],
)
def test_times_may_count_from_now(text: str, moment_ms: int) -> None:
    assert parse_time_ms(text, AT_MS) == moment_ms


@pytest.mark.parametrize("text", ["2015", "-1", "1h", "-1x", "yesterday", "٣", "1_000_000_000_000"])
def test_what_is_no_time_is_named_with_the_accepted_forms(text: str) -> None:
    with pytest.raises(CommandError, match="is not a time; write 2015-05-17") as caught:
        parse_time_ms(text)
    assert repr(text) in str(caught.value)
    assert caught.value.exit_code is ExitCode.USAGE


@pytest.mark.parametrize("text", ["-99999999999d", "+9999999d"])
def test_a_time_too_far_from_now_is_refused(text: str) -> None:
    with pytest.raises(CommandError, match=f"'{re.escape(text)}' is not a time from 1970 to 9999") as caught:
        parse_time_ms(text)
    assert caught.value.exit_code is ExitCode.USAGE


@pytest.mark.parametrize("text", ["1969-12-31T23:59:59.999Z", "1900-01-01", "1970-01-01T00:00:00+00:01"])
def test_a_date_before_1970_is_refused(text: str) -> None:
    """Requests have other meanings for negative times: -1 is the log's end, and -2 its beginning."""
    with pytest.raises(CommandError, match=f"'{re.escape(text)}' is not a time from 1970 to 9999") as caught:
        parse_time_ms(text)
    assert caught.value.exit_code is ExitCode.USAGE
    assert parse_time_ms("1970-01-01") == 0


@pytest.mark.parametrize("parse", [parse_duration_ms, parse_size_bytes])
@pytest.mark.parametrize("number", ["9" * 19 + ".5", "9" * 400, "9" * 5_000])
def test_what_no_setting_can_hold_is_refused(parse: Callable[[str], int], number: str) -> None:
    with pytest.raises(CommandError, match="is more than 9223372036854775807 ") as caught:
        parse(number + ("d" if parse is parse_duration_ms else "GiB"))
    assert caught.value.exit_code is ExitCode.USAGE
    assert parse_size_bytes("9223372036854775807") == 2**63 - 1


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("1700000000", "looks like seconds instead of milliseconds"),
        ("999999999", "looks like seconds instead"),
        ("1700000000000000", "looks like microseconds instead"),
        ("1700000000000000000", "looks like nanoseconds instead"),
        ("100000000000", "lie before 1990"),
        ("9" * 30, "is not a number of milliseconds"),
    ],
)
def test_a_time_in_another_unit_is_refused_by_its_word(text: str, word: str) -> None:
    with pytest.raises(CommandError, match=f"is not a time: {text} .*{word}.*; write 2015-05-17") as caught:
        parse_time_ms(text)
    assert caught.value.exit_code is ExitCode.USAGE
    assert parse_time_ms("1700000000000") == 1_700_000_000_000


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [
        ("500ms", 500),
        ("90s", 90_000),
        ("2min", 120_000),
        ("1.5h", 5_400_000),
        ("7d", 604_800_000),
        ("1W", 604_800_000),
    ],
)
def test_durations(text: str, duration_ms: int) -> None:
    assert parse_duration_ms(text) == duration_ms


@pytest.mark.parametrize("text", ["", "7", "d", "7 days", "-7d", "7d7"])
def test_other_durations_are_refused(text: str) -> None:
    with pytest.raises(CommandError, match="is not a duration; write a number with ms, s"):
        parse_duration_ms(text)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("0", 0), ("4096", 4096), ("10GiB", 10 << 30), ("1 kB", 1000), ("1.5MiB", 1_572_864), ("2tib", 2 << 40)],
)
def test_sizes(text: str, size_bytes: int) -> None:
    assert parse_size_bytes(text) == size_bytes


@pytest.mark.parametrize("text", ["", "GiB", "10 gallons", "-1", "1e3", "10G"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(CommandError, match="is not a size; write a number with B, KiB"):
        parse_size_bytes(text)


@given(st.integers(0, 2**63 - 1))
def test_a_bare_number_of_bytes_is_exact(count: int) -> None:
    assert parse_size_bytes(str(count)) == count
    assert parse_signed(f"-{count}", parse_size_bytes) == -count
    assert parse_signed(f"+{count}", parse_size_bytes) == count


def test_settings_take_durations_and_sizes_and_leave_the_rest_to_the_broker() -> None:
    given = ["retention.ms=7d", "retention.bytes=10GiB", "segment.ms=", "flush.ms=-1", "a.b=7d", "x.ms=5"]
    assert parse_settings(given) == {
        "retention.ms": "604800000",
        "retention.bytes": str(10 << 30),
        "segment.ms": "",
        "flush.ms": "-1",
        "a.b": "7d",
        "x.ms": "5",
    }
    with pytest.raises(CommandError, match=r"retention\.ms: 'soon' is not a duration"):
        parse_settings(["retention.ms=soon"])
    with pytest.raises(CommandError, match=r"retention\.bytes: 'much' is not a size"):
        parse_settings(["retention.bytes=much"])
    with pytest.raises(CommandError, match=r"--config 'retention\.ms' is not NAME=VALUE"):
        parse_settings(["retention.ms"])


def test_a_span_is_a_duration_or_a_number_in_the_options_unit() -> None:
    keep = partial(parse_span_ms, unit="h", option="--keep-hours")
    assert keep("720") == keep("30d") == 2_592_000_000
    assert keep("0.5") == 1_800_000
    with pytest.raises(CommandError, match="--keep-hours '30m' must be at least 1h"):
        keep("30m", least_ms=3_600_000)
    with pytest.raises(CommandError, match="--wait '1h' must be at least 1s and at most 600s"):
        parse_span_ms("1h", "s", option="--wait", least_ms=1000, most_ms=600_000)
    with pytest.raises(CommandError, match="--keep-hours: 'soon' is not a duration"):
        keep("soon")
