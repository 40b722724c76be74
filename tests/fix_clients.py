"""Four third-party Kafka clients and ours behind one small interface.

Owns: the adapters for confluent-kafka, kafka-python, kcat, the Java client and our own. An adapter produces
the records of `fix_samples` with idempotence on, and reads one partition from an offset or a time; it
decides nothing. Fixture: `real_clients` (adapter by name). Every call is given a bootstrap address: nothing
here depends on whose broker it is.
"""

import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import confluent_kafka
import kafka
import pytest

import headrace.client
from fix_java import JavaPeer
from fix_samples import Got, Read, Sample

CLIENT_NAMES: Final = ("confluent-kafka", "kafka-python", "kcat", "java")
BATCH_BYTES: Final = 32_768
"""The batch size of every producer: a test's records make hundreds of batches."""
LINGER_MS: Final = 500
"""Longer than a busy machine holds up a client between two records: records of one call that fit into a batch
lie in one batch. A client that flushes does not wait so long."""
READ_IDLE_WAIT_MAX_S: Final = 60.0
"""A reader that gets nothing for this long stops; `check_rows` then reports what is missing."""
PRODUCE_WAIT_MAX_S: Final = 90.0


def got_of(message: confluent_kafka.Message) -> Got:
    """What librdkafka read."""
    offset = message.offset()
    assert offset is not None
    return Got(offset, message.timestamp()[1], message.key(), message.value())


class RealClient(Protocol):
    name: str
    sets_times: bool
    """Whether the producer can set a record's time."""
    stops_at_the_end: bool
    """Whether a read of more records than exist ends at the log's end (otherwise it times out)."""

    def produce(
        self, bootstrap: str, topic: str, samples: Sequence[Sample], *, codec: str, partition: int = 0
    ) -> None: ...

    def read(self, bootstrap: str, what: Read) -> list[Got]: ...


def read_all(client: RealClient, bootstrap: str, topic: str, count: int) -> list[Got]:
    """Reads a partition of `count` records; requests one more if the client stops at the end."""
    return client.read(bootstrap, Read(topic, count + 1 if client.stops_at_the_end else count))


class ConfluentKafka:
    name = "confluent-kafka"
    sets_times = True
    stops_at_the_end = True

    def produce(
        self, bootstrap: str, topic: str, samples: Sequence[Sample], *, codec: str, partition: int = 0
    ) -> None:
        failures: list[object] = []
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "compression.type": codec,
                "linger.ms": LINGER_MS,
                "batch.size": BATCH_BYTES,
                "queue.buffering.max.messages": len(samples) + 1,
            }
        )
        for sample in samples:
            producer.produce(
                topic,
                sample.value,
                sample.key,
                partition=partition,
                timestamp=sample.timestamp_ms,
                on_delivery=lambda error, _: failures.append(error) if error else None,
            )
        assert producer.flush(PRODUCE_WAIT_MAX_S) == 0, "records were left in librdkafka's queue"
        assert not failures, failures[0]

    def read(self, bootstrap: str, what: Read) -> list[Got]:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "unused",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                **_librdkafka_limits(what.fetch_bytes),
            }
        )
        rows: list[Got] = []
        try:
            offset = what.offset
            if what.timestamp_ms is not None:
                wanted = confluent_kafka.TopicPartition(what.topic, what.partition, what.timestamp_ms)
                offset = consumer.offsets_for_times([wanted], timeout=READ_IDLE_WAIT_MAX_S)[0].offset
            consumer.assign([confluent_kafka.TopicPartition(what.topic, what.partition, offset)])
            last_received_s = time.monotonic()
            while len(rows) < what.count and time.monotonic() - last_received_s < READ_IDLE_WAIT_MAX_S:
                for message in consumer.consume(5_000, 0.2):
                    error = message.error()
                    if error is not None and error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                        return rows
                    assert error is None, error
                    rows.append(got_of(message))
                    last_received_s = time.monotonic()
        finally:
            consumer.close()
        return rows[: what.count]


class KafkaPython:
    name = "kafka-python"
    sets_times = True
    stops_at_the_end = False

    def produce(
        self, bootstrap: str, topic: str, samples: Sequence[Sample], *, codec: str, partition: int = 0
    ) -> None:
        producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap,
            compression_type=None if codec == "none" else codec,
            enable_idempotence=True,
            linger_ms=LINGER_MS,
            batch_size=BATCH_BYTES,
        )
        try:
            sent = [
                producer.send(
                    topic, each.value, each.key, partition=partition, timestamp_ms=each.timestamp_ms
                )
                for each in samples
            ]
            producer.flush(PRODUCE_WAIT_MAX_S)
            failed = next((future for future in sent if not future.succeeded()), None)
            assert failed is None, failed.exception
        finally:
            producer.close()

    def read(self, bootstrap: str, what: Read) -> list[Got]:
        limits = {}
        if what.fetch_bytes is not None:
            limits = {"max_partition_fetch_bytes": what.fetch_bytes, "fetch_max_bytes": what.fetch_bytes}
        consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, **limits)
        rows: list[Got] = []
        try:
            where = kafka.TopicPartition(what.topic, what.partition)
            consumer.assign([where])
            offset = what.offset
            if what.timestamp_ms is not None:
                offset = consumer.offsets_for_times({where: what.timestamp_ms})[where].offset
            consumer.seek(where, offset)
            last_received_s = time.monotonic()
            while len(rows) < what.count and time.monotonic() - last_received_s < READ_IDLE_WAIT_MAX_S:
                for record in consumer.poll(timeout_ms=200, max_records=5_000).get(where, ()):
                    rows.append(Got(record.offset, record.timestamp, record.key, record.value))
                    last_received_s = time.monotonic()
        finally:
            consumer.close()
        return rows[: what.count]


class Kcat:
    """Debian's kcat. It cannot set a record's time, and it writes text: no value may hold a line's end."""

    name = "kcat"
    sets_times = False
    stops_at_the_end = True

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch

    def produce(
        self, bootstrap: str, topic: str, samples: Sequence[Sample], *, codec: str, partition: int = 0
    ) -> None:
        lines = self._scratch / f"{topic}.in"
        lines.write_bytes(b"".join(b"%b:%b\n" % (s.key or b"", s.value or b"") for s in samples))
        self._run(
            bootstrap,
            # -E: continue while a broker is down for a moment.
            ["-P", "-E", "-t", topic, "-p", str(partition), "-z", codec, "-K", ":", "-l", str(lines)],
            {"enable.idempotence": True, "linger.ms": LINGER_MS, "batch.size": BATCH_BYTES},
        )
        lines.unlink()

    def read(self, bootstrap: str, what: Read) -> list[Got]:
        start = str(what.offset) if what.timestamp_ms is None else f"s@{what.timestamp_ms}"
        return self.read_from(bootstrap, what, start)

    def read_from(self, bootstrap: str, what: Read, start: str) -> list[Got]:
        """Reads from where kcat's option `-o` says, such as -10: before the last ten offsets."""
        where = ["-C", "-t", what.topic, "-p", str(what.partition), "-o", start, "-c", str(what.count), "-e"]
        return self._rows(bootstrap, where, _librdkafka_limits(what.fetch_bytes))

    def read_group(self, bootstrap: str, topic: str, group: str, count: int) -> list[Got]:
        """Reads as a member of a group, which commits by itself."""
        return self._rows(
            bootstrap, ["-G", group, "-c", str(count), "-e", topic], {"auto.offset.reset": "earliest"}
        )

    def _rows(self, bootstrap: str, arguments: list[str], settings: Mapping[str, object]) -> list[Got]:
        output = self._run(bootstrap, ["-q", "-f", "%o %T %K %k %S %s\n", *arguments], settings)
        rows = []
        for line in output.splitlines():
            place, moment, key_size, rest = line.split(b" ", 3)
            key, value_size, value = rest.split(b" ", 2)
            got_key, got_value = key if int(key_size) >= 0 else None, value if int(value_size) >= 0 else None
            rows.append(Got(int(place), int(moment), got_key, got_value))
        return rows

    def _run(self, bootstrap: str, arguments: list[str], settings: Mapping[str, object]) -> bytes:
        command = ["kcat", "-b", bootstrap, *arguments]
        for name, value in settings.items():
            command += ["-X", f"{name}={str(value).lower()}"]
        done = subprocess.run(command, capture_output=True, timeout=PRODUCE_WAIT_MAX_S, check=False)
        assert done.returncode == 0, f"kcat ended with {done.returncode}: {done.stderr.decode()[-2000:]}"
        return done.stdout


class JavaClient:
    name = "java"
    sets_times = True
    stops_at_the_end = False

    def __init__(self, peer: JavaPeer, scratch: Path) -> None:
        self._peer = peer
        self._scratch = scratch

    def produce(
        self, bootstrap: str, topic: str, samples: Sequence[Sample], *, codec: str, partition: int = 0
    ) -> None:
        lines = self._scratch / f"{topic}.in"
        lines.write_text("".join(f"0 {s.timestamp_ms} {_hex(s.key)} {_hex(s.value)}\n" for s in samples))
        settings = {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": "true",
            "compression.type": codec,
            "linger.ms": LINGER_MS,
            "batch.size": BATCH_BYTES,
        }
        answer = self._peer("produce", settings, topic=topic, partition=partition, records=lines)
        lines.unlink()
        assert int(answer["count"]) == len(samples), answer

    def read(self, bootstrap: str, what: Read) -> list[Got]:
        settings: dict[str, object] = {"bootstrap.servers": bootstrap, "isolation.level": "read_committed"}
        if what.fetch_bytes is not None:
            settings |= {"max.partition.fetch.bytes": what.fetch_bytes, "fetch.max.bytes": what.fetch_bytes}
        start = {"offset": what.offset}
        if what.timestamp_ms is not None:
            start = {"timestamp_ms": what.timestamp_ms}
        lines = self._scratch / f"{what.topic}.out"
        self._peer(
            "consume",
            settings,
            topic=what.topic,
            partition=what.partition,
            count=what.count,
            idle_ms=int(READ_IDLE_WAIT_MAX_S * 1000),
            records=lines,
            **start,
        )
        rows = [parse_java_row(line) for line in lines.read_text().splitlines()]
        lines.unlink()
        return rows[: what.count]


def parse_java_row(line: str) -> Got:
    """A line that the servant JVM wrote: offset, time, key, value."""
    place, moment, key, value = line.split(" ")
    return Got(int(place), int(moment), _unhex(key), _unhex(value))


class Headrace:
    """Our own client, checked like the others."""

    name = "headrace"
    sets_times = True
    stops_at_the_end = False

    def produce(
        self, bootstrap: str, topic: str, samples: Sequence[Sample], *, codec: str, partition: int = 0
    ) -> None:
        with headrace.client.Producer(
            bootstrap, compression=codec, linger_ms=LINGER_MS, batch_size_bytes=BATCH_BYTES
        ) as producer:
            sent = [
                producer.send(
                    topic, each.value, key=each.key, partition=partition, timestamp_ms=each.timestamp_ms
                )
                for each in samples
            ]
            producer.flush(PRODUCE_WAIT_MAX_S)
        for future in sent:
            future.result(timeout=0)

    def read(self, bootstrap: str, what: Read) -> list[Got]:
        limits: dict[str, Any] = {}
        if what.fetch_bytes is not None:
            limits = {"max_partition_fetch_bytes": what.fetch_bytes, "fetch_max_bytes": what.fetch_bytes}
        rows: list[Got] = []
        with headrace.client.Consumer(bootstrap, **limits) as consumer:
            consumer.assign([(what.topic, what.partition)])
            if what.timestamp_ms is None:
                consumer.seek(what.topic, what.partition, what.offset)
            else:
                consumer.seek_to_timestamp(what.topic, what.partition, what.timestamp_ms)
            last_received_s = time.monotonic()
            while len(rows) < what.count and time.monotonic() - last_received_s < READ_IDLE_WAIT_MAX_S:
                for record in consumer.poll(0.2):
                    rows.append(Got(record.offset, record.timestamp_ms, record.key, record.value))
                    last_received_s = time.monotonic()
        return rows[: what.count]


def _librdkafka_limits(fetch_bytes: int | None) -> dict[str, int]:
    # librdkafka insists that fetch.max.bytes is not below message.max.bytes.
    names = ("fetch.message.max.bytes", "fetch.max.bytes", "message.max.bytes")
    return {} if fetch_bytes is None else dict.fromkeys(names, fetch_bytes)


def _hex(data: bytes | None) -> str:
    return "-" if data is None else "x" + data.hex()


def _unhex(word: str) -> bytes | None:
    return None if word == "-" else bytes.fromhex(word[1:])


class RealClients:
    """The adapters by name, made on first use: only a test that wants Java starts a JVM."""

    def __init__(self, request: pytest.FixtureRequest, scratch: Path) -> None:
        self._request = request
        self._scratch = scratch

    def __getitem__(self, name: str) -> RealClient:
        match name:
            case "confluent-kafka":
                return ConfluentKafka()
            case "kafka-python":
                return KafkaPython()
            case "kcat":
                require_kcat()
                return Kcat(self._scratch)
            case "headrace":
                return Headrace()
            case "java":
                return JavaClient(self._request.getfixturevalue("java_peer"), self._scratch)
        raise KeyError(name)


def require_kcat() -> None:
    """Skips if kcat is missing; `make test` installs it where it may."""
    if shutil.which("kcat") is None:
        pytest.skip("kcat is not installed (as root: apt-get install kcat)")


@pytest.fixture(scope="session")
def real_clients(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RealClients:
    return RealClients(request, tmp_path_factory.mktemp("clients"))
