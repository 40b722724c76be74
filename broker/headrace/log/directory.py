"""A broker's data directory: a folder per partition (`<topic>-<partition>/`), a lock, the owner's broker id.

Opens and deletes only the logs that the caller names.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, Self
from uuid import UUID, uuid4

from crc32c import crc32c

from headrace.log import identity
from headrace.log.claims import Claims, open_private
from headrace.log.config import LogConfig
from headrace.log.errors import (
    DirectoryLockedError,
    LogBusyError,
    LogDamagedError,
    LogLostError,
    OldLogFormatError,
)
from headrace.log.files import replace_file, sync_directory
from headrace.log.names import IDENTITY, SEGMENT_SUFFIX
from headrace.log.partition import PartitionLog
from headrace.process.clock import now_ms

LOCK_FILE: Final = ".lock"
OWNER_FILE: Final = "broker.json"
IDENTITY_FILE: Final = IDENTITY
LOG_FORMAT: Final = 2  # 1, until November 2026: batches had baseOffset = address
PARTITION_DIGITS_MAX: Final = 10
AGE_MAX: Final = 2**63 - 1
NAME_MAX_BYTES: Final = 255
"""Of a file or folder, on Linux. The longest topic's folder leaves less room than a suffix takes."""
DELETED_SUFFIX: Final = ".deleted"
STRAY_SUFFIX: Final = ".stray"


class PartitionName(NamedTuple):
    """A topic's name and a partition's number."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class _Owner(NamedTuple):
    """The topic of a folder. `has_checksum`: whether its file would show a bit that rots. `creation`: see
    `identity`.
    """

    topic_id: UUID
    has_checksum: bool
    creation: str


def partition_of(folder: str) -> PartitionName | None:
    """Returns whose folder this is; None for any other, such as one that was moved aside."""
    topic, _, number = folder.rpartition("-")
    if not topic or not (number.isascii() and number.isdecimal()) or len(number) > PARTITION_DIGITS_MAX:
        return None
    return PartitionName(topic, int(number))


def aside_name(folder: str, ending: str) -> str:
    """Returns a name beside a partition's folder: its own and `ending`, shorter if there is no room for both;
    no two folders have one in common.
    """
    room = NAME_MAX_BYTES - len(ending)
    if len(folder) > room:
        digest = f"~{crc32c(folder.encode()):08x}"
        folder = folder[: room - len(digest)] + digest
    return folder + ending


def lock(path: Path, way_out: str) -> int:
    """Returns a descriptor that holds the lock of a data directory until it is closed. Raises
    `DirectoryLockedError`.
    """
    fd = open_private(path / LOCK_FILE)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise DirectoryLockedError(f"{path} is in use by another process; {way_out}") from None
    return fd


def _age_of(owner: dict[str, object], field: str) -> int:
    """Returns a directory's age; 0 if an earlier version wrote its owner. Raises `ValueError`."""
    age = owner.get(field, 0)
    if type(age) is not int or not 0 <= age <= AGE_MAX:  # a bool is an int, too
        raise ValueError(f"its {field} is {str(age)[:40]!r}")
    return age


class LogDirectory:
    """Holds the lock while open. Raises `DirectoryLockedError` if another process holds it.

    `directory_id`: made when a broker first claims the directory; another disk has another one (KIP-858).
    `age`: how often `grow_older` was called for it; `noted_age`: the last one that others know for sure,
    stored with the next. `clock_ms`: the wall clock by which its logs expire.
    """

    def __init__(self, path: Path, clock_ms: Callable[[], int] = now_ms) -> None:
        self.path = path
        self._clock_ms = clock_ms
        self.directory_id = ""
        self.age = self.noted_age = 0
        self._broker_id = -1
        path.mkdir(parents=True, exist_ok=True)
        self._lock_fd = lock(path, "give each broker a directory of its own")
        self._claims = Claims(path)
        for leftover in path.glob(f"*{DELETED_SUFFIX}"):
            shutil.rmtree(leftover, ignore_errors=True)

    def claim(self, broker_id: int) -> None:
        """Stores the owner and the format of the logs.

        Raises `LogDamagedError` if the directory belongs to another broker, `OldLogFormatError`.
        """
        file = self.path / OWNER_FILE
        if file.exists():
            try:
                stored = json.loads(file.read_text())
                owner = stored["broker_id"]
                self.age, self.noted_age = _age_of(stored, "age"), _age_of(stored, "noted_age")
            except (ValueError, KeyError, TypeError) as error:
                raise LogDamagedError(
                    f"{file} does not say whose directory this is ({error}). Nothing was changed; write "
                    f'{{"broker_id": N, "log_format": {LOG_FORMAT}}} with the number of its broker'
                ) from None
            if owner != broker_id:
                raise LogDamagedError(
                    f"{self.path} belongs to broker {owner}, not {broker_id}: use its own --data-dir"
                )
            if stored.get("log_format") != LOG_FORMAT:
                raise OldLogFormatError(file, f"it lacks log_format {LOG_FORMAT}")
            self.directory_id = str(stored.get("directory_id", ""))
        self._broker_id = broker_id
        if not self.directory_id:
            self.renew()

    def renew(self) -> None:
        """Gives the directory another id. Raises `OSError` if that cannot be written: the next start has the
        former one.
        """
        self.directory_id, self.age, self.noted_age = str(uuid4()), 0, 0
        self._write_owner()

    def grow_older(self) -> None:
        """Counts up `age`, durably. Raises `OSError`: then it stays as it was."""
        self.age += 1
        try:
            self._write_owner()
        except OSError:
            self.age -= 1
            raise

    def _write_owner(self) -> None:
        fields = {
            "broker_id": self._broker_id,
            "log_format": LOG_FORMAT,
            "directory_id": self.directory_id,
            "age": self.age,
            "noted_age": self.noted_age,
        }
        replace_file(self.path / OWNER_FILE, json.dumps(fields).encode())

    def partitions(self) -> Iterator[PartitionName]:
        """Yields the name of every partition folder."""
        for folder in sorted(self.path.iterdir()):
            name = partition_of(folder.name)
            if name is not None and (folder / IDENTITY_FILE).exists():
                yield name

    def open(
        self, name: PartitionName, topic_id: UUID, config: LogConfig, *, held_to: int = 0, creation: str = ""
    ) -> PartitionLog:
        """Opens the log of a partition, and claims its files until `release`; creates it if it is new. Any
        thread may call.

        The folder of an earlier topic of the same name is renamed (`.stray`), never deleted. `held_to`: the
        address up to which others rely on what is known to have been here: then the folder must not be empty.
        `creation`: which creation of the partition this is, if it is known.
        Raises `LogLostError` if the folder is empty, `LogBusyError` while `headrace log set-aside` works
        there, `OtherTopicIdError` for the log of the same creation, and what `PartitionLog` raises.
        """
        if not self._claims.take(str(name)):
            raise LogBusyError(f"{self.path / str(name)}: `headrace log set-aside` is at work there")
        try:
            self._check_not_lost(name, topic_id, held_to)
            return self._open(name, topic_id, config, creation)
        except BaseException:
            self.release(name)
            raise

    def _check_not_lost(self, name: PartitionName, topic_id: UUID, held_to: int) -> None:
        folder = self.path / str(name)
        has_files = (folder / IDENTITY_FILE).exists() or any(folder.glob(f"*{SEGMENT_SUFFIX}"))
        if held_to and not has_files:
            raise LogLostError(
                f"{folder}: the folder is missing, or empty. Its log held addresses up to {held_to}, and "
                "this replica counts as in sync. If another one is alive that is in sync, or eligible, it "
                "leads, and this one is fetched again. Else restore the folder from a backup; or let any "
                "other replica lead by `kafka-leader-election --election-type unclean`, without what only "
                f'this one had; or, if there is no other, write {{"topic_id": "{topic_id}"}} to '
                f"{IDENTITY_FILE} in that folder: the log then begins anew"
            )

    def release(self, name: PartitionName) -> None:
        """Gives up the claim on a partition's files, once its log was closed or abandoned."""
        self._claims.release(str(name))

    def _open(self, name: PartitionName, topic_id: UUID, config: LogConfig, creation: str) -> PartitionLog:
        folder = self.path / str(name)
        owner = self._owner(folder, topic_id)
        if owner is not None and owner.topic_id != topic_id:
            if creation and owner.creation == creation:
                raise identity.of_same_creation(folder, owner.topic_id, topic_id)
            self._move_aside(folder, STRAY_SUFFIX)
            owner = None
        if owner is None:
            folder.mkdir(exist_ok=True)
            replace_file(folder / IDENTITY_FILE, identity.encode(topic_id, creation))
        elif not owner.has_checksum or (creation and owner.creation != creation):
            with suppress(OSError):  # a disk that is full: the next start tries again
                replace_file(folder / IDENTITY_FILE, identity.encode(topic_id, creation))
        return PartitionLog(folder, config, self._clock_ms)

    def delete(self, name: PartitionName, topic_id: UUID) -> Path | None:
        """Renames the folder of that topic's partition; any thread may remove the returned path later.

        Returns None if there is no folder of that topic.
        """
        folder = self.path / str(name)
        owner = self._owner(folder, topic_id)
        is_its = owner is not None and owner.topic_id == topic_id
        return self._move_aside(folder, DELETED_SUFFIX) if is_its else None

    @staticmethod
    def _owner(folder: Path, wanted: UUID) -> _Owner | None:
        """Returns the topic that a folder belongs to, `None` for a folder without any log. `wanted`: the
        topic that has its name now. Raises `LogDamagedError`.
        """
        try:
            found = identity.decode((folder / IDENTITY_FILE).read_bytes())
            return _Owner(UUID(found.topic_id), found.has_checksum, found.creation)
        except FileNotFoundError:
            if any(folder.glob(f"*{SEGMENT_SUFFIX}")):
                raise identity.unknown(folder, "the file is missing", wanted) from None
            return None
        except ValueError as error:
            raise identity.unknown(folder, error, wanted) from None

    def _move_aside(self, folder: Path, suffix: str) -> Path:
        count = 0
        while (aside := folder.with_name(aside_name(folder.name, f".{count}{suffix}"))).exists():
            count += 1
        folder.rename(aside)
        sync_directory(self.path)
        return aside

    def close(self) -> None:
        """Releases the lock, and all claims."""
        self._claims.close()
        os.close(self._lock_fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
