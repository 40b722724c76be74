"""How many records a second one Python client produces or consumes, and what they cost it.

    python bench/python_client.py produce --bootstrap 127.0.0.1:9092 --topic t --seconds 10
    taskset -c 1 python bench/python_client.py consume --bootstrap … --topic t --library confluent

Prints one line of JSON (`Result`). `--library` chooses headrace's client, confluent-kafka (librdkafka) or
kafka-python: the same loop, the same topic. Owns these loops; brokers, topics, cores and repetitions are the
caller's. Every library has its default settings, but for acks=all and what its function below says.

Producing counts acknowledged records and ends with a flush, which the time includes. Consuming reads every
value of partition 0 from its start, and from its start again at its end. Time and CPU count from the first
record that was acknowledged or read: connecting is not part of either.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from headrace.client import BatchIdentity, BatchObserver, Consumer, Producer

Library = Literal["headrace", "confluent", "kafka-python"]
Options = Mapping[str, Any]
"""Settings of the library, in its own names."""

LIBRARIES: Final = ("headrace", "confluent", "kafka-python")
PARTITION: Final = 0
SENDS_PER_CLOCK: Final = 1000
POLL_RECORDS: Final = 1000
POLL_WAIT_S: Final = 1.0
FIRST_RECORD_WAIT_MAX_S: Final = 30.0
DELIVERY_WAIT_MAX_S: Final = 120.0

_NO_OPTIONS: Final[Options] = {}


@dataclass(frozen=True)
class Result:
    """`cpu_s`: user and system time of this process. `max_rss_bytes`: the most memory it ever held."""

    library: str
    mode: str
    records: int
    value_bytes: int
    seconds: float
    records_per_s: int
    cpu_s: float
    cpu_us_per_record: float
    max_rss_bytes: int


class _Stopwatch:
    """Starts when it is made."""

    def __init__(self) -> None:
        self._started_s = time.monotonic()
        self._started_cpu_s = time.process_time()

    def result(self, library: Library, mode: str, records: int, size_bytes: int) -> Result:
        seconds = time.monotonic() - self._started_s
        cpu_s = time.process_time() - self._started_cpu_s
        if not records:
            raise SystemExit(f"{library}: not one record in {seconds:.1f} s; is the topic empty?")
        return Result(
            library=library,
            mode=mode,
            records=records,
            value_bytes=size_bytes // records,
            seconds=round(seconds, 3),
            records_per_s=round(records / seconds),
            cpu_s=round(cpu_s, 3),
            cpu_us_per_record=round(cpu_s / records * 1e6, 3),
            max_rss_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        )


# --- producing ---


def produce(
    bootstrap: str,
    topic: str,
    seconds: float,
    value_bytes: int,
    *,
    library: Library = "headrace",
    options: Options = _NO_OPTIONS,
) -> Result:
    """Sends values of `value_bytes` to partition 0, one by one, for `seconds`, then waits for the rest."""
    value = bytes(i % 251 for i in range(value_bytes))
    watch, count = _PRODUCE[library](bootstrap, topic, seconds, value, options)
    return watch.result(library, "produce", count, count * value_bytes)


class _Delivered(BatchObserver):
    def __init__(self) -> None:
        self.count = 0

    def batch_delivered(self, identity: BatchIdentity, base_offset: int) -> None:
        self.count += identity.record_count


def _produce_headrace(
    bootstrap: str, topic: str, seconds: float, value: bytes, options: Options
) -> tuple[_Stopwatch, int]:
    delivered = _Delivered()
    with Producer(bootstrap, **{"acks": "all", "observer": delivered, **options}) as producer:
        producer.send(topic, value, partition=PARTITION).result(FIRST_RECORD_WAIT_MAX_S)
        delivered.count = 0
        watch = _Stopwatch()
        sent_count = 0
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            for _ in range(SENDS_PER_CLOCK):
                producer.send(topic, value, partition=PARTITION)
            sent_count += SENDS_PER_CLOCK
        producer.flush(DELIVERY_WAIT_MAX_S)
    _check_count("headrace", sent_count, delivered.count)
    return watch, sent_count


def _produce_confluent(
    bootstrap: str, topic: str, seconds: float, value: bytes, options: Options
) -> tuple[_Stopwatch, int]:
    """Reports errors alone, which is librdkafka's cheapest way to know of every record."""
    from confluent_kafka import Producer as ConfluentProducer

    failed_count = 0

    def on_delivery(error: object, _: object) -> None:
        nonlocal failed_count
        failed_count += error is not None

    producer = ConfluentProducer(
        {"bootstrap.servers": bootstrap, "acks": "all", "delivery.report.only.error": True, **options}
    )
    producer.produce(topic, value, partition=PARTITION)
    producer.flush(FIRST_RECORD_WAIT_MAX_S)
    watch = _Stopwatch()
    sent_count = 0
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        for _ in range(SENDS_PER_CLOCK):
            while True:
                try:
                    producer.produce(topic, value, partition=PARTITION, on_delivery=on_delivery)
                    break
                except BufferError:
                    producer.poll(0.01)
        sent_count += SENDS_PER_CLOCK
        producer.poll(0)
    failed_count += producer.flush(DELIVERY_WAIT_MAX_S)
    _check_count("confluent", sent_count, sent_count - failed_count)
    return watch, sent_count


def _produce_kafka_python(
    bootstrap: str, topic: str, seconds: float, value: bytes, options: Options
) -> tuple[_Stopwatch, int]:
    from kafka import KafkaProducer

    failures: list[BaseException] = []
    producer = KafkaProducer(**{"bootstrap_servers": bootstrap, "acks": "all", **options})
    producer.send(topic, value, partition=PARTITION).get(FIRST_RECORD_WAIT_MAX_S)
    watch = _Stopwatch()
    sent_count = 0
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        for _ in range(SENDS_PER_CLOCK):
            producer.send(topic, value, partition=PARTITION).add_errback(failures.append)
        sent_count += SENDS_PER_CLOCK
    producer.flush(DELIVERY_WAIT_MAX_S)
    producer.close()
    _check_count("kafka-python", sent_count, sent_count - len(failures))
    return watch, sent_count


_PRODUCE: Final[dict[Library, Callable[[str, str, float, bytes, Options], tuple[_Stopwatch, int]]]] = {
    "headrace": _produce_headrace,
    "confluent": _produce_confluent,
    "kafka-python": _produce_kafka_python,
}


def _check_count(library: Library, sent_count: int, delivered_count: int) -> None:
    if delivered_count != sent_count:
        raise SystemExit(f"{library}: {sent_count} records were sent, {delivered_count} were delivered")


# --- consuming ---


def consume(
    bootstrap: str,
    topic: str,
    seconds: float,
    *,
    library: Library = "headrace",
    options: Options = _NO_OPTIONS,
) -> Result:
    """Reads partition 0 for `seconds`."""
    return _CONSUME[library](bootstrap, topic, seconds, options)


class _Tally:
    """Counts records and the bytes of their values, from the first poll that returned some."""

    def __init__(self, library: Library, seconds: float) -> None:
        self._library: Final = library
        self._seconds = seconds
        self._until_s = time.monotonic() + FIRST_RECORD_WAIT_MAX_S
        self._watch: _Stopwatch | None = None
        self._count = 0
        self._size_bytes = 0

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self._until_s

    def add(self, values: Sequence[bytes | None]) -> None:
        count = len(values)
        size_bytes = sum(len(value or b"") for value in values)
        if self._watch is not None:
            self._count += count
            self._size_bytes += size_bytes
        elif count:
            self._watch = _Stopwatch()
            self._until_s = time.monotonic() + self._seconds

    def result(self) -> Result:
        watch = self._watch or _Stopwatch()
        return watch.result(self._library, "consume", self._count, self._size_bytes)


def _consume_headrace(bootstrap: str, topic: str, seconds: float, options: Options) -> Result:
    tally = _Tally("headrace", seconds)
    with Consumer(bootstrap, **{"auto_offset_reset": "earliest", **options}) as consumer:
        consumer.assign([(topic, PARTITION)])
        while not tally.is_over:
            tally.add([record.value for record in consumer.poll(POLL_WAIT_S)])
            if consumer.position(topic, PARTITION) == consumer.high_watermark(topic, PARTITION):
                consumer.seek_to_beginning(topic, PARTITION)
        return tally.result()


def _consume_confluent(bootstrap: str, topic: str, seconds: float, options: Options) -> Result:
    """Does not commit offsets: the other two do not either."""
    from confluent_kafka import OFFSET_BEGINNING, KafkaError, TopicPartition
    from confluent_kafka import Consumer as ConfluentConsumer

    tally = _Tally("confluent", seconds)
    consumer = ConfluentConsumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            **options,
        }
    )
    start = TopicPartition(topic, PARTITION, OFFSET_BEGINNING)
    consumer.assign([start])
    while not tally.is_over:
        messages = consumer.consume(POLL_RECORDS, POLL_WAIT_S)
        is_at_end = False
        while messages and (error := messages[-1].error()):
            if error.code() != KafkaError._PARTITION_EOF:
                raise SystemExit(f"confluent: {error}")
            messages.pop()
            is_at_end = True
        tally.add([message.value() for message in messages])
        if is_at_end:
            consumer.seek(start)
    result = tally.result()
    consumer.close()
    return result


def _consume_kafka_python(bootstrap: str, topic: str, seconds: float, options: Options) -> Result:
    from kafka import KafkaConsumer
    from kafka import TopicPartition as KafkaPartition

    tally = _Tally("kafka-python", seconds)
    partition = KafkaPartition(topic, PARTITION)
    consumer = KafkaConsumer(**{"bootstrap_servers": bootstrap, "enable_auto_commit": False, **options})
    consumer.assign([partition])
    consumer.seek_to_beginning(partition)
    while not tally.is_over:
        records = consumer.poll(POLL_WAIT_S * 1000, max_records=POLL_RECORDS).get(partition, [])
        tally.add([record.value for record in records])
        if consumer.position(partition) == consumer.highwater(partition):
            consumer.seek_to_beginning(partition)
    result = tally.result()
    consumer.close()
    return result


_CONSUME: Final[dict[Library, Callable[[str, str, float, Options], Result]]] = {
    "headrace": _consume_headrace,
    "confluent": _consume_confluent,
    "kafka-python": _consume_kafka_python,
}


# --- the command ---


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="One Python client's records a second, as one line of JSON.")
    parser.add_argument("mode", choices=("produce", "consume"))
    parser.add_argument("--bootstrap", required=True, help="host:port of a broker")
    parser.add_argument("--topic", required=True, help="its partition 0 is written or read")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--value-bytes", type=int, default=200, help="the size of the values to produce")
    parser.add_argument("--library", choices=LIBRARIES, default="headrace")
    parser.add_argument(
        "--set",
        type=_setting,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of the library, such as fetch.queue.backoff.ms=10; repeatable",
    )
    return parser.parse_args()


def _setting(text: str) -> tuple[str, Any]:
    """Numbers and booleans are given to the library as such."""
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def main() -> None:
    given = _arguments()
    library, settings = given.library, dict(given.set)
    if given.mode == "produce":
        result = produce(
            given.bootstrap, given.topic, given.seconds, given.value_bytes, library=library, options=settings
        )
    else:
        result = consume(given.bootstrap, given.topic, given.seconds, library=library, options=settings)
    print(json.dumps(asdict(result)))


if __name__ == "__main__":
    main()
