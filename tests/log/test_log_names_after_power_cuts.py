"""A power cut takes back what was done to the names of files and no fsync of their folder has covered.

So it is on file systems that keep a journal for each file, such as btrfs, F2FS and ZFS: an fsync of one file
says nothing of another one's deletion.
"""

from __future__ import annotations

import os
import random
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from fix_log import SMALL, batch, content, segments
from headrace.log.partition import PartitionLog
from headrace.wire.batch import place, read_header


class Folder:
    """A partition's folder, of which a power cut leaves the names of its last fsync."""

    def __init__(self, path: Path, kept: Path) -> None:
        self.path = path
        self._kept = kept
        kept.mkdir()

    def fsync(self, fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode) and os.path.samestat(os.fstat(fd), self.path.stat()):
            shutil.rmtree(self._kept)
            self._kept.mkdir()
            for each in self.path.iterdir():
                os.link(each, self._kept / each.name)

    def cut_power(self) -> None:
        for each in self.path.iterdir():
            each.unlink()
        for each in self._kept.iterdir():
            os.link(each, self.path / each.name)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folder]:
    made = Folder(tmp_path / "t-0", tmp_path / "kept")
    monkeypatch.setattr("os.fsync", made.fsync)
    monkeypatch.setattr("headrace.log.files.replace_file.__kwdefaults__", {"fsync": made.fsync})
    yield made


def led(epoch: int, number: int, address: int) -> bytes:
    """A batch as its leader has stored it."""
    made = bytearray(batch(number, 100))
    place(made, 0, read_header(made), address, epoch)
    return bytes(made)


def test_what_was_cut_off_does_not_come_back(folder: Folder) -> None:
    """The next leader's batches are as long as the last one's, so they end where a deleted file began."""
    log = PartitionLog(folder.path, SMALL)
    for number in range(12):
        log.append_verbatim(led(1, number, log.end_address))
        log.flush()
    bases = [int(path.stem) for path in segments(folder.path)]
    assert len(bases) == 4
    log.truncate(log.position(bases[2] - 1))
    while log.end_address < bases[2]:
        log.append_verbatim(led(2, 50, log.end_address))
    log.flush()  # now it is in sync
    stored = content(log)
    log.abandon()
    folder.cut_power()
    log = PartitionLog(folder.path, SMALL)
    assert content(log) == stored and log.end_address == bases[2]
    log.close()


STEPS = ("append", "append", "append", "flush", "roll", "checkpoint", "cut", "restart", "start")


@pytest.mark.parametrize("seed", range(150))
def test_what_was_flushed_is_there_after_a_power_cut_at_any_moment(folder: Folder, seed: int) -> None:
    draw = random.Random(seed)
    log = PartitionLog(folder.path, SMALL)
    number = 0
    for _ in range(draw.randrange(2, 40)):
        step = draw.choice(
            ("append", "append", "append", "flush", "roll", "checkpoint", "cut", "restart", "start")
        )
        if step == "append":
            number += 1
            log.append_verbatim(led(number, number, log.end_address))
        elif step == "flush":
            log.flush()
        elif step == "roll":
            log.roll()
        elif step == "checkpoint":
            log.request_checkpoint()
        elif step == "cut":
            log.truncate(log.position(draw.randint(log.start_address, log.end_address)))
        elif step == "restart" and draw.random() < 0.3:
            log.restart(log.end_address + draw.randrange(1, 2_000))
        elif step == "start":
            log.delete_expired_segments(0, source_start=draw.randint(log.start_address, log.end_address))
        if (note := log.notes.due(log.flushed_address)) is not None and draw.random() < 0.3:
            note()
    log.flush()
    start, end, stored = log.start_address, log.end_address, content(log)
    if draw.random() < 0.5:
        log.append_verbatim(led(number + 1, number, log.end_address))
    log.abandon()
    folder.cut_power()
    log = PartitionLog(folder.path, SMALL)
    assert log.start_address <= start and log.end_address >= end
    assert content(log)[start - log.start_address :][: end - start] == stored
    log.close()
