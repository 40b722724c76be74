"""What the journals and the logs say about each fault: pure, from values to figures.

A fault's window begins where the one before it ended, and ends when all was live again. A record belongs to
the window in which it was acknowledged, or read. A later fault may have lost it all the same: the kind where
a loss is shown is where to look first, no proof.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from faults.journals import Ack, Event, Failure, LostPlace, Read

EXAMPLES_MAX: Final = 5


class Window(NamedTuple):
    """When a fault was injected, when it healed, when all was live again: seconds of the monotonic clock."""

    kind: str
    injected_s: float
    healed_s: float
    live_s: float


class Stored(NamedTuple):
    """A record as the log holds it in the end."""

    offset: int
    life: str
    number: int


@dataclass
class Tally:
    """What the faults of a kind came to. `went_back`: reads that were repeated, out of order, or of something
    that the log does not hold any more. `skipped`: records that a reader passed over."""

    injected: int = 0
    acknowledged: int = 0
    lost: int = 0
    doubled: int = 0
    reordered: int = 0
    went_back: int = 0
    skipped: int = 0
    lost_places: int = 0
    given_up: int = 0
    unavailable_s: list[float] = field(default_factory=list)
    recovery_s: list[float] = field(default_factory=list)
    examples: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        bad = self.lost + self.doubled + self.reordered + self.went_back + self.skipped + self.lost_places
        return bad == 0

    def show(self, text: str) -> None:
        if len(self.examples) < EXAMPLES_MAX:
            self.examples.append(text)


Logs = Mapping[int, Sequence[Stored]]


def judge(windows: Sequence[Window], events: Iterable[Event], logs: Logs) -> dict[str, Tally]:
    """Returns a tally for each kind. `events`: of all journals, those of one client in its own order."""
    judgement = _Judgement(windows, logs)
    for event in events:
        judgement.take(event)
    judgement.judge_logs()
    judgement.judge_sessions()
    judgement.judge_gaps()
    return judgement.tallies


class _Judgement:
    def __init__(self, windows: Sequence[Window], logs: Logs) -> None:
        self._windows = windows
        self._ends = [window.live_s for window in windows]
        self._logs = logs
        self._by_offset = {
            index: {stored.offset: stored for stored in records} for index, records in logs.items()
        }
        self._held = {
            index: {(stored.life, stored.number) for stored in records} for index, records in logs.items()
        }
        self._acks: dict[tuple[str, int, int], Ack] = {}
        self._ack_times: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
        self._read_offsets: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
        self._read_times: dict[tuple[str, int], float] = {}
        self.tallies: dict[str, Tally] = {window.kind: Tally() for window in windows}
        for window in windows:
            tally = self.tallies[window.kind]
            tally.injected += 1
            tally.recovery_s.append(window.live_s - window.healed_s)

    def _at(self, at_s: float) -> Tally:
        """Returns the tally of the window in which this moment lies; the last one for later moments."""
        return self.tallies[self._windows[min(bisect_left(self._ends, at_s), len(self._ends) - 1)].kind]

    def take(self, event: Event) -> None:
        if isinstance(event, Ack):
            self._at(event.at_s).acknowledged += 1
            self._acks[event.life, event.partition, event.number] = event
            self._ack_times[event.life.rpartition(".")[0], event.partition].append(event.at_s)
        elif isinstance(event, Failure):
            self._at(event.at_s).given_up += 1
        elif isinstance(event, LostPlace):
            tally = self._at(event.at_s)
            tally.lost_places += 1
            tally.show(f"{event.session} lost its place: {event.error}")
        else:
            self._take_read(event)

    def _take_read(self, read: Read) -> None:
        offsets = self._read_offsets[read.session, read.partition]
        stored = self._by_offset[read.partition].get(read.offset)
        problem = None
        if offsets and read.offset <= offsets[-1]:
            problem = f"after {offsets[-1]}"
        elif stored is None:
            problem = "which the log does not hold in the end"
        elif (stored.life, stored.number) != (read.life, read.number):
            problem = f"where the log holds {stored.life} {stored.number} in the end"
        if problem is not None:
            tally = self._at(read.at_s)
            tally.went_back += 1
            tally.show(
                f"{read.session} read {read.life} {read.number} at offset {read.offset} of partition"
                f" {read.partition}, {problem}"
            )
        offsets.append(read.offset)
        self._read_times[read.session, read.partition] = read.at_s

    def judge_logs(self) -> None:
        """Compares what was acknowledged with what the logs hold: lost, doubled, reordered."""
        for index, records in self._logs.items():
            seen: set[tuple[str, int]] = set()
            greatest: dict[str, int] = {}
            for stored in records:
                key = (stored.life, stored.number)
                ack = self._acks.get((stored.life, index, stored.number))
                tally = self._at(ack.at_s if ack else self._ends[-1])
                if key in seen:
                    tally.doubled += 1
                    tally.show(f"partition {index} holds {stored.life} {stored.number} twice")
                elif stored.number < greatest.get(stored.life, -1):
                    tally.reordered += 1
                    tally.show(
                        f"partition {index} holds {stored.life} {stored.number} after"
                        f" {stored.life} {greatest[stored.life]}"
                    )
                seen.add(key)
                greatest[stored.life] = max(stored.number, greatest.get(stored.life, -1))
        for (life, index, number), ack in self._acks.items():
            found = self._by_offset[index].get(ack.offset)
            # Librdkafka does not know the offset of a record that a broker has taken for a repetition.
            is_there = (
                (life, number) in self._held[index]
                if ack.offset < 0
                else (found is not None and (found.life, found.number) == (life, number))
            )
            if not is_there:
                tally = self._at(ack.at_s)
                tally.lost += 1
                holds = f"{found.life} {found.number}" if found else "nothing"
                tally.show(
                    f"{life} {number} was acknowledged at offset {ack.offset} of partition {index}"
                    f" at {ack.at_s:.3f} s; the log holds {holds} there"
                )

    def judge_sessions(self) -> None:
        """Each session began at the beginning: what lies between its first and last read, it has read."""
        for (session, index), offsets in self._read_offsets.items():
            read, last = set(offsets), max(offsets)
            missing = [
                stored for stored in self._logs[index] if stored.offset < last and stored.offset not in read
            ]
            if missing:
                tally = self._at(self._read_times[session, index])
                tally.skipped += len(missing)
                tally.show(f"{session} passed over offset {missing[0].offset} of partition {index}")

    def judge_gaps(self) -> None:
        """How long a fault left a producer without an answer: the longest gap that touches its window."""
        for window in self._windows:
            longest_s = max(
                (
                    _longest_gap_s(times, window.injected_s, window.live_s)
                    for times in self._ack_times.values()
                ),
                default=0.0,
            )
            self.tallies[window.kind].unavailable_s.append(longest_s)


def _longest_gap_s(times: list[float], begin_s: float, end_s: float) -> float:
    first = max(0, bisect_right(times, begin_s) - 1)
    last = min(len(times) - 1, bisect_left(times, end_s))
    return max(
        (after - before for before, after in zip(times[first:last], times[first + 1 :], strict=False)),
        default=0.0,
    )


def percentile(values: Sequence[float], share: float) -> float:
    """Returns the value below which this share of them lies; 0 for none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
