"""Producers that begin in the moment in which the leader stops answering: their first batch is on its way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from simulation.sim_clients import BROKERS

if TYPE_CHECKING:
    from simulation.sim_faults import Faults
    from simulation.sim_moves import Moves
    from simulation.sim_world import World

NEWCOMERS_MAX: Final = 3
"""Of one world: each one costs as much as another producer."""
FIRST_BATCH_MS: Final = (0.0, 5.0)
"""When the leader stops answering, after a newcomer has sent its first batch."""
JUST_BEFORE: Final = 0.7
"""How often it falls silent just before instead: a link loses what is sent while it is broken."""
SILENT_MS: Final = (4_500.0, 8_000.0)
"""Longer than a session lasts: another broker leads meanwhile."""


class Newcomers:
    """Those of one world."""

    def __init__(self, world: World, faults: Faults, moves: Moves) -> None:
        self._world = world
        self._faults = faults
        self._moves = moves
        self._clock = world.clock
        self._count = 0

    def begin(self) -> None:
        """A producer of the product begins while all replicas are in sync.

        When its first batch is on its way, the leader is stopped, or gone with its host; or the link to it
        breaks, and it hands the partition over and stops in order, or the partition is moved away from it. So
        another one leads soon.
        """
        are_all_in_sync = len(self._world.state()["isr"]) == BROKERS and self._faults.sick is None
        # An auditor knows from the beginning of a world which producers report to it.
        if not are_all_in_sync or self._count == NEWCOMERS_MAX or self._world.audit is not None:
            return
        self._count += 1
        self._faults.count("newcomer")
        producer = self._world.begin_producer()

        def begins() -> None:
            producer.on_produces = lambda: None
            if self._clock.chance(JUST_BEFORE):
                self._hide_leader(producer.name)
            else:
                delay_ms = self._clock.between(*FIRST_BATCH_MS)
                self._world.later(delay_ms, lambda: self._hide_leader(producer.name))

        producer.on_produces = begins

    def _hide_leader(self, producer: str) -> None:
        leader = self._world.state()["leader"]
        if leader < 0 or self._faults.is_over or self._faults.sick is not None:
            return
        hide = self._clock.draw.choice(
            (self._silence, self._silence, self._shut_down, self._move, self._move)
        )
        hide(producer, leader)

    def _silence(self, _: str, leader: int) -> None:
        self._clock.draw.choice((self._faults.stop, self._faults.crash))(leader, SILENT_MS)

    def _shut_down(self, producer: str, leader: int) -> None:
        self._cut(producer, leader)
        self._moves.shut_down(leader)

    def _move(self, producer: str, leader: int) -> None:
        """The former leader stays, and the cluster lists it: a client has no reason to give it up."""
        self._cut(producer, leader)
        others = [number for number in self._world.brokers if number != leader]
        self._moves.reassign_to(others[0], others)

    def _cut(self, producer: str, leader: int) -> None:
        ways = {(producer, str(leader)), (str(leader), producer)}
        self._faults.cut_ways(f"{producer} is cut off from {leader}", ways, self._clock.between(*SILENT_MS))
