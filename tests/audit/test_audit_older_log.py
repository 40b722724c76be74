"""An audit topic whose log went back while its reader was down: it misses nothing of what is there now."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from fix_broker import BrokerCluster, StartCluster
from fix_registry import StartRegistry
from headrace.audit.topic.logs_read import LastRead, Log
from headrace.audit.topic.publish import AuditPublisher
from headrace.audit.topic.reader import AuditReader
from headrace.audit.topic.records import AUDIT_TOPIC, DATACENTER_TIER, GapRecord

LOG: Log = (AUDIT_TOPIC, 0)


def publish(cluster: BrokerCluster, registry_url: str, names: Iterable[str]) -> None:
    """Publishes a record for each name, in a batch of its own."""
    with AuditPublisher(
        bootstrap=cluster.bootstrap, registry_url=registry_url, datacenter="east", service="auditor"
    ) as publisher:
        for name in names:
            publisher.publish(GapRecord(DATACENTER_TIER, "east", "t", 0, 0, 10, name))
            publisher.flush()


class Reading:
    """A reader that goes on where the one before ended, and what it reads."""

    def __init__(self) -> None:
        self.position: int | None = None
        self.last: dict[Log, LastRead] = {}

    def read(self, cluster: BrokerCluster, registry_url: str) -> tuple[list[str], bool]:
        """Returns what another reader reads, and whether it says that it began anew."""
        start_at = {} if self.position is None else {LOG: self.position}
        reader = AuditReader(
            bootstrap=cluster.bootstrap, registry_url=registry_url, topics=[AUDIT_TOPIC], start_at=start_at
        )
        reader.know(self.last, ())
        found: list[str] = []
        is_restarted, empty_polls = False, 0
        try:
            reader.discover()
            while empty_polls < 2:
                polled = reader.poll(2.0)
                empty_polls = 0 if polled.positions else empty_polls + 1
                found += [each.record.reason for each in polled.records if isinstance(each.record, GapRecord)]
                is_restarted = is_restarted or LOG in polled.logs.restarted
                self.position = polled.positions.get(LOG, self.position)
                self.last.update(polled.logs.last)
        finally:
            reader.close()
        return found, is_restarted


def test_what_took_the_place_of_what_was_read_is_read(
    broker_cluster: StartCluster, start_registry: StartRegistry, tmp_path: Path
) -> None:
    cluster = broker_cluster(datacenter="east")
    url = start_registry(hosts=cluster.zookeeper.hosts).url
    reading, folder = Reading(), cluster[1].data_dir / f"{AUDIT_TOPIC}-0"
    publish(cluster, url, ["first", "second"])
    cluster[1].stop()
    shutil.copytree(folder, tmp_path / "older")
    cluster[1].start()
    publish(cluster, url, ["lost", "lost, too"])
    assert reading.read(cluster, url) == (["first", "second", "lost", "lost, too"], False)
    publish(cluster, url, ["later"])
    assert reading.read(cluster, url) == (["later"], False), "nothing twice"
    cluster[1].stop()
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "older", folder)
    cluster[1].start()
    names = [f"in its place {number}" for number in range(8)]
    publish(cluster, url, names)
    assert reading.read(cluster, url) == (["first", "second", *names], True)
    assert reading.read(cluster, url) == ([], False)
