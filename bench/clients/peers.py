"""The command lines of RabbitMQ's and ActiveMQ's own clients, driven by the programs in bench/clients/java.

Each program prints the line `begin` when its warm-up is over and at its end one line for `Outcome.parse`,
whose `more["all_records"]` counts the records of the warm-up, too. A consumer begins with the oldest record,
and ends earlier than told when nothing has come for three seconds.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from clients.outcome import ClientFailedError
from peers.activemq import ActiveMq
from peers.jars import bench_jars, class_path
from peers.kafka import JAVA_ENV, QUIET
from peers.rabbitmq import RabbitMq
from side_by_side.process import PinnedProcess

from headrace.warehouse.jars import java

HEAP_MAX: Final = "-Xmx1G"
JMS_PREFETCH_MAX: Final = 300
"""The broker pages in 200 messages, and goes on once 65 % of the prefetch are acknowledged: 195 of 300."""
ADMINISTRATION_WAIT_MAX_S: Final = 60.0


@dataclass(frozen=True)
class Run:
    """How long a client works: `seconds` after a warm-up, but at most `records` in all. 0 is no limit."""

    seconds: float
    warmup_s: float
    value_bytes: int = 200
    records: int = 0

    def __post_init__(self) -> None:
        if self.seconds <= 0 and self.records <= 0:
            raise ValueError("a client's run needs an end: give seconds or records")

    def options(self) -> dict[str, object]:
        return {
            "seconds": self.seconds,
            "warmup": self.warmup_s,
            "value-bytes": self.value_bytes,
            "records": self.records,
        }


@dataclass(frozen=True)
class ClientCommand:
    """A client program to start, such as by `PinnedProcess(command, env=env, pipe_output=True, …)`."""

    command: list[str]
    env: dict[str, str] = field(default_factory=lambda: dict(JAVA_ENV))

    def administer(self, cores: Collection[int], log: Path) -> None:
        """Runs a command that only creates or deletes something. Raises `ClientFailedError`."""
        process = PinnedProcess(self.command, cores=cores, log=log, env=self.env)
        try:
            if process.wait(ADMINISTRATION_WAIT_MAX_S) != 0:
                raise ClientFailedError(f"{' '.join(self.command[-6:])} failed: {process.log_tail()}")
        finally:
            process.kill()


# --- a quorum queue of RabbitMQ ---


def amqp_produce(broker: RabbitMq, queue: str, run: Run, *, outstanding: int = 1000) -> ClientCommand:
    """AMQP 0.9.1 has no batches: each message is a publish; at most `outstanding` are unconfirmed."""
    return _amqp("produce", broker, queue, run, outstanding=outstanding)


def amqp_consume(broker: RabbitMq, queue: str, run: Run, *, prefetch: int = 1000) -> ClientCommand:
    """Acknowledges half of `prefetch` at once. What it consumed has left the queue."""
    return _amqp("consume", broker, queue, run, prefetch=prefetch)


def amqp_delete(broker: RabbitMq, queue: str) -> ClientCommand:
    return _amqp("delete", broker, queue)


def _amqp(verb: str, broker: RabbitMq, queue: str, run: Run | None = None, **more: object) -> ClientCommand:
    return _command("rabbitmq", "AmqpBench", verb, run, {"url": broker.amqp_url, "queue": queue, **more})


# --- a stream of RabbitMQ ---


def stream_create(broker: RabbitMq, stream: str) -> ClientCommand:
    return _stream("create", broker, stream)


def stream_produce(
    broker: RabbitMq, stream: str, run: Run, *, batch: int = 100, outstanding: int = 10_000
) -> ClientCommand:
    """Both defaults are the stream client's own. `batch` is the most that it puts in one request."""
    return _stream("produce", broker, stream, run, batch=batch, outstanding=outstanding)


def stream_consume(broker: RabbitMq, stream: str, run: Run) -> ClientCommand:
    return _stream("consume", broker, stream, run)


def stream_delete(broker: RabbitMq, stream: str) -> ClientCommand:
    return _stream("delete", broker, stream)


def _stream(
    verb: str, broker: RabbitMq, stream: str, run: Run | None = None, **more: object
) -> ClientCommand:
    given = {"host": broker.host, "port": broker.stream_port, "stream": stream}
    return _command("rabbitmq", "StreamBench", verb, run, {**given, **more})


# --- a queue of ActiveMQ ---


def jms_produce(
    broker: ActiveMq, queue: str, run: Run, *, acks: str, batch: int = 1, outstanding: int = 1000
) -> ClientCommand:
    """`acks`: "none" as in the paper, "callback" (pipelined, at most `outstanding`), or "transaction" (of
    `batch` messages each).
    """
    return _jms("produce", broker, queue, run, acks=acks, batch=batch, outstanding=outstanding)


def jms_consume(broker: ActiveMq, queue: str, run: Run, *, prefetch: int = JMS_PREFETCH_MAX) -> ClientCommand:
    """Acknowledges automatically, 65 % of `prefetch` at once. What it consumed has left the queue."""
    if not 1 <= prefetch <= JMS_PREFETCH_MAX:
        raise ValueError(f"prefetch {prefetch}: give 1 to {JMS_PREFETCH_MAX}, or ActiveMQ stops delivering")
    return _jms("consume", broker, queue, run, prefetch=prefetch)


def _jms(verb: str, broker: ActiveMq, queue: str, run: Run, **more: object) -> ClientCommand:
    return _command("activemq", "JmsBench", verb, run, {"url": broker.url, "queue": queue, **more})


def _command(
    jars: str, program: str, verb: str, run: Run | None, options: dict[str, object]
) -> ClientCommand:
    words = [java(), HEAP_MAX, QUIET, "-cp", class_path(bench_jars(jars)), program, verb]
    for name, value in {**(run.options() if run is not None else {}), **options}.items():
        words += [f"--{name}", str(value)]
    return ClientCommand(words)
