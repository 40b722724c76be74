"""The journal of one publisher: its counts in a memory-mapped file, which outlives a SIGKILL of the process.

Every count is in the file before the event is with the client, and every batch before it is sent. A
successor of the publisher (`events.succession`) replays the journal of one that died, and reports exactly
what was handed over. A power cut may lose the journal's last writes, because nothing waits for the disk. All
blocks of the file are allocated before they are mapped: a full disk is an error here, and not a SIGBUS in the
service.

What batches hold (`wire.content`) is not kept: a dead publisher's events are compared by number alone.

A record is complete once `used bytes` includes it. Each one that a SIGKILL can cut off is written by a single
store of 8 bytes, which no kill divides (`events.words`). `events.journal_format` has the layout.
"""

from __future__ import annotations

import fcntl
import json
import logging
import mmap
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final
from uuid import UUID

from headrace.client import BatchIdentity
from headrace.events.arrived import Arrived, packed
from headrace.events.handovers import HandoverCounts, PartState
from headrace.events.journal_format import (
    AUDIT_TOPIC_AT,
    CLOSED,
    COUNT_AT,
    DESCRIPTION_MAX_BYTES,
    FINISHED,
    FLAGS_AT,
    HANDED,
    HANDED_OVER,
    HEADER,
    IDENTITY,
    MAGIC,
    NUMBERS,
    PART,
    PART_HEAD,
    RANGE,
    RENUMBERED,
    REPORT_NUMBER_AT,
    TOPIC,
    TOPIC_HEAD,
    USED_AT,
    aligned,
    record,
)
from headrace.events.words import NUMBER_MAX, WORD, checked, store
from headrace.wire.primitives import NO_UUID

logger = logging.getLogger(__name__)

FIRST_SIZE_BYTES: Final = 64 * 1024
SIZE_MAX_BYTES: Final = 64 * 1024 * 1024
COMPACT_ABOVE_BYTES: Final = 32 * 1024
UNFINISHED_SUFFIX: Final = ".new"  # of a file that will take the journal's place


class Journal:
    """The journal that a living publisher writes. Its file is locked until `delete`, `leave` or the process's
    end.

    A journal that would exceed `SIZE_MAX_BYTES` is marked as overflowed, and says nothing more. Raises
    `OSError`.
    """

    def __init__(self, path: Path, description: Mapping[str, str | int], started_ms: int) -> None:
        self.path = path
        self._description = json.dumps(dict(description)).encode()
        if len(self._description) > DESCRIPTION_MAX_BYTES:
            raise OSError(f"{path}: its description has {len(self._description)} bytes")
        self._started_ms = started_ms
        self._report_number = 0
        self._arrived: Arrived | None = None
        self._audit_topic_id = NO_UUID
        self._file = -1
        self._size = self._used = self._compacted_bytes = 0
        self._run_key, self._run_at, self._run_count = ("", 0), 0, 0
        self._begin()

    def belongs_to(self, audit_topic_id: UUID) -> None:
        """Notes to which audit topic the publisher reports."""
        self._audit_topic_id = audit_topic_id
        self._map[AUDIT_TOPIC_AT : AUDIT_TOPIC_AT + 16] = audit_topic_id.bytes

    # --- writing ---

    def hand_over(self, topic: str, time_ms: int, bucket_start_ms: int, count: int) -> None:
        """Counts `count` events (negative: taken back). Events of one bucket in a row share a record."""
        key = (topic, bucket_start_ms)
        run_count = self._run_count + count
        if key == self._run_key and self._run_at and -NUMBER_MAX <= run_count <= NUMBER_MAX:
            self._run_count = run_count
            at = self._run_at
            self._map[at : at + 8] = checked(run_count, self._run_head)
            return
        while abs(count) > NUMBER_MAX:
            part = NUMBER_MAX if count > 0 else -NUMBER_MAX
            self._append(partial(self._handed_over, topic, time_ms, part))
            count -= part
        at = self._append(lambda: self._handed_over(topic, time_ms, count))
        self._run_key, self._run_count = key, count
        self._run_at = at + COUNT_AT if at else 0

    def batch_closed(self, identity: BatchIdentity) -> None:
        self._append(lambda: record(CLOSED, self._identity(identity)))
        self._run_at = 0

    def batch_renumbered(self, old: BatchIdentity, new: BatchIdentity) -> None:
        self._append(lambda: record(RENUMBERED, self._identity(old) + self._identity(new)))
        self._run_at = 0

    def finished(self, numbers: Iterable[int]) -> None:
        """Notes parts that became final."""
        for number in numbers:
            self._write(record(FINISHED, WORD.pack(number)))
            self._run_at = 0

    def begin_report(self, report_number: int) -> None:
        """Notes the number of a report before it is sent; and, by the file's time, that the publisher lives:
        on a tmpfs no write to a map does.
        """
        self._report_number = report_number
        with suppress(OSError):
            os.utime(self._file)
        self._map[REPORT_NUMBER_AT : REPORT_NUMBER_AT + 8] = checked(report_number)

    def report_arrived(self, arrived: Arrived) -> None:
        """Notes that a report arrived: if the audit's topic loses it, a successor's report tells."""
        self._arrived = arrived
        self._write_flags()

    def compact(self, counts: HandoverCounts) -> None:
        """Replaces the journal by one that begins with what the counts still keep, once it has grown."""
        if self._used > COMPACT_ABOVE_BYTES and self._used > 2 * self._compacted_bytes:
            self.rewrite(counts)

    def rewrite(self, counts: HandoverCounts) -> None:
        """Replaces the journal by one that begins with what the counts keep; or else it stays as it is."""
        old = dict(vars(self))
        left, failure = (old["_file"], old["_map"]), None
        try:
            self._begin(counts.states(), counts.last_number)
        except BaseException as error:  # such as what a signal's handler raises, anywhere in it
            failure = error
        if failure is not None and (self._file == left[0] or not _is_at(self.path, self._file)):
            left = self._file, self._map
            vars(self).update(old)
        else:
            self._compacted_bytes = self._used
        if left[0] != self._file:
            _close(*left)
        if isinstance(failure, OSError):
            logger.warning("%s is not written anew: %s", self.path, failure)
        elif failure is not None:
            raise failure

    def delete(self) -> None:
        """Ends the journal: the publisher has said all."""
        self.path.unlink(missing_ok=True)
        self._end()

    def leave(self) -> None:
        """Ends writing, and unlocks the file: a later publisher of the service reports what it says."""
        self._end()

    def leave_to_parent(self) -> None:
        """Closes the copy that a forked child has, whose writes and lock would be the parent's."""
        self._end()

    def _end(self) -> None:
        # First, so that no fork of another thread finds the number of a file that is another's by then.
        file, self._file = self._file, -1
        if file >= 0:
            _close(file, self._map)

    def _begin(self, states: tuple[PartState, ...] = (), last_number: int = 0) -> None:
        """Writes a new file beside the old one, and takes its place: half a file is never seen."""
        temporary = self.path.with_suffix(UNFINISHED_SUFFIX)
        file = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.posix_fallocate(file, 0, FIRST_SIZE_BYTES)
            self._map = mmap.mmap(file, FIRST_SIZE_BYTES)
        except BaseException:
            os.close(file)
            raise
        self._file, self._size, self._compacted_bytes = file, FIRST_SIZE_BYTES, 0
        size = len(self._description)
        self._used = aligned(HEADER.size + size)
        audit_topic = self._audit_topic_id.bytes
        self._is_full = False
        number, used = checked(self._report_number), checked(self._used)
        head = HEADER.pack(MAGIC, number, used, self._started_ms, self._flags(), size, audit_topic)
        self._map[: len(head)] = head
        self._map[len(head) : len(head) + size] = self._description
        self._topics: dict[str, int] = {}
        self._run_key, self._run_head = ("", 0), b""
        self._run_at = self._run_count = 0
        for state in states:
            self._append(partial(self._part, state))
        if last_number:
            self._write(record(NUMBERS, WORD.pack(last_number)))
        temporary.replace(self.path)

    def _topic(self, topic: str) -> int:
        number = self._topics.get(topic)
        if number is None:
            number = self._topics[topic] = len(self._topics)
            name = topic.encode()
            self._write(record(TOPIC, TOPIC_HEAD.pack(number, len(name)) + name))
        return number

    def _handed_over(self, topic: str, time_ms: int, count: int) -> bytes:
        head = self._run_head = HANDED.pack(self._topic(topic), time_ms)
        return record(HANDED_OVER, head) + checked(count, head)

    def _identity(self, identity: BatchIdentity) -> bytes:
        return IDENTITY.pack(self._topic(identity.topic), *identity[1:8])

    def _part(self, state: PartState) -> bytes:
        head = PART_HEAD.pack(
            self._topic(state.topic),
            state.bucket_start_ms,
            state.number,
            state.handed_over_count,
            state.final,
            len(state.ranges),
        )
        return record(PART, head + b"".join(RANGE.pack(*each[:5]) for each in state.ranges))

    def _append(self, make: Callable[[], bytes]) -> int:
        """Appends a record, and the names of topics before it; returns its place, 0 if there is no room."""
        return 0 if self._is_full else self._write(make())

    def _write(self, record: bytes) -> int:
        end = aligned(self._used + len(record))
        if self._is_full or (end > self._size and not self._grow(end)):
            return 0
        at = self._used
        self._map[at : at + len(record)] = record
        self._used = end
        self._map[USED_AT : USED_AT + 8] = checked(end)
        return at

    def _grow(self, needed_bytes: int) -> bool:
        size = self._size
        while size < needed_bytes:
            size *= 2
        try:
            if size > SIZE_MAX_BYTES:
                raise OSError
            os.posix_fallocate(self._file, 0, size)
            self._map.resize(size)
        except OSError:
            self._is_full = True
            self._write_flags()
            return False
        self._size = size
        return True

    def _flags(self) -> int:
        return packed(self._arrived, self._started_ms, overflowed=self._is_full)

    def _write_flags(self) -> None:
        store(self._map, FLAGS_AT, self._flags())


def _is_at(path: Path, file: int) -> bool:
    try:
        return os.fstat(file).st_ino == path.stat().st_ino
    except OSError:
        return False


def _close(file: int, mapped: mmap.mmap) -> None:
    with suppress(OSError, BufferError):
        mapped.close()
    os.close(file)
