"""Hours in params and partition keys."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from headrace.airflow.hours import HourFormatError, by_day, hour_key, parse_hour, span, window

TEN = datetime(2015, 5, 17, 10, tzinfo=UTC)


@pytest.mark.parametrize(
    "text",
    [
        "2015-05-17T10",
        "2015-05-17T10:59:59.999",
        " 2015-05-17 10:05 ",
        "2015-05-17T12:05+02:00",
        hour_key(TEN),
    ],
)
def test_a_time_is_parsed_to_its_hour(text: str) -> None:
    assert parse_hour(text) == TEN


@pytest.mark.parametrize(
    "text", ["", "soon", "2015-05-17T25", "17/May/2015:10:05:03", "0001-01-01T00:00+02:00"]
)
def test_an_invalid_time_is_refused_naming_the_parameter(text: str) -> None:
    with pytest.raises(HourFormatError, match=r"from .* is not a time such as 2015-05-17T10:00"):
        parse_hour(text, what="from")


def test_keys_are_in_utc_whatever_the_offset() -> None:
    assert hour_key(TEN.astimezone(timezone(timedelta(hours=5, minutes=30)))) == "2015-05-17T10:00:00"


@pytest.mark.parametrize("year", [1, 999, 9999])
def test_the_key_of_any_hour_of_a_table_is_read_again(year: int) -> None:
    """Go's zero time is of the year 1: one event with it kept the check of all hours from naming any."""
    hour = datetime(year, 1, 1, tzinfo=UTC)
    assert hour_key(hour) == f"{year:04d}-01-01T00:00:00"
    assert parse_hour(hour_key(hour)) == hour


def test_an_open_window_and_an_empty_one() -> None:
    assert window(None, "") == (None, None)
    assert window("2015-05-17T10:30", None) == (TEN, None)
    with pytest.raises(HourFormatError, match=r"to .* is empty"):
        window("2015-05-17T10:10", "2015-05-17T10:50")


def test_hours_are_grouped_by_their_day_in_utc() -> None:
    hours = [TEN + timedelta(hours=n) for n in (14, 0, 1, 0, 13)]
    assert by_day(hours) == [
        [TEN, TEN + timedelta(hours=1), TEN + timedelta(hours=13)],
        [TEN + timedelta(hours=14)],
    ]
    assert span(hours) == (TEN, TEN + timedelta(hours=15))
