"""What a partition's log can be told. Owns names, units and defaults; parsing of Kafka's names is the
broker's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

UNLIMITED: Final = -1
DAY_MS: Final = 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Sizes in bytes, times in ms; `UNLIMITED` (-1) switches a retention off.

    `flush_messages` and `flush_ms` are the paper's flush policy: fsync after so many records or so long,
    whichever is first. With neither set the policy is adaptive: the next fsync starts as soon as the last
    one ended and something waits.
    """

    segment_bytes: int = 128 * 1024 * 1024
    segment_ms: int = 7 * DAY_MS
    retention_ms: int = 7 * DAY_MS
    retention_bytes: int = UNLIMITED
    flush_messages: int | None = None
    flush_ms: int | None = None
    producer_expiration_ms: int = DAY_MS


def flush_wait_ms(config: LogConfig, unflushed_records: int, oldest_age_ms: int) -> int:
    """How long the next fsync may still wait; 0 means now.

    `oldest_age_ms`: how long the oldest unflushed record has been waiting.
    """
    if config.flush_messages is None and config.flush_ms is None:
        return 0
    if config.flush_messages is not None and unflushed_records >= config.flush_messages:
        return 0
    if config.flush_ms is None:
        return FLUSH_WAIT_MAX_MS
    return max(0, config.flush_ms - oldest_age_ms)


FLUSH_WAIT_MAX_MS: Final = 60_000  # flush.messages alone: records are not kept invisible longer than this
