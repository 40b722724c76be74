"""`headrace audit recount` and `ended`, by real brokers and a real auditor: hours are counted again, by name;
a log that retention has shortened meanwhile keeps the counts that nobody could make again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import pytest

from fix_audit import StartAuditor, publish_singly, wait_for
from fix_broker import BrokerCluster, StartCluster
from fix_cli import Headrace, command_runner
from fix_contexts import NAME
from fix_registry import StartRegistry
from headrace.audit.findings import MIRROR_HOP, PRODUCER_HOP, Policy, Status
from headrace.audit.gathering.reported import datacenters_of
from headrace.audit.gathering.topics import deletions_of
from headrace.audit.report.report import Report, report
from headrace.audit.store.store import AuditStore
from headrace.audit.topic import publish
from headrace.audit.topic.records import DATACENTER_TIER, HeartbeatRecord, PartitionPosition
from headrace.cli import audit_recount
from headrace.cli.audit import publisher
from headrace.cli.errors import CommandError, ExitCode
from headrace.client import Admin
from headrace.client.admin import EARLIEST
from headrace.client.errors import UnknownTopicError
from headrace.process.clock import now_ms
from headrace.site.context import Context, ContextDatacenter
from headrace.site.context_store import ContextStore

TOPIC = "again"
EVENTS = 20
CONFIG = {"log.retention.check.interval.ms": "100"}
HOUR, NEXT_HOUR = "2015-05-17T11", "2015-05-17T12"
UP_TO_ANALYSIS = Policy(hops=(PRODUCER_HOP, MIRROR_HOP))


class Place(NamedTuple):
    """One cluster, which is datacenter and analysis cluster at once, with the store of its auditor."""

    cluster: BrokerCluster
    store_url: str

    def judged(self) -> Report:
        store = AuditStore(self.store_url, must_exist=True)
        try:
            return report(store, TOPIC, policy=UP_TO_ANALYSIS)
        finally:
            store.close()

    def is_complete(self) -> bool:
        return self.judged().status is Status.COMPLETE


@pytest.fixture
def place(
    broker_cluster: StartCluster, start_registry: StartRegistry, start_auditor: StartAuditor, tmp_path: Path
) -> Iterator[Place]:
    cluster = broker_cluster(1, CONFIG, datacenter="east")
    registry = start_registry(hosts=cluster.zookeeper.hosts)
    found = Place(cluster, f"sqlite:///{tmp_path}/audit.db")
    with Admin(cluster.bootstrap) as admin:
        admin.create_topic(TOPIC, 1, config={"segment.bytes": "1024", "retention.ms": "-1"})
    mirrors = ("--mirrors-zookeeper", cluster.zookeeper.hosts)
    auditor = start_auditor(cluster, registry.url, "--store", found.store_url, *mirrors)
    publish_singly(cluster, registry.url, TOPIC, EVENTS)
    wait_for(found.is_complete, auditor.output)
    east = ContextDatacenter(
        name=cluster.datacenter,
        bootstrap_servers=tuple(broker.address for broker in cluster.brokers),
        registry_url=registry.url,
    )
    contexts = ContextStore(tmp_path / "home")
    (tmp_path / "home").mkdir()
    contexts.save(
        Context(
            name=NAME,
            origin="tests",
            datacenters=(east,),
            warehouse="east",
            audit_store=found.store_url,
            hdfs="hdfs://127.0.0.1:9",
            webhdfs="http://127.0.0.1:9",
        )
    )
    contexts.use(NAME)
    yield found


@pytest.fixture
def headrace(
    tmp_path: Path, place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Headrace:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    for name in ("HEADRACE_CONTEXT", "HEADRACE_DATACENTER"):
        monkeypatch.delenv(name, raising=False)
    return command_runner(monkeypatch, capsys)


def test_hours_are_counted_again_unless_their_log_has_lost_a_part_of_them(
    place: Place, headrace: Headrace
) -> None:
    recount = ("audit", "recount", TOPIC, "--from", HOUR, "--to", NEXT_HOUR, "--wait", "60s")
    backwards = headrace("audit", "recount", TOPIC, "--from", NEXT_HOUR, "--to", HOUR)
    assert (backwards.exit_code, "is not behind --from" in backwards.err) == (ExitCode.USAGE, True)
    nothing = headrace("audit", "recount", TOPIC, "--from", NEXT_HOUR, "--to", "2015-05-17T13")
    assert nothing.exit_code == ExitCode.NEGATIVE
    assert "no tier has counted anything of again in these hours" in nothing.err

    before = place.judged()
    done = headrace(*recount)
    assert done.exit_code == ExitCode.UNREACHABLE, done  # it waits for a load
    for tier in ("datacenter", "analysis"):
        assert f"count again  {tier}, partition 0 of east, from address 0\n" in done.out
    after = place.judged()
    assert (after.status, len(after.recounts)) == (Status.COMPLETE, 2)
    assert [each.counts for each in after.verdicts] == [each.counts for each in before.verdicts]
    assert headrace(*recount, "--json").json["recounts"][0]["topic"] == TOPIC
    wait_for(place.is_complete)

    with Admin(place.cluster.bootstrap) as admin:
        admin.alter_configs(TOPIC, {"retention.ms": "1"})
        wait_for(lambda: admin.list_offsets(TOPIC, EARLIEST)[0].offset > 0)
    refused = headrace(*recount)
    assert refused.exit_code == ExitCode.NEGATIVE, refused
    assert "partition 0 of east, is left out: its log begins at address " in refused.err
    assert "no log has all of again in these hours any more" in refused.err
    kept = place.judged()
    assert (kept.status, len(kept.recounts)) == (Status.COMPLETE, 4), "of both times before"


def test_where_the_topic_was_deleted_it_keeps_no_other_log_from_being_counted_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The report printed the command, and the command was refused: hours of east with a tally missing stayed
    unknown for good once west had its topic no more.
    """
    clusters = {
        name: ContextDatacenter(name=name, bootstrap_servers=(f"{name}:1",), registry_url="http://x")
        for name in ("east", "west")
    }
    monkeypatch.setattr(audit_recount, "_cluster_of", lambda place: clusters[place.datacenter])

    def log_starts(bootstrap: str, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        if bootstrap == "west:1":
            raise UnknownTopicError(f"there is no topic {topic!r}")
        return dict.fromkeys(partitions, 0)

    monkeypatch.setattr(audit_recount, "log_starts", log_starts)
    east, west = (audit_recount._Place("datacenter", name, 0, 0, 10, 90) for name in ("east", "west"))
    assert audit_recount._still_there(TOPIC, [west, east]) == [east]
    told = " ".join(capsys.readouterr().err.split())
    assert (
        "datacenter, partition 0 of west, is left out: there is no topic 'again' at west:1 any more" in told
    )
    with pytest.raises(CommandError, match="no log has all of again in these hours any more"):
        audit_recount._still_there(TOPIC, [west])


def test_the_end_of_a_datacenter_is_told_to_a_real_auditor(
    place: Place, headrace: Headrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """West's auditor said its last word a day ago; its brokers are gone."""
    at_ms = now_ms() - 24 * 3_600_000
    topic_id = str(UUID(int=7))
    position = PartitionPosition("west", TOPIC, 0, 1, 0, 0, source_topic_id=topic_id)
    with monkeypatch.context() as patched, publisher("auditor", speaks_for="west") as west:
        patched.setattr(publish, "now_ms", lambda: at_ms)
        west.publish(HeartbeatRecord(DATACENTER_TIER, at_ms, 0, 1, (position,)))
        west.flush()
    store = AuditStore(place.store_url, must_exist=True)

    def deleted() -> dict[tuple[str, str], int]:
        with store.reading() as connection:
            return deletions_of(connection, TOPIC)

    def counted() -> bool:
        with store.reading() as connection:
            return "west" in datacenters_of(connection, TOPIC)

    try:
        wait_for(counted)
        done = headrace("audit", "ended", "west", "--wait", "30s")
        assert done.exit_code == ExitCode.DONE, done
        assert list(deleted()) == [("west", topic_id)]
    finally:
        store.close()
