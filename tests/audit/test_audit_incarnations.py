"""A topic that was deleted and made again under its name: its logs are another topic's, by the topic's id."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from fix_audit import AuditorProcess, StartAuditor, wait_for
from fix_audit_incarnations import TIERS, findings_of, judged_by, log_of, said
from fix_audit_world import (
    BEAT_MS,
    BUCKET_MS,
    DC,
    HOUR_A,
    NOW_MS,
    REPORTED_MS,
    TOPIC,
    Batch,
    received,
    report_of,
)
from fix_broker import BrokerCluster, StartCluster
from fix_registry import StartRegistry
from headrace.audit.counting.partition_counter import (
    CountedPartition,
    LastBatch,
    PartitionCounter,
    SourcePartition,
)
from headrace.audit.counting.standing import Mark, Standings
from headrace.audit.findings import MIRROR_HOP, PRODUCER_HOP, Policy, Status
from headrace.audit.report.report import report
from headrace.audit.store.store import AuditStore
from headrace.audit.topic.records import (
    ANALYSIS_TIER,
    DATACENTER_TIER,
    AuditRecord,
    HeartbeatRecord,
    RangeTally,
    ReceivedRecord,
)
from headrace.audit.topic.recounts import COPY_MADE_AGAIN, RecountRecord
from headrace.client import Admin
from headrace.events.publisher import EventPublisher
from headrace.events.schemas import read_schema

POLICY = Policy(hops=(PRODUCER_HOP, MIRROR_HOP))
judged = partial(judged_by, POLICY)
MADE_AGAIN_MS = REPORTED_MS + 60_000


def batch(number: int, producer_id: int = 7) -> Batch:
    return Batch(0, producer_id, 0, number * 5, 5, HOUR_A + number % 3 * BUCKET_MS)


def reported(*batches: Batch, started_ms: int = REPORTED_MS - 1, service: int = 7) -> list[ReceivedRecord]:
    whole = replace(report_of(f"publisher-{service}", batches), started_ms=started_ms)
    return [received(whole, time_ms=BEAT_MS)]


EARLIER = said(log_of(batch(0), batch(1)), "first", REPORTED_MS)
BEAT = BEAT_MS + 60_000


@pytest.mark.parametrize("seed", range(4))
def test_neithers_events_are_charged_to_the_other(seed: int) -> None:
    """Both logs begin at address 0, with batches of equal sizes."""
    later = said(log_of(batch(2), batch(3), batch(4)), "second", BEAT)
    found = judged(reported(*(batch(number) for number in range(5))), EARLIER, later, seed=seed)
    assert found.status is Status.COMPLETE, findings_of(found)
    assert [verdict.counts[:3] for verdict in found.verdicts] == [(25, 25, 25)]


def test_what_neither_log_has_may_have_been_in_the_deleted_one() -> None:
    later = said(log_of(batch(3), batch(4)), "second", BEAT)
    [finding] = findings_of(judged(reported(*(batch(number) for number in range(5))), EARLIER, later))
    assert (finding.status, finding.sequences) == (Status.UNKNOWN, (10, 14))
    assert "deleted and made again" in finding.text


@pytest.mark.parametrize(
    ("earlier", "later", "lost"),
    [((0, 2), (3, 4), (5, 9)), ((0, 1), (2, 4), (15, 19))],
    ids=["the deleted one has later ones", "the present one has earlier ones"],
)
def test_what_a_log_must_have_held_is_lost(
    earlier: tuple[int, ...], later: tuple[int, ...], lost: tuple[int, int]
) -> None:
    first = said(log_of(*map(batch, earlier)), "first", REPORTED_MS)
    second = said(log_of(*map(batch, later)), "second", BEAT)
    [finding] = findings_of(judged(reported(*(batch(number) for number in range(5))), first, second))
    assert (finding.status, finding.hop, finding.sequences) == (Status.LOST, PRODUCER_HOP, lost)


def test_a_publisher_that_started_later_lost_it_in_the_present_topic() -> None:
    later = said(log_of(batch(0, 8)), "second", BEAT)
    both = [reported(batch(0), batch(1)), reported(batch(0, 8), service=8), EARLIER, later]
    young = reported(batch(0, 9), service=9, started_ms=BEAT + 1)
    old = reported(batch(0, 9), service=9)
    assert [each.status for each in findings_of(judged(*both, young))] == [Status.LOST]
    assert [each.status for each in findings_of(judged(*both, old))] == [Status.UNKNOWN]


def test_a_copy_that_lacks_what_the_deleted_topic_had_is_named_as_that() -> None:
    first = said(log_of(batch(0), batch(1)), "first", REPORTED_MS, TIERS[:1])
    partly = said(log_of(batch(0)), "first", REPORTED_MS, TIERS[1:])
    later = said(log_of(batch(2)), "second", BEAT)
    [finding] = findings_of(judged(reported(batch(0), batch(1), batch(2)), first, partly, later))
    assert (finding.status, finding.hop, finding.sequences) == (Status.UNKNOWN, MIRROR_HOP, (5, 9))
    assert "deleted topic with id first" in finding.text


def test_records_that_do_not_name_their_topic_are_of_the_first_one() -> None:
    """A site that was updated: auditors of both versions have counted the same log, in part twice."""
    log = log_of(*(batch(number) for number in range(4)))
    older = [received(log.tally(tier, 0, 0, 3)) for tier in TIERS]
    newer = [
        received(replace(log.tally(tier, 0, low, 4), topic_id="first"), time_ms=BEAT_MS)
        for tier in TIERS
        for low in (2, 3)
    ]
    beats = [each for each in said(log, "first", BEAT_MS) if isinstance(each.record, HeartbeatRecord)]
    whole = reported(*(batch(number) for number in range(4)))
    adjacent = [each for each in newer if each.record.from_address == log.cuts[3]]  # type: ignore[union-attr]
    assert judged(whole, older, adjacent, beats).status is Status.COMPLETE
    overlapping = judged(whole, older, newer, beats)
    assert not [each for each in findings_of(overlapping) if each.status is not Status.UNKNOWN]
    again = said(log_of(batch(4)), "second", BEAT)
    both = judged(reported(*(batch(number) for number in range(5))), older, adjacent, beats, again)
    assert both.status is Status.COMPLETE, findings_of(both)


def test_publishers_without_numbers_are_compared_with_both_logs() -> None:
    batches = [batch(0), batch(1), batch(2)]
    of_both = replace(report_of("publisher-7", batches), counts_only=True, started_ms=REPORTED_MS - 1)
    tallies = tuple(each._replace(ranges=(), contents=()) for each in of_both.tallies)
    counts = [received(replace(of_both, tallies=tallies), time_ms=BEAT_MS)]
    later = said(log_of(batch(2)), "second", BEAT)
    assert judged(counts, EARLIER, later).status is Status.COMPLETE
    few = said(log_of(batch(0)), "first", REPORTED_MS)
    assert {each.status for each in findings_of(judged(counts, few, later))} == {Status.UNKNOWN}


def test_a_recount_takes_back_what_was_counted_of_its_own_topic() -> None:
    later = said(log_of(batch(2)), "second", BEAT)
    gone = RecountRecord(DATACENTER_TIER, DC, TOPIC, 0, 0, 0, 10_000, "the log ends at 0", "second")
    found = judged(reported(batch(0), batch(1), batch(2)), EARLIER, later)
    assert found.status is Status.COMPLETE
    store = AuditStore("sqlite://")
    try:
        store.fold([*reported(batch(0), batch(1), batch(2)), *EARLIER, *later, received(gone)])
        [verdict] = report(store, TOPIC, policy=POLICY, now_ms=NOW_MS).verdicts
        assert verdict.counts.datacenter == 10
    finally:
        store.close()


# --- the auditor ---


class LogOfOneBatch:
    """Stands for `RawReader`."""

    def end(self, *_: object) -> int:
        return 100


def test_a_copy_that_was_made_again_is_counted_anew_and_the_old_counts_are_taken_back() -> None:
    copied = CountedPartition(TOPIC, 4, SourcePartition(DC, 0, "source"), (ANALYSIS_TIER,))
    standings = Standings(LogOfOneBatch())  # type: ignore[arg-type]
    standings.marks.note((TOPIC, 4), Mark(500, LastBatch(400, 1, 0), "copy 1", "source"))
    mark, [recount] = standings.begin(copied, 0, "copy 2")
    assert mark.counted_to == 0
    assert (recount.from_address, recount.counted_to_address, recount.topic_id) == (0, 500, "source")
    assert recount.cause == COPY_MADE_AGAIN
    # Of another source nothing is taken back: it is another topic's copy.
    other = replace(copied, source=SourcePartition(DC, 0, "other source"))
    standings.marks.note((TOPIC, 4), Mark(500, LastBatch(400, 1, 0), "copy 1", "source"))
    assert standings.begin(other, 0, "copy 2")[1] == []


def test_tallies_gaps_and_positions_name_the_topic() -> None:
    counted = CountedPartition(TOPIC, 0, SourcePartition(DC, 0, "first"), (DATACENTER_TIER,))
    log = log_of(batch(0))
    counter = PartitionCounter(counted, 0, BUCKET_MS, lambda *_: True)
    counter.feed(memoryview(log.data), 0)
    [tally] = counter.cut()
    assert isinstance(tally, RangeTally) and RangeTally.from_avro(tally.to_avro()) == tally
    records: list[AuditRecord] = [tally, *counted.gaps(0, 1, "r"), *counted.recounts(0, 1, "c")]
    assert {each.to_avro()["topic_id"] for each in records} == {"first"}
    assert counter.position(0, "own").source_topic_id == "first"
    older = {name: value for name, value in tally.to_avro().items() if name != "topic_id"}
    assert RangeTally.from_avro(older).topic_id == ""


# --- a real broker and a real auditor ---


def publish(cluster: BrokerCluster, registry_url: str, topic: str, numbers: range, state: Path) -> None:
    with EventPublisher(
        datacenter="east",
        service="checkout",
        bootstrap=cluster.bootstrap,
        registry_url=registry_url,
        schemas={topic: read_schema("page-view.avsc")},
        producer_options={"linger_ms": 0},
        state_dir=state,
    ) as publisher:
        for number in numbers:
            event = {"remote_host": "10.0.0.1", "method": "GET", "path": f"/{number}", "status": 200}
            publisher.publish(topic, event, time_ms=HOUR_A + number)
            publisher.flush(30)


@pytest.mark.parametrize("is_auditor_up", [True, False], ids=["auditor runs", "auditor is down"])
def test_a_topic_made_again_on_a_broker_loses_nothing(
    broker_cluster: StartCluster,
    start_registry: StartRegistry,
    start_auditor: StartAuditor,
    is_auditor_up: bool,
    tmp_path: Path,
) -> None:
    """The second one has as many batches of the same sizes, and more."""
    cluster = broker_cluster(datacenter="east")
    registry = start_registry(hosts=cluster.zookeeper.hosts)
    topic, store_url = "made-again", f"sqlite:///{tmp_path}/audit.db"
    auditor = start_auditor(cluster, registry.url, "--store", store_url)
    with Admin(cluster.bootstrap) as admin:
        admin.create_topic(topic, 1)
        publish(cluster, registry.url, topic, range(10, 30), tmp_path / "state")
        wait_for(lambda: counted_of(auditor, store_url, topic) == 20, auditor.output)
        if not is_auditor_up:
            auditor.terminate()
        admin.delete_topic(topic)
        admin.create_topic(topic, 1)
    publish(cluster, registry.url, topic, range(30, 60), tmp_path / "state")
    if not is_auditor_up:
        auditor.start()
    wait_for(lambda: counted_of(auditor, store_url, topic) == 50, auditor.output)
    store = AuditStore(store_url, must_exist=True)
    try:
        found = report(store, topic, policy=Policy(hops=(PRODUCER_HOP,)))
        assert not findings_of(found) and found.verdicts[0].counts[:2] == (50, 50)
    finally:
        store.close()


def counted_of(auditor: AuditorProcess, store_url: str, topic: str) -> int:
    """How many events the store knows in the datacenter's logs."""
    assert auditor.is_running
    store = AuditStore(store_url, must_exist=True)
    try:
        return sum(verdict.counts.datacenter for verdict in report(store, topic).verdicts)
    finally:
        store.close()
