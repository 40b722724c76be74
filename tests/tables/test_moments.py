"""Moments as people write them."""

from datetime import UTC, date, datetime, timedelta, timezone

import pytest

from headrace.tables.moments import Moment, MomentError, as_of, moment_ms

TEN_MS = 1_763_632_800_000  # 2025-11-20T10:00 UTC


@pytest.mark.parametrize(
    "value",
    [
        "2025-11-20T10",
        "2025-11-20 10",
        "2025-11-20T10:00:00Z",
        "2025-11-20T12:00+02:00",
        datetime(2025, 11, 20, 10),
        datetime(2025, 11, 20, 12, tzinfo=timezone(timedelta(hours=2))),
        TEN_MS,
    ],
)
def test_one_moment(value: Moment) -> None:
    assert moment_ms(value, "from_") == TEN_MS


def test_days_begin_at_midnight_utc() -> None:
    midnight = round(datetime(2025, 11, 20, tzinfo=UTC).timestamp() * 1000)
    assert moment_ms("2025-11-20", "from_") == moment_ms(date(2025, 11, 20), "from_") == midnight


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("yesterday", "until='yesterday' is not a time; write 2026-11-20"),
        (True, "until=True is not a time"),
        (1.5, "until=1.5 is not a time"),
        (1_763_632_800, "until: 1763632800 looks like seconds"),
    ],
)
def test_what_is_no_moment(value: Moment, problem: str) -> None:
    with pytest.raises(MomentError, match=problem):
        moment_ms(value, "until")


def test_versions() -> None:
    assert as_of(None) == (None, None)
    assert as_of(7) == (7, None)
    assert as_of("2025-11-20T10") == (None, TEN_MS)
    with pytest.raises(MomentError, match="looks like a time, and a number is the sequence number"):
        as_of(TEN_MS)
