"""A world that lasts for minutes: the topic's events expire, clocks of brokers are wrong for a while, and for
another while nothing happens. Faults come in bursts, with calm between them.

Judged besides: no event is deleted before it is as old as `retention.ms`, by the time at which its producer
was handed it, unless the log behind it is as large as `retention.bytes`; and what is much older is gone.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.broker.partition import Partition
from headrace.broker.replicas.retention import CHECKPOINT_WAIT_MS
from headrace.log.config import UNLIMITED
from headrace.log.directory import PartitionName
from simulation.sim_clients import TOPIC, Acknowledged
from simulation.sim_clock import WALL_MS

if TYPE_CHECKING:
    from headrace.log.partition import PartitionLog
    from simulation.sim_broker import SimBroker
    from simulation.sim_world import World

SHARE: Final = 0.1
"""How many worlds are of this kind."""
BURSTS: Final = (2, 4)
BURST_MS: Final = (2_000.0, 8_000.0)
CALM_MS: Final = (2_000.0, 45_000.0)
RETENTION_MS: Final = (6_000, 12_000, 25_000)
SEGMENT_MS: Final = (1_500, 4_000, 60_000)
RETENTION_BYTES: Final = (UNLIMITED, UNLIMITED, 6_000)
SEGMENT_BYTES: Final = (1_024, 2_048, 1 << 20)
CHECK_MS: Final = 500
LOOKS_MS: Final = 2 * (CHECK_MS + CHECKPOINT_WAIT_MS)
"""A log may hold two segments beyond `retention.bytes`, and what came in this time: until its leader looks,
has saved a checkpoint first, tells its followers, and they do the same.
"""
PAUSES_MS: Final = (300.0, 1_000.0, 3_000.0, 20_000.0)
"""Of a producer: after the longest a whole log has expired."""
OFF_MS: Final = (1_000.0, 90_000.0)
WRONG_FOR_MS: Final = (1_000.0, 15_000.0)
WRONG_CLOCKS: Final = 4
BEHIND: Final = 0.5
COME_BACK_RIGHT: Final = 0.5
UNCLEAN: Final = 0.4
"""In how many of these worlds the topic allows unclean elections."""
FROM_BEHIND: Final = 0.7
DIE: Final = 0.3
"""How many of the others die then; those that hang keep their memory."""
BLINK_MS: Final = (100.0, 400.0)
OTHERS_DOWN_MS: Final = (4_500.0, 9_000.0)
"""Longer than a session lasts: the one that blinks is elected."""
LATE_MS: Final = 5_000
COPYING: Final = ("rot", "new-disk", "older-disk", "emptied-leader")
"""The faults after which a broker fetches its replica again."""


class Ages:
    """Of one world. Its kind and its settings have a chance of their own, so that other worlds stay as they
    are. `off_ms`: by broker, how far its clock is ahead.
    """

    def __init__(self, world: World, draw: random.Random) -> None:
        self._world = world
        self._draw = draw
        self.pause_ms = draw.choice(PAUSES_MS)
        self.retention_ms = draw.choice(RETENTION_MS)
        self.segment_ms = draw.choice(SEGMENT_MS)
        self._segment_bytes = draw.choice(SEGMENT_BYTES)
        self._retention_bytes = draw.choice(RETENTION_BYTES)
        self._end = 0  # the greatest that any log has had
        self._ends: deque[tuple[float, int]] = deque()  # what it was, and when
        self.off_ms: dict[int, float] = {}
        self._ahead_ms = 0.0
        # By a chance of its own, too: that of the world's faults stays as it was.
        self.is_unclean = random.Random(f"unclean ages {world.seed}").random() < UNCLEAN
        self._checked_start = 0
        self._starts: dict[Path, int] = {}
        self._handed_ms: dict[tuple[int, int, int], int] = {}

    @staticmethod
    def of(world: World) -> Ages | None:
        """Returns those of a world that lasts for minutes, None for most."""
        draw = random.Random(f"ages {world.seed}")
        return Ages(world, draw) if draw.random() < SHARE else None

    @property
    def config(self) -> dict[str, str]:
        """The topic's."""
        return {
            "retention.ms": str(self.retention_ms),
            "segment.ms": str(self.segment_ms),
            "segment.bytes": str(self._segment_bytes),
            "retention.bytes": str(self._retention_bytes),
        }

    def wall_ms(self, number: int) -> int:
        """What the clock of a broker shows."""
        return WALL_MS + int(self._world.clock.now_ms + self.off_ms.get(number, 0.0))

    # --- what happens ---

    def live(self, burst_ms: float | None) -> None:
        """Lets bursts of faults come, and calm after each; the last burst is not healed yet."""
        world, draw = self._world, self._draw
        for _ in range(draw.randint(*BURSTS)):
            if self.is_unclean and draw.random() < FROM_BEHIND:
                self._lead_from_behind()
            elif draw.random() < COME_BACK_RIGHT:
                self._come_back_right()
            else:
                self._trouble(burst_ms)
            world.heal()
            self._rest()
        self._trouble(burst_ms)

    def _trouble(self, burst_ms: float | None) -> None:
        clock = self._world.clock
        self._world.faults.begin()
        clock.run_until(clock.now_ms + (burst_ms or self._draw.uniform(*BURST_MS)))

    def _come_back_right(self) -> None:
        """The clock of the leader is far behind until all that was written before has expired. Then all die,
        and it returns first, with the right time: its files look older than their events are.
        """
        world, draw = self._world, self._draw
        number = world.state()["leader"]
        if number not in world.brokers:
            return
        off_ms = self.retention_ms + draw.uniform(*OFF_MS)
        world.note(f"the clock of broker {number} is {off_ms:.0f} ms behind until all die")
        self.off_ms[number] = -off_ms
        world.faults.count("clock-behind")
        world.clock.run_until(world.clock.now_ms + self.retention_ms + draw.uniform(*BURST_MS))
        self._set_right(number)
        for each in world.brokers:
            world.faults.crash(each, BLINK_MS if each == number else OTHERS_DOWN_MS)
        world.clock.run_until(world.clock.now_ms + draw.uniform(*BURST_MS))

    def _lead_from_behind(self) -> None:
        """A follower is away until all that it holds, and some of what came since, has expired elsewhere. The
        others die, or hang, and it leads: what is written now gets addresses that were deleted before.
        """
        world, draw = self._world, self._draw
        number = draw.choice([each for each in world.brokers if each != world.state()["leader"]])
        away_ms = self.retention_ms + self.segment_ms + draw.uniform(*BURST_MS)
        world.faults.crash(number, (away_ms, away_ms))
        world.clock.run_until(world.clock.now_ms + away_ms - BLINK_MS[0])
        for each in world.brokers:
            if each != number:
                (world.faults.crash if draw.random() < DIE else world.faults.stop)(each, OTHERS_DOWN_MS)
        world.clock.run_until(world.clock.now_ms + OTHERS_DOWN_MS[0] + draw.uniform(*BURST_MS))

    def _rest(self) -> None:
        clock = self._world.clock
        clock.run_until(clock.now_ms + self._draw.uniform(*CALM_MS))
        self._world.problems.extend(self._late())

    def set_wrong(self) -> None:
        """A fault: a broker's clock is wrong for a while."""
        faults = self._world.faults
        number = faults.pick()
        if number in self.off_ms:
            return
        off_ms = self._draw.uniform(*OFF_MS)
        is_behind = self._draw.random() < BEHIND
        self.off_ms[number] = -off_ms if is_behind else off_ms
        self._ahead_ms = max(self._ahead_ms, self.off_ms[number])
        faults.inject(
            "clock-behind" if is_behind else "clock-ahead",
            f"the clock of broker {number} is {off_ms:.0f} ms {'behind' if is_behind else 'ahead'}",
            partial(self._set_right, number),
            self._draw.uniform(*WRONG_FOR_MS),
        )

    def _set_right(self, number: int) -> None:
        del self.off_ms[number]

    # --- the judgement ---

    def start_address(self) -> int:
        """The greatest start of any log, also of those that were closed since; after an unclean election the
        leader's may be lower.
        """
        leader = self._world.brokers.get(self._world.state()["leader"])
        log = None if leader is None else log_of(leader)
        if self.is_unclean and log is not None:
            return log.start_address
        return max(self._checked_start, *(log.start_address for log in self._logs()), 0)

    def may_have_expired(self, batch: Acknowledged) -> bool:
        """Whether a batch may be gone, of which nobody has told the offset."""
        age_ms = self._age_ms(batch)
        return age_ms >= self.retention_ms or self._retention_bytes != UNLIMITED

    def watch(self) -> list[str]:
        """Returns what was deleted too early since the last call."""
        logs = self._logs()
        start = max((log.start_address for log in logs), default=0)
        end = max((log.end_address for log in logs), default=0)
        self._end = end if self.is_unclean else max(self._end, end)
        now_ms = self._world.clock.now_ms
        self._ends.append((now_ms, self._end))
        while len(self._ends) > 1 and self._ends[1][0] <= now_ms - LOOKS_MS:
            self._ends.popleft()
        if self._retention_bytes != UNLIMITED and self._end - start >= self._retention_bytes:
            self._checked_start = max(self._checked_start, start)
        return [each for number, log in self._logs_of() for each in self._deleted_young(number, log)]

    def _deleted_young(self, number: int, log: PartitionLog) -> Iterator[str]:
        """What one replica has deleted since the last call. Each one must not do it too early: also if it was
        cut back, or is another one.
        """
        before, self._starts[log.directory] = self._starts.get(log.directory, 0), log.start_address
        if self._retention_bytes != UNLIMITED and self._end - log.start_address >= self._retention_bytes:
            return
        # After an unclean election other replicas may still have other events at these offsets.
        if self.is_unclean and number not in self._world.state()["isr"]:
            return
        for offset, age_ms in self._ages_of(before, log.start_address):
            if age_ms < self.retention_ms:
                yield (
                    f"{log.directory}: the event at offset {offset} is {age_ms:.0f} ms old, and was deleted"
                    f" ({self._world.clock.now_ms:.0f} ms)"
                )

    def _late(self) -> list[str]:
        """Returns what should have been deleted for long. A replica that was copied again may have to grow
        as old once more, and a copy of that one again; and what was written by a clock that was ahead is
        deleted that much later.
        """
        counts = self._world.faults.counts
        copies = max(1, sum(counts.get(kind, 0) for kind in COPYING))
        most_ms = (1 + copies) * (self.retention_ms + self.segment_ms) + self._ahead_ms + LATE_MS
        end = self._world.high_watermark()
        most_bytes = self._retention_bytes + 2 * self._segment_bytes + max(0, end - self._ends[0][1])
        found = []
        for log in self._logs():
            if self._retention_bytes != UNLIMITED and log.size_bytes > most_bytes:
                found.append(f"{log.directory} holds {log.size_bytes} bytes")
            # After an unclean election another event may be at the offset of an old one.
            oldest = None if self.is_unclean else min(self._ages_of(log.start_address, end), default=None)
            if oldest is not None and oldest[1] > most_ms:
                found.append(
                    f"{log.directory}: the event at offset {oldest[0]} is {oldest[1]:.0f} ms old, and is"
                    f" still there ({self._world.clock.now_ms:.0f} ms)"
                )
        return found

    def _ages_of(self, start: int, end: int) -> list[tuple[int, float]]:
        """Returns the offset and the age of each acknowledged batch between two addresses."""
        return [
            (batch.offset, self._age_ms(batch))
            for producer in self._world.producers
            for batch in producer.acknowledged
            if start <= batch.offset < end
        ]

    def _age_ms(self, batch: Acknowledged) -> float:
        """Returns how long ago the producer of a batch was handed it."""
        place = batch.producer, batch.epoch, batch.sequence
        if place not in self._handed_ms:
            for producer in self._world.producers:
                self._handed_ms.update((each.place, each.time_ms) for each in producer.handed)
        return WALL_MS + self._world.clock.now_ms - self._handed_ms[place]

    def _logs(self) -> Iterable[PartitionLog]:
        return [log for _, log in self._logs_of()]

    def _logs_of(self) -> Iterable[tuple[int, PartitionLog]]:
        brokers = self._world.brokers.items()
        return [(number, log) for number, broker in brokers if (log := log_of(broker)) is not None]


def log_of(broker: SimBroker) -> PartitionLog | None:
    """Returns the log that a broker has open."""
    if broker.life.is_dead:
        return None
    led: Partition | None = broker.state.partitions.get(TOPIC, 0)
    if led is not None:
        return led.log
    followed = broker.replication.followed.get(PartitionName(TOPIC, 0))
    return None if followed is None else followed.log
