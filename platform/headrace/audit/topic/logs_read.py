"""Which log was read last under the name of an audit topic: a topic that was deleted and made again is
noticed, and so is a copy that has the same records again. Pure.

A log is known by its topic's id. A mirror's copy that is deleted and made again gets another id, and the same
records at the same offsets: the record that was read last tells whether it is such a copy.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple
from uuid import UUID

from headrace.wire.primitives import NO_UUID

logger = logging.getLogger(__name__)

Log = tuple[str, int]
"""An audit topic, and a partition."""
NOT_KNOWN: Final = ""
"""The id of a topic of brokers that have none."""
_DIGEST_BYTES: Final = 16


class LastRead(NamedTuple):
    """The record of a log that was read last. `topic_id`: of its topic, or `NOT_KNOWN`."""

    topic_id: str
    offset: int
    digest: str


class Mark(NamedTuple):
    """The record that was read last of a log whose topic was deleted."""

    topic: str
    partition: int
    offset: int
    digest: str


class LogsRead(NamedTuple):
    """What one poll read: the last record of each log, and the marks that it met in the present logs.
    `restarted`: logs that are read again from their start.
    """

    last: Mapping[Log, LastRead] = {}
    again: tuple[Mark, ...] = ()
    restarted: tuple[Log, ...] = ()


NO_LOGS: Final = LogsRead()


class LogWatch:
    """Follows the logs under the names of the audit topics. One thread uses it."""

    def __init__(self, last: Mapping[Log, LastRead] | None = None, marks: Iterable[Mark] = ()) -> None:
        """`last`: of each log that was read before; `marks`: those that no present log is known to have."""
        self.last: dict[Log, LastRead] = dict(last or {})
        self._marks: dict[Log, set[Mark]] = {}
        for mark in marks:
            self._add(mark)

    def note(self, log: Log, topic_id: str, records: Iterable[tuple[int, bytes]]) -> list[Mark]:
        """Notes records that were read, as (offset, value); returns the marks that are among them."""
        before = self.last.get(log)
        if before is not None and is_other(before.topic_id, topic_id):
            logger.error(
                "%s-%d: its topic was deleted and made again (its id was %s, and is %s). It is read from "
                "its start; reports that the deleted one still had are lost, unless the present one has them",
                *(*log, before.topic_id, topic_id),
            )
            self._add(Mark(*log, before.offset, before.digest))
        known_id = before.topic_id if before is not None else NOT_KNOWN
        marks = self._marks.get(log, set())
        offsets = {mark.offset for mark in marks}
        found: list[Mark] = []
        last: tuple[int, bytes] | None = None
        for offset, value in records:
            last = (offset, value)
            mark = Mark(*log, offset, digest_of(value)) if offset in offsets else None
            if mark is not None and mark in marks:
                marks.discard(mark)
                found.append(mark)
        if last is not None:
            self.last[log] = LastRead(topic_id or known_id, last[0], digest_of(last[1]))
        return found

    def _add(self, mark: Mark) -> None:
        self._marks.setdefault((mark.topic, mark.partition), set()).add(mark)


def named_id(topic_id: UUID | None) -> str:
    """Returns a topic's id as audit records name it: `NOT_KNOWN` with older Kafka brokers."""
    return NOT_KNOWN if topic_id is None or topic_id == NO_UUID else str(topic_id)


def is_other(topic_id: str, present_id: str) -> bool:
    """Whether both ids are known, and of two topics."""
    return NOT_KNOWN not in (topic_id, present_id) and topic_id != present_id


def digest_of(value: bytes) -> str:
    """Returns the digest of a record: each has a GUID of its own."""
    return hashlib.blake2b(value, digest_size=_DIGEST_BYTES).hexdigest()
