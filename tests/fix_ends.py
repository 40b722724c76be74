"""Seven unchanged clients behind one interface that tells offsets: what a producer was told, what a group has
committed, where a reader begins that asks for the last records.

confluent-kafka, kafka-python, kcat and Java build on `fix_clients`; franz-go, kafkajs and aiokafka are
programs in tests/programs, built once a session. Fixture: `end_clients` (client by name; skips a test whose
tool is missing).
"""

import shutil
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import confluent_kafka
import kafka
import pytest

from fix_clients import BATCH_BYTES, LINGER_MS, Kcat, RealClient, RealClients, got_of, parse_java_row
from fix_java import JavaPeer, run_checked
from fix_samples import CODECS, Got, Read, Sample

PROGRAMS: Final = Path(__file__).parent / "programs"
BUILT: Final = Path(__file__).parent.parent / ".headrace" / "programs"
END_CLIENTS: Final = (
    "confluent-kafka",
    "kafka-python",
    "kcat",
    "java",
    "franz-go",
    "kafkajs",
    "aiokafka",
)
END_OF_READ: Final = "--"
BUILD_WAIT_MAX_S: Final = 240.0
RUN_WAIT_MAX_S: Final = 120.0


class From(NamedTuple):
    """Where a reader begins: at an `offset`, at a `time` in ms, or before the `last` so many offsets."""

    kind: str
    value: int


class EndClient(Protocol):
    sets_times: bool
    codecs: Sequence[str]

    def produce(
        self, bootstrap: str, topic: str, samples: Sequence[Sample], codec: str
    ) -> dict[int, int] | None:
        """Returns offsets that the producer was told, by the record's place; None if it tells none."""

    def read(self, bootstrap: str, topic: str, starts: Sequence[From], count: int) -> list[list[Got]]:
        """Reads `count` records from each start, by a consumer for each."""

    def read_group(self, bootstrap: str, topic: str, group: str, count: int) -> list[Got]:
        """Reads as the only member of a group, and commits as the client does it by itself."""


def end_of(bootstrap: str, topic: str) -> int:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})
    try:
        bounds = consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, 0), timeout=30)
        assert bounds is not None
        return int(bounds[1])
    finally:
        consumer.close()


class _Known:
    """What the clients of `fix_clients` have in common: a read of the last records is a seek."""

    codecs: Sequence[str] = CODECS

    def __init__(self, client: RealClient, scratch: Path) -> None:
        self._client = client
        self._scratch = scratch
        self.sets_times = client.sets_times

    def read(self, bootstrap: str, topic: str, starts: Sequence[From], count: int) -> list[list[Got]]:
        return [self._read(bootstrap, topic, start, count) for start in starts]

    def _read(self, bootstrap: str, topic: str, start: From, count: int) -> list[Got]:
        if start.kind == "time":
            return self._client.read(bootstrap, Read(topic, count, timestamp_ms=start.value))
        offset = start.value if start.kind == "offset" else end_of(bootstrap, topic) - start.value
        return self._client.read(bootstrap, Read(topic, count, offset=offset))


class _Confluent(_Known):
    def produce(self, bootstrap: str, topic: str, samples: Sequence[Sample], codec: str) -> dict[int, int]:
        told: dict[int, int] = {}
        settings = {"enable.idempotence": True, "linger.ms": LINGER_MS, "batch.size": BATCH_BYTES}
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": bootstrap, "compression.type": codec, **settings}
        )

        def teller(place: int) -> Callable[[object, confluent_kafka.Message], None]:
            def tell(error: object, message: confluent_kafka.Message) -> None:
                offset = message.offset()
                assert error is None and offset is not None, error
                told[place] = offset

            return tell

        for place, each in enumerate(samples):
            producer.produce(
                topic,
                each.value,
                each.key,
                partition=0,
                timestamp=each.timestamp_ms,
                on_delivery=teller(place),
            )
        assert producer.flush(RUN_WAIT_MAX_S) == 0
        return told

    def read_group(self, bootstrap: str, topic: str, group: str, count: int) -> list[Got]:
        settings = {"auto.offset.reset": "earliest", "enable.auto.commit": False}
        consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group, **settings})
        consumer.subscribe([topic])
        rows: list[Got] = []
        deadline = time.monotonic() + RUN_WAIT_MAX_S
        while len(rows) < count and time.monotonic() < deadline:
            rows += [got_of(message) for message in consumer.consume(1_000, 0.2)]
        consumer.commit(asynchronous=False)
        consumer.close()
        return rows


class _KafkaPython(_Known):
    def produce(self, bootstrap: str, topic: str, samples: Sequence[Sample], codec: str) -> dict[int, int]:
        producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap,
            compression_type=None if codec == "none" else codec,
            enable_idempotence=True,
            linger_ms=LINGER_MS,
            batch_size=BATCH_BYTES,
        )
        sent = [
            producer.send(topic, each.value, each.key, partition=0, timestamp_ms=each.timestamp_ms)
            for each in samples
        ]
        producer.flush(RUN_WAIT_MAX_S)
        producer.close()
        return {place: future.get(1).offset for place, future in enumerate(sent)}

    def read_group(self, bootstrap: str, topic: str, group: str, count: int) -> list[Got]:
        consumer = kafka.KafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        rows: list[Got] = []
        deadline = time.monotonic() + RUN_WAIT_MAX_S
        while len(rows) < count and time.monotonic() < deadline:
            for records in consumer.poll(timeout_ms=2_000, max_records=700).values():
                rows += [Got(each.offset, each.timestamp, each.key, each.value) for each in records]
        consumer.commit()
        consumer.close(autocommit=False)
        return rows


class _Kcat(_Known):
    def produce(self, bootstrap: str, topic: str, samples: Sequence[Sample], codec: str) -> None:
        self._client.produce(bootstrap, topic, samples, codec=codec)

    def _read(self, bootstrap: str, topic: str, start: From, count: int) -> list[Got]:
        if start.kind != "last":
            return super()._read(bootstrap, topic, start, count)
        assert isinstance(self._client, Kcat)
        return self._client.read_from(bootstrap, Read(topic, count), f"-{start.value}")

    def read_group(self, bootstrap: str, topic: str, group: str, count: int) -> list[Got]:
        assert isinstance(self._client, Kcat)
        return self._client.read_group(bootstrap, topic, group, count)


class _Java(_Known):
    def __init__(self, client: RealClient, scratch: Path, peer: JavaPeer) -> None:
        super().__init__(client, scratch)
        self._peer = peer

    def produce(self, bootstrap: str, topic: str, samples: Sequence[Sample], codec: str) -> dict[int, int]:
        lines = self._scratch / f"{topic}.in"
        lines.write_text("".join(f"0 {_line(each)}\n" for each in samples))
        settings = {"enable.idempotence": "true", "linger.ms": LINGER_MS, "batch.size": BATCH_BYTES}
        settings |= {"bootstrap.servers": bootstrap, "compression.type": codec}
        answer = self._peer("produce", settings, topic=topic, partition=0, records=lines)
        assert int(answer["count"]) == len(samples), answer
        return {0: int(answer["first"]), len(samples) - 1: int(answer["last"])}

    def read_group(self, bootstrap: str, topic: str, group: str, count: int) -> list[Got]:
        member, lines = uuid.uuid4().hex, self._scratch / f"{group}.out"
        settings = {"auto.offset.reset": "earliest", "enable.auto.commit": "false"}
        settings |= {"bootstrap.servers": bootstrap, "group.id": group}
        self._peer("join", settings, member=member, topic=topic)
        rows: list[Got] = []
        deadline = time.monotonic() + RUN_WAIT_MAX_S
        while len(rows) < count and time.monotonic() < deadline:
            self._peer("poll", member=member, wait_ms=200, records=lines)
            rows += [parse_java_row(each.split(" ", 1)[1]) for each in lines.read_text().splitlines()]
        self._peer("commit", member=member)
        self._peer("leave", member=member)
        return rows


class _Program:
    """A client in another language: its program's command line and lines are those of tests/programs."""

    sets_times = True

    def __init__(self, command: list[str], scratch: Path, codecs: Sequence[str] = CODECS) -> None:
        self._command = command
        self._scratch = scratch
        self.codecs = codecs

    def produce(self, bootstrap: str, topic: str, samples: Sequence[Sample], codec: str) -> dict[int, int]:
        lines = self._scratch / f"{topic}.in"
        lines.write_text("".join(f"{_line(each)}\n" for each in samples))
        told = self._run("produce", bootstrap, topic, codec, lines, BATCH_BYTES, LINGER_MS)
        return {place: int(line) for place, line in enumerate(told)}

    def read(self, bootstrap: str, topic: str, starts: Sequence[From], count: int) -> list[list[Got]]:
        words = [f"{start.kind}:{start.value}" for start in starts]
        lines = self._run("read", bootstrap, topic, count, *words)
        ends = [at for at, line in enumerate(lines) if line == END_OF_READ]
        begins = [0, *(at + 1 for at in ends)]
        found = [lines[begin:end] for begin, end in zip(begins, ends, strict=False)]
        assert len(found) == len(starts), lines
        return [[parse_java_row(line) for line in each] for each in found]

    def read_group(self, bootstrap: str, topic: str, group: str, count: int) -> list[Got]:
        return [parse_java_row(line) for line in self._run("group", bootstrap, topic, group, count)]

    def _run(self, *arguments: object) -> list[str]:
        command = [*self._command, *map(str, arguments)]
        return run_checked(command, timeout_s=RUN_WAIT_MAX_S).splitlines()


class EndClients:
    """The clients by name, made and built on first use."""

    def __init__(self, real: RealClients, request: pytest.FixtureRequest, scratch: Path) -> None:
        self._real = real
        self._request = request
        self._scratch = scratch
        self._made: dict[str, EndClient] = {}

    def __getitem__(self, name: str) -> EndClient:
        if name not in self._made:
            self._made[name] = self._make(name)
        return self._made[name]

    def _make(self, name: str) -> EndClient:
        match name:
            case "confluent-kafka":
                return _Confluent(self._real[name], self._scratch)
            case "kafka-python":
                return _KafkaPython(self._real[name], self._scratch)
            case "kcat":
                return _Kcat(self._real[name], self._scratch)
            case "java":
                peer = self._request.getfixturevalue("java_peer")
                return _Java(self._real[name], self._scratch, peer)
            case "franz-go":
                return _Program([str(_franz_go())], self._scratch)
            case "kafkajs":
                return _Program(["node", str(_kafkajs())], self._scratch, ("none", "gzip"))
            case "aiokafka":
                return _Program([sys.executable, str(PROGRAMS / "aiokafka_program.py")], self._scratch)
        raise KeyError(name)


@pytest.fixture(scope="session")
def end_clients(
    real_clients: RealClients, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> EndClients:
    return EndClients(real_clients, request, tmp_path_factory.mktemp("ends"))


def _require(tool: str, client: str) -> None:
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed: {client} is not tried")


def _franz_go() -> Path:
    _require("go", "franz-go")
    program = BUILT / "franz-go"
    BUILT.mkdir(parents=True, exist_ok=True)
    command = ["go", "build", "-C", str(PROGRAMS / "franz-go"), "-o", str(program), "."]
    run_checked(command, timeout_s=BUILD_WAIT_MAX_S)
    return program


def _kafkajs() -> Path:
    _require("npm", "kafkajs")
    folder = BUILT / "kafkajs"
    shutil.copytree(PROGRAMS / "kafkajs", folder, dirs_exist_ok=True)
    if not (folder / "node_modules" / "kafkajs").exists():
        run_checked(["npm", "ci", "--silent", "--prefix", str(folder)], timeout_s=BUILD_WAIT_MAX_S)
    return folder / "kafkajs.mjs"


def _line(sample: Sample) -> str:
    key, value = ("-" if data is None else "x" + data.hex() for data in (sample.key, sample.value))
    return f"{sample.timestamp_ms} {key} {value}"
