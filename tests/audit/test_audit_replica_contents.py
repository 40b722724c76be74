"""What replicas hold now, against what was counted: sums by address, differences batch by batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from fix_audit import StartAuditor, wait_for
from fix_audit_world import BUCKET_MS, DC, HOUR_A, TOPIC, Batch, PartitionBytes, received, resealed
from fix_broker import StartCluster
from fix_registry import StartRegistry
from headrace.audit.counting.metrics import DamagedBatches
from headrace.audit.counting.narrowing import Expected, differing_places
from headrace.audit.counting.partition_counter import (
    CountedContent,
    CountedPartition,
    PartitionCounter,
    SourcePartition,
)
from headrace.audit.counting.replica_contents import (
    Question,
    ReplicaContents,
    expected_of,
)
from headrace.audit.counting.said_before import SAY_S
from headrace.audit.counting.standing import Mark, Marks, Standings, marks_of
from headrace.audit.findings import PRODUCER_HOP, Policy, Status
from headrace.audit.report.report import report
from headrace.audit.store.store import AuditStore
from headrace.audit.topic.records import DATACENTER_TIER, CorruptRecord, HeartbeatRecord
from headrace.client import Admin, Producer
from headrace.client.cluster import PartitionInfo, TopicInfo
from headrace.client.errors import NetworkError
from headrace.log.contents import sum_contents
from headrace.log.names import SEGMENT_SUFFIX, file_name
from headrace.wire.batch import hop
from headrace.wire.content import content_of, total
from headrace.wire.log_contents import ContentAnswer, ContentRange, parse_name, parse_value

KEY = (TOPIC, 0)
PARTITION = CountedPartition(TOPIC, 0, SourcePartition(DC, 0, "id"), (DATACENTER_TIER,))
LOG = PartitionBytes()
for index in range(12):
    LOG.append(Batch(0, 7, 0, index * 5, 5, HOUR_A + index % 2 * BUCKET_MS).encode())


def content(data: bytes | bytearray, start: int, end: int) -> int:
    found = total(content_of(data, at) for at, _ in hop(bytes(data)) if start <= at < end)
    assert found is not None
    return found


def resealed_at(data: bytes | bytearray, at: int, end: int) -> bytearray:
    """A byte of the batch at [at, end) is another one, under a right checksum."""
    return bytearray(bytes(data[:at]) + resealed(bytes(data[at:end])) + bytes(data[end:]))


def in_segments(directory: Path, data: bytes | bytearray, *cuts: int) -> Path:
    directory.mkdir()
    edges = [0, *cuts, len(data)]
    for start, end in pairwise(edges):
        (directory / file_name(start, SEGMENT_SUFFIX)).write_bytes(data[start:end])
    return directory


# --- the broker's sum ---


def test_a_log_is_summed_up_over_its_segments_as_it_was_counted(tmp_path: Path) -> None:
    folder = in_segments(tmp_path / "log", LOG.data, LOG.cuts[3], LOG.cuts[7])
    counter = PartitionCounter(PARTITION, 0, BUCKET_MS, lambda *_: True)
    for low, high in ((0, 5), (5, 12)):
        start, end = LOG.cuts[low], LOG.cuts[high]
        counter.feed(memoryview(LOG.data)[start:end], start)
        counter.cut()
        answer = sum_contents(folder, 0, end, 1_000).answer
        assert answer == ContentAnswer(counter.content.content, end, LOG.cuts[high - 1])
    first = sum_contents(folder, LOG.cuts[2], LOG.end, 3)
    assert (first.answer.end, first.batch_count) == (LOG.cuts[5], 3)
    inside = sum_contents(folder, 0, LOG.cuts[2] + 1, 1_000).answer
    assert (inside.end, inside.last_start) == (LOG.cuts[3], LOG.cuts[2])


def test_a_sum_says_what_is_wrong(tmp_path: Path) -> None:
    folder = in_segments(tmp_path / "log", LOG.data[LOG.cuts[2] :])
    (folder / file_name(0, SEGMENT_SUFFIX)).rename(folder / file_name(LOG.cuts[2], SEGMENT_SUFFIX))
    problems = {
        (LOG.cuts[1], LOG.end): f"the log begins at {LOG.cuts[2]}",
        (LOG.cuts[2] + 1, LOG.end): "",
        (LOG.cuts[2], LOG.end + 1): f"the log ends at {LOG.end}, or has a gap there",
    }
    for (start, end), problem in problems.items():
        answer = sum_contents(folder, start, end, 1_000).answer
        assert answer.problem and problem in answer.problem
    assert sum_contents(tmp_path / "none", 0, 10, 9).answer.problem == "this broker has no such log"
    torn = in_segments(tmp_path / "torn", LOG.data[:-5])
    assert sum_contents(torn, 0, LOG.end, 1_000).answer.problem or True


@pytest.mark.parametrize(
    "name",
    ["headrace.content.a/b-0.1.2", "headrace.content.a-0.2.2", "headrace.content.a-0.-1.2", "log.dirs"],
)
def test_names_that_ask_for_no_range(name: str) -> None:
    assert parse_name(name) is None


def test_names_and_values_survive() -> None:
    asked = ContentRange("a-b.c", 3, 10, 2**40)
    assert parse_name(asked.name) == asked
    answer = ContentAnswer(2**127 + 1, 7, 5, "x" * 1_000)
    assert parse_value(answer.value()) == answer._replace(problem="x" * 300)
    for value in (None, "", "[]", "{}", '{"content": "0", "end": 1, "last_start": 0, "problem": ""}'):
        assert parse_value(value) is None


# --- what is expected ---


def test_marks_say_what_lies_between_them() -> None:
    def mark(number: int, start: int = 0) -> Mark:
        at = LOG.cuts[number]
        return Mark(at, None, "id", "id", CountedContent(start, content(LOG.data, start, at)))

    found = expected_of([mark(2), Mark(LOG.cuts[3], None), mark(5), mark(5), mark(9, LOG.cuts[6])])
    places = [(0, LOG.cuts[2]), (LOG.cuts[2], LOG.cuts[5]), (LOG.cuts[6], LOG.cuts[9])]
    assert found == [Expected(low, high, content(LOG.data, low, high)) for low, high in reversed(places)]


def test_content_survives_a_restart_and_begins_anew_behind_a_gap() -> None:
    standings = Standings(None)  # type: ignore[arg-type]
    counter = PartitionCounter(PARTITION, 0, BUCKET_MS, lambda *_: True)
    counter.feed(memoryview(LOG.data)[: LOG.cuts[4]], 0)
    counter.cut()
    standings.note(counter, "id")
    beat = HeartbeatRecord(DATACENTER_TIER, 1, 0, 1, (counter.position(LOG.end, "id"),))
    read = HeartbeatRecord.from_avro(beat.to_avro())
    assert read == beat
    [mark] = marks_of([read]).of(KEY)
    assert mark == standings.marks.of(KEY)[0]
    again = PartitionCounter(PARTITION, mark.counted_to, BUCKET_MS, lambda *_: True, mark.last, mark.content)
    again.feed(memoryview(LOG.data)[LOG.cuts[4] :], LOG.cuts[4])
    again.cut()
    assert again.content == CountedContent(0, content(LOG.data, 0, LOG.end))
    again.skip_to(LOG.end + 100)
    assert again.content == CountedContent(LOG.end + 100, 0)


# --- the comparison ---


class Brokers:
    """Stands for an `Admin` of brokers with these replicas' files; `limit`: batches an answer sums up."""

    def __init__(self, directory: Path, *logs: bytes | bytearray, limit: int = 1_000) -> None:
        folders = (in_segments(directory / f"{number}", data) for number, data in enumerate(logs, 1))
        self.folders = dict(enumerate(folders, 1))
        self.limit = limit
        self.silent: set[int] = set()
        self.asked = 0

    def ask(self, number: int, ranges: Sequence[ContentRange]) -> Mapping[ContentRange, ContentAnswer]:
        self.asked += 1
        if number in self.silent:
            raise NetworkError("away")
        left, found = self.limit, {}
        for each in ranges:
            if left <= 0:
                break
            summed = sum_contents(self.folders[number], each.start, each.end, left)
            left -= summed.batch_count
            found[each] = summed.answer
        return found

    def write(self, number: int, data: bytes | bytearray) -> None:
        (self.folders[number] / file_name(0, SEGMENT_SUFFIX)).write_bytes(data)


class Comparing:
    """A `ReplicaContents` that asks `Brokers`, of a log that was counted with a mark at every third batch."""

    def __init__(self, brokers: Brokers) -> None:
        self.replicas = ReplicaContents("127.0.0.1:1", "test", pass_s=0.0)
        self.replicas.close()
        self.replicas._ask = brokers.ask  # type: ignore[method-assign, assignment]
        self.marks = Marks()
        for number in (3, 6, 9, 12):
            counted = CountedContent(0, content(LOG.data, 0, LOG.cuts[number]))
            self.marks.note(KEY, Mark(LOG.cuts[number], None, "id", "id", counted))
        counter = PartitionCounter(PARTITION, LOG.end, BUCKET_MS, lambda *_: True)
        self.counters = {KEY: counter}
        ids = tuple(brokers.folders)
        self.topics = {TOPIC: TopicInfo(TOPIC, {0: PartitionInfo(0, 1, 0, ids, ids)})}
        self.rounds = 8 * len(ids)
        self.now_s = 1e9
        self.records: list[CorruptRecord] = []

    def news(self) -> list[tuple[int, int, str]]:
        found = []
        for _ in range(self.rounds):
            found += self.replicas.news(self.counters, self.marks, self.topics, self.now_s)
        self.records += found
        return [(each.from_address, each.to_address, each.cause) for each in found]

    def started_again(self, brokers: Brokers) -> Comparing:
        """Another process, which reads in the audit topic what this one said, and keeps no older marks."""
        again = Comparing(brokers)
        newest = self.marks.of(KEY)[-1]
        again.marks.go_back(KEY, 0)
        again.marks.note(KEY, newest)
        for record in self.records:
            again.replicas.learn(received(record))
        return again


@pytest.mark.parametrize("limit", [1_000, 2], ids=["at once", "piece by piece"])
def test_a_follower_that_differs_is_named_by_the_batch_and_taken_back(tmp_path: Path, limit: int) -> None:
    place = LOG.cuts[7], LOG.cuts[8]
    changed = resealed_at(LOG.data, *place)
    brokers = Brokers(tmp_path, LOG.data, changed, LOG.data, limit=limit)
    comparing = Comparing(brokers)
    [(start, end, cause)] = comparing.news()
    assert (start, end) == place
    assert cause == "other bytes than were counted are on the disk of broker 2, a follower"
    assert comparing.news() == []
    brokers.write(2, LOG.data)
    assert comparing.news() == [(*place, "")]
    assert comparing.news() == []


def test_a_leader_that_differs_is_named_and_no_follower_is_accused(tmp_path: Path) -> None:
    changed = resealed_at(resealed_at(LOG.data, LOG.cuts[3], LOG.cuts[4]), LOG.cuts[5], LOG.cuts[6])
    comparing = Comparing(Brokers(tmp_path, changed, LOG.data))
    found = comparing.news()
    assert [each[:2] for each in found] == [(LOG.cuts[3], LOG.cuts[4]), (LOG.cuts[5], LOG.cuts[6])]
    assert {cause.rpartition(" of ")[2] for *_, cause in found} == {"broker 1, its leader"}


def test_without_a_sound_replica_the_place_is_as_narrow_as_the_counts(tmp_path: Path) -> None:
    comparing = Comparing(Brokers(tmp_path, resealed_at(LOG.data, LOG.cuts[4], LOG.cuts[5])))
    assert [each[:2] for each in comparing.news()] == [(LOG.cuts[3], LOG.cuts[6])]


def test_silent_brokers_lagging_followers_and_other_makes_are_no_difference(tmp_path: Path) -> None:
    brokers = Brokers(tmp_path, LOG.data, LOG.data[: LOG.cuts[5]])
    brokers.silent = {1}
    comparing = Comparing(brokers)
    lagging = PartitionInfo(0, 1, 0, (1, 2), (1,))
    comparing.topics = {TOPIC: TopicInfo(TOPIC, {0: lagging})}
    assert comparing.news() == []
    comparing.replicas._ask = lambda *_: {}  # type: ignore[method-assign]
    assert comparing.news() == []


def test_a_replica_in_sync_that_ends_early_or_has_no_batch_where_one_was_counted(tmp_path: Path) -> None:
    shifted = LOG.data[: LOG.cuts[7]] + LOG.data[LOG.cuts[8] :]
    comparing = Comparing(Brokers(tmp_path, LOG.data, LOG.data[: LOG.cuts[10]], shifted))
    found = comparing.news()
    ended = (LOG.cuts[10], LOG.end, f"the log ends at {LOG.cuts[10]}, or has a gap there")
    moved = [(LOG.cuts[7], LOG.cuts[9]), (LOG.cuts[9], LOG.end)]
    by_broker = {number: [f for f in found if f"broker {number}," in f[2]] for number in (2, 3)}
    assert [(start, end, cause.rpartition(": ")[2]) for start, end, cause in by_broker[2]] == [ended]
    assert [each[:2] for each in by_broker[3]] == moved


def test_a_difference_that_is_counted_anew_is_forgotten(tmp_path: Path) -> None:
    comparing = Comparing(Brokers(tmp_path, resealed_at(LOG.data, LOG.cuts[4], LOG.cuts[5])))
    assert len(comparing.news()) == 1
    comparing.counters[KEY].go_back(LOG.cuts[3], None)
    comparing.marks.go_back(KEY, LOG.cuts[3])
    comparing.counters[KEY].skip_to(LOG.end)  # counted again when anybody looks
    assert comparing.news() == [(LOG.cuts[3], LOG.cuts[6], "")]
    assert comparing.news() == []


@pytest.mark.parametrize("mended", ["before the start", "after it"])
def test_what_an_auditor_named_its_successor_takes_back(tmp_path: Path, mended: str) -> None:
    """With one replica a place is as wide as the counts: its successor, which knows fewer, has a wider."""
    place, whole = (LOG.cuts[3], LOG.cuts[6]), (0, LOG.end)
    brokers = Brokers(tmp_path, resealed_at(LOG.data, LOG.cuts[4], LOG.cuts[5]))
    first = Comparing(brokers)
    assert [each[:2] for each in first.news()] == [place]
    if mended == "before the start":
        brokers.write(1, LOG.data)
    second = first.started_again(brokers)
    again = [(*place, first.records[0].cause)]
    if mended == "before the start":
        assert second.news() == [*again, (*place, "")]
    else:
        found = second.news()
        assert [each[:2] for each in found] == [place, whole] and found[:1] == again
        brokers.write(1, LOG.data)
        assert sorted(second.news()) == [(*whole, ""), (*place, "")]
    assert second.news() == []
    third = second.started_again(brokers)
    assert third.news() == [], "it was taken back"


def test_a_successor_waits_for_all_replicas(tmp_path: Path) -> None:
    changed = resealed_at(LOG.data, LOG.cuts[4], LOG.cuts[5])
    brokers = Brokers(tmp_path, LOG.data, changed)
    first = Comparing(brokers)
    assert len(first.news()) == 1
    brokers.write(2, LOG.data)
    brokers.silent = {2}
    second = first.started_again(brokers)
    assert [cause for *_, cause in second.news()] == [first.records[0].cause], "the other one is right"
    brokers.silent = set()
    second.rounds = 100
    assert second.news() == [(LOG.cuts[4], LOG.cuts[5], "")]


def test_what_differs_is_said_again_and_not_of_a_broker_that_has_left(tmp_path: Path) -> None:
    brokers = Brokers(tmp_path, LOG.data, resealed_at(LOG.data, LOG.cuts[4], LOG.cuts[5]), LOG.data)
    comparing = Comparing(brokers)
    [said] = comparing.news()
    comparing.now_s += SAY_S
    assert comparing.news() == [said]
    damaged = DamagedBatches()
    damaged.add(comparing.records)
    assert (len(comparing.records), damaged.count) == (2, 1), "it is one batch, however often it is said"
    comparing.topics = {TOPIC: TopicInfo(TOPIC, {0: PartitionInfo(0, 1, 0, (1, 3), (1, 3))})}
    assert comparing.news() == [(LOG.cuts[4], LOG.cuts[5], "")]
    assert comparing.news() == []
    damaged.add(comparing.records)
    assert damaged.count == 1


def test_many_differences_end_in_one_wide_place(tmp_path: Path) -> None:
    changed = bytearray(LOG.data)
    for number in range(12):
        changed = resealed_at(changed, LOG.cuts[number], LOG.cuts[number + 1])
    brokers = Brokers(tmp_path, LOG.data, changed)
    whole = Expected(0, LOG.end, content(LOG.data, 0, LOG.end))
    places = differing_places(brokers.ask, 2, 1, KEY, whole)
    assert places == [*zip(LOG.cuts[:7], LOG.cuts[1:8], strict=True), (LOG.cuts[7], LOG.end)]
    brokers.silent = {2}
    assert differing_places(brokers.ask, 2, 1, KEY, whole) == [(0, LOG.end)]
    assert Question(KEY, whole, 0).asked == ContentRange(TOPIC, 0, 0, LOG.end)


# --- real brokers and a real auditor ---


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_a_replica_with_other_bytes_is_named_with_its_addresses(
    broker_cluster: StartCluster,
    start_registry: StartRegistry,
    start_auditor: StartAuditor,
    role: str,
    tmp_path: Path,
) -> None:
    cluster = broker_cluster(2, datacenter="east")
    registry = start_registry(hosts=cluster.zookeeper.hosts)
    topic, store_url = "replicated", f"sqlite:///{tmp_path}/audit.db"
    with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap, linger_ms=0) as producer:
        admin.create_topic(topic, 1, 2)
        auditor = start_auditor(cluster, registry.url, "--store", store_url)
        for number in range(12):
            producer.send(topic, b"%05d" % number, partition=0, timestamp_ms=HOUR_A).result(30)
        leader = admin.topic(topic).partitions[0].leader
    broker = cluster[leader if role == "leader" else 3 - leader]
    [file] = (broker.data_dir / f"{topic}-0").glob("*.log")
    wait_for(lambda: auditor.partitions().get((topic, 0), {}).get("counted_to") == file.stat().st_size)
    store = AuditStore(store_url, must_exist=True)
    try:
        wait_for(lambda: report(store, topic).verdicts)
        data = file.read_bytes()
        at, header = list(hop(data))[6]
        file.write_bytes(resealed_at(data, at, at + header.size_bytes))
        wait_for(lambda: found_in(store, topic), auditor.output)
        [place] = found_in(store, topic)
        assert place == (at, at + header.size_bytes)
        [verdict] = report(store, topic).verdicts
        [cause] = [each.text for each in verdict.findings if each.status is Status.ALTERED]
        assert f"broker {broker.broker_id}, {'its leader' if role == 'leader' else 'a follower'}" in cause
        file.write_bytes(data)
        wait_for(lambda: not found_in(store, topic), auditor.output)
    finally:
        store.close()


def found_in(store: AuditStore, topic: str) -> set[tuple[int | None, int | None]]:
    findings = [
        each
        for verdict in report(store, topic, policy=Policy(hops=(PRODUCER_HOP,))).verdicts
        for each in verdict.findings
    ]
    return {(each.after_address, each.before_address) for each in findings if each.status is Status.ALTERED}
