"""What the batches hold that a load reads, by partition and hour: for the audit's comparison with the log.

Owns the sums of one task. It runs on an executor. A batch belongs to the hour, by Kafka's timestamps, of its
first record, as in the audit's tallies, and to the task whose range has that record.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import numpy as np

from headrace.warehouse.layout import HOUR_MS
from headrace.warehouse.source.examining import Batch
from headrace.warehouse.source.ranges import Range
from headrace.wire.content import NO_BATCHES, added, content_of

Contents = Mapping[tuple[int, int], int | None]
"""Content by partition and hour (its beginning in ms); None where it is not known."""

_HOUR_US: Final = HOUR_MS * 1000


class ReadContents:
    """The contents of one task's batches. Feed it each range's batches, then the rows that they became."""

    def __init__(self) -> None:
        self.sums: dict[tuple[int, int], int | None] = {}
        self._waiting: deque[tuple[int, int | None]] = deque()

    def noting(self, batches: Iterable[Batch], range_: Range) -> Iterator[Batch]:
        """Yields the batches, and notes those that begin in the range. Bad ones, and those that their broker
        stamped, are not known.
        """
        for batch in batches:
            header = batch.header
            if range_.from_offset <= header.base_offset < range_.to_offset and header.record_count:
                is_known = not batch.problem and not header.is_log_append_time
                content = content_of(batch.buffer, batch.at) if is_known else None
                self._waiting.append((header.base_offset, content))
            yield batch

    def add(self, partition: int, offsets: Any, times_us: Any) -> None:
        """Adds the batches whose first records are among these rows, which have rising offsets."""
        while self._waiting and len(offsets) and self._waiting[0][0] <= offsets[-1]:
            offset, content = self._waiting.popleft()
            at = int(np.searchsorted(offsets, offset))
            if at < len(offsets) and offsets[at] == offset:
                key = (partition, int(times_us[at]) // _HOUR_US * HOUR_MS)
                self.sums[key] = added(self.sums.get(key, NO_BATCHES), content)


def together(parts: Iterable[Contents]) -> dict[tuple[int, int], int | None]:
    """Returns the contents of several tasks."""
    sums: dict[tuple[int, int], int | None] = {}
    for part in parts:
        for key, content in part.items():
            sums[key] = added(sums.get(key, NO_BATCHES), content)
    return sums
