"""Logs of the audit topics that were deleted and made again: what of them was not read is lost.

Of each log the store knows the topic's id, the record that was read last, and which datacenters' auditors and
publishers speak in it. If the id is another one, reports from the last heartbeat in the deleted log to the
first one in the present log may be missing: of publishers that the store knows, the next report tells which
(`audit.store.fold_missing`), and of others nothing does. What was folded stays. A copy that is made again has
the record that was read last: then nothing is missing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sqlalchemy import ColumnElement, Connection, Table, delete, select, update

from headrace.audit.store import measured_tables
from headrace.audit.store.fold_again import await_recounts
from headrace.audit.store.inserting import insert_new, upsert
from headrace.audit.topic.logs_read import LastRead, Log, LogsRead, Mark, is_other
from headrace.audit.topic.records import HeartbeatRecord, ProducerReport, ReceivedRecord

SPEAKERS_MAX: Final = 64
"""Datacenters that are remembered of one log: a mirrored one has one."""
_READ: Final = measured_tables.read_logs
_SPEAKERS: Final = measured_tables.speakers
_LOST: Final = measured_tables.lost_logs
_HEARD: Final = measured_tables.heard
_KEPT: Final = measured_tables.kept


class LogFolder:
    """Notes in the store which logs are folded. One thread uses it; `remember` once the store has it all."""

    def __init__(self, connection: Connection | None = None) -> None:
        """`connection`: to the store, of which it reads what is known; None: nothing is."""
        self._last: dict[Log, LastRead] = {} if connection is None else last_read(connection)
        self._speakers: dict[Log, set[str]] = {}
        if connection is not None:
            for row in connection.execute(select(_SPEAKERS)):
                self._speakers.setdefault((row.topic, row.partition), set()).add(row.datacenter)
        self._begun: set[Log] = set()
        """Logs that took the place of deleted ones, and in which no heartbeat was read yet."""
        self._new_speakers: set[tuple[Log, str]] = set()
        self._now_begun: set[Log] = set()

    def made_again(self, read: LogsRead) -> list[Log]:
        """Returns the logs that are of another topic than the one that was folded last under their name."""
        return [log for log, now in read.last.items() if self._is_other(log, now)]

    def fold(
        self, connection: Connection, read: LogsRead, records: Iterable[ReceivedRecord], now_ms: int
    ) -> None:
        """Notes what was read, within the transaction that folds these records. Call it before they are."""
        for log in self.made_again(read):
            self._note_lost(connection, log[0], read.last[log].topic_id, now_ms)
            connection.execute(delete(_HEARD).where(*_of(_HEARD, log)))
        if read.restarted or self.made_again(read):
            await_recounts(connection)
        for mark in read.again:
            of_mark = (_LOST.c.last_offset == mark.offset, _LOST.c.last_digest == mark.digest)
            connection.execute(delete(_LOST).where(*_of(_LOST, mark[:2]), *of_mark))
        rows = [
            {"topic": log[0], "partition": log[1], "topic_id": now.topic_id}
            | {"last_offset": now.offset, "last_digest": now.digest}
            for log, now in read.last.items()
        ]
        upsert(connection, _READ, rows)
        self._now_begun = self._begun.union(self.made_again(read))
        self._new_speakers = set()
        for received in records:
            self._note_speaker(connection, received)
            self._note_first_beat(connection, received)

    def remember(self, read: LogsRead) -> None:
        """Remembers what the store has now."""
        self._last.update(read.last)
        self._begun = set(self._now_begun)
        for log, datacenter in self._new_speakers:
            self._speakers.setdefault(log, set()).add(datacenter)

    def _is_other(self, log: Log, now: LastRead) -> bool:
        before = self._last.get(log)
        return before is not None and is_other(before.topic_id, now.topic_id)

    def _note_lost(self, connection: Connection, topic: str, present_id: str, now_ms: int) -> None:
        """Notes all logs of the deleted topic as lost: the present one may have fewer partitions."""
        for log, before in self._last.items():
            if log[0] != topic or not is_other(before.topic_id, present_id):
                continue
            heard = connection.execute(select(_HEARD.c.at_ms).where(*_of(_HEARD, log))).scalars().all()
            from_ms = min((*heard, now_ms)) if heard else 0
            for datacenter in sorted(self._speakers.get(log, ())):
                row = {
                    "topic": topic,
                    "partition": log[1],
                    "topic_id": before.topic_id,
                    "datacenter": datacenter,
                    "from_ms": from_ms,
                    "until_ms": now_ms,
                    "last_offset": before.offset,
                    "last_digest": before.digest,
                }
                insert_new(connection, _LOST, row)
                connection.execute(delete(_KEPT).where(_KEPT.c.datacenter == datacenter))

    def _note_speaker(self, connection: Connection, received: ReceivedRecord) -> None:
        log, datacenter = received.log, received.datacenter
        if log is None or not isinstance(received.record, HeartbeatRecord | ProducerReport):
            return
        known = self._speakers.get(log, ())
        new = {name for place, name in self._new_speakers if place == log}
        if datacenter in known or datacenter in new or len(known) + len(new) >= SPEAKERS_MAX:
            return
        row = {"topic": log[0], "partition": log[1], "datacenter": datacenter}
        insert_new(connection, _SPEAKERS, row)
        self._new_speakers.add((log, datacenter))

    def _note_first_beat(self, connection: Connection, received: ReceivedRecord) -> None:
        """What the deleted log lost was written before the first heartbeat in the present one."""
        log = received.log
        if log is None or log not in self._now_begun or not isinstance(received.record, HeartbeatRecord):
            return
        self._now_begun.discard(log)
        later = (*_of(_LOST, log), _LOST.c.until_ms > received.time_ms)
        is_before = _LOST.c.from_ms >= received.time_ms
        connection.execute(update(_LOST).where(*later, is_before).values(until_ms=_LOST.c.from_ms))
        connection.execute(update(_LOST).where(*later, ~is_before).values(until_ms=received.time_ms))


def last_read(connection: Connection) -> dict[Log, LastRead]:
    """Returns the record of each log that was folded last."""
    return {
        (row.topic, row.partition): LastRead(row.topic_id, row.last_offset, row.last_digest)
        for row in connection.execute(select(_READ))
    }


def lost_marks(connection: Connection) -> list[Mark]:
    """Returns the records that were read last of the logs that were lost."""
    columns = (_LOST.c.topic, _LOST.c.partition, _LOST.c.last_offset, _LOST.c.last_digest)
    return [Mark(*row) for row in connection.execute(select(*columns).distinct())]


def _of(table: Table, log: Log) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return (table.c.topic == log[0], table.c.partition == log[1])
