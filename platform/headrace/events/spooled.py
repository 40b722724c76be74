"""Reading the spools of publishers: the records of batches by their numbers, and the events of no batch.

Their bytes may have been written by another version, half, or by a stranger, or may have rotted: what cannot
be read is left out, with all behind it in its file, and costs no more than its size.
"""

from __future__ import annotations

import json
import logging
import os
import stat
import struct
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from crc32c import crc32c

from headrace.client import BatchIdentity
from headrace.events.handovers import BUCKET_DEFAULT_MS, HOUR_MS
from headrace.events.spool import (
    ABOUT_NAME,
    BATCH,
    BATCHES,
    CHECKED_AT,
    ENTRY,
    EVENT,
    EVENTS,
    HEAD,
    IDENTITY,
    MAGIC,
    RENUMBERED,
    SPOOLS_MAX_BYTES,
    SUFFIX,
)
from headrace.wire.batch import read_header
from headrace.wire.errors import WireError
from headrace.wire.records import Record, decode_records

logger = logging.getLogger(__name__)

ABOUT_MAX_BYTES: Final = 64 * 1024
TOPIC_MAX_BYTES: Final = 249
NAMES: Final = ("publisher", "datacenter", "service", "server")


class SpooledBatch(NamedTuple):
    """A batch as it was sent, or was to be sent. `identity` has its last numbers."""

    identity: BatchIdentity
    data: bytes

    def records(self) -> list[Record]:
        """Raises `WireError` if the batch cannot be read."""
        return list(decode_records(self.data))


class SpooledEvent(NamedTuple):
    """An event as it was handed over."""

    topic: str
    time_ms: int
    key: bytes | None
    value: bytes


@dataclass(frozen=True)
class SpoolContent:
    """What is left of one publisher's spool; `about` says whose it is (`EventPublisher._description`)."""

    about: dict[str, Any]
    batches: list[SpooledBatch] = field(default_factory=list)
    events: list[SpooledEvent] = field(default_factory=list)

    def unnumbered(self, topic: str) -> list[SpooledEvent]:
        """Returns the events of a topic that are in no batch."""
        sent: Counter[bytes | None] = Counter()
        for batch in self.batches:
            if batch.identity.topic == topic:
                sent.update(record.value for record in batch.records())
        left: list[SpooledEvent] = []
        for event in self.events:
            if event.topic != topic:
                continue
            if sent[event.value]:
                sent[event.value] -= 1
            else:
                left.append(event)
        return left


class _Entry(NamedTuple):
    kind: int
    partition: int
    time_ms: int
    topic: str
    key: bytes | None
    value: bytes


def spools(folder: Path) -> Iterator[Path]:
    """Yields the folders of spools, by name. A publisher that ran for a moment leaves one of some kB: many
    may be there, and `events.spool` bounds their bytes.
    """
    yield from sorted(folder.glob(f"*{SUFFIX}"))


def about(spool: Path) -> dict[str, Any] | None:
    """Returns whose spool it is, with a `bucket_ms` that divides an hour; None if nothing says so."""
    try:
        found = json.loads(regular_content(spool / ABOUT_NAME, ABOUT_MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    bucket_ms = found.setdefault("bucket_ms", BUCKET_DEFAULT_MS)
    is_divisor = type(bucket_ms) is int and bucket_ms > 0 and HOUR_MS % bucket_ms == 0
    if not is_divisor or not all(isinstance(found.get(name, ""), str) for name in NAMES):
        logger.warning("%s: its %s does not say whose it is", spool, ABOUT_NAME)
        return None
    return found


def read_spool(spool: Path) -> SpoolContent | None:
    """Reads a spool, whose publisher may live. None if it is none."""
    described = about(spool)
    if described is None:
        return None
    content = SpoolContent(described)
    by_identity: dict[BatchIdentity, int] = {}
    for entry in _entries(spool, BATCHES):
        if entry.kind == BATCH:
            try:
                header = read_header(entry.value)
            except WireError as error:
                logger.warning("%s: a batch cannot be read: %s", spool, error)
                continue
            identity = BatchIdentity(
                entry.topic,
                entry.partition,
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
                header.record_count,
                header.base_timestamp_ms,
                header.max_timestamp_ms,
            )
            by_identity[identity] = len(content.batches)
            content.batches.append(SpooledBatch(identity, entry.value))
        elif entry.kind == RENUMBERED and len(entry.value) == 2 * IDENTITY.size:
            old = BatchIdentity(entry.topic, *IDENTITY.unpack_from(entry.value, 0))
            new = BatchIdentity(entry.topic, *IDENTITY.unpack_from(entry.value, IDENTITY.size))
            if (index := by_identity.pop(old, None)) is not None:
                by_identity[new] = index
                content.batches[index] = content.batches[index]._replace(identity=new)
    content.events.extend(
        SpooledEvent(entry.topic, entry.time_ms, entry.key, entry.value)
        for entry in _entries(spool, EVENTS)
        if entry.kind == EVENT
    )
    return content


def _entries(spool: Path, ring: str) -> Iterator[_Entry]:
    """Yields the entries of a ring, oldest first."""
    files: list[tuple[int, bytes]] = []
    for number in (0, 1):
        try:
            data = regular_content(spool / f"{ring}-{number}", SPOOLS_MAX_BYTES // 2)
            magic, used, generation = HEAD.unpack_from(data)
        except (OSError, struct.error):
            continue
        if magic == MAGIC and HEAD.size <= used <= len(data):
            files.append((generation, data[:used]))
    for _, data in sorted(files, key=lambda file: file[0]):
        try:
            yield from _entries_of(data)
        except ValueError as error:
            logger.warning("%s: of its %s, what follows is left out: %s", spool, ring, error)


def regular_content(path: Path, size_max_bytes: int) -> bytes:
    """Returns what a regular file holds, up to so many bytes. Raises `OSError`."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(file, "rb") as stream:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(f"{path} is no regular file")
        return stream.read(size_max_bytes)


def _entries_of(data: bytes) -> Iterable[_Entry]:
    """Raises `ValueError` for an entry that is damaged: where the next one begins is not known then, and what
    looks like one may be an event's own bytes.
    """
    at = HEAD.size
    while at + ENTRY.size <= len(data):
        kind, checksum, partition, time_ms, topic_size, key_size, value_size = ENTRY.unpack_from(data, at)
        begin = at + CHECKED_AT
        at += ENTRY.size
        end = at + topic_size + max(0, key_size) + value_size
        if not 0 < topic_size <= TOPIC_MAX_BYTES or key_size < -1 or value_size < 0 or end > len(data):
            raise ValueError(f"the entry at {begin - CHECKED_AT} has impossible lengths")
        if crc32c(memoryview(data)[begin:end]) != checksum:
            raise ValueError(f"the entry at {begin - CHECKED_AT} has another checksum than its bytes")
        key_at = at + topic_size
        value_at = key_at + max(0, key_size)
        topic = data[at:key_at].decode(errors="replace")
        key = data[key_at:value_at] if key_size >= 0 else None
        yield _Entry(kind, partition, time_ms, topic, key, data[value_at:end])
        at = -(-end // 8) * 8
