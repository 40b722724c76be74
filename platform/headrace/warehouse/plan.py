"""The plan of a load, from what is committed and what the brokers have. Pure.

A load begins where the commit log ends; there is no other checkpoint.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from headrace.warehouse.manifest import LoadGap

SPLIT_SIZE_MAX_BYTES: Final = 64 << 20
SPLIT_SIZE_MIN_BYTES: Final = 4 << 20
"""Less is not worth a task of its own."""
OTHER_LOG: Final = (
    "it lost records that were loaded, or its topic was made again, or this is another cluster. Nothing is "
    "loaded; repeat with --made-again new to load what is another log now, into the same table"
)
LISTED_MAX: Final = 8
"""Partitions that an error names."""
_GAP_REASON: Final = "retention at the brokers"

MadeAgain = Literal["new", "copy"]
"""What an operator says of a topic that was deleted and made again: its log is a new one, or the same one,
copied once more.
"""
MADE_AGAIN: Final[tuple[MadeAgain, ...]] = ("new", "copy")


class PlanError(Exception):
    """The load can't continue until an operator decides how."""


class LoadGapError(PlanError):
    """The brokers no longer have addresses that were never loaded."""

    def __init__(self, topic: str, gaps: list[LoadGap]) -> None:
        self.gaps = gaps
        listed = "; ".join(
            f"partition {gap.partition}: addresses {gap.from_address} to {gap.to_address}" for gap in gaps
        )
        super().__init__(
            f"{topic}: records that were never loaded are no longer at the brokers ({listed}; "
            f"{gaps[0].reason}). Restore them if you can. To load without them repeat with --accept-gap, "
            "which the manifest and the audit record"
        )


class LogWentBackError(PlanError):
    """The brokers' log is not the one that is already loaded: it ends before, or its batches are others."""


@dataclass(frozen=True)
class PlannedRange:
    """The addresses to read of one partition."""

    partition: int
    from_address: int
    to_address: int

    @property
    def size(self) -> int:
        return self.to_address - self.from_address


@dataclass(frozen=True)
class LoadPlan:
    """What a load will do: the ranges it reads, none of them empty, and the gaps it accepts."""

    topic: str
    ranges: tuple[PlannedRange, ...]
    gaps: tuple[LoadGap, ...] = ()
    topic_id: str = ""
    """Kafka's id of the topic; "" if the brokers give topics none."""
    begun: Mapping[int, int] = field(default_factory=dict)
    """Where logs begin that are loaded in the place of others, by partition."""
    confirmed: tuple[int, ...] = ()
    """Partitions of a topic that was made again whose logs are known to be those that are loaded."""
    unread: Mapping[int, str] = field(default_factory=dict)
    """Why partitions cannot be read now; the load goes on without them."""

    @property
    def size(self) -> int:
        """Bytes at a headrace broker."""
        return sum(planned.size for planned in self.ranges)

    @property
    def is_empty(self) -> bool:
        return not (self.ranges or self.gaps or self.begun or self.confirmed)


def plan_load(
    topic: str,
    loaded: Mapping[int, int],
    earliest: Mapping[int, int],
    latest: Mapping[int, int],
    *,
    until: Mapping[int, int] | None = None,
    accept_gap: bool = False,
) -> LoadPlan:
    """Plans a load of each partition from the end of what is `loaded` to the `latest` address.

    A new partition starts at its `earliest` address; `until` gives some partitions an earlier end. Raises
    `LoadGapError` for a partition that now begins after what is loaded, unless `accept_gap`, and
    `LogWentBackError` for one that ends before it.
    """
    ranges: list[PlannedRange] = []
    gaps: list[LoadGap] = []
    for partition in sorted(latest):
        first, end = earliest[partition], latest[partition]
        start = loaded.get(partition, first)
        if end < start:
            raise LogWentBackError(
                f"{topic}: partition {partition} ends at address {end}, but is loaded up to {start}: "
                f"{OTHER_LOG}"
            )
        if first > start:
            gaps.append(LoadGap(partition, start, first, _GAP_REASON))
            start = first
        end = min(end, (until or {}).get(partition, end))
        if end > start:
            ranges.append(PlannedRange(partition, start, end))
    if gaps and not accept_gap:
        raise LoadGapError(topic, gaps)
    return LoadPlan(topic, tuple(ranges), tuple(gaps))


def split_count(size_bytes: int, cores: int) -> int:
    """Returns how many tasks should share so many bytes: enough for all cores, none too large or small."""
    busy = min(max(1, cores), max(1, size_bytes // SPLIT_SIZE_MIN_BYTES))
    return max(busy, -(-size_bytes // SPLIT_SIZE_MAX_BYTES))


def listed(partitions: Sequence[int]) -> str:
    """Returns the numbers of the first partitions, and how many more there are."""
    more = f" and {len(partitions) - LISTED_MAX} more" if len(partitions) > LISTED_MAX else ""
    return f"{', '.join(map(str, partitions[:LISTED_MAX]))}{more}"


def unread_text(topic: str, unread: Mapping[int, str]) -> str:
    """Says which partitions a load went without, each reason once; "" if it read all."""
    by_reason: dict[str, list[int]] = {}
    for partition, reason in sorted(unread.items()):
        by_reason.setdefault(reason, []).append(partition)
    parts = [f"{listed(partitions)} ({reason})" for reason, partitions in by_reason.items()]
    if not parts:
        return ""
    return (
        f"{topic}: these partitions cannot be read now, and were not loaded: {'; '.join(parts)}. Start their "
        "brokers; the next load of them continues where the last one ended"
    )
