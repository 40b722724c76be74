"""The journal of a publisher: whenever it is killed, a replay knows exactly what it was handed."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fix_audit import StartAuditor, wait_for
from fix_audit_world import HOUR_A, NOW_MS
from fix_broker import StartCluster
from fix_events import publish_until_killed
from fix_registry import StartRegistry
from headrace.audit.findings import Status, Verdict
from headrace.audit.report.report import report
from headrace.audit.store.store import AuditStore
from headrace.client import Admin, BatchIdentity
from headrace.events import journal as journal_module
from headrace.events import succession
from headrace.events.claims import claim
from headrace.events.handovers import HandoverCounts, PartTally
from headrace.events.journal import Journal
from headrace.events.journal_replay import DeadJournal, JournalError, replay
from headrace.events.publisher import EventPublisher
from headrace.events.spool import open_spool, prune
from headrace.events.succession import adopt, open_journal
from headrace.events.words import NUMBER_MAX

BUCKET_MS = 600_000
WHO: dict[str, str | int] = {
    "publisher": "p", "datacenter": "east", "service": "checkout", "server": "co1", "bootstrap": "b:9092",
    "audit_topic": "_audit", "bucket_ms": BUCKET_MS,
}  # fmt: skip
CLUSTER, OTHER_CLUSTER = UUID(int=1), UUID(int=2)
Sequences = Counter[tuple[str, int, int, int, int, int]]


class Life:
    """A publisher with a journal, what really happened to it, and what the auditor has folded."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.journal = Journal(path, WHO, 5)
        self.counts = HandoverCounts(BUCKET_MS)
        self.handed: Counter[tuple[str, int]] = Counter()
        self.sequences: Sequences = Counter()
        self.waiting: Counter[tuple[str, int]] = Counter()
        self.last: list[BatchIdentity] = []
        self.next_sequence = 0
        self.epoch = 0
        self.folded: dict[int, PartTally] = {}
        self.number = 0

    def hand_over(self, topic: str, time_ms: int, count: int) -> None:
        for _ in range(count):
            self.journal.hand_over(topic, time_ms, self.counts.bucket_start(time_ms), 1)
            self.counts.hand_over(topic, time_ms, 0.0)
        self.handed[topic, time_ms - time_ms % BUCKET_MS] += count
        self.waiting[topic, time_ms - time_ms % BUCKET_MS] += count

    def refuse(self, topic: str, time_ms: int) -> None:
        for count in (1, -1):
            self.journal.hand_over(topic, time_ms, self.counts.bucket_start(time_ms), count)
            self.counts.hand_over(topic, time_ms, 0.0, count)

    def close_batch(self, topic: str, partition: int) -> None:
        ready = [(key, count) for key, count in sorted(self.waiting.items()) if key[0] == topic and count]
        if not ready:
            return
        (key, count), *_ = ready
        self.waiting[key] = 0
        identity = BatchIdentity(topic, partition, 7, self.epoch, self.next_sequence, count, key[1], key[1])
        self.next_sequence += count
        self.journal.batch_closed(identity)
        self.counts.batch_closed(identity, 0.0)
        self._note(identity, 1)
        self.last.append(identity)

    def renumber(self) -> None:
        if not self.last:
            return
        old = self.last.pop()
        self.epoch += 1
        new = old._replace(producer_epoch=self.epoch, base_sequence=0)
        self.next_sequence = old.record_count
        self.journal.batch_renumbered(old, new)
        self.counts.batch_renumbered(old, new, 0.0)
        self._note(old, -1)
        self._note(new, 1)

    def _note(self, identity: BatchIdentity, times: int) -> None:
        for index in range(identity.record_count):
            key = (identity.topic, identity.base_timestamp_ms, identity.partition, identity.producer_id)
            self.sequences[(*key, identity.producer_epoch, identity.base_sequence + index)] += times

    def report(self, *, arrives: bool, is_idle: bool) -> None:
        if is_idle:
            self.journal.finished(self.counts.finish_idle(1.0))
            self.last.clear()  # nothing older is in flight any more
        tallies = self.counts.changed()
        self.number += 1
        self.journal.begin_report(self.number)
        if arrives:
            self.fold(tallies)
            self.counts.acknowledge(tallies)
            self.journal.compact(self.counts)

    def fold(self, tallies: list[PartTally]) -> None:
        self.folded.update({tally.part: tally for tally in tallies})

    def dead(self) -> DeadJournal:
        return replay(self.path, self.path.read_bytes())


OPERATIONS = st.one_of(
    st.tuples(st.just("hand_over"), st.sampled_from("tu"), st.integers(0, 2 * BUCKET_MS), st.integers(1, 4)),
    st.tuples(st.just("refuse"), st.sampled_from("tu"), st.integers(0, 2 * BUCKET_MS)),
    st.tuples(st.just("close_batch"), st.sampled_from("tu"), st.integers(0, 1)),
    st.tuples(st.just("renumber")),
    st.tuples(st.just("report"), st.booleans(), st.booleans()),
)


@settings(max_examples=300, deadline=None)
@given(steps=st.lists(OPERATIONS, max_size=60), compacts=st.booleans())
def test_a_replay_and_what_was_reported_are_all_that_happened(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[object, ...]], compacts: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / "life.journal"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal_module, "COMPACT_ABOVE_BYTES", 0 if compacts else 10**9)
        life = Life(path)
        for name, *values in steps:
            if name == "report":
                life.report(arrives=bool(values[0]), is_idle=bool(values[1]))
            else:
                getattr(life, str(name))(*values)
    dead = life.dead()
    life.journal.delete()
    assert (dead.report_number, dead.started_ms, dead.is_whole) == (life.number, 5, True)
    life.fold(dead.counts.changed(closing=True))
    handed: Counter[tuple[str, int]] = Counter()
    sequences: Sequences = Counter()
    for tally in life.folded.values():
        handed[tally.topic, tally.bucket_start_ms] += tally.handed_over_count
        for each in tally.ranges:
            for sequence in range(each.first_sequence, each.last_sequence + 1):
                place = (tally.topic, tally.bucket_start_ms, *each[:3], sequence)
                sequences[place] += 1
    assert +handed == +life.handed
    assert sequences == +life.sequences


def test_a_journal_is_small_private_and_grows_no_further_than_its_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path / "a.journal", WHO, 5)
    assert (tmp_path / "a.journal").stat().st_mode & 0o777 == 0o600
    for _ in range(100_000):
        journal.hand_over("t", 0, 0, 1)  # events of one bucket in a row take one record
    assert (tmp_path / "a.journal").stat().st_size == journal_module.FIRST_SIZE_BYTES
    monkeypatch.setattr(journal_module, "SIZE_MAX_BYTES", 4 * journal_module.FIRST_SIZE_BYTES)
    for number in range(20_000):
        journal.hand_over("tu"[number % 2], 0, 0, 1)
    assert (tmp_path / "a.journal").stat().st_size <= 4 * journal_module.FIRST_SIZE_BYTES
    dead = replay(journal.path, journal.path.read_bytes())
    assert not dead.is_whole
    journal.delete()
    assert list(tmp_path.iterdir()) == []


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_bytes_that_are_no_journal_are_refused_by_name(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / "torn.journal"
    life = Life(path)
    life.hand_over("t", 0, 3)
    life.close_batch("t", 0)
    life.report(arrives=False, is_idle=True)
    life.hand_over("u", 0, 3)
    good = bytearray(path.read_bytes()[: life.journal._used])
    life.journal.delete()
    at = data.draw(st.integers(0, len(good) - 1))
    good[at : at + 8] = data.draw(st.binary(min_size=1, max_size=8))
    cut = bytes(good[: data.draw(st.integers(0, len(good)))])
    for damaged in (bytes(good), cut):
        try:
            replay(path, damaged)
        except JournalError as error:
            assert "torn.journal is not a publisher's journal" in str(error)


@pytest.mark.parametrize("bucket_ms", ["1e400", "0", "-1", "7", "null", "[]", '"x"', "[" * 2_000])
def test_a_description_of_nonsense_is_refused_by_name(tmp_path: Path, bucket_ms: str) -> None:
    """Another number, or one that nests deeper than Python reads, ended the next publisher's start."""
    journal = Journal(tmp_path / "a.journal", WHO, 5)
    journal.hand_over("t", 0, 0, 1)
    data = (tmp_path / "a.journal").read_bytes()
    journal.delete()
    said = json.dumps(WHO).encode()
    lie = said.replace(b": 600000}", b": " + bucket_ms.encode() + b"}")
    lie = lie.ljust(4_096) if len(lie) > len(said) else lie.ljust(len(said))
    head = bytearray(data[:64])
    head[40:48] = len(lie).to_bytes(8, sys.byteorder)
    head[16:24] = (64 + len(lie)).to_bytes(8, sys.byteorder)
    with pytest.raises(JournalError, match=r"a\.journal is not a publisher's journal"):
        replay(tmp_path / "a.journal", bytes(head) + lie + bytes(64))


def test_only_a_successor_adopts_and_only_the_dead(tmp_path: Path) -> None:
    adopted: list[DeadJournal] = []
    living = open_journal(tmp_path, "living", WHO, 5)
    dead = open_journal(tmp_path, "dead", WHO, 5)
    other = open_journal(tmp_path, "other", {**WHO, "service": "search"}, 5)
    assert living is not None and dead is not None and other is not None
    dead.hand_over("t", 0, 0, 4)
    dead.belongs_to(CLUSTER)
    for each in (dead, other):
        journal_module._close(each._file, each._map)  # as the end of their processes does
    (tmp_path / "junk.journal").write_bytes(b"junk")
    (tmp_path / "link.journal").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / "pipe.journal")
    (tmp_path / "dead.new").write_bytes(b"half of a smaller one")
    assert adopt(tmp_path, WHO, CLUSTER, adopted.append) == 1
    assert [tally.handed_over_count for tally in adopted[0].counts.changed()] == [4]
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["junk.refused", "link.journal", "living.journal", "other.journal", "pipe.journal"]
    assert adopt(tmp_path, WHO, CLUSTER, adopted.append) == 0
    assert claim(living.path) is None
    living.delete()


def test_a_successor_finds_its_own_among_those_of_many_others(tmp_path: Path) -> None:
    """Killed containers, each with a name of its own, share the directory."""
    for number in range(succession.ADOPTED_MAX + 5):
        (tmp_path / f"{number:08x}.journal").write_bytes(b"")
    with pytest.MonkeyPatch.context() as patch:
        read = succession._read
        patch.setattr(
            succession, "_read", lambda path, file: read(path, file) if path.stem == "own" else None
        )
        own = open_journal(tmp_path, "own", WHO, 5)
        assert own is not None
        own.hand_over("t", 0, 0, 4)
        own.belongs_to(CLUSTER)
        journal_module._close(own._file, own._map)
        adopted: list[DeadJournal] = []
        assert adopt(tmp_path, WHO, CLUSTER, adopted.append) == 1


@pytest.mark.parametrize("cluster", [OTHER_CLUSTER, None])
def test_what_was_published_to_another_cluster_of_the_same_address_is_not_reported_to_this_one(
    tmp_path: Path, cluster: UUID | None, caplog: pytest.LogCaptureFixture
) -> None:
    dead = open_journal(tmp_path, "dead", WHO, 5)
    assert dead is not None
    dead.hand_over("t", 0, 0, 4)
    if cluster is not None:
        dead.belongs_to(cluster)
    journal_module._close(dead._file, dead._map)
    assert adopt(tmp_path, WHO, CLUSTER, lambda _: pytest.fail("reported")) == 0
    assert list(tmp_path.iterdir()) == []
    assert "handed 4 events" in caplog.text or "lost the 4 events" in caplog.text


def test_a_journal_that_nobody_succeeds_is_kept_for_a_while(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A container has a new server name at each start: its journals would fill the disk, and hide others."""
    for name, days in (("old", 31), ("young", 29)):
        dead = open_journal(tmp_path, name, {**WHO, "server": name}, 5)
        assert dead is not None
        dead.hand_over("t", 0, 0, 4)
        journal_module._close(dead._file, dead._map)
        then_s = time.time() - days * 86_400
        os.utime(dead.path, (then_s, then_s))
    assert adopt(tmp_path, WHO, CLUSTER, lambda _: pytest.fail("reported")) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["young.journal"]
    assert "succeeded its publisher, service 'checkout' on 'old', for 30 days" in caplog.text
    assert "the last 4 events" in caplog.text


def test_a_journal_s_age_begins_with_the_last_report_of_its_publisher_on_a_tmpfs_too() -> None:
    """There no write to a map changes a file's time. That of a publisher that had lived for 30 days was
    removed as soon as it was killed, as if nobody had succeeded it for so long; its spool, after 7.
    """
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        folder, began_s = Path(name), time.time() - succession.HEIRLESS_KEPT_S - 60
        dead = open_journal(folder, "a", {**WHO, "service": "search"}, 5)
        spool = open_spool(folder, "a", WHO)
        assert dead is not None and spool is not None
        for path in (dead.path, *spool.folder.iterdir(), spool.folder):
            os.utime(path, (began_s, began_s))
        dead.hand_over("t", 0, 0, 4)
        spool.hand_over("t", 0, None, b"v")
        dead.begin_report(7)
        journal_module._close(dead._file, dead._map)  # as the end of its process does
        assert prune(folder) == 0
        assert adopt(folder, WHO, CLUSTER, lambda _: None) == 0 and dead.path.exists()


def test_a_report_that_does_not_arrive_leaves_the_journal(tmp_path: Path) -> None:
    dead = open_journal(tmp_path, "dead", WHO, 5)
    assert dead is not None
    dead.belongs_to(CLUSTER)
    journal_module._close(dead._file, dead._map)

    def fails(_: DeadJournal) -> None:
        raise RuntimeError("no broker")

    with pytest.raises(RuntimeError):
        adopt(tmp_path, WHO, CLUSTER, fails)
    assert adopt(tmp_path, WHO, CLUSTER, lambda _: None) == 1


def test_without_a_folder_a_publisher_goes_on_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    assert open_journal(tmp_path / "file" / "x", "p", WHO, 5) is None
    assert "give another state_dir, or set HEADRACE_STATE_DIR" in caplog.text


def test_all_blocks_are_allocated(tmp_path: Path) -> None:
    """A write into a hole of a mapped file ends the process with SIGBUS if the disk is full."""
    journal = Journal(tmp_path / "a.journal", WHO, 5)
    assert journal.path.stat().st_blocks * 512 >= journal_module.FIRST_SIZE_BYTES
    journal.delete()


# --- a service that is killed ---


def test_what_a_killed_service_had_not_sent_is_lost_by_number_once_its_successor_starts(
    broker_cluster: StartCluster, start_registry: StartRegistry, start_auditor: StartAuditor, tmp_path: Path
) -> None:
    cluster = broker_cluster(datacenter="east")
    registry = start_registry(hosts=cluster.zookeeper.hosts)
    topic, store_url = "killed", f"sqlite:///{tmp_path}/audit.db"
    with Admin(cluster.bootstrap) as admin:
        admin.create_topic(topic, 1)
    auditor = start_auditor(cluster, registry.url, "--store", store_url)
    ends = {"bootstrap": cluster.bootstrap, "registry": registry.url}
    publish_until_killed(**ends, topic=topic, time_ms=HOUR_A, state=tmp_path / "state")
    store = AuditStore(store_url, must_exist=True)

    def verdict() -> Verdict | None:
        found = report(store, topic, now_ms=NOW_MS + 10**12).verdicts
        return found[0] if found else None

    try:
        wait_for(lambda: (found := verdict()) is not None and found.counts.datacenter == 30, auditor.output)
        found = verdict()
        assert found is not None and found.status is Status.UNKNOWN, found
        with EventPublisher(
            datacenter="east",
            service="checkout",
            server="co1",
            bootstrap=cluster.bootstrap,
            registry_url=registry.url,
            state_dir=tmp_path / "state",
        ):
            wait_for(lambda: not list((tmp_path / "state" / "publishers").glob("[!.]*.journal"))[1:])
        wait_for(lambda: (found := verdict()) is not None and found.status is Status.LOST, verdict)
        found = verdict()
        assert found is not None and found.count(Status.LOST) == 11
        assert (found.counts.producer, found.counts.datacenter) == (41, 30)
        assert all(finding.service == "checkout" for finding in found.findings)
    finally:
        store.close()


@pytest.mark.parametrize("count", [NUMBER_MAX, 3 * NUMBER_MAX + 5, 2**40, -(2**40)])
def test_more_events_in_a_row_than_a_word_holds_are_counted_in_several_records(
    tmp_path: Path, count: int
) -> None:
    made = Journal(tmp_path / "a.journal", {"publisher": "p", "bucket_ms": BUCKET_MS}, 5)
    for each in (1, count, 1, NUMBER_MAX, 1):
        made.hand_over("t", 7, 0, each)
    found = replay(made.path, made.path.read_bytes())
    assert sum(each.handed_over_count for each in found.counts.states()) == count + NUMBER_MAX + 3
    made.delete()
