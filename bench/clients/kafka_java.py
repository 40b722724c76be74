"""Apache Kafka's load tools, ProducerPerformance and ConsumerPerformance: command lines, and what they print.

`bench/kafka_java_client.py` runs the tools. The JVM is started as Kafka's scripts start it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PRODUCER: Final = "org.apache.kafka.tools.ProducerPerformance"
CONSUMER: Final = "org.apache.kafka.tools.ConsumerPerformance"
STEADY_LINE: Final = "In steady state."
MIB: Final = 1 << 20
_BENCH: Final = Path(__file__).parents[1]
_RATE: Final = (
    r"records sent, ([\d.]+) records/sec \([\d.]+ MB/sec\), ([\d.]+) ms avg latency, ([\d.]+) ms max latency"
)
_WINDOW: Final = re.compile(rf"(\d+) {_RATE}\.$")
_SUMMARY: Final = re.compile(
    rf"(\d+) (steady state )?{_RATE}, (\d+) ms 50th, (\d+) ms 95th, (\d+) ms 99th, (\d+) ms 99\.9th\.$"
)
_CONSUMED: Final = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d:\d{3}, \d+, ([\d.]+), [\d.]+, (\d+), ")


# --- command lines ---


def produce_command(
    bootstrap: str,
    topic: str,
    *,
    seconds: float,
    warmup_s: float,
    value_bytes: int = 200,
    properties: Mapping[str, str] | None = None,
) -> list[str]:
    """Returns the command line of a Java producer that sends for about `seconds` after the warm-up.

    `properties` are the producer's; without any it has its defaults: acks=all, idempotent, 16 kB batches,
    linger.ms=5, five requests in flight.
    """
    return _command("produce", bootstrap, topic, seconds, warmup_s, value_bytes, properties)


def consume_command(
    bootstrap: str,
    topic: str,
    *,
    seconds: float,
    warmup_s: float,
    value_bytes: int = 200,
    properties: Mapping[str, str] | None = None,
) -> list[str]:
    """Returns the command line of a Java consumer that reads a topic from its beginning.

    It measures `seconds` after the warm-up, and fails if the topic holds too little for them. `properties`
    are the consumer's.
    """
    return _command("consume", bootstrap, topic, seconds, warmup_s, value_bytes, properties)


def _command(
    mode: str,
    bootstrap: str,
    topic: str,
    seconds: float,
    warmup_s: float,
    value_bytes: int,
    properties: Mapping[str, str] | None,
) -> list[str]:
    given = (f"--property={name}={value}" for name, value in (properties or {}).items())
    return [
        sys.executable,
        str(_BENCH / "kafka_java_client.py"),
        mode,
        f"--bootstrap={bootstrap}",
        f"--topic={topic}",
        f"--seconds={seconds:g}",
        f"--warmup={warmup_s:g}",
        f"--value-bytes={value_bytes}",
        *given,
    ]


# --- what the tools print ---


@dataclass(frozen=True)
class ProducerSummary:
    """A line of ProducerPerformance at its end. The tool prints one for all records and, after that one,
    one for those that followed its warm-up."""

    is_steady: bool
    records: int
    records_per_s: float
    latencies_ms: Mapping[str, float]

    @classmethod
    def parse(cls, line: str) -> ProducerSummary | None:
        """Returns None for any other line."""
        found = _SUMMARY.match(line.strip())
        if found is None:
            return None
        records, steady, rate, *latencies = found.groups()
        names = ("avg_ms", "max_ms", "p50_ms", "p95_ms", "p99_ms", "p999_ms")
        shown = dict(zip(names, map(float, latencies), strict=True))
        return cls(steady is not None, int(records), float(rate), shown)


def window_records_per_s(line: str) -> float | None:
    """Returns the rate in a line that ProducerPerformance prints meanwhile; None for any other line."""
    found = _WINDOW.match(line.strip())
    return float(found[2]) if found else None


def consumed(line: str) -> tuple[int, float] | None:
    """Returns the records and the bytes so far, from a line that ConsumerPerformance prints meanwhile.

    None for any other line. The bytes are rounded to a ten-thousandth of a MiB.
    """
    found = _CONSUMED.match(line)
    return (int(found[2]), float(found[1]) * MIB) if found else None
