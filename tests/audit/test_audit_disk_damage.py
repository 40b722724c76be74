"""What rots after it was counted: the brokers' scrubs find it, the auditor says it, the report names it."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from fix_audit import AuditorProcess, StartAuditor, wait_for
from fix_audit_world import (
    BUCKET_MS,
    DC,
    HOUR_A,
    NOW_MS,
    TOPIC,
    Batch,
    PartitionBytes,
    everything_reported,
    received,
)
from fix_broker import StartCluster
from fix_registry import StartRegistry
from headrace.audit.batches.raw_reader import RawBytes
from headrace.audit.counting.disk_damage import RANGES_PER_ASK_MAX, DiskDamage
from headrace.audit.counting.partition_counter import CountedPartition, PartitionCounter, SourcePartition
from headrace.audit.counting.standing import Marks
from headrace.audit.findings import Finding, Status
from headrace.audit.report.report import report
from headrace.audit.store.store import AuditStore
from headrace.audit.times import HOUR_MS
from headrace.audit.topic.records import ANALYSIS_TIER, DATACENTER_TIER, CorruptRecord, ReceivedRecord
from headrace.client import Admin, Producer
from headrace.client.admin import ClusterDescription, ConfigEntry
from headrace.client.cluster import PartitionInfo, TopicInfo
from headrace.client.errors import NetworkError, UnsupportedApiError
from headrace.wire.batch import hop
from headrace.wire.damaged_ranges import PREFIX, DamagedRange
from headrace.wire.errors import ErrorCode

BATCHES = [Batch(0, 7, 0, index * 10, 10, HOUR_A + index * BUCKET_MS * 4) for index in range(4)]
LOG = PartitionBytes()
for each_batch in BATCHES:
    LOG.append(each_batch.encode())
START, END = LOG.cuts[1], LOG.cuts[2]
ROT = DamagedRange(TOPIC, 0, START, END, "wrong checksum", 1_700_000_000_000, False)


class Brokers:
    """Stands for an `Admin` and a `RawReader` of a cluster whose brokers know these ranges."""

    def __init__(self, data: bytes = bytes(LOG.data)) -> None:
        self.known: dict[int, list[DamagedRange]] = {1: []}
        self.silent: set[int] = set()
        self.data = data
        self.error = ErrorCode.NONE
        self.reads = 0
        self.is_offline = False

    def describe_cluster(self) -> ClusterDescription:
        return ClusterDescription("c", 1, dict.fromkeys(self.known))  # type: ignore[arg-type]

    def describe_broker_configs(self, broker_id: int) -> Mapping[str, ConfigEntry]:
        if broker_id in self.silent:
            raise NetworkError(f"broker {broker_id} does not answer")
        values = {"log.dirs": "/data", **{each.name: each.value() for each in self.known[broker_id]}}
        return {name: ConfigEntry(name, value, 4, True, False) for name, value in values.items()}

    def read(self, _topic: str, _partition: int, address: int, max_bytes: int) -> RawBytes:
        self.reads += 1
        if self.is_offline:
            raise NetworkError("the leader of page-view-0 was not reached")
        return RawBytes(self.error, memoryview(self.data)[address : address + max_bytes], LOG.end)


def asking(brokers: Brokers) -> DiskDamage:
    disks = DiskDamage("127.0.0.1:1", "test", brokers)  # type: ignore[arg-type]
    disks._admin.close()
    disks._admin = brokers  # type: ignore[assignment]
    return disks


def counters(counted_to: int = LOG.end) -> dict[tuple[str, int], PartitionCounter]:
    partition = CountedPartition(TOPIC, 0, SourcePartition(DC, 0), (DATACENTER_TIER,))
    counter = PartitionCounter(partition, 0, BUCKET_MS, lambda *_: True)
    counter.skip_to(counted_to)
    return {(TOPIC, 0): counter}


def test_a_range_is_said_once_with_what_its_header_says_and_taken_back_once() -> None:
    rotten = bytearray(LOG.data)
    rotten[END - 4] ^= 1
    brokers = Brokers(bytes(rotten))
    disks = asking(brokers)
    assert disks.news(counters()) == []
    brokers.known[1] = [ROT, ROT._replace(topic="unknown")]
    assert disks.news(counters(START)) == [], "what is not counted yet, counting will meet"
    [record] = disks.news(counters())
    assert (record.from_address, record.to_address, record.record_count) == (START, END, 10)
    assert (record.producer_id, record.first_sequence, record.last_sequence) == (7, 10, 19)
    assert record.in_tally and record.cause.endswith("after it was counted: wrong checksum")
    assert disks.news(counters()) == []
    brokers.known = {1: [], 2: [ROT._replace(is_mended=True)]}
    brokers.data = bytes(LOG.data)
    [taken_back] = disks.news(counters())
    assert taken_back == replace(record, cause="")
    assert disks.news(counters()) == []
    # The same range rots again.
    brokers.known[1] = [ROT]
    assert [each.cause for each in disks.news(counters())] == [record.cause]
    assert disks.news(counters()) == []


def test_the_brokers_whose_disks_are_damaged_are_named() -> None:
    brokers = Brokers()
    brokers.known = {1: [], 2: [ROT]}
    disks = asking(brokers)

    def causes() -> list[str]:
        return [each.cause for each in disks.news(counters())]

    assert causes() == ["on the disk of broker 2, after it was counted: wrong checksum"]
    brokers.known[1] = [ROT]
    assert causes() == ["on the disks of brokers 1 and 2, after it was counted: wrong checksum"]
    brokers.known[2] = [ROT._replace(is_mended=True)]
    assert causes() == ["on the disk of broker 1, after it was counted: wrong checksum"]
    assert causes() == []
    brokers.known[1] = [ROT._replace(is_mended=True)]
    assert causes() == [""]


def test_a_broker_that_is_silent_takes_nothing_back() -> None:
    """Another broker's disk had the same damage and is whole again: of the silent one nobody knows."""
    brokers = Brokers()
    brokers.known = {1: [ROT], 2: [ROT]}
    disks = asking(brokers)
    assert len(disks.news(counters())) == 1
    brokers.known[2] = [ROT._replace(is_mended=True)]
    brokers.silent = {1}
    assert [each.cause for each in disks.news(counters())] == [
        "on the disk of broker 1, after it was counted: wrong checksum"
    ]
    assert disks.news(counters()) == []
    brokers.silent, brokers.known[1] = set(), [ROT._replace(is_mended=True)]
    assert [each.cause for each in disks.news(counters())] == [""]


def test_the_damage_of_a_broker_that_has_no_replica_any_more_is_taken_back() -> None:
    brokers = Brokers()
    brokers.known = {1: [], 2: [ROT]}
    disks = asking(brokers)

    def causes(*replicas: int) -> list[str]:
        topics = {TOPIC: TopicInfo(TOPIC, {0: PartitionInfo(0, 1, 0, replicas, replicas)})}
        return [each.cause for each in disks.news(counters(), {}, topics)]

    assert causes(1, 2) == ["on the disk of broker 2, after it was counted: wrong checksum"]
    del brokers.known[2]
    assert causes(1, 2) == [], "it may come back with its disk"
    assert causes(1, 3) == [""]
    assert causes(1, 3) == []
    brokers.known[2] = [ROT]
    assert causes(1, 3) == []


def test_what_a_recount_makes_the_store_forget_is_said_again() -> None:
    """A follower's disk is still damaged when people have the log counted again, which reads its leader."""
    brokers = Brokers()
    brokers.known = {1: [], 2: [ROT]}
    disks = asking(brokers)
    marks = Marks()
    assert [len(disks.news(counters(), marks.went_back)) for _ in range(2)] == [1, 0]
    marks.go_back((TOPIC, 0), 0)
    assert disks.news(counters(START), marks.went_back) == [], "it is not counted yet"
    [again] = disks.news(counters(), marks.went_back)
    assert again.cause == "on the disk of broker 2, after it was counted: wrong checksum"
    assert disks.news(counters(), marks.went_back) == []
    marks.go_back(("other", 0), 0)
    brokers.known[2] = []  # a new disk, which takes nothing back
    assert disks.news(counters(), marks.went_back) == []
    marks.go_back((TOPIC, 0), 0)
    assert not disks.news(counters(), marks.went_back), "nobody says it again"


@pytest.mark.parametrize("problem", ["header", "refused", "cut", "no bytes of its own", "offline"])
def test_a_range_whose_header_cannot_be_believed_is_named_by_its_addresses(problem: str) -> None:
    rotten = bytearray(LOG.data)
    found = ROT
    if problem == "header":
        struct.pack_into(">i", rotten, START + 8, 2**31 - 1)
    brokers = Brokers(bytes(rotten))
    if problem == "refused":
        brokers.error = ErrorCode.CORRUPT_MESSAGE
    elif problem == "cut":
        found = ROT._replace(end=END - 5)
    elif problem == "offline":  # and no other range of any partition waits for it
        brokers.is_offline = True
    elif problem == "no bytes of its own":
        found = ROT._replace(end=START)
    brokers.known[1] = [found]
    [record] = asking(brokers).news(counters())
    assert (record.from_address, record.to_address) == (START, max(found.end, START + 1))
    assert (record.record_count, record.first_ms, record.producer_id) == (None, None, -1)
    assert record.in_tally


def test_a_silent_broker_and_many_ranges_do_not_hold_up_the_counting() -> None:
    brokers = Brokers()
    brokers.known = {
        1: [],
        2: [ROT._replace(start=number, end=number + 1) for number in range(RANGES_PER_ASK_MAX + 5)],
    }
    brokers.silent = {1}
    disks = asking(brokers)
    assert len(disks.news(counters())) == brokers.reads == RANGES_PER_ASK_MAX
    assert len(disks.news(counters())) == 5


def test_an_older_kafka_has_no_scrub(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Brokers()

    def refuse() -> ClusterDescription:
        raise UnsupportedApiError("no DescribeCluster")

    monkeypatch.setattr(brokers, "describe_cluster", refuse)
    assert asking(brokers).news(counters()) == []


# --- verdicts ---

SAID = CorruptRecord(
    DATACENTER_TIER, DC, TOPIC, 0, 0, START, END, "on the broker's disk: wrong checksum", 10,
    BATCHES[1].bucket_ms, BATCHES[1].bucket_ms + 9, 7, 0, 10, 19, True,
)  # fmt: skip
NAMELESS = replace(
    SAID,
    record_count=None,
    first_ms=None,
    last_ms=None,
    producer_id=-1,
    producer_epoch=-1,
    first_sequence=-1,
    last_sequence=-1,
)


def judged(*more: ReceivedRecord) -> tuple[list[Finding], set[int]]:
    """The findings, and the hours that are not complete."""
    store = AuditStore("sqlite://")
    try:
        store.fold([*everything_reported(BATCHES, {0: LOG}), *more])
        verdicts = report(store, TOPIC, now_ms=NOW_MS).verdicts
    finally:
        store.close()
    open_hours = {verdict.hour_ms for verdict in verdicts if verdict.status is not Status.COMPLETE}
    return [finding for verdict in verdicts for finding in verdict.findings], open_hours


@pytest.mark.parametrize("said", [SAID, NAMELESS], ids=["by its header", "by its place"])
@pytest.mark.parametrize("tier", [DATACENTER_TIER, ANALYSIS_TIER])
def test_counted_events_that_rot_are_one_corrupt_finding_of_their_hour(
    said: CorruptRecord, tier: str
) -> None:
    findings, hours = judged(received(replace(said, tier=tier)))
    corrupt = {(each.status, each.after_address, each.before_address) for each in findings}
    assert corrupt == {(Status.CORRUPT, START, END)}
    if said is SAID:
        assert (len(findings), findings[0].record_count, hours) == (1, 10, {HOUR_A})
    else:
        # The tally is one range over all hours of the producer's log there.
        assert HOUR_A in hours


def test_what_was_lost_does_not_lie_in_what_rotted_after_it_was_counted() -> None:
    """A publisher's last batch never arrived; a follower's disk rotted at a later batch of another one."""
    sent = [*BATCHES[:2], Batch(0, 8, 0, 0, 10, HOUR_A)]
    log = PartitionBytes()
    for batch in (sent[0], sent[2]):
        log.append(batch.encode())
    cause = "on the disk of broker 2, after it was counted: wrong checksum"
    rotten = replace(NAMELESS, from_address=log.cuts[1], to_address=log.cuts[2], cause=cause)
    store = AuditStore("sqlite://")
    store.fold([*everything_reported(sent, {0: log}), received(rotten)])
    found = [each for verdict in report(store, TOPIC, now_ms=NOW_MS).verdicts for each in verdict.findings]
    store.close()
    assert [each.sequences for each in found if each.status is Status.LOST] == [(10, 19)]
    assert Status.CORRUPT in {each.status for each in found}


@pytest.mark.parametrize("said", [SAID, NAMELESS], ids=["by its header", "by its place"])
def test_what_is_whole_again_is_no_finding(said: CorruptRecord) -> None:
    later = received(replace(said, cause=""), time_ms=NOW_MS - HOUR_MS)
    assert judged(received(said), later) == ([], set())
    assert judged(later, received(said)) == ([], set())


def test_what_was_set_aside_stays_corrupt_until_it_is_counted() -> None:
    """Whatever the scrub says of it: its events are in no tally."""
    store = AuditStore("sqlite://")
    records: list[ReceivedRecord] = []
    for each in everything_reported(BATCHES, {0: LOG}):
        if getattr(each.record, "tier", "") == DATACENTER_TIER and hasattr(each.record, "spans"):
            records += [
                received(LOG.tally(DATACENTER_TIER, 0, 0, 1)),
                received(LOG.tally(DATACENTER_TIER, 0, 2, 4)),
            ]
        else:
            records.append(each)
    set_aside = received(replace(SAID, in_tally=False, cause="wrong checksum"))
    store.fold([*records, set_aside, received(SAID, time_ms=NOW_MS - 2 * HOUR_MS)])
    for cause in ("on the broker's disk", "it is whole again"):
        findings = [f for verdict in report(store, TOPIC, now_ms=NOW_MS).verdicts for f in verdict.findings]
        assert {each.status for each in findings} == {Status.CORRUPT}
        assert any(cause in each.text for each in findings)
        store.fold([received(replace(SAID, cause=""), time_ms=NOW_MS - HOUR_MS)])
    store.fold([received(LOG.tally(DATACENTER_TIER, 0, 1, 2), time_ms=NOW_MS - HOUR_MS)])
    assert {verdict.status for verdict in report(store, TOPIC, now_ms=NOW_MS).verdicts} == {Status.COMPLETE}
    store.close()


# --- from the disk to the report ---

SEGMENT_BYTES = 4_096
EVENTS_PER_BATCH = 3


def counted_to(auditor: AuditorProcess) -> int | None:
    """How far the topic is counted; None if it is not yet known."""
    found = auditor.partitions().get(("clicks", 0))
    return None if found is None else int(found["counted_to"])


def test_a_bit_that_flips_after_the_count_is_in_the_report_until_it_is_restored(
    broker_cluster: StartCluster,
    start_registry: StartRegistry,
    start_auditor: StartAuditor,
    tmp_path: Any,
) -> None:
    config = {"log.scrub.interval.ms": "1000", "log.segment.bytes": str(SEGMENT_BYTES)}
    east = broker_cluster(datacenter="east", config=config)
    registry = start_registry(hosts=east.zookeeper.hosts)
    with Admin(east.bootstrap) as admin:
        admin.create_topic("clicks", 1)
    with Producer(east.bootstrap) as producer:
        for number in range(20):
            for index in range(EVENTS_PER_BATCH):
                producer.send("clicks", b"event %d" % number * 40, partition=0, timestamp_ms=HOUR_A + index)
            producer.flush(60)
    segments = sorted(east[1].data_dir.rglob("clicks-0/*.log"))
    assert len(segments) > 3
    url = f"sqlite:///{tmp_path}/audit.db"
    auditor = start_auditor(east, registry.url, "--store", url)
    with Admin(east.bootstrap) as admin:
        end = admin.list_offsets("clicks")[0].offset
    wait_for(lambda: counted_to(auditor) == end, auditor.output)

    def findings() -> list[dict[str, Any]]:
        store = AuditStore(url)
        try:
            data = json.loads(json.dumps(report(store, "clicks", now_ms=NOW_MS).to_json()))
        finally:
            store.close()
        return [finding for verdict in data["verdicts"] for finding in verdict["findings"]]

    assert [each for each in findings() if each["status"] == "corrupt"] == []
    victim = segments[1]
    at, header = list(hop(victim.read_bytes()))[1]
    place = (int(victim.stem) + at, int(victim.stem) + at + header.size_bytes)

    def flip() -> None:
        with victim.open("r+b") as file:
            file.seek(at + header.size_bytes - 4)
            (byte,) = file.read(1)
            file.seek(-1, 1)
            file.write(bytes([byte ^ 1]))

    flip()

    def corrupt() -> list[dict[str, Any]]:
        return [each for each in findings() if each["status"] == "corrupt"]

    wait_for(lambda: len(corrupt()) == 1, auditor.output)
    [finding] = corrupt()
    assert (finding["after_address"], finding["before_address"]) == place
    assert (finding["record_count"], finding["partition"]) == (EVENTS_PER_BATCH, 0)
    assert "clicks, east" in finding["text"] and "on the disk of broker 1" in finding["text"]
    assert auditor.status()["corrupt"] == 1
    with Admin(east.bootstrap) as admin:
        entries = [each for each in admin.describe_broker_configs(1).values() if each.name.startswith(PREFIX)]
    name = f"{PREFIX}clicks-0.{place[0]}-{place[1]}"
    assert [(each.name, each.is_read_only) for each in entries] == [(name, True)]

    # Neither of them forgets it when it is restarted while somebody restores the file.
    auditor.terminate()
    flip()
    auditor.start()
    wait_for(lambda: corrupt() == [], auditor.output)
