"""Where a Fetch response's first records begin, as soon as its first bytes are here.

So its receiver can have the rest of it written where the disk can take it from (`log.direct`).
Source: https://kafka.apache.org/protocol#The_Messages_Fetch.
"""

from __future__ import annotations

from typing import Final, NamedTuple
from uuid import UUID

from headrace.wire.apis import read_response_head
from headrace.wire.errors import WireError
from headrace.wire.fetch import TOPIC_IDS_FROM
from headrace.wire.primitives import BROKEN, INT32, read_count, read_nullable_count, read_uuid, read_uvarint

ANSWER_BYTES: Final = 4 + 2 + 4  # throttle time, error code, session id
RESULT_BYTES: Final = (
    4 + 2 + 8 + 8 + 8
)  # partition, error code, high watermark, last stable offset, log start
REPLICA_BYTES: Final = 4  # the preferred read replica


class FirstRecords(NamedTuple):
    """`at`: their position in the frame."""

    topic_id: UUID
    partition: int
    at: int


def first_records(beginning: memoryview, version: int) -> FirstRecords | None:
    """Reads what stands in a frame before the records of its first partition. None if that partition has
    none, or if the frame's first bytes do not tell: they are too few, or no such response.
    """
    if version < TOPIC_IDS_FROM:
        return None
    try:
        _, at = read_response_head(beginning, True)
        topics, at = read_count(beginning, at + ANSWER_BYTES, True)
        topic_id, at = read_uuid(beginning, at)
        partitions, at = read_count(beginning, at, True)
        partition = INT32.unpack_from(beginning, at)[0]
        aborted, at = read_nullable_count(beginning, at + RESULT_BYTES, True)
        length, at = read_uvarint(beginning, at + REPLICA_BYTES)
    except (*BROKEN, WireError):
        return None
    if topics and partitions and aborted <= 0 and length > 1:
        return FirstRecords(topic_id, partition, at)
    return None
