"""Producers that begin in the moment in which the leader stops answering: their first batch is on its way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from simulation.sim_faults import Faults
    from simulation.sim_world import World

NEWCOMERS_MAX: Final = 3
"""Of one world: each one costs as much as another producer."""
FIRST_BATCH_MS: Final = (2.0, 60.0)
"""When the leader stops answering, after a newcomer has begun."""
SILENT_MS: Final = (4_500.0, 8_000.0)
"""Longer than a session lasts: another broker leads meanwhile."""


class Newcomers:
    """Those of one world."""

    def __init__(self, world: World, faults: Faults) -> None:
        self._world = world
        self._faults = faults
        self._clock = world.clock
        self._count = 0

    def begin(self) -> None:
        """A producer of the product begins; then the leader is stopped, or gone with its host."""
        leader = self._world.state()["leader"]
        is_full = self._count == NEWCOMERS_MAX
        # An auditor knows from the beginning of a world which producers report to it.
        if is_full or leader < 0 or self._world.audit is not None or self._faults.sick is not None:
            return
        self._count += 1
        self._faults.count("newcomer")
        self._world.begin_producer()
        silence = self._faults.stop if self._clock.chance(0.5) else self._faults.crash

        def silences() -> None:
            if not self._faults.is_over and self._faults.sick is None:
                silence(leader, SILENT_MS)

        self._world.later(self._clock.between(*FIRST_BATCH_MS), silences)
