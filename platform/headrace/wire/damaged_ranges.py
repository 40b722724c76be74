"""What a broker's scrub found, as entries of a DescribeConfigs response for the broker.

Kafka has no request that names damaged addresses. Read-only entries reach every client and tool, and a broker
that is no headrace has none. Owns their names and values; the broker writes them, the auditor reads them.
"""

from __future__ import annotations

import json
from typing import Final, NamedTuple

PREFIX: Final = "headrace.damage."
CAUSE_MAX_CHARS: Final = 300


class DamagedRange(NamedTuple):
    """Addresses [start, end) of a partition's log that are damaged on a broker's disk.

    `is_mended`: they were, and are whole again or deleted by retention. `found_ms`: when that was found.
    """

    topic: str
    partition: int
    start: int
    end: int
    cause: str
    found_ms: int
    is_mended: bool

    @property
    def name(self) -> str:
        """The entry's name. Neighbours are one range until one of them is mended: that has the same start."""
        return f"{PREFIX}{self.topic}-{self.partition}.{self.start}-{self.end}"

    def value(self) -> str:
        """Returns the entry's value."""
        return json.dumps(self._replace(cause=self.cause[:CAUSE_MAX_CHARS])._asdict())


def parse(name: str, value: str | None) -> DamagedRange | None:
    """Returns what an entry says; None for any other entry, and for one that makes no sense."""
    if not name.startswith(PREFIX):
        return None
    try:
        fields = json.loads(value or "")
        topic, cause = (str(fields[field]) for field in ("topic", "cause"))
        numbers = [int(fields[field]) for field in ("partition", "start", "end", "found_ms")]
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError):
        return None
    partition, start, end, found_ms = numbers
    if not 0 <= start <= end < 1 << 63 or partition < 0:
        return None
    is_mended = fields.get("is_mended") is True
    return DamagedRange(topic, partition, start, end, cause[:CAUSE_MAX_CHARS], found_ms, is_mended)
