"""What was measured: the rounds of each contender in one row, and their medians. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

RECORDS_PER_S: Final = "records_per_s"
MB_PER_S: Final = "mb_per_s"
BROKER_CPU: Final = "broker_cpu_s_per_million"
CLIENT_CORES: Final = "client_cores"
P50_MS: Final = "p50_ms"
P99_MS: Final = "p99_ms"
CPU_PER_GB: Final = "cpu_s_per_gb"
BROKER_MEMORY_MB: Final = "broker_memory_mb"
CLIENT_MEMORY_MB: Final = "client_memory_mb"
RESTART_S: Final = "restart_s"
OTHER_CORES: Final = "other_cores"


@dataclass(frozen=True)
class Metric:
    """How a figure is shown: its column's title, and the factor and decimals of its number."""

    title: str
    factor: float = 1.0
    decimals: int = 0

    def show(self, value: float) -> str:
        return f"{value * self.factor:,.{self.decimals}f}"


METRICS: Final[Mapping[str, Metric]] = {
    RECORDS_PER_S: Metric("k records/s", 1e-3),
    MB_PER_S: Metric("MB/s"),
    BROKER_CPU: Metric("broker CPU-s a million", decimals=2),
    CLIENT_CORES: Metric("client's cores", decimals=2),
    P50_MS: Metric("p50 ms", decimals=2),
    P99_MS: Metric("p99 ms", decimals=2),
    CPU_PER_GB: Metric("CPU-s a GB", decimals=1),
    BROKER_MEMORY_MB: Metric("memory MB"),
    CLIENT_MEMORY_MB: Metric("client's memory MB"),
    RESTART_S: Metric("restart s", decimals=2),
    OTHER_CORES: Metric("other processes' cores", decimals=2),
}


@dataclass(frozen=True)
class Spread:
    """The median of some rounds, the smallest and the largest."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))


Sample = dict[str, float]
"""The figures of one contender in one round, by metric."""


@dataclass
class Row:
    """One experiment: the same work, given to several contenders in turn. Its table shows `shown`."""

    key: str
    title: str
    shown: tuple[str, ...]
    note: str = ""
    date: str = ""
    samples: dict[str, list[Sample]] = field(default_factory=dict)

    def add(self, contender: str, sample: Sample) -> None:
        self.samples.setdefault(contender, []).append(sample)

    def values(self, contender: str, metric: str) -> list[float]:
        return [sample[metric] for sample in self.samples.get(contender, []) if metric in sample]

    def spread(self, contender: str, metric: str) -> Spread | None:
        """None if this contender has no such figure."""
        values = self.values(contender, metric)
        return Spread.of(values) if values else None

    def median(self, contender: str, metric: str) -> float | None:
        spread = self.spread(contender, metric)
        return None if spread is None else spread.median

    def cell(self, contender: str, metric: str, spread_format: str = "({})") -> str:
        """Returns a figure as text: the median, then the least and the most if the rounds differ."""
        spread = self.spread(contender, metric)
        if spread is None:
            return "–"
        show = METRICS[metric].show
        least, most = show(spread.least), show(spread.most)
        if least == most:
            return show(spread.median)
        return f"{show(spread.median)} {spread_format.format(f'{least}–{most}')}"

    @property
    def other_cores(self) -> float:
        """The cores that other processes used meanwhile: the median of all rounds, 0 if unknown."""
        used = [value for contender in self.samples for value in self.values(contender, OTHER_CORES)]
        return statistics.median(used) if used else 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            "key": self.key,
            "title": self.title,
            "shown": list(self.shown),
            "note": self.note,
            "date": self.date,
            "samples": self.samples,
        }

    @classmethod
    def from_json(cls, told: dict[str, Any]) -> Row:
        shown = tuple(told["shown"])
        return cls(told["key"], told["title"], shown, told["note"], told["date"], told["samples"])
