"""`EventPublisher` on a real broker and a real registry, read back by third-party clients."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from fix_broker import BrokerCluster, StartCluster
from fix_zookeeper import die_with_parent
from headrace.client.errors import BufferFullError, ClosedError
from headrace.client.faults import DropPlan
from headrace.events import (
    EventPublisher,
    InvalidEventError,
    MissingSchemaError,
    PublisherClosedError,
    ReportError,
    published_ms,
)
from headrace.events.schemas import read_schema
from headrace.registry.client import SchemaRegistryClient
from headrace.registry.serializers import AvroDeserializer

HOUR_MS = 3_600_000
NOON_MS = 1_431_864_000_000
VIEW = {
    "remote_host": "83.149.9.216",
    "method": "GET",
    "path": "/",
    "protocol": "HTTP/1.1",
    "status": 200,
    "bytes": 203023,
}


class World:
    """A topic of its own on the shared broker, with page views' schema."""

    def __init__(self, bootstrap: str, registry_url: str) -> None:
        self.bootstrap = bootstrap
        self.registry_url = registry_url
        self.topic = f"view-{uuid.uuid4().hex[:8]}"
        self.audit_topic = f"_audit-{self.topic}"

    def publisher(self, **changed: Any) -> EventPublisher:
        settings: dict[str, Any] = {
            "datacenter": "east",
            "service": "web",
            "server": "host-1",
            "bootstrap": self.bootstrap,
            "registry_url": self.registry_url,
            "schemas": {self.topic: read_schema("page-view.avsc")},
            "audit_topic": self.audit_topic,
        }
        return EventPublisher(**{**settings, **changed})

    def read(self, topic: str) -> list[confluent_kafka.Message]:
        """Everything in a topic, to the ends of its partitions."""
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "unused",
                "auto.offset.reset": "earliest",
                "enable.partition.eof": True,
            }
        )
        partitions = consumer.list_topics(topic, 20).topics[topic].partitions
        consumer.assign([confluent_kafka.TopicPartition(topic, p, 0) for p in partitions])
        found: list[confluent_kafka.Message] = []
        ended: set[int | None] = set()
        deadline = time.monotonic() + 60
        while len(ended) < len(partitions):
            assert time.monotonic() < deadline, f"could not read {topic} to its end"
            for message in consumer.consume(1000, 0.5):
                error = message.error()
                if error is None:
                    found.append(message)
                elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
        consumer.close()
        return found

    def reports(self) -> list[dict[str, Any]]:
        with SchemaRegistryClient(self.registry_url) as client:
            deserializer = AvroDeserializer(client)
            return [deserializer.deserialize(value_of(message)) for message in self.read(self.audit_topic)]


def value_of(message: confluent_kafka.Message) -> bytes:
    value = message.value()
    assert value is not None
    return value


def fold(reports: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Returns the latest tally of each part, as an auditor does."""
    folded: dict[int, dict[str, Any]] = {}
    for report in sorted(reports, key=lambda report: report["report_number"]):
        folded.update({tally["part"]: tally for tally in report["tallies"]})
    return folded


@pytest.fixture
def world(one_broker: BrokerCluster, registry_url: str) -> World:
    return World(one_broker.bootstrap, registry_url)


def ms(value: Any) -> int:
    return round(float(value.timestamp()) * 1000)


def sequenced(tally: dict[str, Any]) -> int:
    return sum(each["last_sequence"] - each["first_sequence"] + 1 for each in tally["ranges"])


def test_events_carry_header_timestamp_and_clock(world: World) -> None:
    before_ms = time.time_ns() // 1_000_000
    with world.publisher() as publisher:
        publisher.publish(world.topic, VIEW, key="member-1", time_ms=NOON_MS)
        publisher.publish(world.topic, VIEW).result(30)
    messages = world.read(world.topic)
    with SchemaRegistryClient(world.registry_url) as client:
        records = {m.key(): AvroDeserializer(client).deserialize(value_of(m)) for m in messages}
        assert client.subjects() == [f"{world.topic}-value", "headrace.audit.ProducerReport"][::-1]
    assert len(messages) == 2
    for message in messages:
        kind, timestamp_ms = message.timestamp()
        header = records[message.key()]["header"]
        assert kind == confluent_kafka.TIMESTAMP_CREATE_TIME
        assert timestamp_ms == ms(header["time"])
        headers = message.headers()
        assert isinstance(headers, list)
        clock_ms = published_ms([(name, value) for name, value in headers if not isinstance(value, str)])
        assert clock_ms is not None and before_ms <= clock_ms <= time.time_ns() // 1_000_000
        assert (header["datacenter"], header["server"], header["service"]) == ("east", "host-1", "web")
        assert uuid.UUID(header["guid"])
    assert records[b"member-1"]["header"]["time"].timestamp() * 1000 == NOON_MS
    assert {k: v for k, v in records[b"member-1"].items() if k in VIEW} == VIEW
    assert published_ms([("published-ms", b"short"), ("other", b"12345678")]) is None


def test_the_report_agrees_with_the_log(world: World) -> None:
    with world.publisher(report_interval_s=0.2, producer_options={"batch_size_bytes": 4000}) as publisher:
        for i in range(3000):
            publisher.publish(world.topic, VIEW, time_ms=NOON_MS + i * 1200, key=str(i % 17))
        publisher.flush()
    reports = world.reports()
    tallies = fold(reports).values()
    in_log = Counter(m.timestamp()[1] // 600_000 * 600_000 for m in world.read(world.topic))
    assert sum(in_log.values()) == 3000 and len(in_log) == 6
    reported: Counter[int] = Counter()
    for tally in tallies:
        assert tally["topic"] == world.topic and tally["handed_over_count"] == sequenced(tally)
        reported[ms(tally["bucket_start"])] += tally["handed_over_count"]
    assert reported == in_log
    assert {report["publisher"] for report in reports} == {publisher.publisher_id}
    assert [report["state"] for report in reports].count("CLOSED") == 1 and reports[-1]["state"] == "CLOSED"
    assert reports[0]["tallies"] == [], "the first report precedes the first event"
    heads = {(r["header"]["datacenter"], r["header"]["server"], r["header"]["service"]) for r in reports}
    assert heads == {("east", "host-1", "web")}


def test_events_dropped_in_the_client_are_counted(world: World) -> None:
    plan = DropPlan(world.topic, 7, after=50)
    options = {"interceptor": plan, "batch_size_bytes": 3000}
    with world.publisher(producer_options=options) as publisher:
        for _ in range(300):
            publisher.publish(world.topic, VIEW, time_ms=NOON_MS, partition=0)
    assert plan.is_done
    assert len(world.read(world.topic)) == 293
    tallies = fold(world.reports()).values()
    claimed = {
        (each["producer_id"], each["producer_epoch"], sequence)
        for tally in tallies
        for each in tally["ranges"]
        for sequence in range(each["first_sequence"], each["last_sequence"] + 1)
    }
    assert sum(tally["handed_over_count"] for tally in tallies) == 300 == len(claimed)
    dropped = {
        (each.producer_id, each.producer_epoch, each.base_sequence + i)
        for each in plan.dropped
        for i in range(each.record_count)
    }
    assert len(dropped) == 7 and dropped <= claimed


@pytest.mark.parametrize(
    ("record", "time_ms", "problem"),
    [
        ({**VIEW, "status": "200"}, None, r"field headrace\.PageView\.status is '200' \(expected int\)"),
        ({**VIEW, "status": 2**31}, None, r"headrace\.PageView\.status is 2147483648"),
        ({**VIEW, "colour": "red"}, None, "colour"),
        ({"method": "GET"}, None, r"field headrace\.PageView\.remote_host is missing"),
        ({**VIEW, "header": {"time": 1}}, None, "the publisher sets the header"),
        (VIEW, -1, "time_ms: -1 is not a number of milliseconds since 1970"),
        (VIEW, 1_700_000_000, "time_ms: 1700000000 looks like seconds instead of milliseconds since 1970"),
        (VIEW, 1_700_000_000_000_000, "1700000000000000 looks like microseconds instead of milliseconds"),
        (VIEW, 10**18, "looks like nanoseconds instead of milliseconds"),
        (VIEW, 86_400_000, r"lie before 1990; EventPublisher\(allow_before_1990=True\) allows it"),
        (VIEW, 1.5, "expected milliseconds"),
        ("no mapping", None, "is 'no mapping'|mapping"),
    ],
)
def test_an_event_that_does_not_fit_is_named_and_not_counted(
    world: World, record: Any, time_ms: Any, problem: str
) -> None:
    with world.publisher() as publisher:
        with pytest.raises(InvalidEventError, match=f"^{world.topic}: .*({problem})"):
            publisher.publish(world.topic, record, time_ms=time_ms)
        assert publisher._reporter._counts.changed() == []


def test_an_event_of_1970_is_published_if_that_is_allowed_by_name(world: World) -> None:
    with world.publisher(allow_before_1990=True) as publisher:
        publisher.publish(world.topic, VIEW, time_ms=86_400_000)
        with pytest.raises(InvalidEventError, match="microseconds"):
            publisher.publish(world.topic, VIEW, time_ms=1_700_000_000_000_000)
    assert [message.timestamp()[1] for message in world.read(world.topic)] == [86_400_000]


def test_an_event_that_the_client_refuses_is_not_counted(world: World) -> None:
    options = {
        "buffer_memory_bytes": 20_000,
        "on_full": "raise",
        "linger_ms": 10_000,
        "batch_size_bytes": 30_000,
    }
    with world.publisher(producer_options={**options, "batch_size_bytes": 15_000}) as publisher:
        accepted = 0
        try:
            for _ in range(100_000):
                publisher.publish(world.topic, VIEW)
                accepted += 1
        except BufferFullError:
            pass
        assert 0 < accepted < 100_000
    assert sum(tally["handed_over_count"] for tally in fold(world.reports()).values()) == accepted
    assert len(world.read(world.topic)) == accepted


def test_an_event_whose_key_is_a_number_is_not_counted(world: World, tmp_path: Path) -> None:
    key: Any = 5
    with world.publisher(state_dir=tmp_path) as publisher:
        with pytest.raises(TypeError):
            publisher.publish(world.topic, VIEW, key=key)
        assert [each.handed_over_count for each in publisher._reporter._counts.changed()] == [0]


def test_misuse_is_reported(world: World, tmp_path: Path) -> None:
    with world.publisher(schemas_dir=tmp_path) as publisher:
        with pytest.raises(
            MissingSchemaError, match=f"no schema file nothing.avsc in {tmp_path} nor .*schemas"
        ):
            publisher.publish("nothing", VIEW)
        (tmp_path / "mine.avsc").write_text(read_schema("page-view.avsc"))
        assert publisher.publish("mine", VIEW).result(30).topic == "mine"
    with pytest.raises(PublisherClosedError, match="publisher of web is closed"):
        publisher.publish(world.topic, VIEW)
    publisher.close()
    with pytest.raises(ValueError, match="observer is set by the publisher itself"):
        world.publisher(producer_options={"observer": None})
    with pytest.raises(ValueError, match="does not divide an hour"):
        world.publisher(bucket_ms=7)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_changes_nothing_of_its_parents(world: World, tmp_path: Path) -> None:
    """It has the same mapped files: what it writes, or cuts off, is the parent's."""

    def kept() -> dict[str, bytes]:
        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        return {str(path): path.read_bytes() for path in files}

    with world.publisher(state_dir=tmp_path, report_interval_s=60.0) as publisher:
        publisher.publish(world.topic, VIEW).result(30)
        publisher.flush(30)
        before = kept()
        assert len(before) == 4, "a journal; a spool's description, and a file of each ring"
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            answers = []
            for call in (lambda: publisher.publish(world.topic, VIEW), publisher.flush, publisher.close):
                try:
                    call()
                    answers.append("done")
                except BaseException as error:
                    answers.append(type(error).__name__)
            os.write(writer, " ".join(answers).encode())
            os._exit(0)
        os.close(writer)
        answered = os.read(reader, 1_000)
        os.close(reader)
        os.waitpid(child, 0)
        assert answered == b"ForkedError ForkedError done"
        assert kept() == before
        publisher.publish(world.topic, VIEW).result(30)
    assert len(world.read(world.topic)) == 2
    assert not list(tmp_path.rglob("*.journal"))
    # The files' numbers are others' now: a child must not close these.
    reader, writer = os.pipe()
    others = [os.dup(writer) for _ in range(20)]
    child = os.fork()
    if child == 0:
        os._exit(sum(os.write(each, b".") for each in others) - len(others))
    assert os.waitpid(child, 0)[1] == 0
    for each in (reader, writer, *others):
        os.close(each)


def test_a_killed_publisher_leaves_its_last_report_open(world: World) -> None:
    program = (
        "import sys\n"
        "from test_publisher import World, VIEW\n"
        "world = World(sys.argv[1], sys.argv[2]); world.topic, world.audit_topic = sys.argv[3:5]\n"
        "publisher = world.publisher(report_interval_s=0.1)\n"
        "while True:\n"
        "    publisher.publish(world.topic, VIEW).result(30)\n"
        "    print('one', flush=True)\n"
    )
    here = str(Path(__file__).parent)
    process = subprocess.Popen(
        [sys.executable, "-c", program, world.bootstrap, world.registry_url, world.topic, world.audit_topic],
        stdout=subprocess.PIPE,
        env={"PYTHONPATH": f"{here}:{Path(here).parent}", "PATH": "/usr/bin:/bin"},
        preexec_fn=die_with_parent,
    )
    assert process.stdout is not None
    for _ in range(50):
        assert process.stdout.readline() == b"one\n"
    time.sleep(0.3)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    reports = world.reports()
    assert reports and {report["state"] for report in reports} == {"OPEN"}
    reported = sum(tally["handed_over_count"] for tally in fold(reports).values())
    in_log = len(world.read(world.topic))
    assert 50 <= reported <= in_log + 1, "it reports no event that it did not publish"


def test_a_broker_that_was_away_gets_the_reports_later(
    broker_cluster: StartCluster, registry_url: str
) -> None:
    cluster = broker_cluster(count=1)
    world = World(cluster.bootstrap, registry_url)
    with world.publisher(report_interval_s=0.3) as publisher:
        publisher.publish(world.topic, VIEW, time_ms=NOON_MS).result(30)
        cluster[1].kill()
        for _ in range(20):
            publisher.publish(world.topic, VIEW, time_ms=NOON_MS + HOUR_MS)
        with pytest.raises(ReportError, match=r"did not arrive|another report"):
            publisher._reporter.report(timeout_s=0.5)
        cluster[1].start()
        publisher.flush()
    reports = world.reports()
    counts = {ms(tally["bucket_start"]): tally["handed_over_count"] for tally in fold(reports).values()}
    assert counts == {NOON_MS: 1, NOON_MS + HOUR_MS: 20}
    assert reports[-1]["state"] == "CLOSED"


def test_undelivered_events_are_counted_and_the_close_is_reported(
    broker_cluster: StartCluster, registry_url: str
) -> None:
    cluster = broker_cluster(count=1)
    world = World(cluster.bootstrap, registry_url)
    publisher = world.publisher(report_interval_s=0.3)
    publisher.publish(world.topic, VIEW, time_ms=NOON_MS).result(30)
    cluster[1].kill()
    futures = [publisher.publish(world.topic, VIEW, time_ms=NOON_MS) for _ in range(9)]
    publisher._producer.close(0.1)
    assert all(isinstance(future.exception(5), ClosedError) for future in futures)
    cluster[1].start()
    publisher.close()
    reports = world.reports()
    (tally,) = fold(reports).values()
    assert tally["handed_over_count"] == 10
    assert len(world.read(world.topic)) <= 10
    assert reports[-1]["state"] == "CLOSED"
