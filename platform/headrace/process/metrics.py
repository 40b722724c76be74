"""Figures for Prometheus: the text exposition format 0.0.4. Pure: metrics in, bytes out.

A room has a pure `metrics`, which makes metrics of the status that `GET /status` returns. Names end with
their unit, in Prometheus' base units (`_seconds`, `_bytes`). One that ends with `_total` only ever grows
while the process runs, and is a counter; any other one is a gauge. Labels may hold names of strangers: they
are escaped.

Source: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

KIND: Final = "text/plain; version=0.0.4; charset=utf-8"
SAMPLES_MAX: Final = 20_000
"""Of one process; `headrace_metrics_left_out` says how many more there are."""
LABEL_MAX_CHARS: Final = 500
LEFT_OUT: Final = "headrace_metrics_left_out"
_NAME: Final = re.compile(r"headrace_[a-z0-9]+(_[a-z0-9]+)*")
_LABEL: Final = re.compile(r"[a-z]+(_[a-z]+)*")

Value = int | float | bool | None


class Sample(NamedTuple):
    """One value, and what distinguishes it from the others of its metric. A value of None is not known."""

    value: Value
    labels: Mapping[str, object] = MappingProxyType({})


class Metric(NamedTuple):
    """One figure of a process. `help`: what it means, without its unit."""

    name: str
    help: str
    samples: tuple[Sample, ...]


def metric(name: str, help: str, value: Value, **labels: object) -> Metric:
    """A metric of one value."""
    return Metric(name, help, (Sample(value, labels),))


def seconds(value_ms: int | None) -> float | None:
    """Milliseconds in the unit of metrics."""
    return None if value_ms is None else value_ms / 1000


def text_of(metrics: Iterable[Metric]) -> bytes:
    """Returns what `GET /metrics` answers: at most `SAMPLES_MAX` samples, each series once.

    Raises `ValueError` for a name that no metric or label may have.
    """
    lines: list[str] = []
    room, left_out = SAMPLES_MAX, 0
    for each in metrics:
        shown = _samples(each)
        left_out += max(0, len(shown) - room)
        lines += _lines(each, shown[:room])
        room -= min(room, len(shown))
    more = metric(LEFT_OUT, f"Samples beyond the {SAMPLES_MAX} that are shown", left_out)
    lines += _lines(more, _samples(more))
    return ("\n".join(lines) + "\n").encode("utf-8", "replace")


def _lines(each: Metric, samples: list[str]) -> list[str]:
    if not samples:
        return []
    kind = "counter" if each.name.endswith("_total") else "gauge"
    explained = each.help.replace("\\", r"\\").replace("\n", r"\n")
    return [f"# HELP {each.name} {explained}", f"# TYPE {each.name} {kind}", *samples]


def _samples(each: Metric) -> list[str]:
    """Returns a line for each value that is known. Of two with the same labels, which Prometheus would refuse
    with all others, only the first one is there.
    """
    if not _NAME.fullmatch(each.name):
        raise ValueError(f"{each.name!r} is no name of a metric")
    found: dict[str, str] = {}
    for value, labels in each.samples:
        if value is not None:
            found.setdefault(f"{each.name}{_labels(labels)}", _number(value))
    return [f"{series} {number}" for series, number in found.items()]


def _labels(labels: Mapping[str, object]) -> str:
    if not labels:
        return ""
    if wrong := [name for name in labels if not _LABEL.fullmatch(name)]:
        raise ValueError(f"{wrong[0]!r} is no name of a label")
    return "{" + ",".join(f'{name}="{_escaped(str(value))}"' for name, value in labels.items()) + "}"


def _escaped(text: str) -> str:
    short = text if len(text) <= LABEL_MAX_CHARS else f"{text[: LABEL_MAX_CHARS - 1]}…"
    return short.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: int | float | bool) -> str:
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, int):
        return str(value)
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return "NaN" if math.isnan(value) else repr(value)
