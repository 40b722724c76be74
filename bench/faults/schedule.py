"""The schedule of faults: a pure function of the seed, the kinds and the bounds."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

SEED_SPAN: Final = 1 << 32
QUIET_MAX_S: Final = 2.0


class Fault(NamedTuple):
    """What happens, for how long, and what its own choices draw from. `partition`: its leader is hit."""

    kind: str
    partition: int
    duration_s: float
    quiet_s: float
    seed: int


class Bounds(NamedTuple):
    """`pause_max_s`: of what is stopped or cut off. `session_s`: ZooKeeper is stopped up to twice that."""

    pause_max_s: float
    session_s: float
    down_max_s: float

    def duration_s(self, kind: str, draw: float) -> float:
        """Returns how long a fault of this kind lasts; `draw` is in [0, 1)."""
        if kind == "restart":
            return 0.0
        if kind in ("pause", "isolated", "without-zookeeper", "between-brokers", "one-way"):
            # Short ones are more frequent: the long ones take most of the time.
            least_s = min(5.0, self.pause_max_s)
            return least_s + (self.pause_max_s - least_s) * draw * draw
        if kind == "zookeeper-pause":
            return self.session_s * (0.5 + 1.5 * draw)
        return 1.0 + (self.down_max_s - 1.0) * draw


def schedule(seed: int, count: int, kinds: Sequence[str], partitions: int, bounds: Bounds) -> Iterator[Fault]:
    """Returns `count` faults. Each kind comes once before one comes again."""
    draw = random.Random(seed)
    bag: list[str] = []
    for _ in range(count):
        if not bag:
            bag = list(kinds)
            draw.shuffle(bag)
        kind = bag.pop()
        yield Fault(
            kind,
            draw.randrange(partitions),
            bounds.duration_s(kind, draw.random()),
            draw.random() * QUIET_MAX_S,
            draw.randrange(SEED_SPAN),
        )
