"""A broker's figures for Prometheus. Pure: a status in, metrics out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from headrace.process.metrics import Metric, Sample, metric, seconds

_CONNECTIONS: Final = (
    ("connections", "Connections that are open", "open"),
    ("connections_max", "How many connections may be open", "max"),
    ("connections_accepted_total", "Connections that were accepted", "accepted"),
    ("connections_accept_failures_total", "How often the kernel gave no connection", "accept_failures"),
    ("connections_pauses_total", "How often new connections had to wait", "creation_rate_pauses"),
    ("requests_receiving_bytes", "Memory of requests that are received or passed on", "receiving_bytes"),
    ("requests_receiving_max_bytes", "The bound of that memory", "receiving_max_bytes"),
    ("requests_passed_on_bytes", "Memory of requests that are passed on to other brokers", "passed_on_bytes"),
    ("requests_partial", "Requests that are not complete yet", "partial_requests"),
    ("requests_waiting", "Requests that wait for memory", "waiting_for_room"),
    ("responses_unsent_bytes", "Memory of responses that clients do not take", "unsent_bytes"),
    ("responses_unsent_max_bytes", "The bound of that memory", "unsent_max_bytes"),
)


def metrics(status: Mapping[str, Any]) -> Iterator[Metric]:
    """Yields what `Broker.status` returns."""
    connections, disk = status["connections"], status["disk"]
    name = "headrace_broker"
    yield metric(f"{name}_partitions_led", "Partitions that it leads", status["partitions"])
    yield metric(f"{name}_partitions_followed", "Partitions that it follows", status["followed"])
    yield metric(f"{name}_partitions_offline", "Logs that it cannot open", status["offline"]["count"])
    lacking = "Partitions that it leads and that lack a replica in sync"
    yield metric(f"{name}_partitions_under_replicated", lacking, status["under_replicated"])
    leaderless = "Partitions of its cluster that have no leader"
    yield metric(f"{name}_partitions_leaderless", leaderless, status["leaderless"])
    for suffix, what, field in _CONNECTIONS:
        yield metric(f"{name}_{suffix}", what, connections[field])
    yield _by(
        f"{name}_connections_refused_total",
        "Connections refused, by setting",
        "setting",
        connections["refused"],
    )
    closed = connections["closed_by_broker"]
    yield _by(f"{name}_connections_closed_total", "Connections that it closed, by cause", "cause", closed)
    yield metric(f"{name}_disk_free_bytes", "Free space of its disk", disk["free_bytes"])
    yield metric(f"{name}_disk_size_bytes", "Size of its disk", disk["size_bytes"])
    yield metric(
        f"{name}_disk_reserve_bytes", "Free space below which it refuses appends", disk["reserve_bytes"]
    )
    yield metric(f"{name}_disk_refuses_appends", "Whether it refuses appends", disk["refuses_appends"])
    ahead_s = seconds(status["clock"]["ahead_ms"])
    yield metric(f"{name}_clock_ahead_seconds", "How far its clock is ahead of ZooKeeper's", ahead_s)
    late_s = seconds(status["loop"]["late_ms"])
    yield metric(f"{name}_loop_late_seconds", "For how long its event loop has not turned", late_s)


def _by(name: str, what: str, label: str, counts: Mapping[str, int]) -> Metric:
    return Metric(name, what, tuple(Sample(count, {label: key}) for key, count in counts.items()))
