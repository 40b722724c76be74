"""A disk without a free byte ends no ZooKeeper, and one that ended starts again: topics can be deleted."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from fix_zookeeper import ZooKeeperServer
from headrace.agent.zookeeper_room import AHEAD_BYTES, RESERVE_BYTES, keep_room
from headrace.coordination.session import ZooKeeperSession
from headrace.process.disk import space_of

DISK_BYTES: Final = 64 << 20
CHANGES: Final = 300
VALUE: Final = b"x" * 4_000
"""1.2 MB in all: more than the room that ZooKeeper has by chance."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own; only root can mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "headrace-test", str(folder)]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a file system needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def server(disk: Path) -> Iterator[ZooKeeperServer]:
    made = ZooKeeperServer(disk / "east-zookeeper")
    made.settings = "preAllocSize=1024\n"  # as agent.kinds has it
    made.start()
    try:
        change(made, 3)
        yield made
    finally:
        made.kill()


def change(server: ZooKeeperServer, count: int) -> None:
    with ZooKeeperSession(server.address, call_timeout_s=20, name="test") as session:
        session.ensure_path("/n")
        for _ in range(count):
            session.set("/n", VALUE)


def fill_up(disk: Path) -> None:
    with (disk / "filler").open("ab", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError as error:
            assert error.errno == errno.ENOSPC
    assert space_of(disk).free_bytes == 0


def newest_log(server: ZooKeeperServer) -> Path:
    return max(
        (server.directory / "data" / "version-2").glob("log.*"), key=lambda path: int(path.suffix[1:], 16)
    )


def test_zookeeper_goes_on_without_a_free_byte(disk: Path, server: ZooKeeperServer) -> None:
    before = newest_log(server).read_bytes()
    keep_room(server.directory, is_running=True)
    assert newest_log(server).read_bytes() == before, "not a byte, and not the size, changed"
    assert newest_log(server).stat().st_blocks * 512 >= len(before) + AHEAD_BYTES
    fill_up(disk)
    change(server, CHANGES)


def test_one_that_ended_on_a_full_disk_gets_the_reserve(disk: Path, server: ZooKeeperServer) -> None:
    keep_room(server.directory, is_running=True)
    reserve = server.directory / "reserve"
    assert reserve.stat().st_size == RESERVE_BYTES
    fill_up(disk)
    keep_room(server.directory, is_running=True)
    assert reserve.exists(), "it runs: the reserve stays"
    server.kill()
    keep_room(server.directory, is_running=False)
    assert not reserve.exists()
    server.start()
    change(server, 20)
    keep_room(server.directory, is_running=True)
    assert not reserve.exists(), "what little is free is ZooKeeper's"
    (disk / "filler").unlink()
    keep_room(server.directory, is_running=True)
    assert reserve.stat().st_size == RESERVE_BYTES


def test_older_logs_keep_no_room(disk: Path, server: ZooKeeperServer) -> None:
    keep_room(server.directory, is_running=True)
    older = newest_log(server)
    content = older.read_bytes()
    server.restart()
    change(server, 3)
    assert newest_log(server) != older
    keep_room(server.directory, is_running=True)
    assert older.stat().st_blocks * 512 <= len(content) + (1 << 20)
    assert older.read_bytes() == content


def test_what_is_not_there_is_no_error(tmp_path: Path) -> None:
    keep_room(tmp_path / "nothing", is_running=True)
    keep_room(tmp_path / "nothing", is_running=False)
    assert not (tmp_path / "nothing").exists()
