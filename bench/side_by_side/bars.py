"""The bars: what a figure must be for `make bench` to end with 0. Pure.

A bar compares one contender with another of the same row and run, or a figure with a fixed number. It is not
judged where the client was the limit, so that both brokers could have done more, nor where other processes
used the machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from side_by_side.figures import BROKER_CPU, CLIENT_CORES, METRICS, RECORDS_PER_S, Row

CLIENT_LIMIT_CORES: Final = 0.95
"""A client that used this much of a core, in headrace's rounds, is what limits them."""
BUSY_CORES: Final = 0.15
"""Other processes used so much of a core: the run is not judged."""


class Verdict(Enum):
    MET = "met"
    MISSED = "MISSED"
    CLIENT_LIMIT = "not judged: the client is the limit"
    BUSY = "not judged: other processes used the machine"
    NO_FIGURE = "not judged: not measured"


@dataclass(frozen=True)
class Bar:
    """`metric` of `ours`, divided by that of `theirs` (by 1 if None), must be at least or at most `limit`."""

    metric: str
    ours: str
    theirs: str | None
    limit: float
    at_least: bool = True
    unless_client_limits: bool = False

    @property
    def text(self) -> str:
        relation = "≥" if self.at_least else "≤"
        title = METRICS[self.metric].title
        if self.theirs is None:
            return f"{self.ours}: {title} {relation} {METRICS[self.metric].show(self.limit)}"
        return f"{self.ours} ÷ {self.theirs}: {title} {relation} {self.limit:g}"


@dataclass(frozen=True)
class Judgement:
    """A bar, the value that it was held against (None without a figure), and the verdict."""

    bar: Bar
    value: float | None
    verdict: Verdict

    @property
    def value_text(self) -> str:
        if self.value is None:
            return "–"
        return f"{self.value:.2f}" if self.bar.theirs else METRICS[self.bar.metric].show(self.value)


def judge(row: Row, bar: Bar) -> Judgement:
    """Holds a row's medians against a bar."""
    value = _value(row, bar)
    if value is None:
        return Judgement(bar, None, Verdict.NO_FIGURE)
    if row.other_cores > BUSY_CORES:
        return Judgement(bar, value, Verdict.BUSY)
    if value >= bar.limit if bar.at_least else value <= bar.limit:
        return Judgement(bar, value, Verdict.MET)
    if bar.unless_client_limits and _client_limits(row, bar, value):
        return Judgement(bar, value, Verdict.CLIENT_LIMIT)
    return Judgement(bar, value, Verdict.MISSED)


def _client_limits(row: Row, bar: Bar, value: float) -> bool:
    """Returns whether the client had no time left, or so little that no broker could meet the bar: not even
    one that answers at once leaves the client more than its whole core.
    """
    client_cores = row.median(bar.ours, CLIENT_CORES)
    if not client_cores:
        return False
    return client_cores >= CLIENT_LIMIT_CORES or value / client_cores < bar.limit


def _value(row: Row, bar: Bar) -> float | None:
    ours = row.median(bar.ours, bar.metric)
    if bar.theirs is None or ours is None:
        return ours
    theirs = row.median(bar.theirs, bar.metric)
    return ours / theirs if theirs else None


def beside_kafka(ours: str, kafka: str, fsyncing: str | None, *, throughput: float = 1.5) -> tuple[Bar, ...]:
    """Returns the bars of most rows: throughput and CPU beside Kafka's default, CPU beside Kafka fsyncing."""
    bars = [
        Bar(RECORDS_PER_S, ours, kafka, throughput, unless_client_limits=True),
        Bar(BROKER_CPU, ours, kafka, 0.5, at_least=False),
    ]
    if fsyncing is not None:
        bars.append(Bar(BROKER_CPU, ours, fsyncing, 0.33, at_least=False))
    return tuple(bars)
