"""An auditor's figures for Prometheus. Pure: a status in, metrics out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from headrace.audit.topic.records import CorruptRecord
from headrace.process.metrics import Metric, Sample, metric, seconds

_DRILL: Final = (
    ("drills", "Drills that ended in the last 24 hours"),
    ("plants", "Failures that the drills of the last 24 hours planted"),
    ("found", "Planted failures that the audit named"),
    ("missed", "Planted failures of which the audit said that all is complete"),
    ("wrong_place", "Planted failures that the audit named at a wrong place"),
    ("unknown", "Planted failures that the audit did not name in time"),
    ("doubted", "Planted failures that a drill called found, and the audit does not name now"),
)


KNOWN_MAX: Final = 100_000
"""Damaged batches that are known by their addresses; further ones are counted each time they are said."""


class DamagedBatches:
    """Counts each damaged batch once: what still differs on a replica is said again every few minutes."""

    def __init__(self) -> None:
        self.count = 0
        self._known: set[tuple[str, str, int, int, int]] = set()

    def add(self, said: Iterable[object]) -> None:
        """Counts those of the records that are about damage."""
        for record in said:
            if not isinstance(record, CorruptRecord) or not record.cause:
                continue
            place = (
                record.tier,
                record.topic,
                record.log_partition,
                record.from_address,
                record.to_address,
            )
            if place in self._known:
                continue
            self.count += 1
            if len(self._known) < KNOWN_MAX:
                self._known.add(place)


def metrics(status: Mapping[str, Any]) -> Iterator[Metric]:
    """Yields what `AuditorProcess.status` returns, with the times and scores of the last 24 hours."""
    rows = status["partitions"]
    stuck = sum(bool(row["reason"]) for row in rows)
    yield metric("headrace_audit_up", "Whether this auditor can go on", not status["trouble"])
    yield metric("headrace_audit_partitions", "Partitions that it counts", len(rows))
    yield metric("headrace_audit_partitions_stuck", "Partitions that are not counted on", stuck)
    yield metric("headrace_audit_reports_unsaid", "Reports that are not published yet", status["unsaid"])
    yield metric("headrace_audit_corrupt_batches_total", "Damaged batches that it met", status["corrupt"])
    yield metric(
        "headrace_audit_http_reports_total", "Reports of counts by HTTP", status["reports_of_counts"]
    )
    yield _set_aside("headrace_audit_set_aside_records_total", status["set_aside"])
    yield Metric(
        "headrace_audit_counted_to_address",
        "Address of a partition up to which it is counted",
        tuple(
            Sample(row["counted_to"], {"topic": row["topic"], "partition": row["partition"]}) for row in rows
        ),
    )
    if (store := status.get("store")) is not None:
        yield from _store(store)


def _set_aside(name: str, rows: list[Mapping[str, Any]]) -> Metric:
    return metric(
        name, "Records of the audit topics that were not believed", sum(row["records"] for row in rows)
    )


def _store(store: Mapping[str, Any]) -> Iterator[Metric]:
    """Yields the figures of the auditor that folds reports into the audit store."""
    name = "headrace_audit_store"
    yield metric(f"{name}_up", "Whether reports are folded into the audit store", not store["trouble"])
    yield metric(f"{name}_folded_records_total", "Records that are in the store", store["folded"])
    yield metric(f"{name}_refused_records_total", "Records that cannot be true", store["refused"])
    yield metric(f"{name}_unreadable_records_total", "Records that cannot be decoded", store["unreadable"])
    yield _set_aside(f"{name}_set_aside_records_total", store["set_aside"])
    yield from _detection(store["detection"])
    if store["drill"] is not None:
        yield from _drill(store["drill"])
    elif store["looked_ms"] is not None:
        yield _last_drill(0)


def _detection(rows: list[Mapping[str, Any]]) -> Iterator[Metric]:
    """Yields how long findings took to be named, by hop."""
    name = "headrace_audit_detection"
    yield Metric(
        f"{name}_findings",
        "Findings of the last 24 hours that were named",
        tuple(Sample(row["findings"], _hop(row)) for row in rows),
    )
    for figure, what in (("p50", "Median of the"), ("p99", "99th percentile of the"), ("slowest", "Longest")):
        yield Metric(
            f"{name}_{figure}_seconds",
            f"{what} time from the report that shows a loss to its name, of the last 24 hours",
            tuple(Sample(seconds(row[f"{figure}_ms"]), _hop(row)) for row in rows),
        )


def _hop(row: Mapping[str, Any]) -> dict[str, object]:
    """The hop in ASCII: `datacenter to analysis`."""
    return {"hop": str(row["hop"]).replace("→", "to")}


def _drill(score: Mapping[str, Any]) -> Iterator[Metric]:
    """Yields the score of the last 24 hours' drills."""
    name = "headrace_audit_drill"
    yield metric(
        f"{name}_good", "Whether the drills found all, and the audit made nothing up", score["is_good"]
    )
    for figure, what in _DRILL:
        yield metric(f"{name}_{figure}", what, score[figure])
    yield metric(f"{name}_false", "Events that it called lost or doubled by mistake", score["false_count"])
    yield metric(f"{name}_p50_seconds", "Median of the time to a plant's name", seconds(score["p50_ms"]))
    yield metric(f"{name}_slowest_seconds", "Longest time to a plant's name", seconds(score["slowest_ms"]))
    yield _last_drill(score["last_ms"])


def _last_drill(ended_ms: int) -> Metric:
    """0 if none is known: an alert on the age of a figure that is not there would never come."""
    name = "headrace_audit_drill_last_timestamp_seconds"
    return metric(name, "When the last drill ended; 0: none in a week", seconds(ended_ms))
