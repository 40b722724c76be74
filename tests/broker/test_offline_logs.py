"""Logs that are offline: known to every handler, tried again once they were mended, and then served."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import pytest

from fix_agent import eventually
from fix_replica_manager import CountingWorkers, ReplicaManagerBench, led_elsewhere, topic
from headrace.broker.cluster import OfflineName
from headrace.broker.errors import Refused
from headrace.broker.replicas.offline import FULL_LOOKS_MAX, RETRY_LOOKS_MAX, OfflineLog, Tried, fingerprint
from headrace.broker.replicas.offline_news import ANNOUNCED_MAX, OfflineNews
from headrace.coordination.errors import ZooKeeperUnavailableError
from headrace.coordination.offline_logs import parse
from headrace.log.errors import LogBusyError, LogDamagedError
from headrace.log.partition import PartitionLog
from headrace.wire.errors import ErrorCode
from headrace.wire.records import Record, encode_batch

BATCH = encode_batch([Record(0, 1_000, None, b"v")])


def look(bench: ReplicaManagerBench, times: int = 1) -> None:
    for _ in range(times):
        bench.manager.look_after_offline()
        bench.workers.run()


def damaged(bench: ReplicaManagerBench, name: str = "t") -> tuple[Path, bytes]:
    """Makes a topic of two partitions, one of them damaged; returns the file, and what it should hold."""
    made = topic(name, 2)
    bench.apply(made)
    bench.workers.run()
    log = log_of(bench, name)
    for _ in range(5):
        log.append(BATCH)
    log.flush()
    bench.apply(led_elsewhere(made))
    (file,) = (bench.directory.path / f"{name}-0").glob("*.log")
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    bench.apply(made)
    bench.workers.run()
    assert bench.open == {f"{name}-1"}
    return file, whole


def log_of(bench: ReplicaManagerBench, name: str) -> PartitionLog:
    partition = bench.state.partitions.get(name, 0)
    assert partition is not None
    return partition.log


def problem_of(bench: ReplicaManagerBench, name: str = "t") -> tuple[ErrorCode, str]:
    with pytest.raises(Refused) as refused:
        bench.state.led_partition(name, 0)
    return refused.value.code, str(refused.value)


def test_a_damaged_log_is_opened_again_once_its_file_was_restored(bench: ReplicaManagerBench) -> None:
    file, whole = damaged(bench)
    version = bench.state.view.version
    code, problem = problem_of(bench)
    assert code is ErrorCode.KAFKA_STORAGE_ERROR
    assert str(file) in problem and "set-aside" in problem
    assert bench.state.own_offline() == {(1, "t", 0)}
    assert bench.state.offline_report()["count"] == 1
    look(bench, 2 * RETRY_LOOKS_MAX)
    assert bench.state.view.version == version, "it was not tried: nothing had changed"
    os.utime(file)  # as `cp -p` of the damaged file: still damaged
    look(bench, 3)
    assert bench.open == {"t-1"}
    file.write_bytes(whole)
    look(bench)
    assert bench.open == {"t-1"}, "the file may still grow"
    look(bench, 2)
    assert bench.open == {"t-0", "t-1"}
    assert log_of(bench, "t").end_address == len(whole)
    assert bench.state.view.version > version, "answers of Metadata that were kept are no longer given"
    assert not bench.state.own_offline() and not bench.state.unopened
    assert bench.state.led_partition("t", 0).log.append(BATCH).base_address == len(whole)


def test_a_file_that_somebody_still_writes_is_left_alone(bench: ReplicaManagerBench) -> None:
    file, whole = damaged(bench)
    with file.open("r+b") as half:
        half.write(whole[:20])
        half.flush()
        look(bench, 5)
        assert bench.open == {"t-1"}
        assert "still writes" in problem_of(bench)[1] or "was durable" in problem_of(bench)[1]
        half.seek(0)
        half.write(whole)
    look(bench, 4)
    assert bench.open == {"t-0", "t-1"}
    assert log_of(bench, "t").end_address == len(whole)


def test_a_log_that_fails_while_it_is_open_is_opened_again_by_itself(bench: ReplicaManagerBench) -> None:
    bench.apply(topic("t", 1))
    bench.workers.run()
    partition = bench.state.partitions.get("t", 0)
    assert partition is not None
    partition.log.append(BATCH)
    partition.log.flush()
    version = bench.state.view.version
    partition.log.take_offline("fsync failed: a test")
    bench.state.partitions.complete_writes(partition)
    assert bench.state.view.version > version and bench.state.own_offline() == {(1, "t", 0)}
    assert problem_of(bench)[0] is ErrorCode.KAFKA_STORAGE_ERROR
    partition.flushing = True  # an fsync of the old files still runs
    look(bench, 5)
    assert bench.state.partitions.get("t", 0) is partition
    partition.flushing = False
    look(bench)
    assert not bench.open
    assert "fsync failed: a test" in problem_of(bench)[1]
    look(bench, 3)
    again = bench.state.partitions.get("t", 0)
    assert again is not None and again is not partition and not again.failure
    assert again.log.end_address == len(BATCH)
    assert not partition.is_plain, "who kept the old one notices"


def test_a_topic_that_is_deleted_while_its_log_is_offline_leaves_nothing(bench: ReplicaManagerBench) -> None:
    file, _ = damaged(bench)
    bench.apply()
    bench.workers.run()
    assert not bench.state.unopened and not file.parent.exists()
    look(bench, 5)
    assert not bench.open


def test_a_topic_that_is_deleted_while_its_log_is_opened_again_leaves_nothing(
    bench: ReplicaManagerBench,
) -> None:
    file, _ = damaged(bench)
    os.utime(file)
    look(bench)
    bench.manager.look_after_offline()
    job, done = bench.workers.jobs.pop(0)
    done(job(), None)
    assert len(bench.workers.jobs) == 1, "it is being opened"
    bench.apply()
    bench.workers.run()
    assert not bench.state.unopened and not file.parent.exists()


def test_logs_that_zookeeper_loses_while_they_are_opened_are_kept(bench: ReplicaManagerBench) -> None:
    """It was deleted: nobody had said whether the topic is gone or ZooKeeper's data are."""
    one = topic("t", 1)
    bench.apply(one)
    bench.workers.run()
    log_of(bench, "t").append(BATCH)
    bench.apply(led_elsewhere(one))
    bench.apply(one)
    bench.apply(may_delete=False)
    bench.workers.run()
    assert [str(name) for name in bench.directory.partitions()] == ["t-0"]
    bench.apply(one)
    bench.workers.run()
    assert log_of(bench, "t").end_address == len(BATCH)


@pytest.mark.parametrize("full", ["mkdir", "open", "write", "fsync", "replace"])
@pytest.mark.parametrize("passing", range(4))
def test_a_topic_that_was_created_on_a_full_disk_is_served_once_there_is_room(
    bench: ReplicaManagerBench, monkeypatch: pytest.MonkeyPatch, full: str, passing: int
) -> None:
    """`passing`: how many such calls still find room. Without its folder it stayed offline for good."""
    calls = 0

    def call(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        is_write = full != "open" or arguments[1] & os.O_CREAT
        if is_write and (calls := calls + 1) > passing:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*arguments, **named)

    real = getattr(os, full)
    with monkeypatch.context() as patch:
        patch.setattr(os, full, call)
        bench.apply(topic("t", 1))
        bench.workers.run()
        look(bench, 3 * RETRY_LOOKS_MAX)
    if bench.open:
        assert passing, "there was room for all of it"
        return
    # A process that something else is just starting has copies of all descriptors for a moment.
    assert re.search("No space left|somebody still writes", problem_of(bench)[1])

    def is_open() -> bool:
        look(bench, FULL_LOOKS_MAX + 1)
        return bench.open == {"t-0"}

    eventually(is_open)
    assert bench.state.led_partition("t", 0).log.append(BATCH).base_address == 0


# --- the decision ---


def test_pauses_grow_while_a_disk_stays_broken_and_a_busy_log_is_tried_soon() -> None:
    same = frozenset({("a", 1, 1, 1)})
    log = OfflineLog(uuid4(), "", None)
    pauses = []
    for _ in range(9):
        looks = 1
        while not log.must_open(same):
            looks += 1
        pauses.append(looks)
        log.failed(Tried(None, OSError("a broken disk"), same), "broken")
    assert pauses[0] <= 2 and pauses[1:] == sorted(pauses[1:])
    assert pauses[-1] == pauses[-2] == RETRY_LOOKS_MAX
    log.failed(Tried(None, LogBusyError("set-aside"), same), "busy")
    assert log.must_open(same)
    log.failed(Tried(None, LogDamagedError("bad"), same), "bad")
    assert not any(log.must_open(same) for _ in range(2 * RETRY_LOOKS_MAX))


def test_a_fingerprint_sees_every_change_of_a_file_but_no_temporary_one(tmp_path: Path) -> None:
    file = tmp_path / "a.log"
    file.write_bytes(b"1")
    before = fingerprint(tmp_path)
    times = file.stat()
    file.write_bytes(b"2")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert fingerprint(tmp_path) != before
    before = fingerprint(tmp_path)
    assert fingerprint(tmp_path) == before
    assert fingerprint(tmp_path / "none") == frozenset()


def test_names_of_offline_logs_are_read_and_strange_ones_left_out() -> None:
    assert parse(["1-page-view-0", "12-a-3", "x-a-3", "1", "1-a", "1--3", ""]) == {
        (1, "page-view", 0),
        (12, "a", 3),
    }


# --- what other brokers hear ---


class Registry:
    """ZooKeeper's nodes; `problem` is raised instead of the next change."""

    def __init__(self) -> None:
        self.nodes: set[OfflineName] = set()
        self.creations = 0
        self.problem: Exception | None = None

    def announce(self, *name: Any) -> Any:
        self._fail()
        self.nodes.add(name)
        self.creations += 1

        def release() -> None:
            self._fail()
            self.nodes.discard(name)

        return SimpleNamespace(release=release)

    def forget(self, broker_id: int) -> None:
        self.nodes = {name for name in self.nodes if name[0] != broker_id}

    def _fail(self) -> None:
        if self.problem is not None:
            problem, self.problem = self.problem, None
            raise problem


def test_other_brokers_hear_of_each_change_once_zookeeper_answers() -> None:
    registry, jobs = Registry(), CountingWorkers()
    later: list[Callable[[], None]] = []
    present: set[OfflineName] = {(1, "t", 0), (1, "t", 1)}
    news = OfflineNews(
        cast(Any, registry), jobs, lambda _, call: later.append(call), lambda: frozenset(present)
    )
    news.changed()
    assert not jobs.jobs, "it is not registered yet"
    news.start()
    present.add((1, "u", 0))
    news.changed()
    assert len(jobs.jobs) == 1
    jobs.run()
    assert registry.nodes == present
    for change in (present.clear, lambda: present.add((1, "t", 5))):
        registry.problem = ZooKeeperUnavailableError("a test")
        change()
        news.changed()
        jobs.run()
        assert registry.nodes != present
        later.pop()()
        jobs.run()
        assert registry.nodes == present and not later
    registry.problem = ZooKeeperUnavailableError("a test")
    present.clear()  # it was mended, and fails again before its node is gone
    news.changed()
    jobs.run()
    present.add((1, "t", 5))
    later.pop()()
    jobs.run()
    assert registry.nodes == present and registry.creations == 5 and not later
    present |= {(1, "many", index) for index in range(2 * ANNOUNCED_MAX)}
    news.changed()
    jobs.run()
    assert len(registry.nodes) == ANNOUNCED_MAX and not jobs.jobs


@pytest.mark.parametrize("problem", [None, ZooKeeperUnavailableError("a test")])
def test_what_is_offline_is_known_before_a_broker_is_registered(problem: Exception | None) -> None:
    """Else a controller would elect a broker that returns, and cannot serve."""
    registry, jobs = Registry(), CountingWorkers()
    registry.nodes = {(1, "opened since", 0), (2, "of another broker", 0)}
    registry.problem = problem
    news = OfflineNews(cast(Any, registry), jobs, lambda *_: None, lambda: frozenset({(1, "t", 0)}))
    news.begin(1)
    told = set() if problem else {(1, "t", 0)}
    assert registry.nodes == {(2, "of another broker", 0)} | told
    news.start()
    jobs.run()
    assert registry.nodes == {(2, "of another broker", 0), (1, "t", 0)}
