"""The counts in the journal of a publisher that died (`events.journal`). Pure: nothing is believed
that is not possible.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from headrace.client import BatchIdentity
from headrace.events.arrived import Arrived, unpacked
from headrace.events.handovers import HandoverCounts, PartState, SequenceRange
from headrace.events.journal_format import (
    ANY_MAGIC,
    CLOSED,
    DESCRIPTION_MAX_BYTES,
    FINISHED,
    HANDED,
    HANDED_OVER,
    HEADER,
    IDENTITY,
    MAGIC,
    PART,
    PART_HEAD,
    RANGE,
    RANGES_MAX,
    RENUMBERED,
    REPORT_NUMBER_AT,
    SIZES,
    TOPIC,
    TOPIC_HEAD,
    TOPICS_MAX,
    UNCHECKED_MAGIC,
    USED_AT,
    aligned,
)
from headrace.events.words import WORD, checked_at, number_at


class JournalError(Exception):
    """The file is no journal, or cannot be read; the message names it and the problem."""


class LaterJournalError(JournalError):
    """A later version of headrace wrote the journal; its own publishers can read it."""


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


def description_of(data: bytes) -> dict[str, Any] | None:
    """Returns what the first bytes of a journal of this format say of its publisher; None for other bytes."""
    try:
        magic, *_, size, _ = HEADER.unpack_from(data)
        found = json.loads(data[HEADER.size : HEADER.size + size])
    except (struct.error, ValueError, RecursionError):
        return None
    return found if magic in (MAGIC, UNCHECKED_MAGIC) and isinstance(found, dict) else None


def replay(path: Path, data: bytes) -> DeadJournal:
    """Returns the counts of a journal. Raises `JournalError` if it is none."""
    if data.startswith(ANY_MAGIC) and data[: len(MAGIC)] > MAGIC:
        problem = "a later version of headrace wrote it"
        raise LaterJournalError(f"{path} is not a publisher's journal of this version: {problem}")
    try:
        magic, _, _, started_ms, flags, size, audit_topic = HEADER.unpack_from(data)
        is_checked = magic == MAGIC
        report_number, used = (
            checked_at(data, at) if is_checked else int(WORD.unpack_from(data, at)[0])
            for at in (REPORT_NUMBER_AT, USED_AT)
        )
        is_ours = is_checked or magic == UNCHECKED_MAGIC
        if not is_ours or not 0 < size <= DESCRIPTION_MAX_BYTES or used > len(data):
            raise ValueError("its header is not a journal's")
        description = json.loads(data[HEADER.size : HEADER.size + size])
        counts = HandoverCounts(int(description["bucket_ms"]))
        if not isinstance(description["publisher"], str):
            raise ValueError("it does not name its publisher")
        arrived, has_overflowed = unpacked(flags, started_ms)
        if arrived is not None and arrived.report_number > report_number:
            raise ValueError(f"report {arrived.report_number} arrived, of {report_number}")
        _replay_records(data, aligned(HEADER.size + size), used, counts, is_checked=is_checked)
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
        at = aligned(at + len(body))
        if kind == TOPIC:
            number, length = TOPIC_HEAD.unpack_from(body)
            if not 0 < length <= 249 or not 0 <= number < TOPICS_MAX:
                raise ValueError(f"topic {number} has a name of {length} bytes")
            topics[number] = body[TOPIC_HEAD.size :].decode()
        elif kind == HANDED_OVER:
            topic, time_ms = HANDED.unpack(body)
            count = checked_at(data, at, body) if is_checked else int(WORD.unpack_from(data, at)[0])
            counts.hand_over(topics[topic], time_ms, 0.0, count)
            at += WORD.size
        elif kind == CLOSED:
            counts.batch_closed(_identity(body, 0, topics), 0.0)
        elif kind == RENUMBERED:
            old, new = (_identity(body, place, topics) for place in (0, IDENTITY.size))
            counts.batch_renumbered(old, new, 0.0)
        elif kind == PART:
            _replay_part(body, counts, topics)
        else:
            (counts.finish if kind == FINISHED else counts.restore_numbers)(*WORD.unpack(body))


def _body_size(kind: int, data: bytes, at: int) -> int:
    """Returns the size of what follows a record's first word at `at`. Raises `ValueError`, `struct.error`."""
    if kind == TOPIC:
        return TOPIC_HEAD.size + max(0, int(TOPIC_HEAD.unpack_from(data, at)[1]))
    if kind == PART:
        ranges = int(PART_HEAD.unpack_from(data, at)[-1])
        if not 0 <= ranges <= RANGES_MAX:
            raise ValueError(f"a part of {ranges} ranges")
        return PART_HEAD.size + ranges * RANGE.size
    if kind in SIZES:
        return SIZES[kind]
    raise ValueError(f"a record of kind {kind} at {at - WORD.size}")


def _identity(body: bytes, at: int, topics: Mapping[int, str]) -> BatchIdentity:
    topic, *values = IDENTITY.unpack_from(body, at)
    return BatchIdentity(topics[topic], *values)


def _replay_part(body: bytes, counts: HandoverCounts, topics: Mapping[int, str]) -> None:
    topic, bucket_ms, number, count, final, _ = PART_HEAD.unpack_from(body)
    places = range(PART_HEAD.size, len(body), RANGE.size)
    held = tuple(SequenceRange(*RANGE.unpack_from(body, place)) for place in places)
    counts.restore(PartState(number, topics[topic], bucket_ms, count, bool(final), held))
