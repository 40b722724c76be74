"""The replica manager: logs are opened in steps; a changed topic costs what it holds, not what all hold."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from fix_replica_manager import ME, ReplicaManagerBench, led_elsewhere, topic
from headrace.broker.loop import Timer
from headrace.broker.partitions import LAZY_FLUSH_MS
from headrace.broker.replicas.checkpoints import TURN_MS, Checkpoints
from headrace.broker.replicas.manager import OPENED_AT_ONCE_MAX
from headrace.broker.settings.config import BrokerConfig, TopicConfig
from headrace.broker.workers import THREADS
from headrace.coordination.topics import NO_LEADER, PartitionState
from headrace.log import checkpoint
from headrace.log.directory import PartitionName
from headrace.wire.batch import read_header
from headrace.wire.records import Record, encode_batch


def test_logs_are_opened_a_few_at_a_time_so_that_a_thread_is_left_for_fsync(
    bench: ReplicaManagerBench,
) -> None:
    bench.apply(topic("t", 40))
    idle: list[bool] = []
    bench.manager.when_idle(lambda: idle.append(True))
    assert len(bench.workers.jobs) == OPENED_AT_ONCE_MAX < THREADS
    bench.workers.run()
    assert bench.workers.most <= OPENED_AT_ONCE_MAX
    assert len(bench.open) == 40
    assert idle == [True]


def test_a_deleted_log_that_is_still_being_read_is_emptied_after_a_while(bench: ReplicaManagerBench) -> None:
    bench.apply(topic("read", 1), topic("idle", 1))
    bench.workers.run()
    found = []
    for name in ("read", "idle"):
        partition = bench.state.partitions.get(name, 0)
        assert partition is not None
        partition.log.append(encode_batch([Record(0, 1_000, None, b"v" * 10_000)]))
        partition.log.flush()
        if name == "read":
            found = partition.log.slices(0, 1 << 20)
    (piece,) = found
    bench.apply()
    bench.workers.run()
    assert not list(bench.directory.path.glob("*-0*")), "both folders are removed at once"
    assert len(piece.read()) == piece.length_bytes, "a client may take its response"
    (free,) = bench.timers
    free()
    bench.workers.run()
    assert piece.read() == b""
    assert piece.file.fd >= 0, "the connection closes it"


def test_a_folder_that_cannot_be_removed_is_named(
    bench: ReplicaManagerBench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench.apply(topic("t", 1))
    bench.workers.run()

    def refused(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("headrace.broker.replicas.removals.shutil.rmtree", refused)
    bench.apply()
    bench.workers.run()
    assert "its files are not all deleted" in caplog.text and "t-0.0.deleted by hand" in caplog.text


def test_one_thread_at_most_removes_what_was_deleted(bench: ReplicaManagerBench) -> None:
    """A topic of many large partitions would else take all threads, and the fsyncs of others wait for it."""
    bench.apply(topic("large", 20))
    bench.workers.run()
    bench.workers.most = 0
    bench.apply()
    bench.workers.run()
    assert bench.workers.most == 1 and not list(bench.directory.path.glob("large*"))


def test_a_disk_that_fails_while_a_topic_is_deleted_holds_up_no_other_topic(
    bench: ReplicaManagerBench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gone, other = topic("gone", 1), topic("other", 1)
    bench.apply(gone, other)
    bench.workers.run()

    def fails(_: Path) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("headrace.log.directory.sync_directory", fails)
    bench.apply(replace(other, partitions={0: PartitionState(2, 1, (2, ME), (2, ME))}))
    bench.workers.run()
    assert bench.open == set() and "gone-0: its files are not deleted: [Errno 5]" in caplog.text
    assert bench.followed.get(PartitionName("other", 0)) is not None


def test_a_disk_that_fails_while_a_log_is_closed_holds_up_no_other_partition(
    bench: ReplicaManagerBench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    left, other = topic("left", 2), topic("other", 1)
    bench.apply(left, other)
    bench.workers.run()
    bad = bench.state.partitions.get("left", 0)
    assert bad is not None
    bad.log.append(encode_batch([Record(0, 1_000, None, b"v")]))
    sync = os.fdatasync

    def fails(fd: int) -> None:
        if bad.log.directory in Path(f"/proc/self/fd/{fd}").readlink().parents:
            raise OSError(5, "Input/output error")
        sync(fd)

    monkeypatch.setattr(os, "fdatasync", fails)
    bench.apply(led_elsewhere(left), replace(other, partitions={0: PartitionState(2, 1, (2, ME), (2, ME))}))
    assert bench.followed.get(PartitionName("other", 0)) is not None, "the loop does not wait for the disk"
    bench.workers.run()
    assert bench.open == set() and "left-0: closing failed: " in caplog.text
    monkeypatch.undo()
    bench.apply(replace(left, partitions={0: PartitionState(ME, 5, (ME,), (ME,))}))
    bench.workers.run()
    assert bench.open == {"left-0"}, "its files are free again"


def test_a_topic_that_is_deleted_while_its_logs_wait_leaves_no_folder(bench: ReplicaManagerBench) -> None:
    kept = topic("kept", 1)
    bench.apply(topic("t", 10), kept)
    bench.apply(kept)
    bench.workers.run()
    assert bench.open == {"kept-0"}
    assert [str(name) for name in bench.directory.partitions()] == ["kept-0"]


def test_a_change_looks_at_the_changed_topic_alone(
    bench: ReplicaManagerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [topic(f"other-{number}", 3) for number in range(50)]
    one = topic("one", 3)
    bench.apply(one, *others)
    bench.workers.run()
    parsed: list[Mapping[str, str]] = []
    parse = BrokerConfig.topic_config

    def counted(config: BrokerConfig, overrides: Mapping[str, str]) -> TopicConfig:
        parsed.append(overrides)
        return parse(config, overrides)

    monkeypatch.setattr(BrokerConfig, "topic_config", counted)
    bench.apply(topic("one", 4, topic_id=one.topic_id, epoch=7, retention_ms="5000"), *others)
    bench.workers.run()
    assert len(parsed) == 1
    changed = [bench.state.partitions.get("one", index) for index in range(4)]
    assert [each and (each.config.log.retention_ms, each.leader_epoch) for each in changed] == [(5000, 7)] * 4
    untouched = bench.state.partitions.get("other-0", 0)
    assert untouched is not None and untouched.leader_epoch == 0


def test_flush_settings_that_are_changed_hold_for_what_waits_already(
    bench: ReplicaManagerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    timers: list[tuple[float, Timer]] = []

    def later(delay_ms: float, call: Callable[[], None]) -> Timer:
        timers.append((delay_ms, Timer(call)))
        return timers[-1][1]

    monkeypatch.setattr(bench.state.partitions, "_call_later", later)
    monkeypatch.setattr(bench.state.partitions, "_monotonic_ms", lambda: 0.0)
    one = topic("one", 1, flush_ms="3600000")
    bench.apply(one)
    bench.workers.run()
    partition = bench.state.partitions.get("one", 0)
    assert partition is not None
    raw = bytearray(encode_batch([Record(0, 1_000, None, b"v")]))
    partition.log.stage(raw, read_header(raw))
    bench.state.partitions.staged(partition, None, 1)
    bench.state.partitions.commit()
    bench.apply(replace(one, config={"flush.ms": "1000"}))
    assert [(delay_ms, timer.call is None) for delay_ms, timer in timers] == [(3.6e6, True), (1e3, False)]
    bench.apply(replace(one, config={}))
    assert timers[1][1].call is None and timers[2][0] == LAZY_FLUSH_MS


def test_a_setting_that_is_not_known_here_takes_no_other_with_it(bench: ReplicaManagerBench) -> None:
    """A later version may have stored it. The default retention would delete what is kept for ever."""
    bench.apply(topic("t", 1, retention_ms="-1", headrace_mirror="true", not_known_yet="1"))
    bench.workers.run()
    partition = bench.state.partitions.get("t", 0)
    assert partition is not None
    assert partition.config.log.retention_ms == -1 and partition.config.mirror


def test_topics_come_go_move_and_are_recreated(bench: ReplicaManagerBench) -> None:
    one, other = topic("one", 2), topic("other", 1)
    bench.apply(one, other)
    bench.workers.run()
    assert bench.open == {"one-0", "one-1", "other-0"}
    before = bench.state.partitions.get("one", 0)
    bench.apply(topic("one", 1), other)
    bench.workers.run()
    assert bench.open == {"one-0", "other-0"}
    assert bench.state.partitions.get("one", 0) is not before
    bench.apply(topic("other", 1, topic_id=other.topic_id, leader=2))
    bench.workers.run()
    assert bench.open == set()
    assert [str(name) for name in bench.directory.partitions()] == [], "its new replicas have all of it"
    bench.apply(topic("other", 1, topic_id=other.topic_id, epoch=1))
    bench.workers.run()
    assert bench.open == {"other-0"}


def test_a_partition_that_left_this_broker_is_kept_unless_all_new_replicas_are_in_sync(
    bench: ReplicaManagerBench,
) -> None:
    one = topic("one", 4, epoch=3)
    bench.apply(one)
    bench.workers.run()
    after = {
        0: PartitionState(2, 4, (2, 3), (2, 3)),
        1: PartitionState(2, 4, (2, 3), (2,)),
        2: PartitionState(NO_LEADER, 4, (2,), ()),
        3: PartitionState(2, 2, (2,), (2,)),
    }
    bench.apply(replace(one, partitions=after))
    bench.workers.run()
    assert bench.open == set()
    kept = [str(name) for name in bench.directory.partitions()]
    assert kept == ["one-1", "one-2", "one-3"], "one is not in sync, nobody leads, an older epoch"


def test_a_partition_that_comes_back_while_its_files_are_to_go_keeps_them(bench: ReplicaManagerBench) -> None:
    one = topic("one", 1)
    bench.apply(one)
    bench.apply(replace(one, partitions={0: PartitionState(2, 1, (2,), (2,))}))
    bench.apply(replace(one, partitions={0: PartitionState(ME, 2, (ME, 2), (ME, 2))}))
    bench.workers.run()
    assert bench.open == {"one-0"}
    assert [str(name) for name in bench.directory.partitions()] == ["one-0"]


def test_topics_that_zookeeper_lost_are_closed_and_opened_again_when_they_are_back(
    bench: ReplicaManagerBench,
) -> None:
    one = topic("one", 2)
    bench.apply(one)
    bench.workers.run()
    bench.apply(may_delete=False)
    bench.workers.run()
    assert bench.open == set()
    bench.apply(one)
    bench.workers.run()
    assert bench.open == {"one-0", "one-1"}


def run_the_last_first(bench: ReplicaManagerBench) -> None:
    """Threads take jobs in order; how long each one needs is chance."""
    while bench.workers.jobs:
        job, done = bench.workers.jobs.pop()
        try:
            result, error = job(), None
        except Exception as caught:
            result, error = None, caught
        done(result, error)


def test_a_topic_made_again_is_opened_once_its_predecessor_is(bench: ReplicaManagerBench) -> None:
    """Else the late opening of the deleted one moves the new one's folder aside: after a restart it is
    empty."""
    bench.apply(topic("t", 1))
    again = topic("t", 1)
    bench.apply(again)
    run_the_last_first(bench)
    assert bench.open == {"t-0"}
    (folder,) = bench.directory.path.glob("t-0*")
    assert folder.name == "t-0" and str(again.topic_id) in (folder / "partition.json").read_text()


@pytest.mark.parametrize("leader", [ME, 9])
def test_a_flush_of_a_deleted_topic_changes_nothing_of_the_one_made_again(
    bench: ReplicaManagerBench, leader: int
) -> None:
    """Its thread saves a checkpoint by path: the new log would be cut, or offline, at the next start."""
    replicas = {0: PartitionState(leader, 1, (ME, 9), (ME, 9))}
    old, again = (replace(topic("t", 1), partitions=replicas) for _ in range(2))
    bench.apply(old)
    bench.workers.run()
    found = bench.state.partitions.get("t", 0) or bench.followed.get(PartitionName("t", 0))
    assert found is not None
    found.log.append(encode_batch([Record(0, 1_000, None, b"v" * 10_000)]))
    Checkpoints(bench.state.partitions, bench.followed, TURN_MS).take_turn()
    assert len(bench.workers.jobs) == 1 and found.flushing
    bench.apply(again)
    run_the_last_first(bench)
    (folder,) = bench.directory.path.glob("t-0*")
    saved = checkpoint.load(folder)
    assert saved is not None and saved.recovery_point == 0


def test_checkpoints_of_many_logs_do_not_all_come_before_a_fsync(bench: ReplicaManagerBench) -> None:
    follows = {index: PartitionState(9, 1, (ME, 9), (ME, 9)) for index in range(7)}
    bench.apply(topic("led", 23), replace(topic("followed", 7), partitions=follows))
    bench.workers.run()
    logs = [each.log for each in bench.state.partitions] + [each.log for each in bench.followed]
    for log in logs:
        log.append(encode_batch([Record(0, 1_000, None, b"v")]))
    bench.workers.most = 0
    checkpoints = Checkpoints(bench.state.partitions, bench.followed, 10 * TURN_MS)
    assert checkpoints.turn_ms == TURN_MS

    def saved() -> int:
        found = [checkpoint.load(log.directory) for log in logs]
        return sum(each is not None and each.recovery_point > 0 for each in found)

    for turn in range(1, 11):
        checkpoints.take_turn()
        bench.workers.run()
        assert saved() == 3 * turn
    assert bench.workers.most == 3
    gone = bench.state.partitions.get("led", 22)
    assert gone is not None
    gone.log.append(encode_batch([Record(0, 1_000, None, b"v")]))
    checkpoints.take_turn()
    bench.state.partitions.remove(gone)
    for _ in range(9):
        checkpoints.take_turn()
    assert not bench.workers.jobs and not gone.flushing
