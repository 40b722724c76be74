"""The auditor's parts, and how it recovers: resuming, gaps, topics' settings, values that are not records."""

from __future__ import annotations

from typing import Any, cast
from uuid import UUID, uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fix_audit import StartAuditor, wait_for
from fix_audit_world import BUCKET_MS, DC, HOUR_A, TOPIC, Batch, PartitionBytes, concatenate, tally
from fix_broker import StartCluster
from fix_registry import StartRegistry
from headrace.audit.counting.declaring import READ_PAUSE_S, Declarations
from headrace.audit.counting.partition_counter import (
    CountedPartition,
    PartitionCounter,
    SourcePartition,
    counted_partition,
)
from headrace.audit.counting.standing import marks_of
from headrace.audit.topic.avro_times import to_datetime, to_ms
from headrace.audit.topic.load_report import LoadedHour, LoadedPartition, LoadReport
from headrace.audit.topic.reader import AuditReader
from headrace.audit.topic.records import (
    ANALYSIS_TIER,
    AUDIT_TOPIC,
    DATACENTER_TIER,
    GapRecord,
    HeartbeatRecord,
    PartitionPosition,
    RangeTally,
)
from headrace.client import Admin, Producer
from headrace.client.admin import EARLIEST
from headrace.client.cluster import TopicInfo
from headrace.coordination.declared import ANY, REPORTING, Change

PARTITION = CountedPartition(TOPIC, 0, SourcePartition(DC, 0), (DATACENTER_TIER,))


def beat(number: int, part: int, parts: int, *lines: tuple[str, int, int]) -> HeartbeatRecord:
    positions = tuple(PartitionPosition(DC, topic, p, p, address, address) for topic, p, address in lines)
    return HeartbeatRecord(DATACENTER_TIER, number, part, parts, positions)


def test_the_newest_whole_heartbeat_counts() -> None:
    beats = [
        beat(1, 0, 1, ("a", 0, 10), ("b", 0, 20)),
        beat(2, 0, 2, ("a", 0, 30)),
        beat(2, 1, 2, ("b", 0, 40)),
        beat(3, 0, 2, ("a", 0, 99)),
    ]
    for records in (beats, list(reversed(beats))):
        marks = marks_of(records)
        assert [mark.counted_to for mark in marks.of(("a", 0))] == [10, 30]
        assert [mark.counted_to for mark in marks.of(("b", 0))] == [20, 40]
    assert not marks_of([])


def test_the_source_of_a_partitions_events() -> None:
    sources = {"page-view": [SourcePartition("east", 0), SourcePartition("west", 0)]}
    both = (DATACENTER_TIER, ANALYSIS_TIER)
    assert counted_partition("east", "page-view", 1, None) == CountedPartition(
        "page-view", 1, SourcePartition("east", 1), both[:1]
    )
    assert counted_partition("analysis", "own", 0, sources) == CountedPartition(
        "own", 0, SourcePartition("analysis", 0), both
    )
    assert counted_partition("analysis", "page-view", 1, sources) == CountedPartition(
        "page-view", 1, SourcePartition("west", 0), both[1:]
    )
    assert counted_partition("analysis", "page-view", 2, sources) is None


@given(counts=st.lists(st.integers(1, 5), min_size=1, max_size=10), cuts=st.sets(st.integers(1, 10)))
@settings(max_examples=40, deadline=None)
def test_cut_tallies_are_adjacent_and_complete(counts: list[int], cuts: set[int]) -> None:
    log = PartitionBytes()
    for index, count in enumerate(counts):
        log.append(Batch(0, 5, 0, sum(counts[:index]), count, HOUR_A + index % 3 * BUCKET_MS).encode())
    counter = PartitionCounter(PARTITION, 0, BUCKET_MS, lambda dc, producer_id: (dc, producer_id) == (DC, 5))
    tallies: list[RangeTally] = []
    for index in range(len(counts)):
        start, end = log.cuts[index], log.cuts[index + 1]
        counter.feed(memoryview(log.data)[start:end], start)
        if index in cuts:
            tallies += cut(counter)
    tallies += cut(counter)
    assert counter.cut() == []
    assert [each.from_address for each in tallies] == [0, *(each.to_address for each in tallies[:-1])]
    assert counter.position(0).counted_to_address == tallies[-1].to_address == log.end
    assert concatenate(each.spans for each in tallies) == tally(log.data)


def cut(counter: PartitionCounter) -> list[RangeTally]:
    """The tallies since the last cut, of a log without damage."""
    return [record for record in counter.cut() if isinstance(record, RangeTally)]


def test_batches_out_of_order_raise() -> None:
    counter = PartitionCounter(PARTITION, 100, BUCKET_MS, lambda _dc, _id: False)
    with pytest.raises(ValueError, match="counted to 100"):
        counter.feed(b"", 200)
    with pytest.raises(ValueError, match="counted already"):
        counter.feed(b"", 50)


def test_a_load_too_large_for_one_message_is_split() -> None:
    hours = tuple(LoadedHour(HOUR_A + index * 3_600_000, 1, 1) for index in range(4))
    partitions = tuple(LoadedPartition(p, 0, 100, hours) for p in range(5))
    load = LoadReport("hdfs://x/data", TOPIC, 7, HOUR_A, partitions)
    pieces = load.split(hours_per_record_max=10)
    assert [len(piece.partitions) for piece in pieces] == [2, 2, 1]
    assert tuple(each for piece in pieces for each in piece.partitions) == partitions
    assert {(piece.warehouse, piece.load_sequence) for piece in pieces} == {("hdfs://x/data", 7)}


@given(time_ms=st.integers(-(2**40), 2**42))
def test_times_survive_avro(time_ms: int) -> None:
    assert to_ms(to_datetime(time_ms)) == time_ms == to_ms(time_ms)


def test_deleted_addresses_are_reported_as_a_gap_and_counting_continues(
    broker_cluster: StartCluster, start_registry: StartRegistry, start_auditor: StartAuditor
) -> None:
    eager = {"log.retention.check.interval.ms": "100", "log.segment.bytes": "65536"}
    east = broker_cluster(datacenter="east", config=eager)
    registry = start_registry(hosts=east.zookeeper.hosts)
    with Admin(east.bootstrap) as admin, Producer(east.bootstrap, linger_ms=1) as producer:

        def send(topic: str, count: int) -> None:
            for index in range(count):
                producer.send(topic, b"event %d " % index * 20, partition=0, timestamp_ms=HOUR_A)
            producer.flush(30)

        admin.create_topic("short", 1)
        admin.create_topic("deleted", 1)
        send("short", 100)
        send("deleted", 100)
        auditor = start_auditor(east, registry.url)
        wait_for(lambda: len(auditor.partitions()) == 2, auditor.output)
        end = admin.list_offsets("short")[0].offset
        wait_for(lambda: auditor.partitions()["short", 0]["counted_to"] == end, auditor.status)
        published = Published(east.bootstrap, registry.url)
        wait_for(lambda: beats_to(published, "short") == end, auditor.output)
        auditor.kill()
        admin.alter_configs("short", {"retention.bytes": "100000"})
        for _ in range(4):
            send("short", 2_000)
        wait_for(lambda: admin.list_offsets("short", EARLIEST)[0].offset > end)
        producer.send(AUDIT_TOPIC, b"no audit record").result(30)
        admin.delete_topic("deleted")
        auditor.start()
        now = admin.list_offsets("short")[0].offset
        wait_for(lambda: auditor.partitions().get(("short", 0), {}).get("counted_to") == now, auditor.output)
        wait_for(lambda: beats_to(published, "short") == now, auditor.output)
        begins = admin.list_offsets("short", EARLIEST)[0].offset
        (gap,) = [each for each in published.records if isinstance(each, GapRecord)]
        assert (gap.tier, gap.topic, gap.from_address, gap.to_address) == (
            DATACENTER_TIER,
            "short",
            end,
            begins,
        )
        ranges = [
            (each.from_address, each.to_address) for each in published.records if isinstance(each, RangeTally)
        ]
        assert (0, end) in ranges or ranges[0][0] == 0
        assert begins in {start for start, _ in ranges}
        wait_for(lambda: list(auditor.partitions()) == [("short", 0)], auditor.status)
        assert published.reader.unreadable_count == 1
        published.reader.close()


class Published:
    """The records that were read from the audit topic so far."""

    def __init__(self, bootstrap: str, registry_url: str) -> None:
        self.reader = AuditReader(bootstrap=bootstrap, registry_url=registry_url, topics=[AUDIT_TOPIC])
        self.records: list[object] = []


def beats_to(published: Published, topic: str) -> int:
    """Reads further heartbeats; returns the address up to which the last one has counted the topic."""
    published.reader.discover()
    published.records += [each.record for each in published.reader.poll(0.2).records]
    heartbeats = [each for each in published.records if isinstance(each, HeartbeatRecord)]
    positions = [position for each in heartbeats for position in each.positions if position.topic == topic]
    return max((position.counted_to_address for position in positions), default=-1)


# --- topics' declarations ---


class FakeAdmin:
    """The topics of a cluster and their settings."""

    def __init__(self) -> None:
        self.ids: dict[str, UUID] = {}
        self.counts: dict[str, int] = {}
        self.settings: dict[str, dict[str, str]] = {}
        self.asked: list[list[str]] = []

    def topics(self) -> dict[str, TopicInfo]:
        return {name: TopicInfo(name, {}, topic_id=topic_id) for name, topic_id in self.ids.items()}

    def topic_settings(self, topics: Any, names: Any) -> dict[str, dict[str, str]]:
        self.asked.append(list(topics))
        return {name: self.settings.get(name, {}) for name in self.asked[-1] if name in self.ids}


def test_the_auditor_publishes_news_alone() -> None:
    admin, now_s = FakeAdmin(), [0.0]
    declarations = Declarations(cast(Admin, admin), clock_s=lambda: now_s[0])
    admin.ids = {"a": uuid4(), "b": uuid4()}
    assert {each.topic: each.changes for each in declarations.news(admin.ids, admin.counts)} == {
        "a": (Change(REPORTING),),
        "b": (Change(REPORTING),),
    }
    admin.settings["a"] = {"headrace.producers": ANY}
    assert declarations.news(admin.ids, admin.counts) == []
    now_s[0] += READ_PAUSE_S
    (changed,) = declarations.news(admin.ids, admin.counts)
    assert (changed.topic, changed.changes) == ("a", (Change(ANY),))
    admin.counts["a"] = 3
    assert declarations.news(admin.ids, admin.counts) == []
    now_s[0] += READ_PAUSE_S
    (more,) = declarations.news(admin.ids, admin.counts)
    assert (more.topic, more.partitions) == ("a", 3)
    admin.ids["c"] = uuid4()
    assert [each.topic for each in declarations.news(admin.ids, admin.counts)] == ["c"], (
        "new topics are read at once"
    )
    admin.ids["b"] = uuid4()
    (made_again,) = declarations.news(admin.ids, admin.counts)
    assert made_again.topic_id == str(admin.ids["b"])


def test_a_topic_that_was_made_again_meanwhile_is_read_again() -> None:
    admin = FakeAdmin()
    declarations = Declarations(cast(Admin, admin))
    admin.ids = {"a": uuid4()}
    admin.settings["a"] = {"headrace.producers": ANY}
    assert declarations.news({"a": uuid4()}, {}) == [], "these settings are another incarnation's"
    assert [each.topic_id for each in declarations.news(admin.ids, admin.counts)] == [str(admin.ids["a"])]
