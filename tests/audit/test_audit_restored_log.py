"""A real broker's data folder that was restored from an older copy: the auditor names what it lacks."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fix_audit import AuditorProcess, StartAuditor, publish_singly, wait_for
from fix_audit_world import (
    NOW_MS,
)
from fix_broker import StartCluster
from fix_registry import StartRegistry
from headrace.audit.findings import Status
from headrace.audit.report.report import report
from headrace.audit.store.store import AuditStore
from headrace.audit.times import HOUR_MS
from headrace.client import Admin


def counted_to(auditor: AuditorProcess, topic: str) -> int:
    found = auditor.partitions().get((topic, 0))
    return 0 if found is None else int(found["counted_to"])


@pytest.mark.parametrize("is_auditor_up", [True, False], ids=["auditor runs", "auditor is down"])
def test_a_data_folder_that_was_restored_from_an_older_copy_is_named(
    broker_cluster: StartCluster,
    start_registry: StartRegistry,
    start_auditor: StartAuditor,
    is_auditor_up: bool,
    tmp_path: Path,
) -> None:
    """The older copy lacks events that were counted, and has grown beyond them when anybody looks."""
    cluster = broker_cluster(datacenter="east")
    registry = start_registry(hosts=cluster.zookeeper.hosts)
    topic, store_url = "restored", f"sqlite:///{tmp_path}/audit.db"
    with Admin(cluster.bootstrap) as admin:
        admin.create_topic(topic, 1)
    auditor = start_auditor(cluster, registry.url, "--store", store_url)
    publish_singly(cluster, registry.url, topic, 10)
    wait_for(lambda: counted_to(auditor, topic) > 0, auditor.output)
    folder = cluster[1].data_dir / f"{topic}-0"
    cluster[1].stop()
    shutil.copytree(folder, f"{tmp_path}/older")
    size = sum(file.stat().st_size for file in folder.glob("*.log"))
    cluster[1].start()
    publish_singly(cluster, registry.url, topic, 5)
    wait_for(lambda: counted_to(auditor, topic) > size, auditor.output)
    end = counted_to(auditor, topic)
    if not is_auditor_up:
        auditor.terminate()
    cluster[1].stop()
    shutil.rmtree(folder)
    shutil.copytree(f"{tmp_path}/older", folder)
    cluster[1].start()
    publish_singly(cluster, registry.url, topic, 12)
    if not is_auditor_up:
        auditor.start()
    wait_for(lambda: counted_to(auditor, topic) > end, auditor.output)
    assert "counting again from" in auditor.output()
    store = AuditStore(store_url, must_exist=True)
    try:
        # What was lost may be named before all that came afterwards is counted.
        wait_for(
            lambda: (lost_in(store, topic), counted_in(store, topic)) == (5, 22),
            lambda: report(store, topic, now_ms=LATER_MS).verdicts,
        )
        [verdict] = report(store, topic, now_ms=LATER_MS).verdicts
        named = [finding for finding in verdict.findings if finding.status is Status.LOST]
        assert all("went back to address" in finding.text for finding in named), named
        assert verdict.counts.datacenter == 22
    finally:
        store.close()


LATER_MS = NOW_MS + 10 * 365 * 24 * HOUR_MS


def lost_in(store: AuditStore, topic: str) -> int:
    return sum(verdict.count(Status.LOST) for verdict in report(store, topic, now_ms=LATER_MS).verdicts)


def counted_in(store: AuditStore, topic: str) -> int:
    return sum(verdict.counts.datacenter for verdict in report(store, topic, now_ms=LATER_MS).verdicts)
