"""Which segments of a log are beyond retention, and their deletion. Decides by sizes and times alone.

Time counts from the last append to a segment (paper §3.1: "retained in the broker longer than a certain
period"), not from the events' own timestamps, which may be years old. Events whose timestamps say that they
are younger stay all the same: this broker's clock may have been behind when it wrote them. So the timestamps
of a segment must be known before it is deleted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from headrace.log.config import UNLIMITED, LogConfig
from headrace.log.segment import ColdSegmentError, Segment
from headrace.log.segments import SegmentList

DELETED_AT_ONCE_MAX: Final = 100  # segments: the caller goes on with the others soon
FUTURE_MAX_MS: Final = 3_600_000
"""How far ahead of this broker's clock a timestamp is believed, as Apache Kafka 4's
`message.timestamp.after.max.ms`: the clock may be behind now. Beyond that, events would stay for as long as
their sender likes.
"""


def must_roll(active: Segment, config: LogConfig, now_ms: int) -> bool:
    """Whether the active segment is old enough to be sealed, so that it can be deleted. One that is as far
    in the future was begun while the clock was ahead, and would take events for that long.
    """
    may_be_old = is_old(active, config, now_ms) is not False
    return may_be_old or abs(now_ms - active.created_ms) >= config.segment_ms


def is_old(segment: Segment, config: LogConfig, now_ms: int) -> bool | None:
    """Returns whether a segment is older than `retention.ms`; `None` if its timestamps must be read first."""
    if config.retention_ms == UNLIMITED or segment.last_append_ms + config.retention_ms > now_ms:
        return False
    newest_ms = segment.newest_readable_ms
    if newest_ms is None:
        return None
    return not newest_ms - FUTURE_MAX_MS <= now_ms < newest_ms + config.retention_ms


def delete_expired(
    segments: SegmentList,
    config: LogConfig,
    upto: int,
    now_ms: int,
    source_start: int | None = None,
    *,
    committed_end: int,
) -> list[Path]:
    """Takes sealed segments beyond retention that end at `upto` or before out of the log, the oldest first;
    returns their files, which any thread may remove. With `source_start`, those that end before that,
    whatever their age.

    Bytes from `committed_end` on do not count for `retention.bytes`: they may be cut off again, and what was
    deleted for them would be missed. If nothing was deleted: raises `ColdSegmentError` if the timestamps of
    the first one must be read, `OSError` if it cannot be taken out.
    """
    deleted: list[Path] = []
    while len(segments) > 1 and len(deleted) < DELETED_AT_ONCE_MAX:
        oldest = segments.oldest
        left_bytes = min(committed_end, segments.end_address) - oldest.end_address
        too_large = config.retention_bytes != UNLIMITED and left_bytes >= config.retention_bytes
        is_expired: bool | None
        if source_start is None:
            is_expired = too_large or is_old(oldest, config, now_ms)
        else:
            is_expired = oldest.end_address <= source_start
        if oldest.end_address > upto or is_expired is False:
            break
        if is_expired is None:
            if deleted:
                break
            raise ColdSegmentError(oldest)
        try:
            deleted.append(segments.take_out_oldest())
        except OSError:
            if not deleted:
                raise
            break  # those before it are gone, and the caller must know that
    return deleted
