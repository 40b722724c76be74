"""Publishers' clocks that are off: measured against their datacenter's auditor, by a log's order. Pure.

A report that stands in the audit log between two heartbeats of the auditor was written between them. If its
own time lies outside of that, by more than a report may be under way, the publisher's clock is off. This
does not depend on when the records are read, so a store that is folded again says the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
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


@dataclass(frozen=True, slots=True)
class Measured:
    """What some records say of clocks, and what is to be remembered of them once they are stored.

    `records`: the same ones; none was said before the heartbeat that stands before it in its log.
    `set_back`: where in `records` the heartbeats are whose auditor's clock was set back since the one before;
    `set_back_ms`: by datacenter, the time of the last one. What was measured later than that, by its clock,
    was measured while it was ahead.
    """

    records: list[ReceivedRecord] = field(default_factory=list)
    set_back: list[int] = field(default_factory=list)
    last_ms: dict[tuple[Log, str], int] = field(default_factory=dict)
    found: list[ClockOff] = field(default_factory=list)
    set_back_ms: dict[str, int] = field(default_factory=dict)
    beats_ms: dict[Log, int] = field(default_factory=dict)
    waiting: dict[Log, dict[_Publisher, int]] = field(default_factory=dict)
    known: dict[_Publisher, ClockOff] = field(default_factory=dict)


class ClockWatch:
    """Measures clocks from records in the order of their logs. One thread uses it.

    `known`: the clocks that are off, `heard`: (log, tier) → when the last heartbeat in it was said; both as
    the store has them.
    """

    def __init__(
        self,
        known: Iterable[ClockOff] = (),
        heard: Mapping[tuple[Log, str], int] | None = None,
    ) -> None:
        self._beats_ms: dict[Log, int] = {}
        self._waiting: dict[Log, dict[_Publisher, int]] = {}
        self._known: dict[_Publisher, ClockOff] = {each[:2]: each for each in known}
        self._last_ms: dict[tuple[Log, str], int] = dict(heard or {})

    def measure(self, records: Iterable[ReceivedRecord]) -> Measured:
        """Returns what these records say anew, of publishers whose clock is off, or no longer is. It is not
        remembered before `remember`: a store that does not take the records is given them again.
        """
        new = Measured()
        for received in records:
            log = received.log
            if log is None:
                new.records.append(received)  # nothing is known of its order
                continue
            if isinstance(received.record, ProducerReport):
                if log not in new.waiting:
                    new.waiting[log] = dict(self._waiting.get(log, {}))
                if len(new.waiting[log]) < WAITING_MAX:
                    new.waiting[log][received.datacenter, received.record.publisher] = received.time_ms
            elif isinstance(received.record, HeartbeatRecord):
                if self._is_set_back(new, (log, received.record.tier), received.time_ms):
                    new.set_back.append(len(new.records))
                    if received.record.tier == DATACENTER_TIER:
                        self._forget_later(new, received.datacenter, received.time_ms)
                        new.waiting[log] = {}  # nothing is known of those between both clocks
                if received.record.tier == DATACENTER_TIER:
                    self._beat(new, log, received.time_ms)
            new.records.append(self._not_before(new, log, received))
        return new

    def _is_set_back(self, new: Measured, place: tuple[Log, str], time_ms: int) -> bool:
        before_ms = new.last_ms.get(place, self._last_ms.get(place, time_ms))
        new.last_ms[place] = time_ms
        return time_ms < before_ms - CHANGE_MIN_MS

    def _forget_later(self, new: Measured, datacenter: str, time_ms: int) -> None:
        """Forgets what an auditor's clock measured while it was ahead."""
        new.set_back_ms[datacenter] = time_ms
        for late in [each for each in new.found if _is_later(each, new.set_back_ms)]:
            new.found.remove(late)
            new.known.pop(late[:2], None)

    def _known_ms(self, new: Measured, publisher: _Publisher) -> int | None:
        """Returns by how much a publisher's clock is ahead; None if that was not off."""
        known = new.known.get(publisher)
        if known is None:
            before = self._known.get(publisher)
            known = None if before is None or _is_later(before, new.set_back_ms) else before
        return None if known is None else known.skew_ms

    def _not_before(self, new: Measured, log: Log, received: ReceivedRecord) -> ReceivedRecord:
        """Returns a report with the time of the heartbeat before it, if it says an earlier one: else its
        publisher, whose clock is behind, seems to have closed before that heartbeat. By how much one is off
        that is far behind is noted at once: nobody knows when the next heartbeat comes.
        """
        before_ms = new.beats_ms.get(log, self._beats_ms.get(log))
        if before_ms is None or not isinstance(received.record, ProducerReport):
            return received
        publisher = received.datacenter, received.record.publisher
        skew_ms = self._known_ms(new, publisher) or 0
        if received.time_ms - skew_ms < before_ms - OFF_MIN_MS:
            skew_ms = skew_between(received.time_ms, before_ms, received.time_ms)
            self._note(new, publisher, skew_ms, before_ms + 1)  # newer than what that heartbeat told
        is_behind = before_ms - OFF_MIN_MS <= received.time_ms - skew_ms < before_ms
        return received._replace(time_ms=before_ms + skew_ms) if is_behind else received

    def _note(self, new: Measured, publisher: _Publisher, skew_ms: int, said_ms: int) -> None:
        """Notes a clock that is off, or no longer is."""
        known_ms = self._known_ms(new, publisher)
        is_known = known_ms is not None or len(self._known) + len(new.known) < KNOWN_MAX
        if is_known and abs(skew_ms - (known_ms or 0)) >= CHANGE_MIN_MS:
            new.known[publisher] = ClockOff(*publisher, skew_ms, said_ms)
            new.found.append(new.known[publisher])

    def forget(self, log: Log) -> None:
        """Forgets the order of a log: another one has taken its place."""
        self._beats_ms.pop(log, None)
        self._waiting.pop(log, None)
        for place in [each for each in self._last_ms if each[0] == log]:
            del self._last_ms[place]

    def remember(self, measured: Measured) -> None:
        """Remembers what was measured, once the store has it."""
        self._beats_ms.update(measured.beats_ms)
        self._waiting.update(measured.waiting)
        if back_ms := measured.set_back_ms:
            self._known = {key: each for key, each in self._known.items() if not _is_later(each, back_ms)}
        self._known.update(measured.known)
        self._last_ms.update(measured.last_ms)

    def _beat(self, new: Measured, log: Log, now_ms: int) -> None:
        before_ms = new.beats_ms.get(log, self._beats_ms.get(log))
        waiting = new.waiting.get(log, self._waiting.get(log, {}))
        new.beats_ms[log], new.waiting[log] = now_ms, {}
        for publisher, said_ms in waiting.items():
            skew_ms = skew_between(said_ms, before_ms, now_ms)
            if before_ms is None and not skew_ms:
                continue  # it may be behind: the heartbeat before it was read by an earlier process
            self._note(new, publisher, skew_ms, now_ms)


def _is_later(clock: ClockOff, set_back_ms: Mapping[str, int]) -> bool:
    """Whether a clock was measured by one that was ahead then, and was set back to this time."""
    to_ms = set_back_ms.get(clock.datacenter)
    return to_ms is not None and clock.said_ms > to_ms


def skew_between(said_ms: int, before_ms: int | None, after_ms: int) -> int:
    """Returns the least skew of a clock that said `said_ms` between these moments; 0 if it may be right."""
    if said_ms > after_ms + OFF_MIN_MS:
        return said_ms - after_ms
    if before_ms is not None and said_ms < before_ms - OFF_MIN_MS:
        return said_ms - before_ms
    return 0
