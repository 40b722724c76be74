"""`make bench-restart`: how long records wait while a datacenter restarts broker by broker.

Three brokers and ZooKeeper as units of an agent, three replicas, default settings. Idempotent producers
(librdkafka's and headrace's, each a process of its own) send RATE records a second each, as many in a quiet
time as during ROUNDS rolling restarts of the agent, the one that `headrace restart` asks for. A record's
latency is the time from its handing over to its acknowledgement by all in-sync replicas.

JSON=path keeps the figures. Exit code: 0 if no record got an error and each p99 is below a second, 1 if not.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Producer as Librdkafka
from latency import quantile
from rich.console import Console
from rich.table import Table

from fix_agent import RunningAgent
from fix_restarts import BROKERS, NAMES, brokers_of
from headrace.client import Admin, Producer

TOPIC: Final = "restarted"
PARTITIONS: Final = 6
VALUE: Final = b"v" * 200
P99_MAX_MS: Final = 1_000.0
READY_MAX_S: Final = 60.0
SETTLE_S: Final = 2.0
"""For connections and producers' ids, before anything is measured."""
FLUSH_MAX_S: Final = 60.0
AGENT: Final = (sys.executable, "-m", "headrace.agent")

Delivered = Callable[[Any, Any], None]


@dataclass
class Sent:
    """What one producer saw. `waits_ms`: of each record that was acknowledged."""

    waits_ms: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Row:
    """One producer in one phase."""

    producer: str
    phase: str
    seconds: float
    records: int
    p50_ms: float
    p99_ms: float
    max_ms: float
    errors: int
    first_error: str


# --- producers: each in a process of its own ---


def librdkafka(bootstrap: str) -> tuple[Callable[[Delivered], None], Callable[[], object]]:
    producer = Librdkafka({"bootstrap.servers": bootstrap, "enable.idempotence": True})

    def send(delivered: Delivered) -> None:
        producer.produce(TOPIC, VALUE, on_delivery=delivered)
        producer.poll(0)

    return send, lambda: producer.flush(FLUSH_MAX_S)


def headrace(bootstrap: str) -> tuple[Callable[[Delivered], None], Callable[[], object]]:
    producer = Producer(bootstrap)

    def send(delivered: Delivered) -> None:
        producer.send(TOPIC, VALUE, on_delivery=lambda metadata, error: delivered(error, metadata))

    return send, lambda: producer.close(FLUSH_MAX_S)


PRODUCERS: Final = {"librdkafka": librdkafka, "headrace": headrace}


def produce(name: str, bootstrap: str, rate: int, ended: Event, found: Any) -> None:
    """Sends `rate` records a second until `ended`; then puts what it saw into the queue `found`."""
    send, finish = PRODUCERS[name](bootstrap)
    sent = Sent()
    settled_s = time.monotonic() + SETTLE_S

    def hand_over() -> None:
        begun_s = time.monotonic()

        def delivered(error: Any, _: Any) -> None:
            if error is not None:
                sent.errors.append(str(error))
            elif begun_s >= settled_s:
                sent.waits_ms.append(1_000 * (time.monotonic() - begun_s))

        send(delivered)

    next_s = time.monotonic()
    while not ended.is_set():
        hand_over()
        next_s += 1 / rate
        time.sleep(max(0.0, next_s - time.monotonic()))
    finish()
    found.put(sent)


# --- phases ---


@contextmanager
def datacenter(home: Path) -> Iterator[tuple[RunningAgent, str]]:
    """Runs three brokers and ZooKeeper; yields their agent and the brokers' addresses."""
    agent = RunningAgent(home)
    try:
        agent.start(AGENT)
        listens = brokers_of(agent)
        with Admin(listens) as admin:
            admin.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=len(BROKERS))
        yield agent, ",".join(listens)
    finally:
        agent.close()


def measure(phase: str, bootstrap: str, rate: int, meanwhile: Callable[[], None]) -> list[Row]:
    """Lets all producers send while something happens."""
    context = multiprocessing.get_context("spawn")
    ended, found = context.Event(), {name: context.Queue() for name in PRODUCERS}
    senders = [
        context.Process(target=produce, args=(name, bootstrap, rate, ended, found[name]))
        for name in PRODUCERS
    ]
    for sender in senders:
        sender.start()
    begun_s = time.monotonic()
    try:
        time.sleep(2 * SETTLE_S)
        meanwhile()
    finally:
        ended.set()
    seconds = time.monotonic() - begun_s
    rows = [_row(name, phase, seconds, queue.get(timeout=2 * FLUSH_MAX_S)) for name, queue in found.items()]
    for sender in senders:
        sender.join()
    return rows


def _row(name: str, phase: str, seconds: float, sent: Sent) -> Row:
    ordered = sorted(sent.waits_ms)
    p50, p99, longest = (quantile(ordered, part) for part in (0.5, 0.99, 1.0))
    first = sent.errors[0] if sent.errors else ""
    return Row(name, phase, seconds, len(ordered), p50, p99, longest, len(sent.errors), first)


def exit_code(rows: list[Row]) -> int:
    """Returns 0 if no record waited too long, or got an error."""
    return 0 if all(row.records and not row.errors and row.p99_ms < P99_MAX_MS for row in rows) else 1


def show(rows: list[Row]) -> None:
    table = Table("producer", "phase", "s", "records", "p50 ms", "p99 ms", "max ms", "errors", box=None)
    for row in rows:
        figures = [f"{row.p50_ms:.1f}", f"{row.p99_ms:.0f}", f"{row.max_ms:.0f}"]
        errors = f"{row.errors} ({row.first_error})" if row.errors else "0"
        table.add_row(row.producer, row.phase, f"{row.seconds:.0f}", f"{row.records:,}", *figures, errors)
    Console().print(table)


def main() -> int:
    rate, rounds = int(os.environ.get("RATE") or 500), int(os.environ.get("ROUNDS") or 3)
    with (
        tempfile.TemporaryDirectory(prefix="rolling-restart-") as home,
        datacenter(Path(home)) as (agent, bootstrap),
    ):
        begun_s = time.monotonic()

        def restart() -> None:
            for _ in range(rounds):
                agent.client.roll(NAMES, wait_s=READY_MAX_S)

        rows = measure("broker by broker", bootstrap, rate, restart)
        quiet_s = time.monotonic() - begun_s
        rows = [*measure("quiet", bootstrap, rate, lambda: time.sleep(quiet_s)), *rows]
    show(rows)
    if path := os.environ.get("JSON"):
        Path(path).write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")
    return exit_code(rows)


if __name__ == "__main__":
    sys.exit(main())
