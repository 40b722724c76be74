"""`python bench/latency.py --bootstrap H:P --topic T`: the latency from produce to consume.

One process has the producer and the consumer (confluent-kafka), so that one clock measures both ends. Records
are due at fixed times, and the latency of a record counts from the time at which it was due: if a stalled
broker or client delays the records after it, their wait counts, too. Prints one JSON line; exits with 1 if
records are missing or failed.
"""

from __future__ import annotations

import argparse
import json
import resource
import struct
import sys
import threading
import time
from dataclasses import asdict, dataclass
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

READY_WAIT_MAX_S: Final = 30.0
DRAIN_WAIT_MAX_S: Final = 30.0
POLL_S: Final = 0.1
WARM_UP_S: Final = 2.0
"""Records of the first seconds are sent and received, but not measured: connections and caches are cold."""

_STAMP = struct.Struct(">qd")  # the run, and when the record was due, by the monotonic clock


@dataclass(frozen=True)
class Outcome:
    """The figures of one run. `cpu_s`: of this process, producer and consumer together."""

    p50_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float
    sent: int
    received: int
    failed: int
    cpu_s: float


class Receiver:
    """Reads the topic's partition from its end on, in a thread of its own."""

    def __init__(self, bootstrap: str, topic: str, run: int, measured_from_s: float) -> None:
        self.latencies_ms: list[float] = []
        self.received = 0
        self._run = run
        self._measured_from_s = measured_from_s
        self._ending = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "bench-latency",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 500,
                "fetch.min.bytes": 1,
            }
        )
        _ensure_topic(bootstrap, topic)
        partition = TopicPartition(topic, 0)
        _, end = self._consumer.get_watermark_offsets(partition, timeout=READY_WAIT_MAX_S)
        partition.offset = end
        self._consumer.assign([partition])
        self._thread = threading.Thread(target=self._receive, name="receiver")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ending.set()
        self._thread.join()
        self._consumer.close()

    def _receive(self) -> None:
        while not self._ending.is_set():
            message = self._consumer.poll(POLL_S)
            if message is None:
                continue
            now_s = time.monotonic()
            value = message.value()
            if message.error() is not None or value is None or len(value) < _STAMP.size:
                continue
            run, due_s = _STAMP.unpack_from(value)
            if run == self._run:
                self.received += 1
                if due_s >= self._measured_from_s:
                    self.latencies_ms.append((now_s - due_s) * 1000)


class Sender:
    """Sends one record each time one is due, however late that is."""

    def __init__(self, bootstrap: str, topic: str, run: int, size_bytes: int) -> None:
        self.sent = 0
        self.failed = 0
        self._topic = topic
        self._run = run
        self._padding = bytes(max(0, size_bytes - _STAMP.size))
        self._producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0})

    def send(self, begin_s: float, rate: float, count: int) -> None:
        producer = self._producer
        for number in range(count):
            due_s = begin_s + number / rate
            while (left_s := due_s - time.monotonic()) > 0:
                time.sleep(left_s)
            value = _STAMP.pack(self._run, due_s) + self._padding
            while True:
                try:
                    producer.produce(self._topic, value, partition=0, on_delivery=self._delivered)
                    break
                except BufferError:
                    producer.poll(POLL_S)
            self.sent += 1
            producer.poll(0)
        producer.flush(DRAIN_WAIT_MAX_S)

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self.failed += 1


def _ensure_topic(bootstrap: str, topic: str) -> None:
    """Creates the topic with one partition unless it exists; returns once it has a leader."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    created = admin.create_topics([NewTopic(topic, 1, 1)])[topic]
    try:
        created.result(READY_WAIT_MAX_S)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
    deadline_s = time.monotonic() + READY_WAIT_MAX_S
    while time.monotonic() < deadline_s:
        partition = admin.list_topics(topic, READY_WAIT_MAX_S).topics[topic].partitions.get(0)
        if partition is not None and partition.leader >= 0:
            return
        time.sleep(POLL_S)
    raise TimeoutError(f"{topic}-0 had no leader within {READY_WAIT_MAX_S:g} s")


def measure(bootstrap: str, topic: str, rate: float, seconds: float, size_bytes: int) -> Outcome:
    """Runs for `WARM_UP_S`, then measures for `seconds`."""
    run = time.time_ns()
    count = int(rate * (WARM_UP_S + seconds))
    sender = Sender(bootstrap, topic, run, size_bytes)
    begin_s = time.monotonic() + 1.0
    receiver = Receiver(bootstrap, topic, run, begin_s + WARM_UP_S)
    begin_s = max(begin_s, time.monotonic() + 0.5)
    receiver.start()
    used_before_s = _cpu_s()
    try:
        sender.send(begin_s, rate, count)
        deadline_s = time.monotonic() + DRAIN_WAIT_MAX_S
        while receiver.received < sender.sent - sender.failed and time.monotonic() < deadline_s:
            time.sleep(POLL_S)
    finally:
        receiver.stop()
    latencies_ms = sorted(receiver.latencies_ms)
    return Outcome(
        p50_ms=quantile(latencies_ms, 0.5),
        p99_ms=quantile(latencies_ms, 0.99),
        p999_ms=quantile(latencies_ms, 0.999),
        max_ms=quantile(latencies_ms, 1.0),
        sent=sender.sent,
        received=receiver.received,
        failed=sender.failed,
        cpu_s=_cpu_s() - used_before_s,
    )


def quantile(ordered: list[float], part: float) -> float:
    """The value below which that part of the ordered values lies; NaN if there are none."""
    if not ordered:
        return float("nan")
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--bootstrap", required=True, metavar="HOST:PORT")
    parser.add_argument("--topic", required=True, help="partition 0 of it is used")
    parser.add_argument("--rate", type=float, default=1000.0, help="records a second")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long to measure")
    parser.add_argument("--size", type=int, default=200, metavar="BYTES", help="a record's value")
    options = parser.parse_args(arguments)
    outcome = measure(options.bootstrap, options.topic, options.rate, options.seconds, options.size)
    figures: dict[str, Any] = {
        name: round(value, 3) if isinstance(value, float) else value
        for name, value in asdict(outcome).items()
    }
    print(json.dumps(figures), flush=True)
    return 0 if outcome.received == outcome.sent and not outcome.failed else 1


if __name__ == "__main__":
    sys.exit(main())
