"""A mirror's figures for Prometheus. Pure: a status in, metrics out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from headrace.process.metrics import Metric, Sample, metric

_PARTITION: Final = (
    ("headrace_mirror_partition_lag_bytes", "Bytes of a partition that are not copied yet", "lag_bytes"),
    ("headrace_mirror_partition_copied_bytes_total", "Bytes of a partition that were copied", "bytes_copied"),
    ("headrace_mirror_partition_skipped_bytes", "Bytes of a partition in accepted gaps", "skipped_bytes"),
)


def metrics(status: Mapping[str, Any]) -> Iterator[Metric]:
    """Yields what `MirrorService.status` returns."""
    rows = status["partitions"]
    whose = {"source": status["source"], "target": status["target"]}
    halted, locating = (sum(row["state"] == state for row in rows) for state in ("halted", "locating"))
    failed = len(status["topic_troubles"])
    yield metric("headrace_mirror_up", "Whether it finds the topics to copy", not status["trouble"], **whose)
    yield metric("headrace_mirror_topics_failed", "Topics with a problem", failed, **whose)
    yield metric("headrace_mirror_partitions", "Partitions that it copies", len(rows), **whose)
    yield metric("headrace_mirror_partitions_halted", "Copies that wait for a person", halted, **whose)
    yield metric("headrace_mirror_partitions_locating", "Copies that look for their place", locating, **whose)
    yield metric("headrace_mirror_lag_bytes", "Bytes that are not copied yet", status["lag_bytes"], **whose)
    for name, what, field in _PARTITION:
        yield Metric(
            name,
            what,
            tuple(
                Sample(row[field], {**whose, "topic": row["topic"], "partition": row["partition"]})
                for row in rows
                if field != "lag_bytes" or row["state"] != "locating"  # then nobody knows
            ),
        )
