"""What a load does next, decided from what is committed and what the brokers have. Pure.

The commit log's end is where a load begins, whatever else happened: no other checkpoint exists.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from headrace.warehouse.manifest import LoadGap

SPLIT_SIZE_MAX_BYTES: Final = 64 << 20
SPLIT_SIZE_MIN_BYTES: Final = 4 << 20
"""Less is not worth a task of its own."""


class PlanError(Exception):
    """The load can't go on without a decision that isn't its to make."""


class LoadGapError(PlanError):
    """Unread addresses are gone from the brokers."""

    def __init__(self, topic: str, gaps: list[LoadGap]) -> None:
        self.gaps = gaps
        listed = "; ".join(
            f"partition {gap.partition}: addresses {gap.from_address} to {gap.to_address}" for gap in gaps
        )
        super().__init__(
            f"{topic}: records that were never loaded are gone from the brokers ({listed}; "
            f"{gaps[0].reason}). "
            "Mend the source if you can; to go on without them say --accept-gap, which is recorded in "
            "the manifest and "
            "the audit"
        )


class LogWentBackError(PlanError):
    """The brokers' log ends before what is already loaded."""


@dataclass(frozen=True)
class PlannedRange:
    """What to read of one partition."""

    partition: int
    from_address: int
    to_address: int

    @property
    def size(self) -> int:
        return self.to_address - self.from_address


@dataclass(frozen=True)
class LoadPlan:
    """What a load will do: ranges that are not empty, and gaps it steps over."""

    topic: str
    ranges: tuple[PlannedRange, ...]
    gaps: tuple[LoadGap, ...] = ()

    @property
    def size(self) -> int:
        """Bytes at a headrace broker."""
        return sum(each.size for each in self.ranges)

    @property
    def is_empty(self) -> bool:
        return not self.ranges and not self.gaps


def plan_load(
    topic: str,
    loaded: Mapping[int, int],
    earliest: Mapping[int, int],
    latest: Mapping[int, int],
    *,
    until: Mapping[int, int] | None = None,
    accept_gap: bool = False,
    gap_reason: str = "retention at the brokers",
) -> LoadPlan:
    """From where each partition's load stands (`loaded`; a new partition starts at its earliest) to its end.

    `until` may name an earlier end for some partitions. Raises `LoadGapError` where a partition now begins
    after what is loaded and `accept_gap` isn't said, `LogWentBackError` where it ends before.
    """
    ranges: list[PlannedRange] = []
    gaps: list[LoadGap] = []
    for partition in sorted(latest):
        first, end = earliest[partition], latest[partition]
        start = loaded.get(partition, first)
        if end < start:
            raise LogWentBackError(
                f"{topic}: partition {partition} ends at address {end}, but it is loaded up to "
                f"{start}: the topic was "
                "made anew, or this is another cluster. Nothing is loaded; give the new topic another "
                "name or root"
            )
        if first > start:
            gaps.append(LoadGap(partition, start, first, gap_reason))
            start = first
        end = min(end, (until or {}).get(partition, end))
        if end > start:
            ranges.append(PlannedRange(partition, start, end))
    if gaps and not accept_gap:
        raise LoadGapError(topic, gaps)
    return LoadPlan(topic, tuple(ranges), tuple(gaps))


def split_count(size_bytes: int, cores: int) -> int:
    """Into how many parts to cut so many bytes: all cores busy, no part too large, none too small to be
    worth it.
    """
    busy = min(max(1, cores), max(1, size_bytes // SPLIT_SIZE_MIN_BYTES))
    return max(busy, -(-size_bytes // SPLIT_SIZE_MAX_BYTES))
