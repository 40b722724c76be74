"""A power cut takes the end of a journal along: nobody reports what is left as a publisher's last word."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from fix_audit import StartAuditor, wait_for
from fix_audit_world import HOUR_A, NOW_MS
from fix_broker import StartCluster
from fix_events import publish_until_killed
from fix_registry import StartRegistry
from headrace.audit.findings import PRODUCER_HOP, Status, Verdict
from headrace.audit.report.report import report
from headrace.audit.store.store import AuditStore
from headrace.client import Admin
from headrace.events import EventPublisher
from headrace.events import journal as journal_module
from headrace.events.journal import Journal
from headrace.events.succession import adopt
from headrace.process.disk import kernel

CLUSTER = UUID(int=1)
OTHER_KERNEL = "0d4a1c1e-7f52-4b8b-9d0e-0a7e5f6f3b12"
WHO: dict[str, str | int] = {
    "publisher": "p", "datacenter": "east", "service": "checkout", "server": "co1", "bootstrap": "b:9092",
    "audit_topic": "_audit", "bucket_ms": 600_000,
}  # fmt: skip


@pytest.mark.parametrize(("wrote", "adopted"), [(kernel(), 1), (OTHER_KERNEL, 0), (None, 1)])
def test_a_journal_that_another_kernel_wrote_is_not_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, wrote: str | None, adopted: int
) -> None:
    """Earlier versions do not say which one: theirs are reported as before."""
    journal = Journal(tmp_path / "a.journal", WHO if wrote is None else {**WHO, "kernel": wrote}, 5)
    journal.belongs_to(CLUSTER)
    journal.hand_over("t", 0, 0, 4)
    journal_module._close(journal._file, journal._map)
    assert adopt(tmp_path, {**WHO, "kernel": kernel()}, CLUSTER, lambda _: None) == adopted
    assert list(tmp_path.iterdir()) == []
    assert ("started again since its publisher was killed" in caplog.text) == (adopted == 0)


def test_an_hour_whose_last_events_a_power_cut_took_is_not_complete(
    broker_cluster: StartCluster, start_registry: StartRegistry, start_auditor: StartAuditor, tmp_path: Path
) -> None:
    """The successor reported what the disk had, as the last word: eleven events were in no verdict."""
    cluster = broker_cluster(datacenter="east")
    registry = start_registry(hosts=cluster.zookeeper.hosts)
    topic, store_url = "cut", f"sqlite:///{tmp_path}/audit.db"
    with Admin(cluster.bootstrap) as admin:
        admin.create_topic(topic, 1)
    auditor = start_auditor(cluster, registry.url, "--store", store_url)
    state, disk = tmp_path / "state", tmp_path / "disk"
    ends = {"bootstrap": cluster.bootstrap, "registry": registry.url}
    publish_until_killed(**ends, topic=topic, time_ms=HOUR_A, state=state, copy=disk)
    (journal,) = (state / "publishers").glob("*.journal")
    journal.write_bytes(disk.read_bytes().replace(kernel().encode(), OTHER_KERNEL.encode()))
    store = AuditStore(store_url, must_exist=True)

    def verdict() -> Verdict | None:
        found = report(store, topic, now_ms=NOW_MS + 10**12).verdicts
        return found[0] if found else None

    try:
        wait_for(lambda: (found := verdict()) is not None and found.counts.datacenter == 30, auditor.output)
        with EventPublisher(
            datacenter="east",
            service="checkout",
            server="co1",
            bootstrap=cluster.bootstrap,
            registry_url=registry.url,
            state_dir=state,
        ):
            wait_for(lambda: not journal.exists())
        wait_for(lambda: "CLOSED" in str(closed(store)), lambda: closed(store))
        found = verdict()
        assert found is not None
        # The copy's hop is unknown anyway: nothing is mirrored here.
        said = [(each.status, each.text) for each in found.findings if each.hop == PRODUCER_HOP]
        assert [status for status, _ in said] == [Status.UNKNOWN] and "never closed" in said[0][1], said
    finally:
        store.close()


def closed(store: AuditStore) -> list[str]:
    """How each publisher stands whose reports were folded."""
    with store.reading() as connection:
        rows = connection.exec_driver_sql("select publisher, closed from publishers").all()
    return [f"{name} {'CLOSED' if is_closed else 'OPEN'}" for name, is_closed in rows]
