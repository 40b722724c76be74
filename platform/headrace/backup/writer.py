"""Writes the files of one backup: copies and digests at once, and takes over what the last backup has
already.

Owns the order of flushes: a file is durable before the journal names it. The journal is what a repeat after a
crash knows of the half that was left: its files are taken over like those of a whole backup.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, Self

from headrace.backup.errors import BackupError
from headrace.backup.manifest import SIZE_MAX_BYTES, UNREADABLE, FileEntry, checked_path, read_small
from headrace.backup.pace import Pace
from headrace.log.files import sync_directory

JOURNAL: Final = "journal.jsonl"
LINE_MAX_BYTES: Final = 1 << 16
_TEMPORARY: Final = ".tmp"


class Earlier(NamedTuple):
    """An earlier backup, whole or half: its folder and its files by path."""

    folder: Path
    files: Mapping[str, FileEntry]


class SourceChangedError(BackupError):
    """The source is shorter than it was, or gone: the caller decides what that means."""


class SourceUnreadableError(BackupError):
    """The disk of the source cannot read it, or a part of it."""


class Writer:
    """The files of one backup folder. `is_checking`: also files that look unchanged are read and compared.

    Counts the bytes that were `copied` and those that were `taken_over`.
    """

    def __init__(
        self, folder: Path, earlier: Sequence[Earlier], pace: Pace, *, is_checking: bool = False
    ) -> None:
        self.folder = folder
        self.files: dict[str, FileEntry] = {}
        self.copied_bytes = 0
        self.taken_over_bytes = 0
        self.earlier = earlier
        self._pace = pace
        self._is_checking = is_checking
        self._journal = (folder / JOURNAL).open("ab")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._journal.close()

    def has(self, path: str, size_bytes: int, stamp: str) -> bool:
        """Whether an earlier backup holds this source as it is now, as far as its size and stamp tell."""
        return any(True for _ in self._same(path, size_bytes, stamp))

    def copy(self, path: str, source: Path, length_bytes: int | None = None) -> None:
        """Copies a file, or its first bytes. Raises `SourceChangedError`, `SourceUnreadableError`; `OSError`
        of the backup's own disk.
        """
        try:
            fd = os.open(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            raise SourceChangedError(f"{source} is gone") from None
        except OSError as error:
            raise SourceUnreadableError(f"{source} cannot be read: {error.strerror}") from error
        try:
            stat = os.fstat(fd)
            size_bytes = stat.st_size if length_bytes is None else length_bytes
            self.add(path, partial(self._pieces, fd, size_bytes, source), size_bytes, local_stamp(stat))
        finally:
            os.close(fd)

    def _pieces(self, fd: int, size_bytes: int, source: Path) -> Iterator[bytes]:
        at = 0
        while at < size_bytes:
            try:
                piece = os.pread(fd, min(self._pace.chunk_bytes, size_bytes - at), at)
            except OSError as error:
                raise SourceUnreadableError(
                    f"{source} cannot be read from byte {at} on: {error.strerror}"
                ) from error
            if not piece:
                raise SourceChangedError(f"{source} ends at {at} bytes, and had {size_bytes} before")
            at += len(piece)
            yield piece

    def add(self, path: str, read: Callable[[], Iterable[bytes]], size_bytes: int, stamp: str) -> None:
        """Stores a source, unless an earlier backup has it. `read` yields its bytes, each time from the first
        on. Raises `OSError`."""
        checked_path(path)
        for earlier, entry in self._same(path, size_bytes, stamp):
            if self._is_checking:
                sums = hashlib.sha256()
                for piece in read():
                    self._pace.spend(len(piece))
                    sums.update(piece)
                if sums.hexdigest() != entry.sha256:
                    raise BackupError(
                        f"{path}: its source has the size and time that it had in "
                        f"{earlier.folder}, and other "
                        "bytes: one of the two is rotten. `headrace backup verify` tells whether it is the "
                        "backup, `headrace log check` whether it is a log"
                    )
            if self._link(earlier.folder, entry):
                self._done(entry)
                self.taken_over_bytes += size_bytes
                return
        self._write(path, read(), stamp)

    def put(self, path: str, content: bytes) -> None:
        """Stores these bytes. Raises `OSError`."""
        checked_path(path)
        self._write(path, [content], "")

    def adopt(self, path: str, written: Path) -> None:
        """Takes a file that another program wrote to `written`, on the same disk. Raises `OSError`."""
        checked_path(path)
        sums = hashlib.sha256()
        with written.open("rb") as file:
            while piece := file.read(self._pace.chunk_bytes):
                sums.update(piece)
            os.fsync(file.fileno())
            size_bytes = file.tell()
        written.chmod(0o600)
        self._place(written, path)
        self.copied_bytes += size_bytes
        self._done(FileEntry(path, size_bytes, sums.hexdigest(), ""))

    def forget(self, path: str) -> None:
        """Removes a file that this backup is not to hold after all."""
        if self.files.pop(path, None) is not None:
            (self.folder / path).unlink(missing_ok=True)

    def finish(self) -> None:
        """Removes what does not belong to this backup, and makes all names durable. Raises `OSError`."""
        for parent, folders, names in os.walk(self.folder, topdown=False):
            for name in names:
                inside = str((Path(parent) / name).relative_to(self.folder))
                if inside != JOURNAL and inside not in self.files:
                    (Path(parent) / name).unlink()
            for name in folders:
                if not any((Path(parent) / name).iterdir()):
                    (Path(parent) / name).rmdir()
            sync_directory(Path(parent))

    def _same(self, path: str, size_bytes: int, stamp: str) -> Iterator[tuple[Earlier, FileEntry]]:
        for earlier in self.earlier:
            entry = earlier.files.get(path)
            if entry is not None and stamp and (entry.size_bytes, entry.stamp) == (size_bytes, stamp):
                yield earlier, entry

    def _link(self, earlier: Path, entry: FileEntry) -> bool:
        source, target = earlier / entry.path, self.folder / entry.path
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            if source.is_symlink() or source.stat().st_size != entry.size_bytes:
                return False
            target.unlink(missing_ok=True)
            target.hardlink_to(source)
        except OSError:
            return False  # the file is gone, or this disk has no links, or no more of one file
        return True

    def _write(self, path: str, pieces: Iterable[bytes], stamp: str) -> None:
        temporary = self.folder / (path + _TEMPORARY)
        temporary.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        sums = hashlib.sha256()
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        size_bytes = 0
        try:
            for piece in pieces:
                self._pace.spend(len(piece))
                sums.update(piece)
                view = memoryview(piece)
                while len(view):
                    view = view[os.write(fd, view) :]
                size_bytes += len(piece)
            os.fsync(fd)
            # Nobody reads a backup soon: its pages would only displace those that brokers serve from.
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)
        self._place(temporary, path)
        self.copied_bytes += size_bytes
        self._done(FileEntry(path, size_bytes, sums.hexdigest(), stamp))

    def _place(self, written: Path, path: str) -> None:
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        written.replace(target)

    def _done(self, entry: FileEntry) -> None:
        self.files[entry.path] = entry
        self._journal.write(json.dumps(list(entry)).encode() + b"\n")
        self._journal.flush()


def local_stamp(stat: os.stat_result) -> str:
    """What changes whenever a program writes to a file of this host, or another file takes its name."""
    return f"{stat.st_ino}-{stat.st_mtime_ns}"


def read_journal(folder: Path) -> dict[str, FileEntry]:
    """Returns the files that are whole in a half backup; a last line that is torn is left out."""
    found = {}
    try:
        lines = io.BytesIO(read_small(folder / JOURNAL, SIZE_MAX_BYTES))
    except (FileNotFoundError, BackupError):
        return {}
    while line := lines.readline(LINE_MAX_BYTES):
        try:
            path, size_bytes, sha256, stamp = json.loads(line)
            found[checked_path(path)] = FileEntry(path, int(size_bytes), str(sha256), str(stamp))
        except (*UNREADABLE, BackupError):
            continue
    return found
