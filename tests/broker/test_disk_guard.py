"""A disk that runs full: the broker refuses appends below its reserve, says so once, and goes on later."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fix_broker import RawClient, StartCluster
from headrace.broker.disk_guard import RESUME_FACTOR, SETTING, DiskGuard
from headrace.broker.settings.config import BROKER_SETTINGS, BrokerConfig
from headrace.broker.workers import Outcome
from headrace.process.disk import DiskSpace, explained, space_of
from headrace.wire.errors import ErrorCode
from headrace.wire.records import Record, encode_batch

BLOCK_BYTES = 4096
BLOCKS = 100_000
RESERVE_BYTES = 10_000 * BLOCK_BYTES
WAIT_MAX_S = 60.0


def filesystem(free_blocks: int, blocks: int = BLOCKS) -> os.statvfs_result:
    free = free_blocks
    return os.statvfs_result((BLOCK_BYTES, BLOCK_BYTES, blocks, free, free, 1, 1, 1, 0, 255))


class Disk:
    """A guard whose disk has as many free blocks as the test says."""

    def __init__(self, folder: Path, reserve_bytes: int = RESERVE_BYTES) -> None:
        self.free_blocks = BLOCKS
        self.error: OSError | None = None
        self.refusals: list[str | None] = []
        self.jobs: list[tuple[Callable[[], Any], Outcome]] = []
        self.guard = DiskGuard(folder, reserve_bytes, self, self.refusals.append, cast(Any, self._statvfs))

    def _statvfs(self, path: Path) -> os.statvfs_result:
        if self.error is not None:
            raise self.error
        return filesystem(self.free_blocks)

    def submit(self, job: Callable[[], Any], done: Outcome) -> None:
        self.jobs.append((job, done))

    def check(self, free_blocks: int) -> None:
        self.free_blocks = free_blocks
        self.guard.check()
        while self.jobs:
            job, done = self.jobs.pop()
            try:
                result, error = job(), None
            except OSError as caught:
                result, error = None, caught
            done(result, error)


def test_below_the_reserve_appends_are_refused_until_there_is_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = Disk(tmp_path)
    disk.check(10_000)
    assert disk.refusals == []
    for free in (9_999, 9_000, 10_000, int(10_000 * RESUME_FACTOR) - 1):
        disk.check(free)
    (reason,) = disk.refusals
    assert str(tmp_path) in (reason or "") and SETTING in (reason or "") and "40,955,904" in (reason or "")
    assert sum("appends are refused:" in line for line in caplog.messages) == 1, "the log says so once"
    assert disk.guard.status()["refuses_appends"]
    disk.check(int(10_000 * RESUME_FACTOR) + 1)
    assert disk.refusals == [reason, None]
    disk.check(1)
    assert len(disk.refusals) == 3


@given(st.lists(st.integers(0, BLOCKS), max_size=30))
def test_refusing_always_agrees_with_the_last_measures(measures: list[int]) -> None:
    disk = Disk(Path("/"))
    for free in measures:
        disk.check(free)
        refuses = bool(disk.refusals) and disk.refusals[-1] is not None
        if free * BLOCK_BYTES < RESERVE_BYTES:
            assert refuses
        if free * BLOCK_BYTES >= RESERVE_BYTES * RESUME_FACTOR:
            assert not refuses
    assert all(a is None or b is None for a, b in zip(disk.refusals, disk.refusals[1:], strict=False))


def test_without_a_reserve_nothing_is_refused(tmp_path: Path) -> None:
    disk = Disk(tmp_path, reserve_bytes=0)
    disk.check(0)
    assert disk.refusals == []


def test_a_disk_that_is_85_percent_full_is_warned_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = Disk(tmp_path, reserve_bytes=1)
    for free_percent in (16, 15, 16, 14, 16):
        disk.check(BLOCKS * free_percent // 100)
    assert sum("(85% used)" in line and str(tmp_path) in line for line in caplog.messages) == 1
    disk.check(BLOCKS // 2)
    disk.check(BLOCKS // 10)
    assert sum("% used)" in line for line in caplog.messages) == 2


def test_a_disk_that_cannot_be_measured_refuses_nothing_and_a_hung_one_gets_no_second_job(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = Disk(tmp_path)
    disk.error = OSError(5, "Input/output error")
    disk.check(0)
    disk.check(0)
    assert disk.refusals == []
    assert sum("is not known" in line for line in caplog.messages) == 1
    disk.guard.check()
    disk.guard.check()
    assert len(disk.jobs) == 1


# --- errors of a full disk ---


def test_the_error_of_a_full_disk_names_path_and_free_bytes(tmp_path: Path) -> None:
    path = tmp_path / "not" / "there" / "file"
    text = explained(OSError(28, "No space left on device"), path)
    assert text.startswith(f"{path}: No space left on device: ")
    assert "bytes are free on the disk of" in text and "Free space there" in text
    assert explained(OSError(13, "Permission denied", str(path))) == f"{path}: Permission denied"
    assert explained(OSError(122, "Disk quota exceeded")) == "Disk quota exceeded"


def test_space_is_what_df_shows(tmp_path: Path) -> None:
    space = space_of(tmp_path, cast(Any, lambda path: filesystem(25_000)))
    assert space == DiskSpace(tmp_path, 25_000 * BLOCK_BYTES, BLOCKS * BLOCK_BYTES)
    assert space.used_share == 0.75
    assert not space.is_nearly_full


def test_the_reserve_has_a_default_and_can_be_switched_off() -> None:
    assert int(BROKER_SETTINGS[SETTING].default) == 256 << 20
    assert BrokerConfig({SETTING: "0"})[SETTING] == 0


# --- a real broker ---

SMALL_DISK = '''
"""The free space of every disk is what the file $FREE says, in bytes."""
import os

real = os.statvfs
def statvfs(path):
    found = real(path)
    with open(os.environ["FREE"]) as file:
        free = int(file.read()) // found.f_frsize
    return os.statvfs_result((found.f_bsize, found.f_frsize, 10 * free + 1000, free, free, 1, 1, 1, 0, 255))
os.statvfs = statvfs
'''


def produced(client: RawClient) -> tuple[int, str]:
    result = client.produce("t", 0, encode_batch([Record(0, 1_000, None, b"v")]))
    return result.error_code, result.error_message or ""


def test_a_broker_refuses_and_accepts_again(broker_cluster: StartCluster, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(SMALL_DISK)
    free = tmp_path / "free"
    free.write_text("2000000")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {"PYTHONPATH": path, "FREE": str(free)}
    broker = broker_cluster(config={SETTING: "1000000"}, environment=environment)[1]

    def eventually(client: RawClient, code: int) -> str:
        deadline = time.monotonic() + WAIT_MAX_S
        while (result := produced(client))[0] != code:
            assert time.monotonic() < deadline, (result, broker.output()[-3000:])
            time.sleep(0.1)
        return result[1]

    with RawClient(broker.address) as client:
        client.create_topic("t")
        # Twice: the second one leaves the fast path's template.
        assert [produced(client)[0] for _ in range(3)] == [0, 0, 0]
        free.write_text("900000")
        message = eventually(client, ErrorCode.KAFKA_STORAGE_ERROR)
        assert SETTING in message and str(broker.data_dir) in message
        stored = client.read_all("t", 0)
        assert stored, "reads go on"
        free.write_text("2000000")
        eventually(client, 0)
        assert len(client.read_all("t", 0)) > len(stored)
    assert broker.output().count("appends are refused:") == 1
    assert broker.output().count("appends are accepted again") == 1
