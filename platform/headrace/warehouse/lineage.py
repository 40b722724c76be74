"""Which log a row is of. Pure.

A partition that was made again has several logs, one after the other, and the same addresses in each. A load
that goes over to the next log says from which address on its bytes are others (`LoadedRange.begins_at`);
before it, both logs hold the same. Each file says which logs its rows are of (`DataFile.log`).
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Final

from headrace.warehouse.manifest import LoadedRange, Manifest

ALL: Final = 2**63 - 1


class Lineage:
    """The logs of a table's partitions, as its manifests tell."""

    def __init__(self, manifests: Iterable[Manifest]) -> None:
        self._manifests = list(manifests)
        self._begun: dict[int, list[tuple[int, int]]] = {}
        for manifest in self._manifests:
            for partition, begins_at in manifest.begun.items():
                self._begun.setdefault(partition, []).append((manifest.sequence, begins_at))

    def below(self, partition: int, log: int) -> int:
        """Returns the address below which rows of such a file, or of the load of this number, are those of
        the log that is loaded now: `ALL` if all are.
        """
        later = (at for sequence, at in self._begun.get(partition, ()) if sequence > log)
        return min(later, default=ALL)

    def number(self, partition: int, log: int) -> int:
        """Returns the number of a row's log: rows of one log with one offset are the same record."""
        begun = [sequence for sequence, _ in self._begun.get(partition, ())]
        at = bisect_right(begun, log)
        return begun[at - 1] if at else 0

    def topic_id(self, log: int) -> str:
        """Returns Kafka's id of the topic that was loaded last before the next log began; "" if not known."""
        found, now = "", 0
        for manifest in self._manifests:
            now = manifest.sequence if manifest.begun else now
            if manifest.kind == "load" and manifest.topic_id and now == log:
                found = manifest.topic_id
        return found

    def present(self) -> Iterator[tuple[Manifest, LoadedRange]]:
        """Yields the ranges of all changes whose addresses are those of the logs that are loaded now."""
        for manifest in self._manifests:
            for loaded in manifest.ranges:
                log = loaded.log if manifest.kind in ("dedupe", "replay") else manifest.sequence
                if loaded.from_address < self.below(loaded.partition, log):
                    yield manifest, loaded

    def hours_of_earlier(self) -> set[int]:
        """Returns the hours (ms) of which loads read logs that are there no more."""
        return {hour.hour_ms for _, loaded in self.earlier() for hour in loaded.hours}

    def earlier(self) -> Iterator[tuple[Manifest, LoadedRange]]:
        """Yields the ranges of loads of logs that are there no more."""
        for manifest in self._manifests:
            for loaded in manifest.ranges if manifest.kind == "load" else ():
                if loaded.from_address >= self.below(loaded.partition, manifest.sequence):
                    yield manifest, loaded
