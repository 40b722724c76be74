"""The segments of one log in order of address, and the lookup of the one that holds an address."""

from __future__ import annotations

import weakref
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from headrace.log import index, scan
from headrace.log.checkpoint import STARTS_MAX
from headrace.log.files import FileReference
from headrace.log.index import IndexJob
from headrace.log.segment import Segment
from headrace.wire.batch import BatchHeader

OPEN_SEALED_MAX: Final = 8  # descriptors that a log keeps open for sealed segments that are durable
UNFLUSHED_SEALED_MAX: Final = 64  # before a flush begins, whatever the flush settings say
READ_SEALED_MAX: Final = 64  # of those that are read: whose starts it knows until the next roll


class SegmentList:
    """At least one segment; the last is the active one, the only one that is written."""

    __slots__ = ("_bases", "_flushing", "_opened", "_segments", "_to_index", "_unflushed", "active")

    def __init__(self, segments: Sequence[Segment]) -> None:
        self._segments = list(segments)
        self._bases = [segment.base_address for segment in segments]
        self.active = self._segments[-1]
        self._forget_sealed()

    def _forget_sealed(self) -> None:
        self._unflushed: list[
            Segment
        ] = []  # sealed; perhaps neither they nor the name of the next file are durable
        self._flushing: list[Segment] = []  # those of them that the running flush makes durable
        self._to_index: list[Segment] = []
        self._note_opened()

    def _note_opened(self) -> None:
        # Sealed ones that may have a descriptor: those that were read or sealed longest ago are first.
        self._opened = dict.fromkeys(segment for segment in self.sealed() if segment.is_open)

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

    def written_behind(self, address: int) -> list[Segment]:
        """Returns those that hold bytes behind `address`, in order. Looks at no others: a week's log has
        thousands, and each flush asks.
        """
        found = []
        for segment in reversed(self._segments):
            if segment.end_address <= address:
                break
            if segment.size_bytes:
                found.append(segment)
        found.reverse()
        return found

    def sealed(self) -> Sequence[Segment]:
        """Returns all segments but the active one."""
        return self._segments[:-1]

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    def __len__(self) -> int:
        return len(self._segments)

    def add(self, segment: Segment) -> None:
        """Appends a segment, which becomes the active one."""
        self._unflushed.append(self.active)
        self._opened[self.active] = None
        self._segments.append(segment)
        self._bases.append(segment.base_address)
        self.active = segment

    def take_out_oldest(self) -> Path:
        """See `Segment.take_out`. Raises `OSError`."""
        taken = self._segments[0].take_out()
        self._opened.pop(self._segments[0], None)
        del self._segments[0], self._bases[0]
        return taken

    def truncate(self, directory: Path, address: int) -> bool:
        """Cuts off everything from `address` on; returns whether a segment is to begin there. Waits for the
        disk.

        A file that was cut is written no more, and an empty one is another file: slices of what was there
        before may still be on their way to a follower, and must not show what comes there next. With the
        later epochs of those batches the follower's log would pass for the next leader's.
        """
        self._forget_sealed()
        for segment in self._segments:
            if segment.end_address > address or segment is self.active:
                index.remove(directory, segment.base_address)  # an index says that the next segment exists
        while len(self._segments) > 1 and self.active.base_address >= address:
            if self.active.base_address == address != self._segments[-2].end_address:
                break  # there is a gap before it
            self.active.delete()
            del self._segments[-1], self._bases[-1]
            self.active = self._segments[-1]
        self._note_opened()
        active = self.active
        is_cut = active.end_address > address
        if is_cut:
            active.truncate(address - active.base_address)
        index.remove(directory, active.base_address)  # a thread may just have written one: `IndexJob`
        return is_cut and active.size_bytes > 0

    def replace_all(self, segment: Segment) -> None:
        """Makes `segment` the only one; deletes the files of the others. There is a start and an end at each
        moment: another thread may ask for them.
        """
        deleted = self._segments
        self._segments, self._bases, self.active = [segment], [segment.base_address], segment
        self._forget_sealed()
        for old in deleted:
            old.delete()

    def headers(self, since: int) -> Iterator[BatchHeader]:
        """Yields the header of every batch from `since` on, where one begins or the log does. Raises
        `LogDamagedError`, `LogReadError`.
        """
        for each in self._segments:
            if each.end_address > since:
                begin, is_open = max(each.base_address, since), each.is_open
                yield from scan.headers(each.file, each.base_address, begin, each.end_address)
                if not is_open:
                    each.release()

    def sparse_starts(self) -> tuple[int, ...]:
        """Returns what a checkpoint stores: starts in the segments that have no index."""
        unsaved = {id(each) for each in (*self._unflushed, *self._flushing, *self._to_index, self.active)}
        found = (
            address
            for each in self._segments
            if each.unproven or each.later is not None or id(each) in unsaved
            for address in each.sparse_starts()
        )
        return tuple(found)[-STARTS_MAX:]

    # --- indexes ---

    def flush_began(self) -> None:
        """Notes that a flush of all that is written, and of the directory, began."""
        self._flushing, self._unflushed = self._unflushed, []

    def flush_ended(self) -> None:
        self._to_index += self._flushing
        self._flushing = []

    def indexing(self, cold: Segment | None = None) -> IndexJob | None:
        """Returns the job that indexes `cold`, or the next segment that has become durable, if any."""
        if cold is not None:
            unsaved = self._unflushed + self._flushing
            is_durable = cold is not self.active and not any(each is cold for each in unsaved)
            return cold.indexing(cold.end_address, save=is_durable)
        if not self._to_index:
            return None
        segment = self._to_index.pop()
        return segment.indexing(segment.end_address, save=True)

    # --- descriptors ---

    @property
    def unflushed_count(self) -> int:
        """How many sealed segments stay open until they are flushed."""
        return len(self._unflushed) + len(self._flushing)

    def will_read(self, segment: Segment) -> None:
        """Called before a segment is read: a reader of all of a log would else open all of its files."""
        if segment is not self.active:
            self._opened.pop(segment, None)
            self._opened[segment] = None
            self._release_idle(READ_SEALED_MAX)

    def release_idle(self) -> None:
        """Releases the descriptors of sealed, flushed segments, except the last few, and the starts that the
        indexes have, too. Looks at no others: a log may have very many.
        """
        self._release_idle(OPEN_SEALED_MAX)

    def _release_idle(self, known_max: int) -> None:
        if len(self._opened) - self.unflushed_count <= OPEN_SEALED_MAX:
            return
        unflushed = {*self._unflushed, *self._flushing}
        idle = [segment for segment in self._opened if segment not in unflushed]
        for segment in idle[:-OPEN_SEALED_MAX]:
            segment.release()
        for segment in idle[:-known_max]:
            del self._opened[segment]
            if segment not in self._to_index:
                segment.forget_starts()

    def release_all(self) -> list[FileReference]:
        """Drops all descriptors; returns the files that slices still have open."""
        for segment in self._segments:
            segment.release()
        return [weakref.ref(file) for each in self._segments if (file := each.in_use()) is not None]
