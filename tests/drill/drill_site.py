"""A real installation for a drill: ZooKeeper, two brokers, registry, mirror, auditors, audit store."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from sqlalchemy.exc import SQLAlchemyError

from drill.drill_plants import StoredBatch
from fix_audit import AuditorProcess, MirrorProcess, ServiceProcess
from fix_audit_world import HOUR_A
from fix_broker import BrokerCluster
from fix_registry import RegistryProcess, launch
from fix_zookeeper import room_on, running_zookeeper
from headrace.audit.findings import MIRROR_HOP, PRODUCER_HOP, Policy, Verdict
from headrace.audit.report.report import report
from headrace.audit.store.store import AuditStore, StoreError
from headrace.client import Admin
from headrace.events.publisher import EventPublisher
from headrace.events.schemas import read_schema
from headrace.wire.batch import hop

COUNTED_WAIT_MAX_S: Final = 180.0
EVENTS_PER_BATCH: Final = 3
POLICY: Final = Policy(
    delay_ms=20_000, report_grace_ms=3_000, publisher_silence_ms=15_000, hops=(PRODUCER_HOP, MIRROR_HOP)
)


class DrillSite(NamedTuple):
    """East and analysis, and the audit store. `partitions`: of the topics that have more than one."""

    clusters: dict[str, BrokerCluster]
    registry_url: str
    auditors: dict[str, AuditorProcess]
    mirror: MirrorProcess
    store_file: Path
    directory: Path
    partitions: dict[str, int]

    @property
    def bootstrap(self) -> str:
        return self.clusters["east"].bootstrap

    def create(
        self, topics: Iterable[str], partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> None:
        with Admin(self.bootstrap) as admin:
            for topic in topics:
                admin.create_topic(topic, partitions, config=config)
                self.partitions[topic] = partitions

    def publisher(
        self, service: str, topics: Iterable[str], *, bootstrap: str | None = None, **options: Any
    ) -> EventPublisher:
        """A service's publisher. `bootstrap`: another way to the broker of east."""
        schema = read_schema("page-view.avsc")
        return EventPublisher(
            datacenter="east",
            service=service,
            bootstrap=bootstrap or self.bootstrap,
            registry_url=self.registry_url,
            schemas=dict.fromkeys(topics, schema),
            report_interval_s=1.0,
            state_dir=self.directory / "state",
            **options,
        )

    def segments(self, topic: str, partition: int = 0, datacenter: str = "east") -> list[Path]:
        """The segment files of a partition, in order."""
        folder = self.clusters[datacenter][1].data_dir / f"{topic}-{partition}"
        return sorted(folder.glob("*.log"))

    def log_file(self, topic: str, datacenter: str = "east") -> Path:
        """The only segment of a topic's only partition."""
        (file,) = self.segments(topic, datacenter=datacenter)
        return file

    def end(self, topic: str, partition: int = 0, datacenter: str = "east") -> int:
        """Where the partition's next batch will start, by the files alone."""
        last = self.segments(topic, partition, datacenter)[-1]
        return int(last.stem) + last.stat().st_size

    def wait_until_counted(
        self, topics: Iterable[str], datacenters: Iterable[str] = ("east", "analysis")
    ) -> None:
        """Waits until auditors have counted all that the source's logs hold. The analysis cluster may give
        partitions other numbers.
        """
        ends = {
            topic: sorted(self.end(topic, partition) for partition in range(self.partitions[topic]))
            for topic in topics
        }

        def are_counted(auditor: AuditorProcess) -> bool:
            counted: dict[str, list[int]] = {topic: [] for topic in ends}
            for row in auditor.status()["partitions"]:
                counted.get(row["topic"], []).append(row["counted_to"])
            return all(sorted(counted[topic]) == ends[topic] for topic in ends)

        for name in datacenters:
            counts = partial(are_counted, self.auditors[name])
            wait_until(counts, f"{name}'s auditor has counted all", COUNTED_WAIT_MAX_S)

    def verdicts(self) -> list[Verdict]:
        """What the report says now; nothing while there is no store to read."""
        return verdicts_in(self.store_file, POLICY)


def verdicts_in(store_file: Path, policy: Policy) -> list[Verdict]:
    """What the report says now; nothing while there is no store to read."""
    try:
        store = AuditStore(f"sqlite:///{store_file}", must_exist=True)
    except StoreError:
        return []
    try:
        return list(report(store, policy=policy).verdicts)
    except SQLAlchemyError:
        return []
    finally:
        store.close()


def publish(publisher: EventPublisher, topics: Iterable[str], rounds: range, partitions: int = 1) -> None:
    """One batch of a few events a round and partition, all of one size. All are stored when it returns."""
    for number in rounds:
        for topic, partition in ((topic, each) for topic in topics for each in range(partitions)):
            for index in range(EVENTS_PER_BATCH):
                at = number * EVENTS_PER_BATCH + index
                event = {"remote_host": "10.0.0.1", "method": "GET", "path": f"/{at:06}", "status": 200}
                publisher.publish(topic, event, time_ms=HOUR_A + at, partition=partition)
        publisher.flush(60)


def batches_of(*files: Path) -> list[StoredBatch]:
    """The batches of log files, in order."""
    found = []
    for file in files:
        data = file.read_bytes()
        found += [StoredBatch(h, data[at : at + h.size_bytes]) for at, h in hop(data)]
    return found


def wait_until(condition: Callable[[], bool], what: str, wait_max_s: float) -> None:
    """Raises `TimeoutError` unless the condition holds within this time."""
    deadline = time.monotonic() + wait_max_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {wait_max_s} s: {what}")
        time.sleep(0.3)


@contextmanager
def drill_site() -> Iterator[DrillSite]:
    """Starts everything; ends all that it started."""
    directory = Path(tempfile.mkdtemp(prefix="headrace-drill-"))
    services: list[ServiceProcess] = []
    registries: list[RegistryProcess] = []
    with running_zookeeper() as zookeeper:
        settings = {
            "log.flush.offset.checkpoint.interval.ms": "1000",
            "log.scrub.interval.ms": "2000",
            "log.retention.check.interval.ms": "1000",
        }
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
            yield DrillSite(clusters, url, auditors, mirror, store_file, directory, {})
        finally:
            for service in services:
                service.kill()
            for registry in registries:
                registry.kill()
            for stop in stops:
                stop()
            shutil.rmtree(directory, ignore_errors=True)
