"""Bars are met, missed or not judged, by the medians of a row."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from side_by_side.bars import BUSY_CORES, CLIENT_LIMIT_CORES, Bar, Verdict, judge
from side_by_side.figures import BROKER_CPU, CLIENT_CORES, OTHER_CORES, RECORDS_PER_S, Row, Spread

AT_LEAST = Bar(RECORDS_PER_S, "headrace", "Apache Kafka", 1.5, unless_client_limits=True)
AT_MOST = Bar(BROKER_CPU, "headrace", "Apache Kafka", 0.5, at_least=False)


def row(
    ours: list[float], theirs: list[float], *, client_cores: float = 0.5, other_cores: float = 0.0
) -> Row:
    made = Row("key", "a title", (RECORDS_PER_S, BROKER_CPU))
    for name, rates in (("headrace", ours), ("Apache Kafka", theirs)):
        for rate in rates:
            made.add(
                name,
                {
                    RECORDS_PER_S: rate,
                    BROKER_CPU: 1e6 / rate,
                    CLIENT_CORES: client_cores,
                    OTHER_CORES: other_cores,
                },
            )
    return made


@pytest.mark.parametrize(
    ("measured", "verdict"),
    [
        (row([150, 160, 170], [100, 100, 900]), Verdict.MET),
        (row([149, 140, 900], [100, 100, 100]), Verdict.MISSED),
        (row([120], [100], client_cores=CLIENT_LIMIT_CORES), Verdict.CLIENT_LIMIT),
        (row([160], [100], client_cores=1.0), Verdict.MET),
        # With a broker that takes no time the client would do 140 / 0.94.
        (row([140], [100], client_cores=0.94), Verdict.CLIENT_LIMIT),
        (row([140], [100], client_cores=0.90), Verdict.MISSED),
        (row([120], [100], other_cores=BUSY_CORES + 0.01), Verdict.BUSY),
        (row([160], [100], other_cores=BUSY_CORES + 0.01), Verdict.BUSY),
        (row([160], []), Verdict.NO_FIGURE),
        (row([], [100]), Verdict.NO_FIGURE),
    ],
)
def test_throughput(measured: Row, verdict: Verdict) -> None:
    assert judge(measured, AT_LEAST).verdict is verdict


def test_the_clients_limit_excuses_no_cpu() -> None:
    assert judge(row([150], [100], client_cores=1.0), AT_MOST).verdict is Verdict.MISSED
    assert judge(row([200], [100], client_cores=1.0), AT_MOST).verdict is Verdict.MET


def test_a_fixed_number() -> None:
    bar = Bar(RECORDS_PER_S, "headrace", None, 400_000)
    assert judge(row([400_000], []), bar).verdict is Verdict.MET
    missed = judge(row([399_999], []), bar)
    assert missed.verdict is Verdict.MISSED
    assert missed.value_text == "400"
    assert bar.text == "headrace: k records/s ≥ 400"


@given(st.lists(st.floats(1, 1e9), min_size=1, max_size=9))
def test_a_spread_holds_its_median(values: list[float]) -> None:
    spread = Spread.of(values)
    assert spread.least <= spread.median <= spread.most
    assert {spread.least, spread.most} <= set(values)
