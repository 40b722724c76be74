"""Publishers' clocks that are off: measured against their datacenter's auditor, by a log's order. Pure.

A report that stands in the audit log between two heartbeats of the auditor was written between them. If its
own time lies outside of that, by more than a report may be under way, the publisher's clock is off. This
does not depend on when the records are read, so a store that is folded again says the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final, NamedTuple

from headrace.audit.topic.records import DATACENTER_TIER, HeartbeatRecord, ProducerReport, ReceivedRecord

OFF_MIN_MS: Final = 5 * 60_000
"""Less is not called off: a report may wait for its brokers for minutes."""
CHANGE_MIN_MS: Final = 60_000
WAITING_MAX: Final = 10_000
"""Publishers of one log that are measured by one heartbeat; the others wait for their next report."""
KNOWN_MAX: Final = 200_000

Log = tuple[str, int]
"""A topic, and a partition."""
_Publisher = tuple[str, str]
"""A datacenter, and a publisher's id."""


class ClockOff(NamedTuple):
    """By how much a publisher's clock is ahead (below 0: behind), by the auditor's clock at `said_ms`."""

    datacenter: str
    publisher: str
    skew_ms: int
    said_ms: int


class ClockWatch:
    """Measures clocks from records in the order of their logs. One thread uses it."""

    def __init__(self) -> None:
        self._beats_ms: dict[Log, int] = {}
        self._waiting: defaultdict[Log, dict[_Publisher, int]] = defaultdict(dict)
        self._known: dict[_Publisher, int] = {}

    def measure(self, records: Iterable[ReceivedRecord]) -> list[ClockOff]:
        """Returns what these records say anew, of publishers whose clock is off, or no longer is."""
        found: list[ClockOff] = []
        for received in records:
            log = received.log
            if log is None:
                continue  # nothing is known of its order
            if isinstance(received.record, ProducerReport):
                waiting = self._waiting[log]
                if len(waiting) < WAITING_MAX:
                    waiting[received.datacenter, received.record.publisher] = received.time_ms
            elif isinstance(received.record, HeartbeatRecord) and received.record.tier == DATACENTER_TIER:
                found += self._beat(log, received.time_ms)
        return found

    def _beat(self, log: Log, now_ms: int) -> list[ClockOff]:
        before_ms, self._beats_ms[log] = self._beats_ms.get(log), now_ms
        found: list[ClockOff] = []
        for publisher, said_ms in self._waiting.pop(log, {}).items():
            skew_ms = skew_between(said_ms, before_ms, now_ms)
            if abs(skew_ms - self._known.get(publisher, 0)) < CHANGE_MIN_MS:
                continue
            if len(self._known) < KNOWN_MAX or publisher in self._known:
                self._known[publisher] = skew_ms
                found.append(ClockOff(*publisher, skew_ms, now_ms))
        return found


def skew_between(said_ms: int, before_ms: int | None, after_ms: int) -> int:
    """Returns the least skew of a clock that said `said_ms` between these moments; 0 if it may be right."""
    if said_ms > after_ms + OFF_MIN_MS:
        return said_ms - after_ms
    if before_ms is not None and said_ms < before_ms - OFF_MIN_MS:
        return said_ms - before_ms
    return 0
