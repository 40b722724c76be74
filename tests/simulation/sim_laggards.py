"""Faults that aim at the in-sync set: at the moment in which a replica leaves it, or joins it again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from headrace.broker.replicas.fetcher import RESPONSE_WAIT_MAX_S
from headrace.coordination import znodes
from simulation.sim_clients import TOPIC

if TYPE_CHECKING:
    from simulation.sim_faults import Faults
    from simulation.sim_moves import Moves
    from simulation.sim_network import Way
    from simulation.sim_world import World

LAGS_AFTER_MS: Final = (2_000.0, 4_000.0)
OTHERS_DOWN_MS: Final = (4_500.0, 9_000.0)
"""Longer than a session lasts: who is left is elected."""
DEAF: Final = 0.85
"""How often a broker that has come back gets no answers."""
DEAF_MS: Final = (500.0, 3_000.0)
"""How long it gets none."""
JOINED_MS: Final = (0.0, 5.0)
"""How long after a replica has joined the others die."""


class Laggards:
    """Those of one world."""

    def __init__(self, world: World, faults: Faults, moves: Moves) -> None:
        self._world = world
        self._faults = faults
        self._moves = moves
        self._clock = world.clock
        self._path = znodes.partition_state(TOPIC, 0)
        self._awaited: int | None = None
        """The broker at whose return to the in-sync set the others die."""
        self._is_out = False
        """Whether it has left the set."""
        world.zookeeper.on_write.append(self._written)

    def leave_behind(self) -> None:
        """One broker is cut off from the others until it lags; then those lose their power for long."""
        if self._faults.sick is not None:
            return
        number = self._clock.draw.choice(list(self._world.brokers))
        ways = self._ways_to(number)
        ways |= {(target, source) for source, target in ways}
        self._faults.cut_ways(f"broker {number} is left behind", ways)

        def lose() -> None:
            if number not in self._world.state()["isr"]:
                self._lose_others(number, "left-behind")

        self._world.later(self._clock.between(*LAGS_AFTER_MS), lose)

    def leave_behind_eligible(self) -> None:
        """One broker lags while all must be in sync, and is eligible, until fewer are asked for: before the
        others lose their power they go on without it.
        """
        self._moves.raise_min_for(self._clock.between(*LAGS_AFTER_MS))
        self.leave_behind()

    def interrupt_joining(self) -> None:
        """One broker is down until it lags. When it has joined the in-sync set again the others lose their
        power for long: it leads, with what it has. Mostly no answer reaches it for a while, so that it asks
        the leader, and gets nothing: then it must not join.
        """
        broker = self._faults.living()
        if broker is None or self._faults.sick is not None or self._awaited is not None:
            return
        number = broker.number
        self._awaited, self._is_out = number, False
        down_ms = self._clock.between(*LAGS_AFTER_MS)
        self._faults.crash(number, (down_ms, down_ms))
        if self._clock.chance(DEAF):
            deaf_ms = down_ms + self._clock.between(*DEAF_MS)
            self._faults.cut_ways(f"no answer reaches broker {number}", self._ways_to(number), deaf_ms)

    def deafen(self) -> None:
        """One follower is cut off from the others until it lags. Then they hear it, and it hears nothing: it
        asks in vain for what it has missed, and must not join. If it does the others lose their power.
        """
        state = self._world.state()
        number = next((each for each in state["isr"] if each != state["leader"]), None)
        if number is None:
            return
        self._awaited, self._is_out = number, False
        ways_to = self._ways_to(number)
        ways_from = {(target, source) for source, target in ways_to}
        self._faults.cut_ways(f"nobody hears broker {number}", ways_from, self._clock.between(*LAGS_AFTER_MS))
        asks_again_ms = RESPONSE_WAIT_MAX_S * 1000 + self._clock.between(*DEAF_MS)
        self._faults.cut_ways(f"no answer reaches broker {number}", ways_to, asks_again_ms)

    def _written(self, path: str, data: bytes) -> None:
        """Called with each write to ZooKeeper."""
        number = self._awaited
        if number is None or path != self._path or not data:
            return
        if number not in json.loads(data)["isr"]:
            self._is_out = True
        elif self._is_out:
            self._awaited = None
            delay_ms = self._clock.between(*JOINED_MS)
            self._world.later(delay_ms, lambda: self._lose_others(number, "joining"))

    def _lose_others(self, number: int, kind: str) -> None:
        if self._faults.is_over or self._faults.sick is not None:
            return
        self._faults.count(kind)
        for other in self._world.brokers:
            if other != number:
                self._faults.crash(other, OTHERS_DOWN_MS)

    def _ways_to(self, number: int) -> set[Way]:
        """From all other brokers."""
        return {(str(other), str(number)) for other in self._world.brokers if other != number}
