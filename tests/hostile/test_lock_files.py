"""The lock files of a broker's data directory: another user keeps its broker out of nothing."""

from __future__ import annotations

import fcntl
import os
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from headrace.log import identity
from headrace.log.claims import CLAIMS_FILE, Claims
from headrace.log.config import LogConfig
from headrace.log.directory import LOCK_FILE, LogDirectory, PartitionName
from headrace.log.errors import LogBusyError
from headrace.log.names import IDENTITY

NAME = PartitionName("t", 0)
STRANGER_ID = 65_534
WHOLE_FILE = struct.pack("hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)  # see `headrace.log.claims`


def held_by_a_stranger(folder: Path) -> list[str]:
    """What another user gets of the locks that a reader of a file may take: shared ones, of each byte."""
    said = []
    for name in (LOCK_FILE, CLAIMS_FILE):
        try:
            fd = os.open(folder / name, os.O_RDONLY)
            fcntl.flock(fd, fcntl.LOCK_SH)
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, WHOLE_FILE)
            said.append("held")
        except OSError as error:
            said.append(type(error).__name__)
    return said


@contextmanager
def stranger(folder: Path) -> Iterator[list[str]]:
    """A process of another user, which holds what it gets until the end. It is forked: that user may not be
    able to start our Python.
    """
    (answer, said), (go_on, end) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(end)
        os.setgroups([])
        os.setgid(STRANGER_ID)
        os.setuid(STRANGER_ID)
        os.write(said, " ".join(held_by_a_stranger(folder)).encode() or b"-")
        os.read(go_on, 1)
        os._exit(0)
    try:
        yield os.read(answer, 1_000).decode().split()
    finally:
        for fd in (answer, said, go_on, end):
            os.close(fd)
        os.waitpid(child, 0)


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """A folder that everybody may enter and read, as some hosts have them; made by a broker before."""
    old = os.umask(0o022)
    try:
        with tempfile.TemporaryDirectory() as root:
            Path(root).chmod(0o755)
            folder = Path(root) / "data"
            with LogDirectory(folder) as directory:
                directory.claim(1)
                directory.open(NAME, uuid4(), LogConfig()).close()
            yield folder
    finally:
        os.umask(old)


@pytest.mark.skipif(os.geteuid() != 0, reason="to be another user needs root")
def test_another_user_of_the_host_keeps_no_log_closed(data_dir: Path) -> None:
    for name in (LOCK_FILE, CLAIMS_FILE):
        (data_dir / name).chmod(0o644)  # as older brokers made them; a start narrows them
    LogDirectory(data_dir).close()
    with stranger(data_dir) as held, LogDirectory(data_dir) as directory:
        directory.open(NAME, _topic_id(data_dir), LogConfig()).close()
    assert held == ["PermissionError"] * 2


def _topic_id(data_dir: Path) -> UUID:
    return UUID(identity.decode((data_dir / str(NAME) / IDENTITY).read_bytes()).topic_id)


def test_files_of_an_older_broker_are_closed_to_others(data_dir: Path) -> None:
    for name in (LOCK_FILE, CLAIMS_FILE):
        (data_dir / name).chmod(0o644)
    LogDirectory(data_dir).close()
    assert [(data_dir / name).stat().st_mode & 0o777 for name in (LOCK_FILE, CLAIMS_FILE)] == [0o600] * 2


@pytest.mark.parametrize("name", [LOCK_FILE, CLAIMS_FILE])
def test_a_link_in_its_place_is_not_followed(data_dir: Path, name: str) -> None:
    precious = data_dir.parent / "precious"
    precious.write_text("kept")
    precious.chmod(0o644)
    (data_dir / name).unlink()
    (data_dir / name).symlink_to(precious)
    with pytest.raises(OSError, match=name):
        LogDirectory(data_dir)
    assert precious.stat().st_mode & 0o777 == 0o644


def test_a_claim_of_one_partition_is_no_claim_of_others(data_dir: Path) -> None:
    """The file's content means nothing: it is locked, not read."""
    (data_dir / CLAIMS_FILE).write_bytes(b"\xff" * 1000)
    other = Claims(data_dir)
    assert other.take("t-0")
    with LogDirectory(data_dir) as directory:
        with pytest.raises(LogBusyError, match="t-0: `headrace log set-aside` is at work there"):
            directory.open(NAME, uuid4(), LogConfig())
        directory.open(PartitionName("t", 1), uuid4(), LogConfig()).close()
    other.close()
