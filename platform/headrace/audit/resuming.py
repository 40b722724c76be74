"""Finding where an auditor's counts ended, by its last heartbeats, and where the logs begin."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final

from headrace.audit.reader import AuditReader
from headrace.audit.records import HeartbeatRecord, ReceivedRecord
from headrace.audit.standing import Marks, marks_of
from headrace.client import Admin
from headrace.client.admin import EARLIEST
from headrace.client.errors import ClientError
from headrace.process.clock import now_ms

logger = logging.getLogger(__name__)

LOOK_BACK_MS_FIRST: Final = 10 * 60_000
LOOK_BACK_FACTOR: Final = 12
LOOK_BACKS_MAX: Final = 3  # 10 minutes, 2 hours, a day; then from the beginning
READ_BACK_POLL_S: Final = 1.0


def resume(
    reader: AuditReader,
    datacenter: str,
    learn: Callable[[ReceivedRecord], None],
    is_stopping: Callable[[], bool],
) -> Marks:
    """Returns how far the datacenter's auditor has counted, looking back further and further.

    `learn` gets all records that are read meanwhile. Raises what `AuditReader` raises.
    """
    start_ms, look_back_ms = now_ms(), LOOK_BACK_MS_FIRST
    for attempt in range(LOOK_BACKS_MAX + 1):
        timestamp_ms = start_ms - look_back_ms if attempt < LOOK_BACKS_MAX else 0
        reader.seek_to_timestamp(timestamp_ms)
        marks = marks_of(_read_back(reader, datacenter, learn, is_stopping))
        if marks:
            logger.info("resuming where the last heartbeat ended")
            return marks
        look_back_ms *= LOOK_BACK_FACTOR
    logger.info("no heartbeat in the audit topic: counting from the beginning")
    return Marks()


def _read_back(
    reader: AuditReader,
    datacenter: str,
    learn: Callable[[ReceivedRecord], None],
    is_stopping: Callable[[], bool],
) -> list[HeartbeatRecord]:
    """Reads the audit topic from its position to its end; returns this auditor's heartbeats."""
    ends = {key: end for key, end in reader.ends().items() if end}
    heartbeats: list[HeartbeatRecord] = []
    while ends and not is_stopping():
        polled = reader.poll(READ_BACK_POLL_S)
        for received in polled.records:
            if received.datacenter == datacenter and isinstance(received.record, HeartbeatRecord):
                heartbeats.append(received.record)
            learn(received)
        if not polled.positions:
            return heartbeats
        ends = {key: end for key, end in ends.items() if polled.positions.get(key, 0) < end}
    return heartbeats


def log_starts(admin: Admin, topics: Iterable[str]) -> dict[str, dict[int, int]]:
    """Returns topic → partition → start address, without the topics that cannot say it now."""
    starts: dict[str, dict[int, int]] = {}
    for topic in topics:
        try:
            found = admin.list_offsets(topic, EARLIEST)
        except ClientError as error:
            logger.warning("%s is not counted yet: %s", topic, error)
            continue
        starts[topic] = {number: each.offset for number, each in found.items()}
    return starts
