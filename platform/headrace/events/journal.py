"""The journal of one publisher: its counts in a memory-mapped file, which outlives a SIGKILL of the process.

Every count is in the file before the event is with the client, and every batch before it is sent. A
successor of the publisher (`events.succession`) replays the journal of one that died, and reports exactly
what was handed over. A power cut may lose the journal's last writes, because nothing waits for the disk. All
blocks of the file are allocated before they are mapped: a full disk is an error here, and not a SIGBUS in the
service.

The file, in the machine's byte order, all at multiples of 8:

    0   magic                8 bytes     32  flags (`events.arrived`) int64
    8   report number        checked     40  size of the description int64
    16  used bytes           checked
    24  started, ms          int64       48  id of the audit topic, 16 bytes
                                         64  description, JSON
                                         …   records

What batches hold (`wire.content`) is not kept: a dead publisher's events are compared by number alone.

A record is complete once `used bytes` includes it. Each one that a SIGKILL can cut off is written by a single
store of 8 bytes, which no kill divides (`events.words`). A record begins with a checked word, its kind, which
stands for all that follows but a count: that is a checked word, too. What rots is refused.
"""

from __future__ import annotations

import fcntl
import json
import logging
import mmap
import os
import struct
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import UUID

from headrace.client import BatchIdentity
from headrace.events.arrived import Arrived, packed, unpacked
from headrace.events.handovers import HandoverCounts, PartState, SequenceRange
from headrace.events.words import WORD, checked, checked_at, number_at, store
from headrace.wire.primitives import NO_UUID

logger = logging.getLogger(__name__)

MAGIC: Final = b"HRCOUNT2"
UNCHECKED_MAGIC: Final = b"HRCOUNT1"  # of earlier versions: no word has a checksum
FIRST_SIZE_BYTES: Final = 64 * 1024
SIZE_MAX_BYTES: Final = 64 * 1024 * 1024
COMPACT_ABOVE_BYTES: Final = 32 * 1024
TOPICS_MAX: Final = 65_536
RANGES_MAX: Final = 1_000  # of one part in a snapshot
DESCRIPTION_MAX_BYTES: Final = 4_096
UNFINISHED_SUFFIX: Final = ".new"  # of a file that will take the journal's place

_HEADER: Final = struct.Struct("@8s8s8sqqq16s")
_REPORT_NUMBER_AT, _USED_AT, _FLAGS_AT, _AUDIT_TOPIC_AT = 8, 16, 32, 48

_TOPIC, _HANDED_OVER, _CLOSED, _RENUMBERED, _PART, _FINISHED, _NUMBERS = 1, 2, 3, 4, 5, 6, 7
_TOPIC_HEAD: Final = struct.Struct("@qq")  # id, length of the name
_HANDED: Final = struct.Struct("@qq")  # topic, time of an event in the bucket; then the count
_COUNT_AT: Final = 24  # in a record of what was handed over
_IDENTITY: Final = struct.Struct("@qqqqqqqq")  # topic, then the other fields of a BatchIdentity
_PART_HEAD: Final = struct.Struct("@qqqqqq")  # topic, bucket, number, count, final, ranges
_RANGE: Final = struct.Struct("@qqqqq")
_SIZES: Final = {
    _HANDED_OVER: _HANDED.size,
    _CLOSED: _IDENTITY.size,
    _RENUMBERED: 2 * _IDENTITY.size,
    _FINISHED: 8,
    _NUMBERS: 8,
}


class JournalError(Exception):
    """The file is no journal, or cannot be read; the message names it and the problem."""


class Journal:
    """The journal that a living publisher writes. Its file stays locked until `delete` or the process's end.

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
        self._map[_AUDIT_TOPIC_AT : _AUDIT_TOPIC_AT + 16] = audit_topic_id.bytes

    # --- writing ---

    def hand_over(self, topic: str, time_ms: int, bucket_start_ms: int, count: int) -> None:
        """Counts `count` events (negative: taken back). Events of one bucket in a row share a record."""
        key = (topic, bucket_start_ms)
        if key == self._run_key and self._run_at:
            self._run_count += count
            at = self._run_at
            self._map[at : at + 8] = checked(self._run_count, self._run_head)
            return
        at = self._append(lambda: self._handed_over(topic, time_ms, count))
        self._run_key, self._run_count = key, count
        self._run_at = at + _COUNT_AT if at else 0

    def batch_closed(self, identity: BatchIdentity) -> None:
        self._append(lambda: _record(_CLOSED, self._identity(identity)))
        self._run_at = 0

    def batch_renumbered(self, old: BatchIdentity, new: BatchIdentity) -> None:
        self._append(lambda: _record(_RENUMBERED, self._identity(old) + self._identity(new)))
        self._run_at = 0

    def finished(self, numbers: Iterable[int]) -> None:
        """Notes parts that became final."""
        for number in numbers:
            self._write(_record(_FINISHED, WORD.pack(number)))
            self._run_at = 0

    def begin_report(self, report_number: int) -> None:
        """Notes the number of a report before it is sent."""
        self._report_number = report_number
        self._map[_REPORT_NUMBER_AT : _REPORT_NUMBER_AT + 8] = checked(report_number)

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
        self._used = _aligned(_HEADER.size + size)
        audit_topic = self._audit_topic_id.bytes
        self._is_full = False
        number, used = checked(self._report_number), checked(self._used)
        head = _HEADER.pack(MAGIC, number, used, self._started_ms, self._flags(), size, audit_topic)
        self._map[: len(head)] = head
        self._map[len(head) : len(head) + size] = self._description
        self._topics: dict[str, int] = {}
        self._run_key, self._run_head = ("", 0), b""
        self._run_at = self._run_count = 0
        for state in states:
            self._append(partial(self._part, state))
        if last_number:
            self._write(_record(_NUMBERS, WORD.pack(last_number)))
        temporary.replace(self.path)

    def _topic(self, topic: str) -> int:
        number = self._topics.get(topic)
        if number is None:
            number = self._topics[topic] = len(self._topics)
            name = topic.encode()
            self._write(_record(_TOPIC, _TOPIC_HEAD.pack(number, len(name)) + name))
        return number

    def _handed_over(self, topic: str, time_ms: int, count: int) -> bytes:
        head = self._run_head = _HANDED.pack(self._topic(topic), time_ms)
        return _record(_HANDED_OVER, head) + checked(count, head)

    def _identity(self, identity: BatchIdentity) -> bytes:
        return _IDENTITY.pack(self._topic(identity.topic), *identity[1:8])

    def _part(self, state: PartState) -> bytes:
        head = _PART_HEAD.pack(
            self._topic(state.topic),
            state.bucket_start_ms,
            state.number,
            state.handed_over_count,
            state.final,
            len(state.ranges),
        )
        return _record(_PART, head + b"".join(_RANGE.pack(*each[:5]) for each in state.ranges))

    def _append(self, make: Callable[[], bytes]) -> int:
        """Appends a record, and the names of topics before it; returns its place, 0 if there is no room."""
        return 0 if self._is_full else self._write(make())

    def _write(self, record: bytes) -> int:
        end = _aligned(self._used + len(record))
        if self._is_full or (end > self._size and not self._grow(end)):
            return 0
        at = self._used
        self._map[at : at + len(record)] = record
        self._used = end
        self._map[_USED_AT : _USED_AT + 8] = checked(end)
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
        store(self._map, _FLAGS_AT, self._flags())


class DeadJournal(NamedTuple):
    """What a journal says of a publisher that ended without closing. `is_whole`: it did not overflow.
    `audit_topic_id`: zero if the publisher never reached a broker. `arrived`: None if no report arrived, or
    if the journal does not tell.
    """

    description: dict[str, Any]
    started_ms: int
    report_number: int
    counts: HandoverCounts
    is_whole: bool
    audit_topic_id: UUID
    arrived: Arrived | None = None


def replay(path: Path, data: bytes) -> DeadJournal:
    """Returns the counts of a journal. Raises `JournalError` if it is none."""
    try:
        magic, _, _, started_ms, flags, size, audit_topic = _HEADER.unpack_from(data)
        is_checked = magic == MAGIC
        report_number, used = (
            checked_at(data, at) if is_checked else int(WORD.unpack_from(data, at)[0])
            for at in (_REPORT_NUMBER_AT, _USED_AT)
        )
        is_ours = is_checked or magic == UNCHECKED_MAGIC
        if not is_ours or not 0 < size <= DESCRIPTION_MAX_BYTES or used > len(data):
            raise ValueError("its header is not a journal's")
        description = json.loads(data[_HEADER.size : _HEADER.size + size])
        counts = HandoverCounts(int(description["bucket_ms"]))
        if not isinstance(description["publisher"], str):
            raise ValueError("it does not name its publisher")
        arrived, has_overflowed = unpacked(flags, started_ms)
        if arrived is not None and arrived.report_number > report_number:
            raise ValueError(f"report {arrived.report_number} arrived, of {report_number}")
        _replay_records(data, _aligned(_HEADER.size + size), used, counts, is_checked=is_checked)
    except (struct.error, ValueError, LookupError, TypeError, ArithmeticError, RecursionError) as error:
        raise JournalError(f"{path} is not a publisher's journal: {error}") from None
    topic_id = UUID(bytes=audit_topic)
    return DeadJournal(description, started_ms, report_number, counts, not has_overflowed, topic_id, arrived)


def _replay_records(data: bytes, at: int, end: int, counts: HandoverCounts, *, is_checked: bool) -> None:
    topics: dict[int, str] = {}
    while at < end:
        kind = number_at(data, at) if is_checked else int(WORD.unpack_from(data, at)[0])
        begin, at = at, at + WORD.size
        body = data[at : at + _body_size(kind, data, at)]
        if is_checked:
            checked_at(data, begin, body)
        at = _aligned(at + len(body))
        if kind == _TOPIC:
            number, length = _TOPIC_HEAD.unpack_from(body)
            if not 0 < length <= 249 or not 0 <= number < TOPICS_MAX:
                raise ValueError(f"topic {number} has a name of {length} bytes")
            topics[number] = body[_TOPIC_HEAD.size :].decode()
        elif kind == _HANDED_OVER:
            topic, time_ms = _HANDED.unpack(body)
            count = checked_at(data, at, body) if is_checked else int(WORD.unpack_from(data, at)[0])
            counts.hand_over(topics[topic], time_ms, 0.0, count)
            at += WORD.size
        elif kind == _CLOSED:
            counts.batch_closed(_identity(body, 0, topics), 0.0)
        elif kind == _RENUMBERED:
            old, new = (_identity(body, place, topics) for place in (0, _IDENTITY.size))
            counts.batch_renumbered(old, new, 0.0)
        elif kind == _PART:
            _replay_part(body, counts, topics)
        else:
            (counts.finish if kind == _FINISHED else counts.restore_numbers)(*WORD.unpack(body))


def _body_size(kind: int, data: bytes, at: int) -> int:
    """Returns the size of what follows a record's first word at `at`. Raises `ValueError`, `struct.error`."""
    if kind == _TOPIC:
        return _TOPIC_HEAD.size + max(0, int(_TOPIC_HEAD.unpack_from(data, at)[1]))
    if kind == _PART:
        ranges = int(_PART_HEAD.unpack_from(data, at)[-1])
        if not 0 <= ranges <= RANGES_MAX:
            raise ValueError(f"a part of {ranges} ranges")
        return _PART_HEAD.size + ranges * _RANGE.size
    if kind in _SIZES:
        return _SIZES[kind]
    raise ValueError(f"a record of kind {kind} at {at - WORD.size}")


def _identity(body: bytes, at: int, topics: Mapping[int, str]) -> BatchIdentity:
    topic, *values = _IDENTITY.unpack_from(body, at)
    return BatchIdentity(topics[topic], *values)


def _replay_part(body: bytes, counts: HandoverCounts, topics: Mapping[int, str]) -> None:
    topic, bucket_ms, number, count, final, _ = _PART_HEAD.unpack_from(body)
    places = range(_PART_HEAD.size, len(body), _RANGE.size)
    held = tuple(SequenceRange(*_RANGE.unpack_from(body, place)) for place in places)
    counts.restore(PartState(number, topics[topic], bucket_ms, count, bool(final), held))


def _record(kind: int, body: bytes) -> bytes:
    return checked(kind, body) + body


def _aligned(size: int) -> int:
    return -(-size // 8) * 8


def _is_at(path: Path, file: int) -> bool:
    try:
        return os.fstat(file).st_ino == path.stat().st_ino
    except OSError:
        return False


def _close(file: int, mapped: mmap.mmap) -> None:
    with suppress(OSError, BufferError):
        mapped.close()
    os.close(file)
