"""Logs that this broker leads but does not have open, and when to try to open one again.

Owns what is known of each, and the decision, which costs little: a damaged log is tried again once somebody
has changed its files, any other (a disk that fails or is full) after longer and longer pauses, too.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

from headrace.log.config import LogConfig
from headrace.log.directory import LogDirectory, PartitionName
from headrace.log.errors import LogBusyError, LogDamagedError, LogLostError, OldLogFormatError
from headrace.log.names import is_temporary
from headrace.log.partition import PartitionLog
from headrace.process.disk import is_full

LOOK_INTERVAL_MS: Final = 2_000
LOOKED_AT_MAX: Final = 200  # offline logs in one look; the others follow in the next ones
RETRY_LOOKS_MIN: Final = 2  # looks between two tries of a log whose files do not change
RETRY_LOOKS_MAX: Final = 150
FULL_LOOKS_MAX: Final = 15  # of a disk that is full: somebody frees space, and looks whether it helped

Fingerprint = frozenset[tuple[str, int, int, int]]
"""Name, inode, size and time of the last change of each file. A copy that keeps old times has a new one."""


class Tried(NamedTuple):
    """What came of opening a log: the log or the error, and what its folder held before."""

    log: PartitionLog | None
    error: Exception | None
    before: Fingerprint


def try_to_open(
    directory: LogDirectory,
    name: PartitionName,
    topic_id: UUID,
    config: LogConfig,
    *,
    again: bool,
    held_to: int = 0,
    creation: str = "",
) -> Tried:
    """Opens a log. `again`: it was offline, and somebody may be restoring its files. `held_to`, `creation`:
    see `LogDirectory.open`. Any thread.
    """
    folder = directory.path / str(name)
    before = fingerprint(folder)
    try:
        if again:
            _check_that_nobody_writes(folder)
        log = directory.open(name, topic_id, config, held_to=held_to, creation=creation)
        return Tried(log, None, before)
    except Exception as error:
        return Tried(None, error, before)


def fingerprint(folder: Path) -> Fingerprint:
    """Returns what a folder holds; nothing if it cannot be read."""
    found = set()
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if not is_temporary(entry.name):  # each try to open the log removes those
                    stat = entry.stat(follow_symlinks=False)
                    found.add((entry.name, stat.st_ino, stat.st_size, stat.st_ctime_ns))
    except OSError:
        return frozenset()
    return frozenset(found)


def _check_that_nobody_writes(folder: Path) -> None:
    """Raises `LogBusyError` while a process has one of the files open for writing: a copy that is half
    restored looks like a log whose end is torn. Passes where the system cannot tell.
    """
    if not folder.is_dir():
        return  # the disk had no room even for the folder of a new topic
    for path in folder.iterdir():
        if not path.is_file():
            continue
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            # Refused while there is a writer. If one comes just then, the system sends this signal, which
            # does nothing; SIGIO, its default, would end the process.
            fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        except OSError as error:
            if error.errno == errno.EAGAIN:
                raise LogBusyError(f"{path}: somebody still writes to this file") from None
        finally:
            os.close(fd)  # ends the lease


@dataclass
class OfflineLog:
    """One log. `tried_at`: what its folder held when it was last tried; None if that is not known."""

    topic_id: UUID
    problem: str
    tried_at: Fingerprint | None = None
    waits_for_files: bool = False
    is_busy: bool = False
    is_full: bool = False
    tries: int = 0
    looks: int = 0
    seen: Fingerprint | None = None

    def failed(self, tried: Tried, problem: str) -> None:
        """Notes that it was tried, in vain. Damage and old formats stay what they are until files change; a
        replica that is lost may count as in sync no more.
        """
        self.problem = problem
        is_lost = isinstance(tried.error, LogLostError)
        self.waits_for_files = isinstance(tried.error, LogDamagedError | OldLogFormatError) and not is_lost
        self.is_busy = isinstance(tried.error, LogBusyError)
        self.is_full = tried.error is not None and (
            is_full(tried.error) or is_full(tried.error.__cause__ or tried.error)
        )
        self.tried_at = tried.before
        self.tries += 1
        self.looks = 0

    def must_open(self, now: Fingerprint) -> bool:
        """Decides from what its folder holds now whether to try to open it. Files that somebody changes are
        left alone until they have stood still from one look to the next.
        """
        before, self.seen = self.seen, now
        self.looks += 1
        if now != before:
            return False
        if now != self.tried_at or self.is_busy:
            return True
        most = FULL_LOOKS_MAX if self.is_full else RETRY_LOOKS_MAX
        pause = min(most, RETRY_LOOKS_MIN << min(self.tries, 16))
        return not self.waits_for_files and self.looks >= pause
