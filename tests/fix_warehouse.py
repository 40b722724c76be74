"""All that a load needs: one broker, one schema registry, HDFS, Spark.

Fixture: `world` (session-scoped). `world.topic("name")` creates a topic with a unique name.
"""

import io
import json
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import confluent_kafka
import fastavro
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from fix_broker import BrokerCluster
from fix_hdfs import HdfsProcess
from fix_zookeeper import ZooKeeperServer, die_with_parent, room_on
from headrace.registry.client import SchemaRegistryClient
from headrace.warehouse import load
from headrace.warehouse.commitlog import CommitLog
from headrace.warehouse.hdfs.client import HdfsClient
from headrace.warehouse.layout import TopicPaths
from headrace.warehouse.loading import LoadResult

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROOT: Final = "/data"
HOUR_MS: Final = 3_600_000
BASE_TIME_MS: Final = 1_700_000_000_000 - 1_700_000_000_000 % HOUR_MS
"""The beginning of an hour: 2023-11-14T22."""

HEADER: Final[dict[str, Any]] = {
    "type": "record",
    "name": "Header",
    "namespace": "headrace",
    "fields": [
        {"name": "time", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "datacenter", "type": "string"},
        {"name": "server", "type": "string"},
        {"name": "service", "type": "string"},
        {"name": "guid", "type": "string"},
    ],
}


def event_schema(*fields: dict[str, Any]) -> dict[str, Any]:
    """The schema of an event with a header and these fields."""
    return {
        "type": "record",
        "name": "Click",
        "namespace": "test",
        "fields": [{"name": "header", "type": HEADER}, *fields],
    }


NUMBER: Final = {"name": "number", "type": "long"}
WORD: Final = {"name": "word", "type": "string"}
CLICK: Final = event_schema(NUMBER, WORD)


def click(number: int, time_ms: int, **more: Any) -> dict[str, Any]:
    """One event of the schema `CLICK`."""
    header = {
        "time": datetime.fromtimestamp(time_ms / 1000, UTC),
        "datacenter": "east",
        "server": "s1",
        "service": "tests",
        "guid": str(number),
    }
    return {"header": header, "number": number, "word": f"w{number % 10}", **more}


def create_topic(bootstrap: str, name: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for created in admin.create_topics([NewTopic(name, partitions, 1)]).values():
        created.result(timeout=60)


@dataclass
class TestTopic:
    """A topic with its schemas, to publish to and to load."""

    __test__ = False

    world: "World"
    name: str
    partitions: int
    ids: dict[str, int] = field(default_factory=dict)

    def register(self, schema: dict[str, Any], *, level: str | None = None) -> int:
        """Registers the next version; returns its id."""
        with SchemaRegistryClient(self.world.registry_url) as registry:
            if level is not None:
                registry.set_config(level, f"{self.name}-value")
            return registry.register(f"{self.name}-value", schema)

    def publish(
        self, events: Sequence[dict[str, Any]], schema: dict[str, Any] = CLICK, **settings: Any
    ) -> None:
        """Publishes events to the partitions in rotation; the Kafka timestamp is `header.time`."""
        schema_id = self.ids.setdefault(json.dumps(schema), 0) or self.register(schema)
        self.ids[json.dumps(schema)] = schema_id
        parsed = fastavro.parse_schema(schema)
        values = []
        for event in events:
            out = io.BytesIO()
            out.write(b"\0" + schema_id.to_bytes(4, "big"))
            fastavro.schemaless_writer(out, parsed, event)
            values.append((out.getvalue(), round(event["header"]["time"].timestamp() * 1000)))
        self.send(values, **settings)

    def send(self, values: Sequence[tuple[bytes | None, int]], **settings: Any) -> None:
        """Produces raw values, each with its timestamp in ms."""
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self.world.bootstrap,
                "enable.idempotence": True,
                "compression.type": "lz4",
                "batch.num.messages": 1000,
                **settings,
            }
        )
        failures: list[object] = []

        def delivered(error: object, _: object) -> None:
            if error is not None:
                failures.append(error)

        for index, (value, time_ms) in enumerate(values):
            while True:
                try:
                    producer.produce(
                        self.name,
                        value,
                        partition=index % self.partitions,
                        timestamp=time_ms,
                        on_delivery=delivered,
                    )
                    break
                except BufferError:
                    producer.poll(0.1)
        assert producer.flush(60) == 0
        assert not failures, failures[0]

    @property
    def paths(self) -> TopicPaths:
        return TopicPaths(ROOT, self.name)

    @property
    def log(self) -> CommitLog:
        return CommitLog(self.world.hdfs, self.paths)

    def load(self, **options: Any) -> LoadResult:
        """One load in this process."""
        return load(self.world.spark, [self.name], **{**self.world.addresses, "audit": False, **options})[0]

    def files(self) -> list[str]:
        """The table's files, by a plain listing."""
        return sorted(path for path, _ in self.world.hdfs.walk(self.paths.hourly))

    def table(self) -> "DataFrame":
        """The table as other tools read it."""
        return self.world.spark.read.option("mergeSchema", "true").parquet(
            *[f"{self.world.process.hdfs_url}{path}" for path in self.files()]
        )


@dataclass
class World:
    """Everything that a load uses."""

    bootstrap: str
    registry_url: str
    process: HdfsProcess
    hdfs: HdfsClient
    spark: "SparkSession"

    @property
    def addresses(self) -> dict[str, Any]:
        return {
            "bootstrap": self.bootstrap,
            "registry_url": self.registry_url,
            "hdfs_url": self.process.hdfs_url,
            "webhdfs_url": self.process.webhdfs_url,
            "root": ROOT,
        }

    def topic(self, prefix: str, partitions: int = 2) -> TestTopic:
        """Creates a topic, whose name begins with `prefix`."""
        name = f"{prefix}-{uuid.uuid4().hex[:8]}"
        create_topic(self.bootstrap, name, partitions)
        return TestTopic(self, name, partitions)


def make_again(topic: TestTopic, partitions: int = 1) -> None:
    """Deletes the topic, and makes another one under its name."""
    admin = AdminClient({"bootstrap.servers": topic.world.bootstrap})
    admin.delete_topics([topic.name])[topic.name].result(timeout=60)
    create_topic(topic.world.bootstrap, topic.name, partitions)
    topic.partitions = partitions


@pytest.fixture(scope="session")
def session_registry(zookeeper_server: ZooKeeperServer) -> Iterator[str]:
    """The URL of a registry that lives as long as the tests do."""
    command = [sys.executable, "-m", "headrace.registry", "--listen", "127.0.0.1:0"]
    command += ["--zookeeper", room_on(zookeeper_server).hosts]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=die_with_parent) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"http://\S+", line)
        assert found, f"the registry wrote {line!r}"
        try:
            yield found[0]
        finally:
            process.kill()


@pytest.fixture(scope="session")
def world(
    one_broker: BrokerCluster, session_registry: str, hdfs: HdfsProcess, spark: "SparkSession"
) -> Iterator[World]:
    with hdfs.client() as client:
        yield World(one_broker.bootstrap, session_registry, hdfs, client, spark)
