"""The small site that the load's benchmark runs on, and its events.

Owns the site (one source datacenter, the analysis cluster, HDFS, on 127.105.0.0/16) and all its files.
"""

from __future__ import annotations

import io
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import fastavro

from headrace.client import Admin, Producer
from headrace.fleet.operate import down, up
from headrace.fleet.units import units_of
from headrace.registry.client import SchemaRegistryClient
from headrace.site.site import Datacenter, MirrorRoute, Site
from headrace.warehouse.jars import ensure_jars, headrace_home
from headrace.warehouse.layout import HOUR_MS
from headrace.warehouse.options import WarehouseOptions

TOPIC: Final = "bench"
PARTITIONS: Final = 4
BASE_TIME_MS: Final = 1_700_000_000_000 - 1_700_000_000_000 % HOUR_MS
HOURS: Final = 2
VALUE_SIZE_BYTES: Final = 200
DISTINCT_VALUES: Final = 20_000
RUN_SIZE: Final = 2_000
"""The events in a row that go to one partition, as with a sticky partitioner."""

SCHEMA: Final[dict[str, Any]] = {
    "type": "record",
    "name": "Bench",
    "namespace": "headrace.bench",
    "fields": [
        {
            "name": "header",
            "type": {
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
            },
        },
        {"name": "member_id", "type": "long"},
        {"name": "status", "type": "int"},
        {"name": "referrer", "type": ["null", "string"], "default": None},
        {"name": "path", "type": "string"},
    ],
}


@dataclass(frozen=True)
class BenchSite:
    """The running site."""

    site: Site
    warehouse: WarehouseOptions

    @property
    def servers(self) -> dict[str, tuple[str, ...]]:
        """The words that the command lines of the servers have, by what they are called in the output."""
        home = str(self.site.home)
        return {"brokers": ("headrace.broker", home), "HDFS": ("java", f"{home}/data/analysis/hdfs")}

    def start_rest(self) -> None:
        """Starts what only the latency part needs: the source datacenter, the mirror, the auditors."""
        up(self.site)


@contextmanager
def running_site() -> Iterator[BenchSite]:
    """Yields the site once the analysis cluster and HDFS are ready; stops and deletes it afterwards."""
    jars_home = headrace_home()
    ensure_jars(("hdfs", "spark", "kafka"), home=jars_home)
    home = jars_home / "bench-load"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    (home / "jars").symlink_to(jars_home / "jars")
    site = Site(
        home=home,
        datacenters=(
            Datacenter(name="east", network="127.105.1", broker_count=1),
            Datacenter(name="analysis", network="127.105.9", broker_count=2),
        ),
        mirrors=(MirrorRoute(source="east", target="analysis"),),
        warehouse="analysis",
        airflow=False,
    )
    warehouse = WarehouseOptions(
        hdfs_url=site.hdfs_url,
        webhdfs_url=site.webhdfs_url,
        bootstrap=site.analysis.bootstrap,
        registry_url=f"{site.analysis.registry_url},{site.datacenter('east').registry_url}",
        audit=False,
    )
    needed = ("analysis-zookeeper", "analysis-broker", "analysis-registry", "analysis-hdfs")
    try:
        up(site, units=[unit for unit in units_of(site) if unit.name.startswith(needed)])
        yield BenchSite(site, warehouse)
    finally:
        down(site)
        shutil.rmtree(home, ignore_errors=True)


def publish(bench: BenchSite, topic: str, count: int, progress: Callable[[int], None]) -> int:
    """Produces `count` events, with times rising over `HOURS` hours, to the analysis cluster.

    Returns the bytes of one value, about `VALUE_SIZE_BYTES`.
    """
    with SchemaRegistryClient(bench.site.analysis.registry_url) as registry:
        schema_id = registry.register(f"{topic}-value", SCHEMA)
    with Admin(bench.warehouse.bootstrap) as admin:
        admin.create_topic(topic, PARTITIONS)
    values = _values(schema_id)
    producer = Producer(
        bench.warehouse.bootstrap,
        linger_ms=50,
        batch_size_bytes=512 << 10,
        buffer_memory_bytes=128 << 20,
        client_id="bench",
    )
    span_ms = HOURS * HOUR_MS
    try:
        for index in range(count):
            time_ms = BASE_TIME_MS + index * span_ms // count
            value, at = values[index % len(values)]
            # The header's time, the first field, has the same size for all these times.
            stamped = b"".join((value[:at], _zigzag(time_ms), value[at + TIME_SIZE_BYTES :]))
            producer.send(topic, stamped, partition=index // RUN_SIZE % PARTITIONS, timestamp_ms=time_ms)
            if index % 100_000 == 0:
                progress(index)
        producer.flush(300)
    finally:
        producer.close(60)
    return len(values[0][0])


TIME_SIZE_BYTES: Final = 6


def _zigzag(value: int) -> bytes:
    coded = value << 1
    out = bytearray()
    while coded > 0x7F:
        out.append(coded & 0x7F | 0x80)
        coded >>= 7
    out.append(coded)
    return bytes(out)


def _values(schema_id: int) -> list[tuple[bytes, int]]:
    """Framed values, with the position of the time in each."""
    noise = random.Random(2011)
    parsed = fastavro.parse_schema(SCHEMA)
    prefix = b"\0" + schema_id.to_bytes(4, "big")
    assert len(_zigzag(BASE_TIME_MS)) == len(_zigzag(BASE_TIME_MS + HOURS * HOUR_MS)) == TIME_SIZE_BYTES
    made: list[tuple[bytes, int]] = []
    for _ in range(DISTINCT_VALUES):
        event = {
            "header": {
                "time": BASE_TIME_MS,
                "datacenter": "analysis",
                "server": f"web-{noise.randrange(40)}",
                "service": "bench",
                "guid": f"{noise.getrandbits(128):032x}",
            },
            "member_id": noise.randrange(1 << 34),
            "status": noise.choice((200, 200, 200, 304, 404)),
            "referrer": None if noise.random() < 0.4 else f"https://example.org/{noise.randrange(10_000)}",
            "path": "",
        }
        size = len(_encoded(parsed, event))
        event["path"] = f"/{noise.getrandbits(1024):0256x}"[
            : max(1, VALUE_SIZE_BYTES - len(prefix) - size - 1)
        ]
        made.append((prefix + _encoded(parsed, event), len(prefix)))
    return made


def _encoded(schema: Any, event: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, event)
    return out.getvalue()
