"""Three datacenters of real processes for the audit: east and west, whose topics are mirrored to analysis.

`running_site` starts a broker, an auditor and a registry for each, two mirrors and the audit store. Tests
make their own topics.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fix_audit import AuditorProcess, MirrorProcess, ServiceProcess
from fix_broker import BrokerCluster
from fix_registry import RegistryProcess, launch
from fix_zookeeper import ZooKeeperServer, room_on
from headrace.audit.findings import Policy
from headrace.audit.report.report import Report, report, wait_until_resolved
from headrace.audit.store.store import AuditStore
from headrace.audit.topic.publish import AuditPublisher
from headrace.audit.topic.records import ANALYSIS_AUDIT_TOPIC
from headrace.client import Admin
from headrace.events.publisher import EventPublisher
from headrace.events.schemas import read_schema

RESOLVE_MAX_S: Final = 60.0
SOURCES: Final = ("east", "west")


@dataclass
class Site:
    """East, west and analysis, with registries, mirrors, auditors and the store."""

    clusters: dict[str, BrokerCluster]
    registry_of: dict[str, str]
    auditors: dict[str, AuditorProcess]
    mirrors: dict[str, MirrorProcess]
    store: AuditStore
    store_url: str
    policy: Policy

    @property
    def analysis(self) -> BrokerCluster:
        return self.clusters["analysis"]

    def create_topic(
        self,
        name: str,
        config: Mapping[str, str] | None = None,
        *,
        partitions: int = 2,
        datacenters: Iterable[str] = SOURCES,
    ) -> None:
        for datacenter in datacenters:
            with Admin(self.clusters[datacenter].bootstrap) as admin:
                admin.create_topic(name, partitions, config=config)

    def publisher(
        self, datacenter: str, service: str, topic: str, *, state_dir: Path | None = None, **options: Any
    ) -> EventPublisher:
        """A service's publisher; `options` are its producer's."""
        return EventPublisher(
            datacenter=datacenter,
            service=service,
            bootstrap=self.clusters[datacenter].bootstrap,
            registry_url=self.registry_of[datacenter],
            schemas={topic: read_schema("page-view.avsc")},
            report_interval_s=0.5,
            producer_options=options,
            state_dir=state_dir,
        )

    def says(self, datacenter: str = "analysis", topic: str = ANALYSIS_AUDIT_TOPIC) -> AuditPublisher:
        return AuditPublisher(
            bootstrap=self.clusters[datacenter].bootstrap,
            registry_url=self.registry_of[datacenter],
            datacenter=datacenter,
            service="repair",
            topic=topic,
        )

    def resolved(self, topic: str, policy: Policy | None = None) -> Report:
        """The report on a topic once nothing of it is pending or unknown, or after `RESOLVE_MAX_S`."""
        chosen = policy or self.policy
        return wait_until_resolved(lambda: report(self.store, topic, policy=chosen), RESOLVE_MAX_S)


def page_view(index: int) -> dict[str, object]:
    return {"remote_host": "10.0.0.1", "method": "GET", "path": f"/{index}", "status": 200}


@contextmanager
def running_site(zookeeper_server: ZooKeeperServer, directory: Path, policy: Policy) -> Iterator[Site]:
    """Starts everything; ends all that it started. `policy`: what reports are judged by."""
    clusters = {
        name: BrokerCluster(room_on(zookeeper_server), directory / name, 1, name, {})
        for name in (*SOURCES, "analysis")
    }
    registries: dict[str, RegistryProcess] = {}
    store_url = f"sqlite:///{directory}/audit.db"
    services: list[ServiceProcess] = []
    try:
        for cluster in clusters.values():
            cluster.directory.mkdir()
            cluster[1].start(wait=False)
        # Ids follow from content, so it does not matter that east and west share one.
        for name in ("east", "analysis"):
            registries[name] = launch(clusters[name].zookeeper.hosts)
        urls = {name: registries.get(name, registries["east"]).url for name in clusters}
        for cluster in clusters.values():
            cluster[1].wait_until_ready()
        keeps = ("--mirrors-zookeeper", clusters["analysis"].zookeeper.hosts, "--store", store_url)
        known = f"{urls['analysis']},{urls['east']}"
        auditors = {
            "east": AuditorProcess(clusters["east"], urls["east"], directory),
            "west": AuditorProcess(clusters["west"], urls["west"], directory),
            "analysis": AuditorProcess(clusters["analysis"], known, directory, *keeps),
        }
        mirrors = {name: MirrorProcess(clusters[name], clusters["analysis"], directory) for name in SOURCES}
        services += [*auditors.values(), *mirrors.values()]
        for service in services:
            service.start(wait=False)
        for service in services:
            service.wait_until_ready()
        store = AuditStore(store_url)
        yield Site(clusters, urls, auditors, mirrors, store, store_url, policy)
        store.close()
    finally:
        for service in services:
            service.kill()
        for registry in registries.values():
            registry.kill()
        for cluster in clusters.values():
            cluster.close()
