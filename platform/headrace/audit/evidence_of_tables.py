"""What is known of the rows and files of a table, as evidence: values only."""

from __future__ import annotations

from typing import NamedTuple


class UnsoundFile(NamedTuple):
    """A file of the warehouse that a verification found wrong at `said_ms`; `is_gone`: without its rows."""

    path: str
    rows: int
    is_gone: bool
    text: str
    said_ms: int


class HeldTwice(NamedTuple):
    """Rows at adjacent offsets whose guids other rows have, too (`audit.topic.doubled`). `is_removed`: a
    dedupe has removed the extra ones from the table since.
    """

    log_partition: int
    first_offset: int
    last_offset: int
    is_extra: bool
    is_removed: bool
