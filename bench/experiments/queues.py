"""The paper's own comparison: the message queues of its time, as they are today (its figures 4 and 5).

What Kafka and headrace do with the same messages stands in the rows of librdkafka.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

from clients.peers import ClientCommand, Run
from clients.running import run
from experiments.context import VALUE_BYTES, Bench, Experiment
from peers.activemq import ActiveMq
from peers.peer import Peer
from peers.rabbitmq import RabbitMq
from side_by_side.figures import BROKER_CPU, RECORDS_PER_S, Row, Sample
from side_by_side.measuring import Command, Contender, run_clients, run_rounds

from clients import peers

RABBITMQ: Final = "RabbitMQ"
ACTIVEMQ: Final = "ActiveMQ"
QUORUM: Final = "RabbitMQ, quorum queue"
STREAM: Final = "RabbitMQ, stream"
JMS: Final = "ActiveMQ Classic"
CONSUMER_WARMUP_S: Final = 0.5
"""Short, because what is consumed has left the queue."""
SHOWN: Final = (RECORDS_PER_S, BROKER_CPU)


class _Kind(ABC):
    """One kind of queue of one broker: the commands that produce, consume, create and delete."""

    name: str
    peer: Peer
    consumed_per_s: int
    """About how many messages a second are consumed: so many are needed to measure that for a while."""

    @abstractmethod
    def produce(self, queue: str, work: Run) -> ClientCommand: ...

    @abstractmethod
    def consume(self, queue: str, work: Run) -> ClientCommand: ...

    def create(self, queue: str) -> ClientCommand | None:
        """None: the first message creates it."""
        return None

    def delete(self, queue: str) -> ClientCommand | None:
        """None: its messages leave the disk with the broker."""
        return None


class _Quorum(_Kind):
    name = QUORUM
    consumed_per_s = 50_000

    def __init__(self, broker: RabbitMq) -> None:
        self.peer = self._broker = broker

    def produce(self, queue: str, work: Run) -> ClientCommand:
        return peers.amqp_produce(self._broker, queue, work)

    def consume(self, queue: str, work: Run) -> ClientCommand:
        return peers.amqp_consume(self._broker, queue, work)

    def delete(self, queue: str) -> ClientCommand:
        return peers.amqp_delete(self._broker, queue)


class _Stream(_Kind):
    name = STREAM
    consumed_per_s = 1_000_000

    def __init__(self, broker: RabbitMq) -> None:
        self.peer = self._broker = broker

    def produce(self, queue: str, work: Run) -> ClientCommand:
        return peers.stream_produce(self._broker, queue, work)

    def consume(self, queue: str, work: Run) -> ClientCommand:
        return peers.stream_consume(self._broker, queue, work)

    def create(self, queue: str) -> ClientCommand:
        return peers.stream_create(self._broker, queue)

    def delete(self, queue: str) -> ClientCommand:
        return peers.stream_delete(self._broker, queue)


class _Jms(_Kind):
    name = JMS
    consumed_per_s = 10_000

    def __init__(self, broker: ActiveMq) -> None:
        self.peer = self._broker = broker

    def produce(self, queue: str, work: Run) -> ClientCommand:
        return peers.jms_produce(self._broker, queue, work, acks="callback")

    def consume(self, queue: str, work: Run) -> ClientCommand:
        return peers.jms_consume(self._broker, queue, work)


def _kinds(bench: Bench) -> list[_Kind]:
    found: list[_Kind] = []
    rabbitmq, activemq = bench.others.get(RABBITMQ), bench.others.get(ACTIVEMQ)
    if isinstance(rabbitmq, RabbitMq):
        found += [_Quorum(rabbitmq), _Stream(rabbitmq)]
    if isinstance(activemq, ActiveMq):
        found.append(_Jms(activemq))
    return found


def _contender(
    bench: Bench, row: Row, kind: _Kind, fill: Callable[[str], None], command: Callable[[str], ClientCommand]
) -> Contender:
    """A round on a queue of its own, which `fill` fills first."""
    queues: dict[int, str] = {}

    def before(number: int) -> None:
        queue = queues[number] = bench.new_topic(row.key)
        _administer(bench, kind.create(queue))
        fill(queue)

    def work(number: int) -> Sample:
        client = command(queues[number])
        made = Command(client.command, bench.cores.client, bench.log(row.key), client.env)
        return run_clients([made], kind.peer.pids())

    return Contender(kind.name, work, before, lambda number: _administer(bench, kind.delete(queues[number])))


def _administer(bench: Bench, command: ClientCommand | None) -> None:
    if command is not None:
        command.administer(bench.cores.client, bench.log("queues"))


def produced(bench: Bench) -> Row:
    row = Row(
        "queues-produce",
        "message queues: one producer, 200-byte messages, confirmed",
        SHOWN,
    )
    work = Run(bench.scale.seconds, bench.scale.warmup_s, VALUE_BYTES)
    contenders = [
        _contender(bench, row, kind, lambda _: None, lambda queue, kind=kind: kind.produce(queue, work))  # type: ignore[misc]
        for kind in _kinds(bench)
    ]
    run_rounds(row, contenders, bench.scale.long_rounds)
    return row


def consumed(bench: Bench) -> Row:
    row = Row("queues-consume", "message queues: one consumer, 200-byte messages", SHOWN)
    work = Run(bench.scale.seconds, CONSUMER_WARMUP_S, VALUE_BYTES)
    contenders = []
    for kind in _kinds(bench):

        def fill(queue: str, kind: _Kind = kind) -> None:
            records = int(kind.consumed_per_s * (bench.scale.queue_s + CONSUMER_WARMUP_S))
            command = kind.produce(queue, Run(0, 0, VALUE_BYTES, records))
            run(command.command, cores=bench.cores.client, log=bench.log("fill"), env=command.env)

        contenders.append(
            _contender(bench, row, kind, fill, lambda queue, kind=kind: kind.consume(queue, work))  # type: ignore[misc]
        )
    run_rounds(row, contenders, bench.scale.long_rounds)
    return row


def experiments() -> list[Experiment]:
    return [Experiment("queues-produce", produced), Experiment("queues-consume", consumed)]
