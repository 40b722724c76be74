"""`cleanup.policy`: what becomes of old records of a topic.

A compacted topic promises its readers the last record of each key, and may hold older ones as long as it
likes. headrace keeps all of them: decision 53.

Source: https://kafka.apache.org/documentation/#topicconfigs_cleanup.policy.
"""

from __future__ import annotations

from typing import Final, NamedTuple

NAME: Final = "cleanup.policy"
DELETE: Final = "delete"
COMPACT: Final = "compact"


class CleanupPolicy(NamedTuple):
    """`deletes`: retention applies. `compacts`: each record must have a key. With neither, all is kept."""

    deletes: bool
    compacts: bool


DELETES: Final = CleanupPolicy(deletes=True, compacts=False)


def parse(text: str) -> CleanupPolicy:
    """Reads `delete`, `compact`, both, or nothing: then all is kept. Raises `ValueError` that says so."""
    found = {part.strip() for part in text.split(",")} if text else set()
    if not found <= {DELETE, COMPACT}:
        raise ValueError(f"must be {DELETE}, {COMPACT}, or both: {COMPACT},{DELETE}")
    return CleanupPolicy(DELETE in found, COMPACT in found)
