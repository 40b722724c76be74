"""The demo's input: lines of an access log, page views from a seed; and latencies."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.demo.access_log import (
    HOUR_MS,
    count_by_hour,
    parse_line,
    parse_time,
)
from headrace.demo.latency import LATENCY_MAX_MS, Latencies
from headrace.demo.page_views import page_views

SMALL_LOG = Path(__file__).parent / "access_log_small.txt"
REAL_LOG = Path(__file__).parents[3] / "shared" / "data" / "access_log"
GOOD = (
    b'83.149.9.216 - - [17/May/2015:10:05:03 +0000] "GET /a%20b?c=d HTTP/1.1" 200 203023 '
    b'"http://e.org/" "Mozilla/5.0 (X)"'
)


def test_a_line_becomes_a_page_view() -> None:
    view = parse_line(GOOD + b"\n")
    assert view is not None
    assert view.time_ms == 1431857103000
    assert view.fields == {
        "remote_host": "83.149.9.216",
        "member_id": None,
        "method": "GET",
        "path": "/a%20b?c=d",
        "protocol": "HTTP/1.1",
        "status": 200,
        "bytes": 203023,
        "referrer": "http://e.org/",
        "user_agent": "Mozilla/5.0 (X)",
    }


@pytest.mark.parametrize(
    ("old", "new", "field", "value"),
    [
        (b"- - [", b"- alice [", "member_id", "alice"),
        (b" 203023 ", b" - ", "bytes", None),
        (b'"http://e.org/"', b'"-"', "referrer", None),
        (b"Mozilla/5.0 (X)", rb"say \"hi\" \xe4", "user_agent", r'say "hi" \xe4'),
        (b"Mozilla/5.0 (X)", b"raw \xe4\xff", "user_agent", r"raw \xe4\xff"),
        (b"Mozilla/5.0 (X)", "grün".encode(), "user_agent", "grün"),
        (b"GET /a%20b?c=d HTTP/1.1", b"GET /", "protocol", None),
        (b"GET /a%20b?c=d HTTP/1.1", b"GET /a b c HTTP/1.1", "path", "/a b c"),
        (b"GET /a%20b?c=d HTTP/1.1", rb"\x16\x03\x01", "path", r"\x16\x03\x01"),
        (b"GET /a%20b?c=d HTTP/1.1", b"-", "method", "-"),
        (b' "http://e.org/" "Mozilla/5.0 (X)"', b"", "user_agent", None),
        (b'(X)"', b"(X)", "user_agent", "Mozilla/5.0 (X)"),
    ],
)
def test_unusual_lines_are_parsed(old: bytes, new: bytes, field: str, value: object) -> None:
    line = GOOD.replace(old, new)
    assert line != GOOD
    view = parse_line(line)
    assert view is not None
    assert view.fields[field] == value


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\n",
        b"hello",
        GOOD[:40],
        GOOD.replace(b"17/May", b"17/Mai"),
        GOOD.replace(b"17/May", b"99/May"),
        GOOD.replace(b"+0000", b"zone"),
        GOOD.replace(b" 200 ", b" ok "),
        GOOD + b" and more",
        GOOD + b"x" * (64 << 10),
    ],
)
def test_other_lines_are_not_parsed(line: bytes) -> None:
    assert parse_line(line) is None


@given(st.binary(max_size=300))
def test_no_line_makes_the_parser_fail(line: bytes) -> None:
    parse_line(line)


@given(st.integers(0, len(GOOD)), st.binary(max_size=4))
def test_no_damaged_line_makes_the_parser_fail(at: int, inserted: bytes) -> None:
    parse_line(GOOD[:at] + inserted + GOOD[at:])


def test_time_zones_are_applied() -> None:
    assert parse_time(b"17/May/2015:12:05:03 +0200") == parse_time(b"17/May/2015:10:05:03 +0000")


@pytest.mark.parametrize(("path", "parsed", "hours"), [(SMALL_LOG, 116, 4), (REAL_LOG, 10_000, 84)])
def test_a_whole_log_parses_as_awk_counts(path: Path, parsed: int, hours: int) -> None:
    if not path.exists():
        pytest.skip(f"{path} is not here")
    lines = path.read_bytes().splitlines(keepends=True)
    views = [view for line in lines if (view := parse_line(line))]
    counted = count_by_hour(lines)
    without_time = counted.pop(-1, 0)
    assert Counter(view.time_ms - view.time_ms % HOUR_MS for view in views) == counted
    assert len(views) == parsed == len(lines) - without_time
    assert len(counted) == hours


def test_page_views_come_from_the_seed() -> None:
    span = {"from_ms": 1_700_000_000_000, "until_ms": 1_700_010_800_000}
    views = page_views(5000, seed=1, **span)
    assert views == page_views(5000, seed=1, **span)
    assert views != page_views(5000, seed=2, **span)
    assert len(views) == 5000
    assert all(span["from_ms"] <= view.time_ms < span["until_ms"] for view in views)
    assert views == sorted(views, key=lambda view: view.time_ms)
    pages = Counter(view.fields["path"] for view in views).most_common()
    assert pages[0][1] > 20 * pages[len(pages) // 2][1] / 4, "a few pages are much more frequent"
    assert {view.fields["member_id"] is None for view in views} == {True, False}


@given(st.lists(st.integers(0, 5000), min_size=1), st.floats(0.01, 1))
def test_quantiles_are_observed_values(values: list[int], share: float) -> None:
    latencies = Latencies()
    for value in values:
        latencies.add(value)
    quantile = latencies.quantile(share)
    assert quantile in values
    assert sum(value <= quantile for value in values) >= share * len(values)
    assert Latencies.from_json(latencies.to_json()).counts == latencies.counts


def test_latencies_are_bounded() -> None:
    latencies = Latencies()
    latencies.add(-5)
    latencies.add(10**9)
    assert (latencies.quantile(0.5), latencies.quantile(1.0)) == (0, LATENCY_MAX_MS)
    assert Latencies().quantile(0.5) is None
