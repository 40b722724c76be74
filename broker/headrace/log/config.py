"""The settings of a partition's log: names, units and defaults. The broker parses Kafka's names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

UNLIMITED: Final = -1
DAY_MS: Final = 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Sizes in bytes, times in ms; `UNLIMITED` (-1) disables a retention.

    `flush_messages` and `flush_ms` are the paper's flush policy: fsync after that many records or that time,
    whichever is first. With neither, the policy is adaptive: an fsync starts as soon as the last one ended
    and there are unflushed records.
    """

    segment_bytes: int = 128 * 1024 * 1024
    segment_ms: int = 7 * DAY_MS
    retention_ms: int = 7 * DAY_MS
    retention_bytes: int = UNLIMITED
    flush_messages: int | None = None
    flush_ms: int | None = None
    producer_expiration_ms: int = DAY_MS


def flush_wait_ms(config: LogConfig, unflushed_records: int, oldest_age_ms: int) -> int:
    """Returns how long the next fsync may wait; 0 means now. `oldest_age_ms`: of the oldest unflushed
    record."""
    if config.flush_messages is None and config.flush_ms is None:
        return 0
    if config.flush_messages is not None and unflushed_records >= config.flush_messages:
        return 0
    wait_max_ms = FLUSH_WAIT_MAX_MS if config.flush_ms is None else config.flush_ms
    return max(0, wait_max_ms - oldest_age_ms)


FLUSH_WAIT_MAX_MS: Final = 60_000  # with flush.messages alone: records become visible after this time
