"""When batches become durable: whatever arrives while a flush waits, runs, ends or fails.

The flush jobs are the real ones on real files; the test decides what happens while a job waits or syncs.
"""

from __future__ import annotations

import errno
import os
import random
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.broker.loop import Timer
from headrace.broker.partition import Partition
from headrace.broker.partitions import Partitions
from headrace.broker.settings.config import BrokerConfig
from headrace.log.flush import GATHER_MAX_S, GATHER_PAUSE_MAX, Flushed, Gathering
from headrace.log.index import IndexJob
from headrace.log.partition import PartitionLog
from headrace.log.segments import UNFLUSHED_SEALED_MAX
from headrace.wire.batch import read_header
from headrace.wire.errors import ErrorCode
from headrace.wire.records import Record, encode_batch


class Waiter:
    """An acks=all producer's request; it checks that its bytes are durable when it is answered."""

    timeout_ms = 30_000
    durable = True

    def __init__(self, site: Site, end_address: int) -> None:
        self._site = site
        self.end_address = end_address
        self.codes: list[ErrorCode] = []

    def appended(self, code: ErrorCode, message: str | None) -> None:
        self.codes.append(code)
        if code is ErrorCode.NONE:
            assert self.end_address <= self._site.synced_address


class Site:
    """One partition with a worker that runs when told; `during` is called while a job waits or syncs."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch, segment_bytes: int) -> None:
        config = BrokerConfig({"log.segment.bytes": str(segment_bytes)}).topic_config({})
        self.log = PartitionLog(directory / "t-0", config.log)
        self.jobs: list[tuple[Callable[[], Any], Callable[[Any, Exception | None], None]]] = []
        self.waiters: list[Waiter] = []
        self.synced_address = 0  # what the disk holds: written before an fsync of its file began
        self.waits_s: list[float] = []
        self.during: Callable[[str], None] = lambda _: None
        self.partitions = Partitions(self, self._call_later, lambda: 0.0)  # type: ignore[arg-type]
        self.partition = Partition("t", 0, UUID(int=1), config, self.log, 0)
        self.partitions.add(self.partition)
        self._fdatasync, self._sleep, self._thread = os.fdatasync, time.sleep, threading.get_ident()
        monkeypatch.setattr(os, "fdatasync", self._sync)
        monkeypatch.setattr(time, "sleep", self._wait)

    def _call_later(self, _delay_ms: float, call: Callable[[], None]) -> Timer:
        return Timer(call)

    def submit(self, job: Callable[[], Any], done: Callable[[Any, Exception | None], None]) -> None:
        if isinstance(getattr(job, "__self__", None), IndexJob):
            done(job(), None)  # it changes no state of the log
        else:
            self.jobs.append((job, done))

    def produce(self, size_bytes: int = 10) -> None:
        if self.partition.failure:
            return  # `produce.staging` refuses it
        raw = bytearray(encode_batch([Record(0, 1_000, None, b"x" * size_bytes)]))
        self.log.stage(raw, read_header(raw))
        waiter = Waiter(self, self.log.staged_end_address)
        self.waiters.append(waiter)
        self.partitions.staged(self.partition, waiter, 1)
        self.partitions.commit()

    def run_job(self) -> None:
        job, done = self.jobs.pop(0)
        try:
            result, error = job(), None
        except OSError as caught:
            result, error = None, caught
        done(result, error)

    def _wait(self, wait_s: float) -> None:
        if threading.get_ident() != self._thread:
            self._sleep(wait_s)  # a thread that another test has left, such as py4j's
            return
        self.waits_s.append(wait_s)
        self.during("wait")

    def _sync(self, fd: int) -> None:
        path = Path(f"/proc/self/fd/{fd}").readlink()
        held = int(path.stem) + path.stat().st_size
        self._fdatasync(fd)
        self.during("sync")
        self.synced_address = max(self.synced_address, held)


ACTIONS = st.lists(st.sampled_from(("produce", "produce large", "run", "fail")), min_size=1, max_size=40)


@settings(max_examples=120, deadline=None)
@given(actions=ACTIONS, seed=st.integers(0, 2**16))
def test_nothing_is_acknowledged_before_it_is_durable(actions: list[str], seed: int) -> None:
    chance = random.Random(seed)
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        site = Site(Path(folder), patch, segment_bytes=2_000)
        fails = False

        def during(stage: str) -> None:
            for _ in range(chance.randrange(3)):
                site.produce(chance.choice((10, 700)))
            if stage == "sync" and fails:
                raise OSError(errno.EIO, "Input/output error")

        site.during = during
        for action in actions:
            if action.startswith("produce"):
                site.produce(900 if action.endswith("large") else 10)
            elif site.jobs:
                fails = action == "fail"
                site.run_job()
            assert site.log.flushed_address <= site.log.end_address
            assert len(site.jobs) <= 1, "one flush is in flight"
        site.during = lambda _: None
        while site.jobs:
            site.run_job()
        assert [len(waiter.codes) for waiter in site.waiters] == [1] * len(site.waiters)
        codes = [waiter.codes[0] for waiter in site.waiters]
        if site.log.offline is None:
            assert set(codes) <= {ErrorCode.NONE}
            assert site.log.flushed_address == site.log.end_address
        else:
            accepted = codes.count(ErrorCode.NONE)
            assert set(codes[accepted:]) <= {ErrorCode.KAFKA_STORAGE_ERROR}, "none after the failed one"
        site.log.abandon()


def test_one_fsync_covers_what_arrives_while_it_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(tmp_path, monkeypatch, segment_bytes=1 << 20)
    site.produce()
    assert site.waits_s == []
    site.during = lambda _: site.produce()
    site.run_job()  # a second producer's batch arrives during the fsync
    assert [len(waiter.codes) for waiter in site.waiters] == [1, 0]
    site.partition.gathering.note(0.0, Flushed(0, sync_s=0.0002))
    site.during = lambda stage: site.produce() if stage == "wait" else None
    site.run_job()
    site.run_job() if site.jobs else None
    assert all(waiter.codes == [ErrorCode.NONE] for waiter in site.waiters)
    site.log.close()


def test_a_synchronous_producer_never_waits_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(tmp_path, monkeypatch, segment_bytes=1 << 20)
    for _ in range(50):
        site.produce()
        site.run_job()
    assert site.waits_s == []
    assert all(waiter.codes == [ErrorCode.NONE] for waiter in site.waiters)
    site.log.close()


def test_a_flush_that_may_wait_for_an_hour_does_not_wait_for_more_than_so_many_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each segment stays open until it is flushed: a topic with small ones would take all descriptors."""
    site = Site(tmp_path, monkeypatch, segment_bytes=1_024)
    site.log.config = replace(site.log.config, flush_ms=3_600_000)
    for _ in range(UNFLUSHED_SEALED_MAX):
        site.produce(1_000)
    assert not site.jobs
    site.produce(1_000)
    site.run_job()
    assert site.log.flushed_address == site.log.end_address
    site.log.close()


def test_waits_stop_once_they_bring_nothing() -> None:
    gathering = Gathering()
    gathering.note(0.0, Flushed(1, sync_s=0.0002))
    assert gathering.wait_s(follows=False) == 0
    assert gathering.wait_s(follows=True) == 0.0002, "as long as the last fsync"
    gathering.note(0.0002, Flushed(2, gathered=True, sync_s=10.0))
    assert gathering.wait_s(follows=False) == GATHER_MAX_S, "waits pay: every flush waits, but never long"
    waits = 0
    for _ in range(1_000):
        wait_s = gathering.wait_s(follows=True)
        waits += wait_s > 0
        gathering.note(wait_s, Flushed(3, gathered=False, sync_s=0.0002))
        assert gathering.wait_s(follows=False) == 0
    assert waits <= 8 + 1_000 // GATHER_PAUSE_MAX
