"""What a publisher's journal looks like: its head, its kinds of records, and their bounds.

`events.journal` writes journals, `events.journal_replay` reads those of the dead.

The file, in the machine's byte order, all at multiples of 8:

    0   magic                8 bytes     32  flags (`events.arrived`) int64
    8   report number        checked     40  size of the description int64
    16  used bytes           checked
    24  started, ms          int64       48  id of the audit topic, 16 bytes
                                         64  description, JSON
                                         …   records

A record begins with a checked word (`events.words`), its kind, which stands for all that follows but a count:
that is a checked word, too. What rots is refused.
"""

from __future__ import annotations

import struct
from typing import Final

from headrace.events.words import checked

MAGIC: Final = b"HRCOUNT2"
UNCHECKED_MAGIC: Final = b"HRCOUNT1"  # of earlier versions: no word has a checksum
ANY_MAGIC: Final = b"HRCOUNT"  # the digit behind it is the format's
TOPICS_MAX: Final = 65_536
RANGES_MAX: Final = 1_000  # of one part in a snapshot
DESCRIPTION_MAX_BYTES: Final = 4_096

HEADER: Final = struct.Struct("@8s8s8sqqq16s")
REPORT_NUMBER_AT, USED_AT, FLAGS_AT, AUDIT_TOPIC_AT = 8, 16, 32, 48

TOPIC, HANDED_OVER, CLOSED, RENUMBERED, PART, FINISHED, NUMBERS = 1, 2, 3, 4, 5, 6, 7
TOPIC_HEAD: Final = struct.Struct("@qq")  # id, length of the name
HANDED: Final = struct.Struct("@qq")  # topic, time of an event in the bucket; then the count
COUNT_AT: Final = 24  # in a record of what was handed over
IDENTITY: Final = struct.Struct("@qqqqqqqq")  # topic, then the other fields of a BatchIdentity
PART_HEAD: Final = struct.Struct("@qqqqqq")  # topic, bucket, number, count, final, ranges
RANGE: Final = struct.Struct("@qqqqq")
SIZES: Final = {
    HANDED_OVER: HANDED.size,
    CLOSED: IDENTITY.size,
    RENUMBERED: 2 * IDENTITY.size,
    FINISHED: 8,
    NUMBERS: 8,
}


def record(kind: int, body: bytes) -> bytes:
    """Returns a record of a kind."""
    return checked(kind, body) + body


def aligned(size: int) -> int:
    """Returns the first multiple of 8 that is not less."""
    return -(-size // 8) * 8
