"""The segments of one log in order of address, and the lookup of the one that holds an address."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Final

from headrace.log.segment import Segment

OPEN_SEALED_MAX: Final = 8  # descriptors that a log keeps open for sealed segments


class SegmentList:
    """At least one segment; the last is the active one, the only one that is written."""

    __slots__ = ("_bases", "_segments", "active")

    def __init__(self, segments: Sequence[Segment]) -> None:
        self._segments = list(segments)
        self._bases = [segment.base_address for segment in segments]
        self.active = self._segments[-1]

    @property
    def start_address(self) -> int:
        return self._bases[0]

    @property
    def end_address(self) -> int:
        return self.active.end_address

    @property
    def oldest(self) -> Segment:
        return self._segments[0]

    def holding(self, address: int) -> Segment:
        """Returns the segment that holds `address`, which must not be before the start."""
        return self._segments[bisect_right(self._bases, address) - 1]

    def first_after(self, base_address: int) -> Segment | None:
        """Returns the first segment that begins after `base_address`."""
        at = bisect_right(self._bases, base_address)
        return self._segments[at] if at < len(self._segments) else None

    def sealed(self) -> Sequence[Segment]:
        """Returns all segments but the active one."""
        return self._segments[:-1]

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    def __len__(self) -> int:
        return len(self._segments)

    def add(self, segment: Segment) -> None:
        """Appends a segment, which becomes the active one."""
        self._segments.append(segment)
        self._bases.append(segment.base_address)
        self.active = segment

    def remove_oldest(self) -> Segment:
        """Deletes the oldest segment's file; returns the segment."""
        oldest = self._segments[0]
        oldest.delete()
        del self._segments[0], self._bases[0]
        return oldest

    def remove_active(self) -> None:
        """Deletes the active segment's file; the previous one becomes active."""
        self.active.delete()
        del self._segments[-1], self._bases[-1]
        self.active = self._segments[-1]

    def replace_all(self, segment: Segment) -> None:
        """Makes `segment` the only one; deletes the files of the others."""
        deleted, self._segments, self._bases = self._segments, [], []
        self.add(segment)
        for old in deleted:
            old.delete()

    def release_idle(self, flushed_address: int) -> None:
        """Releases the descriptors of sealed, flushed segments, except the last few."""
        idle = [
            segment for segment in self.sealed() if segment.is_open and segment.end_address <= flushed_address
        ]
        for segment in idle[:-OPEN_SEALED_MAX]:
            segment.release()

    def release_all(self) -> None:
        for segment in self._segments:
            segment.release()
