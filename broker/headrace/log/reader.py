"""Reads of a log: the batch that holds an offset, and the file slices from there on.

Owns the lookups and their cache of positions. Does not change the log.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

from headrace.log.errors import AddressOutOfRangeError, LogDamagedError, LogReadError
from headrace.log.files import FileSlice
from headrace.log.segment import COLD_SCAN_MAX_BYTES, ColdSegmentError, Segment
from headrace.log.segments import SegmentList

POSITIONS_KEPT: Final = 512


class LogReader:
    """Lookups in a log's segments. Caches positions, since the address of a batch never changes."""

    def __init__(self, directory: Path, segments: SegmentList) -> None:
        self._directory = directory
        self._segments = segments
        self._positions: dict[int, int] = {}

    def position(self, offset: int) -> int:
        """Returns the address of the batch that `offset` lies in, before its first record or after. Readers
        skip the records that they do not need.

        Where damage hides which batch an offset lies in, the offset must be the address of a whole batch:
        that is what copies ask for, and readers that have read all before it. Raises
        `AddressOutOfRangeError`, `ColdSegmentError`, `LogDamagedError`, `LogReadError`.
        """
        found = self._positions.get(offset)
        if found is not None:
            return found
        start, end = self._segments.start_address, self._segments.end_address
        if offset == end:
            return offset
        if not start <= offset < end:
            raise AddressOutOfRangeError(f"{self._directory}: offset {offset} is outside [{start}, {end}]")
        segment = self._segments.holding(offset)
        if offset >= segment.end_address:
            return self._behind_gap(segment)
        if segment.start_before(offset) == offset:
            return offset
        self._segments.will_read(segment)
        if segment.is_cold(offset):
            if segment.is_behind_damage(offset) and segment.has_batch_at(offset):
                return self.keep(offset, offset)
            raise ColdSegmentError(segment)
        try:
            for step in segment.walk(offset):
                if offset < step.address + step.size_bytes:
                    return self.keep(offset, step.address)
        except (LogDamagedError, LogReadError):
            if not segment.has_batch_at(offset):
                raise
            return self.keep(offset, offset)
        raise AddressOutOfRangeError(f"{self._directory}: offset {offset} is beyond {segment.path.name}")

    def keep(self, offset: int, address: int) -> int:
        """Caches a position; returns `address`."""
        positions = self._positions
        if len(positions) >= POSITIONS_KEPT:
            del positions[next(iter(positions))]
        positions[offset] = address
        return address

    def forget(self) -> None:
        """Clears the cache, after the log was cut."""
        self._positions.clear()

    def slices(self, offset: int, max_bytes: int, limit: int) -> list[FileSlice]:
        """Returns whole batches from `position(offset)` up to the address `limit`: at most `max_bytes`, but
        at least one batch, if any; nothing behind a gap, unless it begins there. Raises what `position`
        raises.
        """
        address = self.position(offset)
        found: list[FileSlice] = []
        left_bytes = max_bytes
        while address < limit:
            segment = self._segments.holding(address)
            end = min(segment.end_address, limit)
            if segment.end_address <= address and not found:
                address = self._behind_gap(segment)
                continue
            self._segments.will_read(segment)
            if segment.is_behind_damage(address):  # no start is known here, and none gets known
                left_bytes = min(left_bytes, COLD_SCAN_MAX_BYTES)
            is_cut = end - address > left_bytes
            if is_cut:
                end = self._cut(segment, address, left_bytes, need_one=not found)
            if end <= address:
                break
            found.append(FileSlice(segment.to_read(), address - segment.base_address, end - address))
            left_bytes -= end - address
            address = end
            # A cut ends at a known start. What is left is less than a span: not worth reading headers for it.
            if is_cut or left_bytes <= 0:
                break
        # At the end of a sealed segment the next batch begins another one, perhaps behind a gap.
        if found and (address < segment.end_address or segment is self._segments.active):
            self.keep(address, address)
        return found

    def gap_end(self, address: int) -> int | None:
        """Returns where the log goes on behind a gap that holds `address`; `None` if there is none."""
        segments = self._segments
        if not segments.start_address <= address < segments.end_address:
            return None
        segment = segments.holding(address)
        return self._behind_gap(segment) if address >= segment.end_address else None

    def _behind_gap(self, segment: Segment) -> int:
        """Returns where the log goes on behind a segment: see `log.gaps`."""
        following = self._segments.first_after(segment.base_address)
        return self._segments.end_address if following is None else following.base_address

    @staticmethod
    def _cut(segment: Segment, address: int, size_bytes: int, *, need_one: bool) -> int:
        """Returns a batch boundary at most `size_bytes` after `address`, where a batch begins: a known start
        if there is one, else the last boundary, or that before damage. If the first batch is larger: its end
        with `need_one`, else `address`.
        """
        wanted = address + size_bytes
        if not segment.is_behind_damage(address):
            with contextlib.suppress(LogDamagedError, LogReadError):
                if not segment.is_cold(wanted):
                    segment.cover(wanted)
                elif segment.start_before(wanted) <= address:
                    raise ColdSegmentError(segment)
            known = segment.start_before(wanted)
            if address < known <= wanted:
                damage = segment.first_damage(address, known)
                if damage != address:
                    return known if damage is None else damage
        end = address
        try:
            for step in segment.walk(address, is_start=True):
                after = step.address + step.size_bytes
                if after > wanted:
                    return after if need_one and end == address else end
                end = after
        except (LogDamagedError, LogReadError):
            if need_one and end == address:
                raise
        return end
