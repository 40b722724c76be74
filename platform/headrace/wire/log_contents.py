"""What a broker's replica holds between two addresses, as entries of its DescribeConfigs response.

Kafka has no request for it. A client asks for entries by name, and each names a range; a broker that is no
headrace has none. Owns their names and values; the broker writes them, the auditor reads them.
"""

from __future__ import annotations

import json
import re
from typing import Final, NamedTuple

from headrace.wire.content import from_hex, hex_of

PREFIX: Final = "headrace.content."
PROBLEM_MAX_CHARS: Final = 300
ADDRESS_MAX: Final = 2**63 - 1
NO_LOG: Final = "this broker has no such log"
"""The problem where the broker has no folder of the partition, whether or not it should."""
_NAME: Final = re.compile(r"headrace\.content\.([a-zA-Z0-9._-]{1,249})-(\d{1,9})\.(\d{1,19})\.(\d{1,19})")


class ContentRange(NamedTuple):
    """Addresses [start, end) of a partition's log."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def name(self) -> str:
        """The entry's name."""
        return f"{PREFIX}{self.topic}-{self.partition}.{self.start}.{self.end}"


class ContentAnswer(NamedTuple):
    """What a replica holds: the content (`wire.content`) of its batches from the range's start to `end`.

    `end` is behind the range's end if its last batch is, and before it if the broker stopped there: ask for
    the rest. `last_start`: where the last of these batches begins; -1 without any. `problem`: why the
    replica cannot say it; of the numbers only `end` then means anything, up to where it could. `contradicts`:
    the log ends before the range's end, or has no batch where one must begin.
    """

    content: int
    end: int
    last_start: int = -1
    problem: str = ""
    contradicts: bool = False

    def value(self) -> str:
        """Returns the entry's value."""
        problem = self.problem[:PROBLEM_MAX_CHARS]
        return json.dumps(self._replace(problem=problem)._asdict() | {"content": hex_of(self.content)})


def parse_name(name: str) -> ContentRange | None:
    """Returns the range that an entry's name asks for; None for any other name."""
    matched = _NAME.fullmatch(name)
    if matched is None:
        return None
    topic, partition, start, end = matched.groups()
    asked = ContentRange(topic, int(partition), int(start), int(end))
    return asked if asked.start < asked.end <= ADDRESS_MAX else None


def parse_value(value: str | None) -> ContentAnswer | None:
    """Returns what an entry says; None for one that makes no sense."""
    try:
        fields = json.loads(value or "")
        content = from_hex(str(fields["content"]))
        end, last_start = int(fields["end"]), int(fields["last_start"])
        problem = str(fields["problem"])[:PROBLEM_MAX_CHARS]
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError):
        return None
    if content is None or not (0 <= end <= ADDRESS_MAX and -1 <= last_start <= ADDRESS_MAX):
        return None
    return ContentAnswer(content, end, last_start, problem, fields.get("contradicts") is True)
