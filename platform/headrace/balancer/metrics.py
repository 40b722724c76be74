"""A balancer's figures for Prometheus. Pure: a status in, metrics out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from headrace.process.metrics import Metric, Sample, metric

_BROKER: Final = (
    ("headrace_balancer_broker_up", "Whether the last health check of a broker succeeded", "is_up"),
    ("headrace_balancer_broker_connections", "Connections to a broker that are open", "connections"),
    (
        "headrace_balancer_broker_connections_made_total",
        "Connections to a broker, since the start",
        "connections_total",
    ),
    (
        "headrace_balancer_broker_connect_errors_total",
        "Attempts to connect to a broker that failed",
        "connect_errors",
    ),
    ("headrace_balancer_broker_received_bytes_total", "Bytes from clients to a broker", "bytes_in"),
    ("headrace_balancer_broker_sent_bytes_total", "Bytes from a broker to clients", "bytes_out"),
)


def metrics(status: Mapping[str, Any]) -> Iterator[Metric]:
    """Yields what `Control.status` returns; nothing of a broker of which the engine says nothing."""
    rows = status["backends"]
    yield metric("headrace_balancer_up", "Whether producers can connect", status["problem"] is None)
    yield metric("headrace_balancer_brokers", "Brokers that it knows", len(rows))
    yield metric(
        "headrace_balancer_brokers_withdrawn", "Brokers whose front is withdrawn", len(status["withdrawn"])
    )
    for name, what, field in _BROKER:
        samples = tuple(Sample(row.get(field), {"broker": row["broker_id"]}) for row in rows)
        yield Metric(name, what, samples)
