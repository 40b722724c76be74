"""The clients, each a process: `python -m faults.clients ROLE …`. They write down what they hear.

A journal has a line for each event; times are seconds of the machine's monotonic clock:

    A <producer> <partition> <number> <offset> <time>   acknowledged with acks=all; offset -1: not known
    F <producer> <partition> <number> <time> <error>    given up; it may be stored all the same
    R <session> <partition> <offset> <producer> <number> <time>   read
    E <session> <time> <error>                          a reader lost its place; its next session begins anew

A value is "<producer> <number>": numbers rise within a producer and partition. A producer that its library
declares dead goes on under another name.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer as LibrdkafkaConsumer
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka import Producer as LibrdkafkaProducer

from headrace.client.consumer import Consumer
from headrace.client.delivery import RecordMetadata
from headrace.client.errors import ClientError
from headrace.client.producer import Producer

UNACKNOWLEDGED_MAX: Final = 20_000
"""Records of a producer that wait for an answer: during an outage no more are made."""
DELIVERY_MAX_MS: Final = 600_000
REQUEST_MAX_MS: Final = 10_000
FLUSH_MAX_S: Final = 120.0
POLL_S: Final = 0.2
ROLES: Final = ("produce-librdkafka", "produce-headrace", "consume-librdkafka", "consume-headrace")


class Journal:
    """Appends whole lines; any thread may write."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def write(self, *words: object) -> None:
        os.write(self._fd, (" ".join(map(str, words)) + "\n").encode())


def _now() -> str:
    return f"{time.monotonic():.4f}"


def _one_line(error: object) -> str:
    return " ".join(str(error).split())[:300]


def written_offset(offset: int | None) -> int:
    """Returns an offset as a journal has it. None: librdkafka has heard that it is a repetition (after
    a change of leaders, for example), and not where the first one is."""
    return -1 if offset is None else offset


class Client:
    """What all roles share."""

    def __init__(self, chosen: argparse.Namespace, ending: threading.Event) -> None:
        self.name: str = chosen.name
        self.topic: str = chosen.topic
        self.partitions: int = chosen.partitions
        self.bootstrap: str = chosen.bootstrap
        self.pause_s: float = chosen.pause_ms / 1000
        self.journal = Journal(Path(chosen.journal))
        self.ending = ending
        self.lives = 0

    def next_life(self) -> str:
        """Returns the name of the next producer or session of this process."""
        self.lives += 1
        return f"{self.name}.{self.lives}"


# --- producers ---


class _Librdkafka:
    """One producer, until its library says that it is dead."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._life = client.next_life()
        self._is_dead = False
        settings: dict[str, Any] = {
            "bootstrap.servers": client.bootstrap,
            "enable.idempotence": True,
            "acks": "all",
            "message.timeout.ms": DELIVERY_MAX_MS,
            "request.timeout.ms": REQUEST_MAX_MS,
            "socket.timeout.ms": REQUEST_MAX_MS,
            "reconnect.backoff.max.ms": 1000,
            "queue.buffering.max.messages": UNACKNOWLEDGED_MAX,
            "log_level": 0,
            "error_cb": self._on_error,
        }
        self._producer = LibrdkafkaProducer(settings)

    def _on_error(self, error: KafkaError) -> None:
        self._is_dead = self._is_dead or error.fatal()

    def run(self) -> None:
        number = 0
        while not self._client.ending.is_set() and not self._is_dead:
            due_s = time.monotonic() + self._client.pause_s
            for partition in range(self._client.partitions):
                if len(self._producer) < UNACKNOWLEDGED_MAX - self._client.partitions:
                    self._send(partition, number)
            number += 1
            while not self._is_dead and (left_s := due_s - time.monotonic()) > 0:
                with self._death():
                    self._producer.poll(left_s)
        if self._is_dead:
            with self._death():
                self._producer.purge()
        with self._death():
            self._producer.flush(FLUSH_MAX_S)

    @contextmanager
    def _death(self) -> Iterator[None]:
        """A fatal error ends this life: librdkafka has lost track of its sequence numbers."""
        try:
            yield
        except KafkaException as error:
            self._is_dead = True
            self._client.journal.write("F", self._life, -1, -1, _now(), _one_line(error))

    def _send(self, partition: int, number: int) -> None:
        def delivered(error: KafkaError | None, message: Any) -> None:
            head = (self._life, partition, number)
            if error is None:
                self._client.journal.write("A", *head, written_offset(message.offset()), _now())
            else:
                self._client.journal.write("F", *head, _now(), _one_line(error))

        value = f"{self._life} {number}".encode()
        try:
            self._producer.produce(self._client.topic, value, partition=partition, on_delivery=delivered)
        except (BufferError, KafkaException) as error:
            self._client.journal.write("F", self._life, partition, number, _now(), _one_line(error))


def produce_headrace(client: Client) -> None:
    life = client.next_life()
    waiting = [0]
    lock = threading.Lock()

    def send(producer: Producer, partition: int, number: int) -> None:
        def delivered(metadata: RecordMetadata | None, error: ClientError | None) -> None:
            with lock:
                waiting[0] -= 1
            if metadata is not None:
                client.journal.write("A", life, partition, number, metadata.offset, _now())
            else:
                client.journal.write("F", life, partition, number, _now(), _one_line(error))

        with lock:
            waiting[0] += 1
        value = f"{life} {number}".encode()
        producer.send(client.topic, value, partition=partition, on_delivery=delivered)

    with Producer(
        client.bootstrap, delivery_timeout_ms=DELIVERY_MAX_MS, request_timeout_ms=REQUEST_MAX_MS
    ) as producer:
        number = 0
        while not client.ending.is_set():
            due_s = time.monotonic() + client.pause_s
            for partition in range(client.partitions):
                if waiting[0] < UNACKNOWLEDGED_MAX:
                    send(producer, partition, number)
            number += 1
            client.ending.wait(max(0.0, due_s - time.monotonic()))
        producer.close(FLUSH_MAX_S)


# --- consumers ---


def consume_librdkafka(client: Client) -> None:
    session = client.next_life()
    consumer = LibrdkafkaConsumer(
        {
            "bootstrap.servers": client.bootstrap,
            "group.id": session,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "reconnect.backoff.max.ms": 1000,
            "socket.timeout.ms": REQUEST_MAX_MS,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(client.topic, each, 0) for each in range(client.partitions)])
    try:
        _read(client, session, lambda: _polled(consumer))
    finally:
        consumer.close()


class LostPlaceError(Exception):
    """The reader's position is not in the log any more."""


def _polled(consumer: LibrdkafkaConsumer) -> Iterator[tuple[int, int, bytes]]:
    for message in consumer.consume(500, timeout=POLL_S):
        error = message.error()
        if error is None:
            value, partition, offset = message.value(), message.partition(), message.offset()
            assert value is not None and partition is not None and offset is not None
            yield partition, offset, value
        elif error.code() in (
            KafkaError._AUTO_OFFSET_RESET,
            KafkaError.OFFSET_OUT_OF_RANGE,
            KafkaError._LOG_TRUNCATION,
        ):
            raise LostPlaceError(str(error))


def consume_headrace(client: Client) -> None:
    session = client.next_life()
    settings: dict[str, Any] = {"auto_offset_reset": "error", "request_timeout_ms": REQUEST_MAX_MS}
    with Consumer(client.bootstrap, **settings) as consumer:
        consumer.assign((client.topic, each) for each in range(client.partitions))
        for each in range(client.partitions):
            consumer.seek(client.topic, each, 0)
        _read(client, session, lambda: _ours(consumer))


def _ours(consumer: Consumer) -> Iterator[tuple[int, int, bytes]]:
    try:
        records = consumer.poll(POLL_S)
    except ClientError as error:
        raise LostPlaceError(f"{type(error).__name__}: {error}") from error
    for record in records:
        yield record.partition, record.offset, record.value or b""


def _read(client: Client, session: str, poll: Callable[[], Iterator[tuple[int, int, bytes]]]) -> None:
    """Reads until the end, or until the reader has lost its place."""
    while not client.ending.is_set():
        try:
            for partition, offset, value in poll():
                client.journal.write("R", session, partition, offset, value.decode(), _now())
        except LostPlaceError as error:
            client.journal.write("E", session, _now(), _one_line(error))
            client.ending.wait(POLL_S)
            return


def produce_librdkafka(client: Client) -> None:
    _Librdkafka(client).run()


_RUN: Final = dict(
    zip(ROLES, (produce_librdkafka, produce_headrace, consume_librdkafka, consume_headrace), strict=True)
)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="faults.clients", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("role", choices=ROLES)
    parser.add_argument("--name", required=True)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--journal", required=True)
    parser.add_argument("--pause-ms", type=float, default=20.0, help="between two records for a partition")
    chosen = parser.parse_args(arguments)
    ending = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ending.set())
    client = Client(chosen, ending)
    while not ending.is_set():
        _RUN[chosen.role](client)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
