"""A folder of backups: what is taken over from the last one, and what a crash leaves."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from headrace.backup.errors import BackupError, RefusedError
from headrace.backup.manifest import Manifest, Piece
from headrace.backup.pace import Pace, check_room
from headrace.backup.shelf import Shelf
from headrace.backup.writer import Writer
from headrace.process.disk import space_of

HOUR_MS = 3_600_000
SEGMENT = "broker/topic-0/00000000000000000000.log"


def take(shelf: Shelf, source: Path, at_ms: int, *, is_checking: bool = False) -> tuple[Path, Writer]:
    """A backup of one file, as `taking` makes it."""
    folder = shelf.begin(at_ms)
    with Writer(folder, shelf.earlier(), Pace(), is_checking=is_checking) as writer:
        writer.copy(SEGMENT, source)
        writer.finish()
        piece = Piece("broker", "broker", "east", "data/broker", {})
        made = Manifest(at_ms, at_ms, "/home", "host", {}, {}, (piece,), tuple(writer.files.values()))
        whole = shelf.end(folder, made)
    shelf.remove_halves()
    return whole, writer


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "segment"
    path.write_bytes(b"batches" * 1000)
    return path


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    found = Shelf(tmp_path / "shelf")
    found.folder.mkdir()
    return found


def test_an_unchanged_file_is_a_link_to_the_last_backups(shelf: Shelf, source: Path) -> None:
    first, writer = take(shelf, source, 0)
    assert (writer.copied_bytes, writer.taken_over_bytes) == (7000, 0)
    second, writer = take(shelf, source, HOUR_MS)
    assert (writer.copied_bytes, writer.taken_over_bytes) == (0, 7000)
    assert (first / SEGMENT).stat().st_ino == (second / SEGMENT).stat().st_ino
    assert shelf.whole() == [first, second]


def test_a_changed_file_is_copied_and_the_last_backup_keeps_its_own(shelf: Shelf, source: Path) -> None:
    first, _ = take(shelf, source, 0)
    with source.open("ab") as file:
        file.write(b"more")
    second, writer = take(shelf, source, HOUR_MS)
    assert writer.copied_bytes == 7004
    assert (first / SEGMENT).stat().st_size == 7000
    assert (second / SEGMENT).read_bytes() == source.read_bytes()


def test_checksum_finds_bytes_that_changed_under_an_unchanged_time(shelf: Shelf, source: Path) -> None:
    take(shelf, source, 0)
    times = source.stat()
    content = bytearray(source.read_bytes())
    content[100] ^= 1
    with source.open("r+b") as file:
        file.write(content)
    os.utime(source, ns=(times.st_atime_ns, times.st_mtime_ns))
    take(shelf, source, HOUR_MS)  # by size and time nothing has changed
    with pytest.raises(BackupError, match="one of the two is rotten"):
        take(shelf, source, 2 * HOUR_MS, is_checking=True)


@pytest.mark.parametrize("is_checking", [False, True])
def test_on_a_disk_without_links_each_backup_has_the_bytes(
    shelf: Shelf, source: Path, monkeypatch: pytest.MonkeyPatch, *, is_checking: bool
) -> None:
    take(shelf, source, 0)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    second, writer = take(shelf, source, HOUR_MS, is_checking=is_checking)
    assert (second / SEGMENT).read_bytes() == source.read_bytes()
    assert (writer.copied_bytes, writer.taken_over_bytes) == (7000, 0)


def test_a_file_that_the_last_backup_has_lost_half_of_is_copied_again(shelf: Shelf, source: Path) -> None:
    first, _ = take(shelf, source, 0)
    os.truncate(first / SEGMENT, 100)
    second, _ = take(shelf, source, HOUR_MS)
    assert (second / SEGMENT).read_bytes() == source.read_bytes()


def test_a_half_is_no_backup_and_its_whole_files_are_taken_over(shelf: Shelf, source: Path) -> None:
    half = shelf.begin(0)
    with Writer(half, [], Pace()) as writer:
        writer.copy(SEGMENT, source)
    with (half / "journal.jsonl").open("ab") as journal:
        journal.write(b'["broker/topic-1/torn')
    assert shelf.whole() == [] and shelf.halves() == [half]
    whole, writer = take(shelf, source, HOUR_MS)
    assert (writer.copied_bytes, writer.taken_over_bytes) == (0, 7000)
    assert shelf.whole() == [whole] and not shelf.halves()
    assert sorted(path.name for path in whole.iterdir()) == ["broker", "manifest.json", "manifest.sha256"]


def test_old_backups_go_and_the_newest_stay_whole(shelf: Shelf, source: Path) -> None:
    made = [take(shelf, source, hour * HOUR_MS)[0] for hour in range(4)]
    assert shelf.keep(2, made[3]) == [made[0].name, made[1].name]
    assert shelf.whole() == made[2:]
    assert (made[3] / SEGMENT).read_bytes() == source.read_bytes()


def test_a_backup_that_was_just_taken_stays_although_others_have_later_names(
    shelf: Shelf, source: Path
) -> None:
    """The clock was a year ahead for two of them."""
    ahead = [take(shelf, source, (365 * 24 + hour) * HOUR_MS)[0] for hour in range(2)]
    newest, _ = take(shelf, source, 0)
    assert shelf.keep(2, newest) == [ahead[0].name]
    assert shelf.whole() == [newest, ahead[1]]
    assert shelf.keep(1, newest) == [ahead[1].name]
    assert shelf.whole() == [newest]


def test_one_backup_at_a_time(shelf: Shelf) -> None:
    with shelf.locked(), pytest.raises(RefusedError, match="another backup"), Shelf(shelf.folder).locked():
        pass


def test_a_backup_is_no_folder_of_backups(shelf: Shelf, source: Path) -> None:
    whole, _ = take(shelf, source, 0)
    with pytest.raises(RefusedError, match="is a backup itself"), Shelf(whole).locked():
        pass


def test_the_room_is_checked_before(tmp_path: Path) -> None:
    free = space_of(tmp_path).free_bytes
    with pytest.raises(BackupError, match=r"needs .* bytes and .* to spare: .* Nothing was written"):
        check_room(tmp_path, free, "the backup")


def test_the_pace_is_kept() -> None:
    slept: list[float] = []
    pace = Pace(1000, clock=lambda: 0.0, sleep=slept.append)
    for _ in range(4):
        pace.spend(500)
    assert slept == [0.5, 1.0, 1.5, 2.0]  # the clock stands still: each wait is as long as all bytes so far
