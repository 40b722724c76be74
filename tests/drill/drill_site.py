"""A real installation for a drill: ZooKeeper, two brokers, registry, mirror, auditors, audit store."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from sqlalchemy.exc import SQLAlchemyError

from fix_audit import AuditorProcess, MirrorProcess, ServiceProcess
from fix_audit_world import HOUR_A
from fix_broker import BrokerCluster
from fix_registry import RegistryProcess, launch
from fix_zookeeper import room_on, running_zookeeper
from headrace.audit.evidence import MIRROR_HOP, PRODUCER_HOP, Policy, Verdict
from headrace.audit.report.report import report
from headrace.audit.store.store import AuditStore, StoreError
from headrace.client import Admin
from headrace.events.publisher import EventPublisher
from headrace.events.schemas import read_schema
from headrace.wire.batch import BatchHeader, hop

COUNTED_WAIT_MAX_S: Final = 180.0
EVENTS_PER_BATCH: Final = 3
POLICY: Final = Policy(
    delay_ms=20_000, report_grace_ms=3_000, publisher_silence_ms=15_000, hops=(PRODUCER_HOP, MIRROR_HOP)
)


class StoredBatch(NamedTuple):
    """A batch of a log file."""

    header: BatchHeader
    data: bytes


class DrillSite(NamedTuple):
    """East and analysis, and the audit store."""

    clusters: dict[str, BrokerCluster]
    registry_url: str
    auditors: dict[str, AuditorProcess]
    mirror: MirrorProcess
    store_file: Path
    directory: Path

    def create(self, topics: Iterable[str]) -> None:
        with Admin(self.clusters["east"].bootstrap) as admin:
            for topic in topics:
                admin.create_topic(topic, 1)

    def publisher(self, service: str, topics: Iterable[str], **options: Any) -> EventPublisher:
        schema = read_schema("page-view.avsc")
        return EventPublisher(
            datacenter="east",
            service=service,
            bootstrap=self.clusters["east"].bootstrap,
            registry_url=self.registry_url,
            schemas=dict.fromkeys(topics, schema),
            report_interval_s=1.0,
            state_dir=self.directory / "state",
            **options,
        )

    def log_file(self, topic: str, datacenter: str = "east") -> Path:
        """The only segment of a topic's only partition."""
        folder = self.clusters[datacenter][1].data_dir / f"{topic}-0"
        return min(folder.glob("*.log"))

    def wait_until_counted(self, topics: Iterable[str]) -> None:
        """Waits until both auditors have counted all that the source's logs hold."""
        deadline = time.monotonic() + COUNTED_WAIT_MAX_S
        ends = {topic: self.log_file(topic).stat().st_size for topic in topics}
        for name, auditor in self.auditors.items():
            while True:
                found = auditor.partitions()
                if all(found.get((topic, 0), {}).get("counted_to") == end for topic, end in ends.items()):
                    break
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{name}'s auditor has not counted all within {COUNTED_WAIT_MAX_S} s")
                time.sleep(0.3)

    def verdicts(self) -> list[Verdict]:
        """What the report says now; nothing while there is no store to read."""
        try:
            store = AuditStore(f"sqlite:///{self.store_file}", must_exist=True)
        except StoreError:
            return []
        try:
            return list(report(store, policy=POLICY).verdicts)
        except SQLAlchemyError:
            return []
        finally:
            store.close()


def publish(publisher: EventPublisher, topics: Iterable[str], rounds: range) -> None:
    """One batch of a few events a round and topic; all are acknowledged when it returns."""
    for number in rounds:
        for topic in topics:
            for index in range(EVENTS_PER_BATCH):
                at = number * EVENTS_PER_BATCH + index
                event = {"remote_host": "10.0.0.1", "method": "GET", "path": f"/{at}", "status": 200}
                publisher.publish(topic, event, time_ms=HOUR_A + at, partition=0)
        publisher.flush(60)


def batches_of(file: Path) -> list[StoredBatch]:
    data = file.read_bytes()
    return [StoredBatch(h, data[at : at + h.size_bytes]) for at, h in hop(data)]


@contextmanager
def drill_site() -> Iterator[DrillSite]:
    """Starts everything; ends all that it started."""
    directory = Path(tempfile.mkdtemp(prefix="headrace-drill-"))
    services: list[ServiceProcess] = []
    registries: list[RegistryProcess] = []
    with running_zookeeper() as zookeeper:
        settings = {"log.flush.offset.checkpoint.interval.ms": "1000", "log.scrub.interval.ms": "2000"}
        clusters = {
            name: BrokerCluster(room_on(zookeeper), directory / name, 1, name, settings)
            for name in ("east", "analysis")
        }
        stops: list[Callable[[], object]] = []
        try:
            for cluster in clusters.values():
                cluster.directory.mkdir()
                stops.append(cluster.close)
                cluster[1].start()
            registries.append(launch(clusters["east"].zookeeper.hosts))
            url = registries[0].url
            store_file = directory / "audit.db"
            store = f"sqlite:///{store_file}"
            extra = ("--mirrors-zookeeper", clusters["analysis"].zookeeper.hosts, "--store", store)
            auditors = {
                "east": AuditorProcess(clusters["east"], url, directory),
                "analysis": AuditorProcess(clusters["analysis"], url, directory, *extra),
            }
            mirror = MirrorProcess(clusters["east"], clusters["analysis"], directory)
            services += [*auditors.values(), mirror]
            for service in services:
                service.start()
            yield DrillSite(clusters, url, auditors, mirror, store_file, directory)
        finally:
            for service in services:
                service.kill()
            for registry in registries:
                registry.kill()
            for stop in stops:
                stop()
            shutil.rmtree(directory, ignore_errors=True)
