"""What a publisher was handed last, itself and not only its number: files of bounded size that outlive it.

`headrace audit repair` brings from them what was lost on the way to the datacenter's log (`events.spooled`
reads them). A spool has two rings, each of two memory-mapped files that are filled in turn: *events* has each
event as it was handed over, *batches* each batch as it was numbered, compressed, before it is sent. When one
file is full, the other is emptied and filled: a ring keeps at least half of its bound. The rings outlive a
SIGKILL; a power cut may take their last moments, because nothing waits for the disk.

A ring's file, in the machine's byte order, all at multiples of 8:

    0   magic           8 bytes     16  generation: the file with the higher one is the newer
    8   used bytes      int64       24  entries, each a head (`ENTRY`) and what it names

An entry counts once `used bytes` includes it, which is a single store of 8 bytes. Its CRC-32C covers all of
it but its kind, which changes when it is taken back: what rots on the disk is never brought again.
"""

from __future__ import annotations

import itertools
import json
import logging
import mmap
import os
import shutil
import struct
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from crc32c import crc32c

from headrace.client import BatchIdentity
from headrace.events.claims import is_held
from headrace.events.words import store
from headrace.wire.primitives import Buffer

logger = logging.getLogger(__name__)

MAGIC: Final = b"HRSPOOL2"  # 1, for a day: entries had no checksum
SUFFIX: Final = ".spool"
ABOUT_NAME: Final = "about.json"
EVENTS, BATCHES = "events", "batches"
SPOOL_MAX_BYTES: Final = 64 * 1024 * 1024
EVENTS_SHARE: Final = 0.25  # of it; batches are compressed, and are what is mostly asked for
FIRST_SIZE_BYTES: Final = 64 * 1024
SPOOLS_MAX_BYTES: Final = 256 * 1024 * 1024
"""What the spools of publishers that have ended may take together, beside those of living ones."""
KEPT_S: Final = 7 * 24 * 3600.0

HEAD: Final = struct.Struct("@8sqq")
USED_AT: Final = 8
ENTRY: Final = struct.Struct("@qqqqqqq")
"""Kind, CRC-32C of what follows, partition (-1: not known), time in ms, and the lengths of topic, key (-1:
none) and value; then topic, key and value.
"""
CHECKED_AT: Final = 16
IDENTITY: Final = struct.Struct("@qqqqqqq")
"""The fields of a `BatchIdentity` but its topic."""
EVENT, BATCH, RENUMBERED, VOID = 1, 2, 3, 4
_MARK: Final = struct.Struct("@qq")
_CHECKED: Final = struct.Struct("@qqqqq")


def packed(kind: int, partition: int, time_ms: int, topic: bytes, key: bytes | None, value: Buffer) -> bytes:
    """Returns an entry."""
    sizes = (len(topic), -1 if key is None else len(key), len(value))
    checked = b"".join((_CHECKED.pack(partition, time_ms, *sizes), topic, key or b"", value))
    return _MARK.pack(kind, crc32c(checked)) + checked


class Ring:
    """Two files of at most `size_max_bytes` together. Several threads may use it. Raises `OSError`."""

    def __init__(self, folder: Path, name: str, size_max_bytes: int) -> None:
        self._paths = [folder / f"{name}-{number}" for number in (0, 1)]
        self._file_max_bytes = max(FIRST_SIZE_BYTES, size_max_bytes // 2)
        self._lock = threading.Lock()
        self._generation = -1
        self._file, self._is_open = -1, False
        self._used: int = 0
        self._size: int = 0
        self._turn()

    def append(self, entry: bytes) -> tuple[int, int] | None:
        """Adds an entry; returns its place for `void`, None if it is not kept."""
        needed = (len(entry) + 7) & -8
        with self._lock:
            if not self._is_open or (self._used + needed > self._size and not self._make_room(needed)):
                return None
            at = self._used
            self._map[at : at + len(entry)] = entry
            self._used = at + needed
            store(self._map, USED_AT, self._used)
            return self._generation, at

    def void(self, place: tuple[int, int]) -> None:
        """Takes an entry back, if it is still there."""
        generation, at = place
        with self._lock:
            if self._is_open and generation == self._generation:
                store(self._map, at, VOID)

    def close(self) -> int:
        """Ends writing; returns how many bytes of entries the newer file has."""
        with self._lock:
            return self._end()

    def leave_to_parent(self) -> None:
        """Closes the copy that a forked child has. Takes no lock: a thread of the parent may have held it."""
        if self._is_open:
            self._is_open = False
            with suppress(OSError, BufferError):
                self._map.close()
            with suppress(OSError):
                os.close(self._file)

    def _make_room(self, needed: int) -> bool:
        if HEAD.size + needed > self._file_max_bytes:
            return False
        try:
            if self._used + needed > self._file_max_bytes:
                self._end()
                self._turn()
            size = self._size
            while size < self._used + needed:
                size = min(2 * size, self._file_max_bytes)
            if size > self._size:
                os.posix_fallocate(self._file, 0, size)
                self._map.resize(size)
                self._size = size
        except (OSError, ValueError) as error:
            logger.warning("%s: later events cannot be brought again: %s", self._paths[0].parent, error)
            self._end()
            return False
        return True

    def _turn(self) -> None:
        """Empties the older file, and fills it from now on."""
        self._generation += 1
        path = self._paths[self._generation % 2]
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        file = os.open(path, flags, 0o600)
        try:
            os.posix_fallocate(file, 0, FIRST_SIZE_BYTES)
            self._map = mmap.mmap(file, FIRST_SIZE_BYTES)
        except BaseException:
            os.close(file)
            raise
        self._file, self._size, self._used, self._is_open = file, FIRST_SIZE_BYTES, HEAD.size, True
        self._map[: HEAD.size] = HEAD.pack(MAGIC, self._used, self._generation)

    def _end(self) -> int:
        if not self._is_open:
            return 0
        self._is_open = False
        with suppress(OSError, BufferError):
            self._map.close()
        with suppress(OSError):
            os.ftruncate(self._file, self._used)
        os.close(self._file)
        return self._used - HEAD.size


class Spool:
    """The spool that a living publisher fills, in a folder of its own. Raises `OSError`."""

    def __init__(self, folder: Path, description: Mapping[str, str | int], size_max_bytes: int) -> None:
        folder.mkdir(mode=0o700)
        self.folder = folder
        (folder / ABOUT_NAME).write_text(json.dumps(dict(description)))
        events_bytes = int(size_max_bytes * EVENTS_SHARE)
        self._events = Ring(folder, EVENTS, events_bytes)
        self._batches = Ring(folder, BATCHES, size_max_bytes - events_bytes)
        self._names: dict[str, bytes] = {}
        self._numbered_count = 0
        self._handed_count = itertools.count()
        self._taken_back_count = itertools.count()

    def hand_over(self, topic: str, time_ms: int, key: bytes | None, value: bytes) -> tuple[int, int] | None:
        """Keeps an event; returns its place for `take_back`."""
        next(self._handed_count)  # no thread is interrupted in it
        name = self._names.get(topic) or self._names.setdefault(topic, topic.encode())
        return self._events.append(packed(EVENT, -1, time_ms, name, key, value))

    def take_back(self, place: tuple[int, int] | None) -> None:
        next(self._taken_back_count)
        if place is not None:
            self._events.void(place)

    def batch_encoded(self, identity: BatchIdentity, data: bytes | bytearray) -> None:
        """Keeps a batch before it is sent."""
        self._numbered_count += identity.record_count
        topic, time_ms = identity.topic.encode(), identity.base_timestamp_ms
        self._batches.append(packed(BATCH, identity.partition, time_ms, topic, None, data))

    def batch_renumbered(self, old: BatchIdentity, new: BatchIdentity) -> None:
        topic, numbers = old.topic.encode(), IDENTITY.pack(*old[1:8]) + IDENTITY.pack(*new[1:8])
        self._batches.append(packed(RENUMBERED, old.partition, old.base_timestamp_ms, topic, None, numbers))

    def close(self) -> None:
        """Ends the spool of a publisher that has said all. What it holds stays for `KEPT_S`.

        Its events are removed if each is in a batch.
        """
        accepted_count = next(self._handed_count) - next(self._taken_back_count)
        keeps_events = accepted_count > self._numbered_count
        self._events.close()
        if not keeps_events:
            for path in self.folder.glob(f"{EVENTS}-*"):
                path.unlink(missing_ok=True)
        if not self._batches.close() and not keeps_events:
            shutil.rmtree(self.folder, ignore_errors=True)

    def leave_to_parent(self) -> None:
        """Closes the copy that a forked child has, and changes nothing."""
        self._events.leave_to_parent()
        self._batches.leave_to_parent()

    def delete(self) -> None:
        """Ends the spool, and keeps nothing."""
        self._events.close()
        self._batches.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def open_spool(
    folder: Path, publisher: str, description: Mapping[str, str | int], size_max_bytes: int = SPOOL_MAX_BYTES
) -> Spool | None:
    """Returns the new publisher's spool; None, after a warning, if it cannot be kept."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        prune(folder)
        return Spool(folder / f"{publisher}{SUFFIX}", description, size_max_bytes)
    except OSError as error:
        logger.warning("no spool of this publisher's events can be kept in %s: %s", folder, error)
        return None


def prune(folder: Path, now_s: float | None = None) -> int:
    """Removes spools of publishers that have ended: those older than `KEPT_S`, and the oldest beyond
    `SPOOLS_MAX_BYTES`; returns how many.

    A publisher whose journal is there lives, or nobody has reported yet what it was handed: only its age
    counts, which begins with its last report. One that lives may have been quiet for long.
    """
    now_s = time.time() if now_s is None else now_s
    removed, kept_bytes = 0, 0
    found: list[tuple[float, int, Path]] = []
    for spool in folder.glob(f"*{SUFFIX}"):
        with suppress(OSError):
            sizes = [each.stat() for each in spool.iterdir()]
            times = [spool.stat().st_mtime, *(each.st_mtime for each in sizes)]
            with suppress(FileNotFoundError):
                times.append(spool.with_suffix(".journal").stat().st_mtime)
            found.append((max(times), sum(each.st_size for each in sizes), spool))
    for newest_s, size_bytes, spool in sorted(found, reverse=True):
        journal = spool.with_suffix(".journal")
        has_journal = journal.exists()
        if not has_journal:
            kept_bytes += size_bytes
        is_old = newest_s < now_s - KEPT_S and not (has_journal and is_held(journal))
        if is_old or (not has_journal and kept_bytes > SPOOLS_MAX_BYTES):
            shutil.rmtree(spool, ignore_errors=True)
            removed += 1
    return removed
