"""Heartbeats of auditors whose own clock is ahead: none was said after it was read.

An auditor that dies while its clock is ahead seems to have read logs for as long as that was ahead. The
moment at which the folding auditor reads a heartbeat, by its own clock, tells by how much it is at least. A
store that is folded again much later knows nothing of that.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sqlalchemy import Connection, delete, select

from headrace.audit.store import kept, measured_tables
from headrace.audit.store.clocks import OFF_MIN_MS
from headrace.audit.store.inserting import upsert
from headrace.audit.topic.records import DATACENTER_TIER, HeartbeatRecord, ReceivedRecord

_AHEAD: Final = measured_tables.ahead


def fold_ahead(connection: Connection, records: Iterable[ReceivedRecord], seen_ms: int) -> None:
    """Notes how far the clocks of these heartbeats' auditors are ahead of `seen_ms`, when they were read."""
    for received in records:
        record = received.record
        if isinstance(record, HeartbeatRecord) and record.tier == DATACENTER_TIER:
            _note(connection, received, record.beat, seen_ms)


def forget_ahead(connection: Connection, received: ReceivedRecord) -> None:
    """Forgets it of the auditor of this heartbeat, whose clock was set back before it."""
    if isinstance(received.record, HeartbeatRecord) and received.record.tier == DATACENTER_TIER:
        connection.execute(delete(_AHEAD).where(_AHEAD.c.datacenter == received.datacenter))


def _note(connection: Connection, received: ReceivedRecord, beat: int, seen_ms: int) -> None:
    datacenter, said_ms = received.datacenter, received.time_ms
    ahead_ms = max(0, said_ms - seen_ms - OFF_MIN_MS)
    old = connection.execute(select(_AHEAD).where(_AHEAD.c.datacenter == datacenter)).one_or_none()
    if old is None and not ahead_ms:
        return
    if old is not None and said_ms - ahead_ms < old.said_ms - old.ahead_ms:
        kept.forget_datacenter(connection, datacenter)
    row = {"datacenter": datacenter, "beat": beat, "said_ms": said_ms, "ahead_ms": ahead_ms}
    upsert(connection, _AHEAD, [row], newer_by="beat")
