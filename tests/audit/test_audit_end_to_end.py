"""Real brokers, mirrors, auditors and publishers: the audit finds what is planted, and nothing else."""

from __future__ import annotations

import random
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator

import pytest

from fix_audit import wait_for
from fix_audit_site import RESOLVE_MAX_S, Site, page_view, running_site
from fix_audit_world import BUCKET_MS, HOUR_A
from fix_zookeeper import ZooKeeperServer
from headrace.audit.findings import MIRROR_HOP, PRODUCER_HOP, Policy, Status
from headrace.audit.repair.repairing import judged, wait_until
from headrace.audit.repair.resending import Resender
from headrace.audit.report.report import is_complete, report
from headrace.audit.store.upkeep import KEEP_DEFAULT_MS
from headrace.audit.times import HOUR_MS
from headrace.audit.topic.declarations import FROM_LOG
from headrace.audit.topic.keeping import KEPT_LONGER_MS
from headrace.audit.topic.load_report import LoadedHour, LoadedPartition, LoadReport
from headrace.audit.topic.publish import AuditPublisher, AuditPublishError, publish_load
from headrace.audit.topic.records import ANALYSIS_AUDIT_TOPIC, ANALYSIS_TIER, AUDIT_TOPIC, DATACENTER_TIER
from headrace.audit.topic.recounts import RecountRecord, asked_by
from headrace.cli.audit_recount import are_counted, places_of
from headrace.client import Admin, Consumer, Producer
from headrace.client.exact_batches import BatchSender
from headrace.client.faults import DropPlan
from headrace.coordination.declared import ANY, PRODUCERS
from headrace.events.publisher import EventPublisher
from headrace.events.succession import default_state_dir
from headrace.process.clock import now_ms

# Long enough that nothing is overdue while the machine is busy, short enough to see a loss within the test.
POLICY = Policy(delay_ms=30_000, report_grace_ms=3_000)
UP_TO_ANALYSIS = Policy(delay_ms=30_000, report_grace_ms=3_000, hops=(PRODUCER_HOP, MIRROR_HOP))


@pytest.fixture(scope="module")
def shared_site(
    zookeeper_server: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    """One site for all tests of this file; each test creates its own topics.

    The publishers' state is the site's own: what those of other sites have left may name the same topic,
    producer id and numbers.
    """
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("HEADRACE_STATE_DIR", str(tmp_path_factory.mktemp("state")))
        yield from _shared_site(zookeeper_server, tmp_path_factory)


def _shared_site(
    zookeeper_server: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    with running_site(zookeeper_server, tmp_path_factory.mktemp("site"), POLICY) as site:
        yield site


@pytest.fixture
def site(shared_site: Site) -> Site:
    """The shared site with every auditor running; restarts those that an earlier test stopped."""
    for auditor in shared_site.auditors.values():
        if not auditor.is_running:
            auditor.start()
    return shared_site


def publish(publisher: EventPublisher, topic: str, count: int, rng: random.Random) -> Counter[int]:
    """Publishes events of two hours, in order of time; returns how many of each hour."""
    hours: Counter[int] = Counter()
    for index in range(count):
        time_ms = HOUR_A + index * (2 * HOUR_MS) // count
        publisher.publish(topic, page_view(index), time_ms=time_ms, key=str(rng.randrange(50)))
        hours[time_ms - time_ms % HOUR_MS] += 1
    return hours


def load(site: Site, topic: str, sequence: int = 1) -> None:
    """Reports a load of everything that is in the analysis cluster now, as the warehouse would."""
    with Admin(site.analysis.bootstrap) as admin, Consumer(site.analysis.bootstrap) as consumer:
        ends = {p: found.offset for p, found in admin.list_offsets(topic).items()}
        consumer.assign([(topic, partition) for partition in ends])
        rows: dict[int, Counter[int]] = {partition: Counter() for partition in ends}
        for partition in ends:
            consumer.seek_to_beginning(topic, partition)
        while any(consumer.position(topic, partition) < end for partition, end in ends.items()):
            for record in consumer.poll(1.0):
                rows[record.partition][record.timestamp_ms - record.timestamp_ms % HOUR_MS] += 1
    partitions = tuple(
        LoadedPartition(p, 0, end, tuple(LoadedHour(h, n, n) for h, n in sorted(rows[p].items())))
        for p, end in ends.items()
        if end
    )
    with AuditPublisher(
        bootstrap=site.analysis.bootstrap,
        registry_url=site.registry_of["analysis"],
        datacenter="analysis",
        service="warehouse",
        topic=ANALYSIS_AUDIT_TOPIC,
    ) as publisher:
        publish_load(publisher, LoadReport("hdfs://test/data", topic, sequence, HOUR_A, partitions))


def test_everything_arrives_and_seven_events_do_not(site: Site) -> None:
    topic, rng = "page-view", random.Random(7)
    site.create_topic(topic)
    plan = DropPlan(topic, 7, after=300)
    hours: dict[str, Counter[int]] = {}
    with (
        site.publisher("east", "frontend-1", topic) as first,
        site.publisher("west", "frontend-2", topic, interceptor=plan) as second,
    ):
        hours["east"] = publish(first, topic, 1_200, rng)
        hours["west"] = publish(second, topic, 1_200, rng)
    assert site.resolved(topic, UP_TO_ANALYSIS).status is Status.LOST
    load(site, topic)
    found = site.resolved(topic)
    (identity,) = plan.dropped
    lost_hour = identity.base_timestamp_ms - identity.base_timestamp_ms % HOUR_MS
    for verdict in found.verdicts:
        dc, hour_ms = verdict.datacenter, verdict.hour_ms
        missing = 7 if (dc, hour_ms) == ("west", lost_hour) else 0
        handed_over = hours[dc][hour_ms]
        arrived = handed_over - missing
        assert verdict.counts == (handed_over, arrived, arrived, arrived, 0), verdict.findings
        assert verdict.status is (Status.LOST if missing else Status.COMPLETE), verdict.findings
    assert {(v.datacenter, v.hour_ms) for v in found.verdicts} == {(dc, h) for dc in hours for h in hours[dc]}
    (finding,) = [finding for verdict in found.verdicts for finding in verdict.findings]
    whose = (finding.service, finding.partition, finding.producer_id, finding.producer_epoch)
    assert whose == ("frontend-2", identity.partition, identity.producer_id, identity.producer_epoch)
    last = identity.base_sequence + 6
    assert (finding.record_count, finding.sequences) == (7, (identity.base_sequence, last))
    assert (finding.hop, "never reached west's log" in finding.text) == (PRODUCER_HOP, True)
    proofs = {
        hour_ms: is_complete(site.store, topic, hour_ms, policy=POLICY, quiet_ms=0).complete
        for hour_ms in (HOUR_A, HOUR_A + HOUR_MS)
    }
    assert proofs == {hour_ms: hour_ms != lost_hour for hour_ms in proofs}
    bring_again(site, topic, lost_hour)


def bring_again(site: Site, topic: str, hour_ms: int) -> None:
    """The seven come back from the publisher's spool, once, however often and from wherever it is begun."""
    resender = Resender(default_state_dir())
    (west,) = [each for each in judged(site.store, topic, [hour_ms]) if each.evidence.datacenter == "west"]
    plan = resender.plan(west.evidence, west.verdict.findings, 2)
    assert (plan.record_count, plan.problems) == (7, ()), west.verdict.findings
    sender = BatchSender(site.clusters["west"].bootstrap, "repair")

    class Dies:
        """The run is killed before the audit hears of it."""

        def publish(self, record: object) -> None:
            raise AuditPublishError("killed")

        def flush(self) -> None:
            raise AuditPublishError("killed")

    with resender.intents.locked(), site.says() as says:
        with pytest.raises(AuditPublishError):
            resender.bring(plan, sender, Dies(), "a@b")
        again = resender.plan(west.evidence, west.verdict.findings, 2)
        assert (again.record_count, again.fresh) == (7, ())
        for _ in range(2):
            assert resender.bring(again, sender, says, "a@b") == 7
    sender.close()
    found = wait_until(
        lambda: judged(site.store, topic, [hour_ms], policy=UP_TO_ANALYSIS),
        lambda now: all(each.verdict.status is Status.COMPLETE for each in now),
        RESOLVE_MAX_S,
    )
    assert [each.verdict.findings for each in found] == [(), ()]
    (west,) = [each for each in found if each.evidence.datacenter == "west"]
    assert west.verdict.counts.analysis == west.verdict.counts.producer
    assert resender.plan(west.evidence, west.verdict.findings, 2).record_count == 0


def test_the_audit_topics_keep_what_the_store_promises(site: Site) -> None:
    def kept_ms() -> list[int]:
        with Admin(site.analysis.bootstrap) as admin:
            found = admin.topic_settings(["_audit", "_audit_analysis"], ["retention.ms"])
        return sorted(int(each["retention.ms"]) for each in found.values())

    wait_for(lambda: kept_ms() == [KEEP_DEFAULT_MS + KEPT_LONGER_MS] * 2, kept_ms)


def test_hours_are_counted_again_on_request(site: Site) -> None:
    topic = "again"
    site.create_topic(topic)
    with site.publisher("east", "frontend-1", topic) as publisher:
        hours = publish(publisher, topic, 200, random.Random(1))
    before = site.resolved(topic, UP_TO_ANALYSIS)
    assert before.status is Status.COMPLETE
    asked_ms = now_ms()
    places = places_of(judged(site.store, topic, hours))
    assert {place.tier for place in places} == {DATACENTER_TIER, ANALYSIS_TIER}
    for place in places:
        of_copy = place.tier == ANALYSIS_TIER
        with site.says(
            "analysis" if of_copy else "east", ANALYSIS_AUDIT_TOPIC if of_copy else AUDIT_TOPIC
        ) as says:
            where = (place.tier, place.datacenter, topic, place.partition, place.log_partition)
            record = RecountRecord(*where, place.from_address, place.counted_to, asked_by("a@b"))
            says.publish(record)
            says.flush()
    wait_for(lambda: are_counted(site.store, topic, judged(site.store, topic, hours), places, asked_ms))
    after = site.resolved(topic, UP_TO_ANALYSIS)
    assert [verdict.counts for verdict in after.verdicts] == [verdict.counts for verdict in before.verdicts]
    assert (after.status, len(after.recounts)) == (Status.COMPLETE, len(places))


def test_foreign_producers_are_counted_and_named(site: Site) -> None:
    """A foreign client: no report, batches that cross the edges of buckets."""
    topic = "foreign"
    site.create_topic(topic)
    east = site.clusters["east"]
    with Producer(east.bootstrap, linger_ms=50, idempotent=False, acks=1, compression="gzip") as producer:
        for index in range(500):
            time_ms = HOUR_A + (index * 37 % 13) * BUCKET_MS
            producer.send(topic, b"x" * 50, partition=index % 2, timestamp_ms=time_ms)
        producer.flush(RESOLVE_MAX_S)
    expected = Counter((index * 37 % 13) // 6 for index in range(500))
    policy = Policy(delay_ms=1, hops=(PRODUCER_HOP, MIRROR_HOP))
    deadline = time.monotonic() + RESOLVE_MAX_S
    while True:
        verdicts = [v for v in report(site.store, topic, policy=policy).verdicts if v.datacenter == "east"]
        counts = {v.hour_ms: v.counts[1:3] for v in verdicts}
        if counts == {HOUR_A + hour * HOUR_MS: (count, count) for hour, count in expected.items()}:
            break
        assert time.monotonic() < deadline, counts
        time.sleep(0.2)
    assert {verdict.hops[PRODUCER_HOP] for verdict in verdicts} == {Status.UNKNOWN}
    assert {verdict.hops[MIRROR_HOP] for verdict in verdicts} == {Status.COMPLETE}


def test_a_topic_that_is_counted_from_the_log_on_is_sealed(site: Site) -> None:
    topic = "declared"
    site.create_topic(topic, {PRODUCERS: ANY})
    with Producer(site.clusters["east"].bootstrap, idempotent=False, acks=1) as producer:
        for index in range(20):
            producer.send(topic, b"x", partition=index % 2, timestamp_ms=HOUR_A + index)
    assert site.resolved(topic, UP_TO_ANALYSIS).status is Status.COMPLETE
    load(site, topic)
    found = site.resolved(topic)
    assert found.status is Status.COMPLETE, found.to_json()
    assert [(v.datacenter, v.counted_from, v.counts) for v in found.verdicts] == [
        ("east", FROM_LOG, (0, 20, 20, 20, 0))
    ]
    deadline = time.monotonic() + RESOLVE_MAX_S
    while not (proof := is_complete(site.store, topic, HOUR_A, policy=POLICY, quiet_ms=0)).complete:
        assert time.monotonic() < deadline, proof.problems
        time.sleep(0.2)
    assert proof.counted_from == {"east": FROM_LOG, "west": FROM_LOG}


@pytest.mark.kill
def test_auditors_killed_at_random_moments_end_in_the_same_counts(site: Site) -> None:
    topic, rng = "killed", random.Random(11)
    site.create_topic(topic)
    hours: Counter[tuple[str, int]] = Counter()

    def serve(datacenter: str) -> None:
        with site.publisher(datacenter, f"service-{datacenter}", topic) as publisher:
            for round_number in range(6):
                for hour_ms, count in publish(publisher, topic, 150, random.Random(round_number)).items():
                    hours[datacenter, hour_ms] += count
                time.sleep(0.8)

    services = [threading.Thread(target=serve, args=(datacenter,)) for datacenter in ("east", "west")]
    for service in services:
        service.start()
    while any(service.is_alive() for service in services):
        time.sleep(rng.uniform(0.3, 1.0))
        victim = site.auditors[rng.choice(["east", "west", "analysis", "analysis"])]
        victim.kill()
        victim.start()
    assert site.resolved(topic, UP_TO_ANALYSIS).status is Status.COMPLETE
    load(site, topic)
    load(site, topic)
    found = site.resolved(topic)
    assert found.status is Status.COMPLETE, found.to_json()
    counts = {(v.datacenter, v.hour_ms): v.counts for v in found.verdicts}
    assert counts == {key: (count,) * 4 + (0,) for key, count in hours.items()}


def test_auditors_and_mirrors_serve_their_metrics(site: Site) -> None:
    """What `GET /status` of a real process returns has all that its metrics are made of."""
    found = {}
    for process in (*site.auditors.values(), *site.mirrors.values()):
        with urllib.request.urlopen(process.status_url.replace("/status", "/metrics"), timeout=60) as answer:
            found[process] = answer.read().decode()
    analysis = found[site.auditors["analysis"]]
    assert "\nheadrace_audit_store_up 1\n" in analysis
    assert "# TYPE headrace_audit_store_folded_records_total counter\n" in analysis
    assert all('\nheadrace_mirror_up{source="' in found[each] for each in site.mirrors.values())


def test_auditors_exit_normally(site: Site) -> None:
    for auditor in site.auditors.values():
        assert auditor.terminate() == 0
        assert "Traceback" not in auditor.output()
