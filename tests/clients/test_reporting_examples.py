"""The examples of reporting.md and first-topic.md, in Java and Go: the audit believes their reports."""

from __future__ import annotations

import json
import shutil
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark
import pytest

from fix_audit import AuditorProcess
from fix_broker import BrokerCluster
from fix_java import QUICK_JVM, QUIET, class_path, ensure_kafka_jars, run_checked
from fix_registry import RegistryProcess, launch
from fix_zookeeper import ZooKeeperServer, room_on
from headrace.audit.findings import PRODUCER_HOP, Policy, Status
from headrace.audit.report.report import Report, report, wait_until_resolved
from headrace.audit.store.store import AuditStore
from headrace.audit.topic.declarations import FROM_LOG, FROM_PRODUCERS
from headrace.client import Admin, Consumer, ConsumerRecord, Producer
from headrace.coordination.declared import ANY, PRODUCERS
from headrace.registry.client import SchemaRegistryClient
from headrace.registry.serializers import AvroDeserializer

pytestmark = pytest.mark.real_client

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples" / "reporting"
FIRST_TOPIC = EXAMPLES.with_name("first-topic")
ORDERS = "order-placed"
COUNT = 1_000
RUN_WAIT_MAX_S = 240.0
RESOLVE_MAX_S = 90.0
# One datacenter alone: its log against its producers.
POLICY = Policy(delay_ms=60_000, hops=(PRODUCER_HOP,))


@dataclass
class East:
    """One datacenter with its auditor, which also keeps the store."""

    cluster: BrokerCluster
    auditor: AuditorProcess
    store: AuditStore
    registry_url: str

    @property
    def counts_url(self) -> str:
        return f"{self.auditor.status_url.removesuffix('/status')}/counts"

    def create(self, topic: str, **config: str) -> None:
        with Admin(self.cluster.bootstrap) as admin:
            admin.create_topic(topic, 2, config=config)

    def resolved(self, topic: str, policy: Policy = POLICY) -> Report:
        return wait_until_resolved(lambda: report(self.store, topic, policy=policy), RESOLVE_MAX_S)


@pytest.fixture(scope="module")
def east(zookeeper_server: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[East]:
    directory = tmp_path_factory.mktemp("east")
    cluster = BrokerCluster(room_on(zookeeper_server), directory, 1, "east", {})
    registry: RegistryProcess | None = None
    auditor: AuditorProcess | None = None
    try:
        cluster[1].start()
        registry = launch(cluster.zookeeper.hosts)
        url = f"sqlite:///{directory}/audit.db"
        auditor = AuditorProcess(cluster, registry.url, directory, "--store", url)
        auditor.start()
        store = AuditStore(url)
        yield East(cluster, auditor, store, registry.url)
        store.close()
    finally:
        if auditor is not None:
            auditor.kill()
        if registry is not None:
            registry.kill()
        cluster.close()


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command that runs a class of both examples."""
    for tool in ("java", "javac", "mvn"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed: the Java example is not run")
    (avro,) = (Path(pyspark.__file__).parent / "jars").glob("avro-1*.jar")
    jars, classes = f"{class_path(ensure_kafka_jars())}:{avro}", tmp_path_factory.mktemp("classes")
    sources = [str(EXAMPLES / "Reporting.java"), str(FIRST_TOPIC / "Checkout.java")]
    run_checked(["javac", "-cp", jars, "-d", str(classes), *sources], timeout_s=RUN_WAIT_MAX_S)
    return ["java", *QUICK_JVM, QUIET, "-cp", f"{classes}:{jars}"]


@pytest.fixture(scope="module")
def java_example(java: list[str]) -> list[str]:
    return [*java, "Reporting"]


@pytest.fixture(scope="module")
def java_checkout(java: list[str]) -> list[str]:
    return [*java, "Checkout"]


@pytest.fixture(scope="module")
def go_example(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return _built(tmp_path_factory.mktemp("go"), *EXAMPLES.glob("*.go"))


@pytest.fixture(scope="module")
def go_checkout(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return _built(tmp_path_factory.mktemp("go"), FIRST_TOPIC / "checkout.go", EXAMPLES / "reporting.go")


def _built(module: Path, *sources: Path) -> list[str]:
    if shutil.which("go") is None:
        pytest.skip("go is not installed: the Go example is not run")
    for path in (*sources, FIRST_TOPIC / "go.mod", FIRST_TOPIC / "go.sum"):
        shutil.copy(path, module)
    program = module / "program"
    run_checked(["go", "vet", "-C", str(module), "."], timeout_s=RUN_WAIT_MAX_S)
    run_checked(["go", "build", "-C", str(module), "-o", str(program), "."], timeout_s=RUN_WAIT_MAX_S)
    return [str(program)]


@pytest.mark.parametrize("language", ["java", "go"])
def test_an_example_reports_what_it_publishes(
    language: str, east: East, request: pytest.FixtureRequest
) -> None:
    command: list[str] = request.getfixturevalue(f"{language}_example")
    topic = f"placed-{language}"
    east.create(topic)
    run_checked(
        [*command, east.cluster.bootstrap, east.counts_url, topic, str(COUNT)], timeout_s=RUN_WAIT_MAX_S
    )
    found = east.resolved(topic)
    assert found.status is Status.COMPLETE, found.to_json()
    assert {verdict.counted_from for verdict in found.verdicts} == {FROM_PRODUCERS}
    counts = [verdict.counts for verdict in found.verdicts]
    assert sum(each.producer for each in counts) == sum(each.datacenter for each in counts) == COUNT


@pytest.fixture(scope="module")
def orders(east: East) -> str:
    """The schema of the orders, whose topic is there."""
    schema = FIRST_TOPIC / "order-placed.avsc"
    with SchemaRegistryClient(east.registry_url) as registry:
        registry.register(f"{ORDERS}-value", schema.read_text())
    east.create(ORDERS)
    return str(schema)


@pytest.mark.parametrize("language", ["java", "go"])
def test_a_service_publishes_events_of_a_schema(
    language: str, east: East, orders: str, request: pytest.FixtureRequest
) -> None:
    command: list[str] = request.getfixturevalue(f"{language}_checkout")
    addresses = ["east", east.cluster.bootstrap, east.registry_url, east.counts_url]
    schema = [orders] if language == "java" else []
    run_checked([*command, *addresses, *schema, str(COUNT)], timeout_s=RUN_WAIT_MAX_S)
    events = _read(east, ORDERS)
    mine = [(record, event) for record, event in events if event["order_id"].startswith(language)]
    assert {event["order_id"].rpartition("-")[2] for _, event in mine} == {str(n) for n in range(COUNT)}
    record, event = mine[-1]
    assert event["header"]["service"] == f"checkout-{language}"
    assert event["header"]["datacenter"] == "east"
    assert int(event["header"]["time"].timestamp() * 1000) == record.timestamp_ms
    assert event["total"] == 10 + int(event["order_id"].rpartition("-")[2])
    assert (event["currency"], event["coupon"]) == ("EUR", None)
    assert record.key == str(event["customer_id"]).encode()
    # The language before may have ended with its hour: the report is complete before it knows the next one.
    deadline = time.monotonic() + RESOLVE_MAX_S
    while True:
        found = east.resolved(ORDERS)
        assert found.status is Status.COMPLETE, found.to_json()
        counts = [verdict.counts for verdict in found.verdicts]
        if sum(each.producer for each in counts) == sum(each.datacenter for each in counts) == len(events):
            return
        assert time.monotonic() < deadline, found.to_json()
        time.sleep(0.5)


def _read(east: East, topic: str) -> list[tuple[ConsumerRecord, Any]]:
    """All records of a topic, with their events."""
    found: list[tuple[ConsumerRecord, Any]] = []
    with (
        Admin(east.cluster.bootstrap) as admin,
        SchemaRegistryClient(east.registry_url) as registry,
        Consumer(east.cluster.bootstrap, auto_offset_reset="earliest") as consumer,
    ):
        ends = {partition: end.offset for partition, end in admin.list_offsets(topic).items()}
        consumer.assign([(topic, partition) for partition in ends])
        read, deadline = AvroDeserializer(registry).deserialize, time.monotonic() + RUN_WAIT_MAX_S
        while any(consumer.position(topic, partition) < end for partition, end in ends.items()):
            assert time.monotonic() < deadline, f"{len(found)} records are read"
            for record in consumer.poll(1.0):
                assert record.value is not None
                found.append((record, read(record.value)))
    return found


def test_what_a_report_counts_beyond_the_log_is_lost(east: East) -> None:
    topic = "placed-lost"
    east.create(topic)
    now_ms = time.time_ns() // 1_000_000
    with Producer(east.cluster.bootstrap, idempotent=True, acks="all") as producer:
        for n in range(5):
            producer.send(topic, b"event", partition=n % 2, timestamp_ms=now_ms)
    body = {
        "publisher": "7f0c2a52-5a39-4b1c-9d4e-0a7e5f6f3b11",
        "service": "checkout",
        "server": "co3.east",
        "started_ms": now_ms,
        "report_number": 1,
        "reported_until_ms": now_ms,
        "closed": True,
        "tallies": [{"topic": topic, "bucket_start_ms": now_ms - now_ms % 600_000, "handed_over_count": 8}],
    }
    request = urllib.request.Request(east.counts_url, json.dumps(body).encode(), method="POST")
    with urllib.request.urlopen(request, timeout=60) as response:
        assert json.loads(response.read())["report_number"] == 1
    found = east.resolved(topic)
    assert (found.status, found.verdicts[0].count(Status.LOST)) == (Status.LOST, 3), found.to_json()


def test_a_client_that_reports_nothing_is_complete_where_that_is_declared(east: East) -> None:
    now_ms = time.time_ns() // 1_000_000

    def publish(topic: str) -> None:
        with Producer(east.cluster.bootstrap, idempotent=True, acks="all") as producer:
            for n in range(20):
                producer.send(topic, b"event", partition=n % 2, timestamp_ms=now_ms)

    impatient = Policy(delay_ms=1, hops=(PRODUCER_HOP,))
    for topic, config in (("said-nothing", {}), ("need-not", {PRODUCERS: ANY})):
        east.create(topic, **config)
        publish(topic)
    # Longer than the auditor's heartbeats are apart: else it counts as silent between two of them.
    patient = Policy(delay_ms=5_000, hops=(PRODUCER_HOP,))
    found = _eventually(lambda: report(east.store, "need-not", policy=patient), 20, Status.COMPLETE)
    assert [(v.status, v.counted_from) for v in found.verdicts] == [(Status.COMPLETE, FROM_LOG)]
    found = _eventually(lambda: report(east.store, "said-nothing", policy=impatient), 20, Status.UNKNOWN)
    assert [(v.status, v.counted_from) for v in found.verdicts] == [(Status.UNKNOWN, FROM_PRODUCERS)]


def _eventually(judge: Callable[[], Report], count: int, status: Status) -> Report:
    """The report once all records are counted, and what the topic declares is known."""
    deadline = time.monotonic() + RESOLVE_MAX_S
    while True:
        found = judge()
        counted = sum(verdict.counts.datacenter for verdict in found.verdicts)
        if counted == count and found.status is status:
            return found
        assert time.monotonic() < deadline, json.dumps(found.to_json())
        time.sleep(0.2)


def test_the_page_names_both() -> None:
    page = (EXAMPLES.parents[1] / "reporting.md").read_text()
    assert {f"examples/reporting/{path.name}" in page for path in EXAMPLES.iterdir()} == {True}
    page = (EXAMPLES.parents[1] / "first-topic.md").read_text()
    assert {f"examples/first-topic/{path.name}" in page for path in FIRST_TOPIC.iterdir()} == {True}
