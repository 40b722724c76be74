"""Whether a world is live again once all is healed, and in sync in its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from simulation.sim_clients import BROKERS, TOPIC
from simulation.sim_remade import NAME as REMADE_TOPIC

if TYPE_CHECKING:
    from simulation.sim_world import World

LIVE_MAX_MS: Final = 40_000.0
STEP_MS: Final = 200.0


class Liveness:
    """Of one world. What is late is a problem of it."""

    def __init__(self, world: World) -> None:
        self._world = world

    def wait_until_live(self) -> None:
        world = self._world
        since_ms = world.clock.now_ms
        while world.clock.now_ms - since_ms < LIVE_MAX_MS:
            world.clock.run_until(world.clock.now_ms + STEP_MS)
            if not self._late(since_ms):
                world.note(f"live again {world.clock.now_ms - since_ms:.0f} ms after all was healed")
                return
        late = "; ".join(self._late(since_ms))
        world.problems.append(f"not live {LIVE_MAX_MS:.0f} ms after all was healed: {late}")

    def wait_until_in_sync(self) -> None:
        """A replica that had no room, for example, may have left the in-sync set since all was live."""
        world = self._world
        until_ms = world.clock.now_ms + LIVE_MAX_MS
        while world.clock.now_ms < until_ms:
            ends = world.high_watermarks(TOPIC)
            remade = world.remade
            is_remade_whole = remade is None or remade.is_whole(world.high_watermarks(REMADE_TOPIC))
            is_many_whole = world.many is None or world.many.is_whole()
            is_whole = is_remade_whole and is_many_whole
            if len(ends) == 1 and len(world.state()["isr"]) == BROKERS and is_whole:
                return
            world.clock.run_until(world.clock.now_ms + STEP_MS)
        world.problems.append(f"not all in sync in the end: {world.state()}")

    def _late(self, since_ms: float) -> list[str]:
        world = self._world
        late = [f"{each.name} got {each.last_answer}" for each in world.producers if each.last_ms <= since_ms]
        if world.reader is not None and world.reader.last_ms <= since_ms:
            late.append("the reader reads nothing new")
        if world.group is not None and world.group.confirmed_ms <= since_ms:
            late.append("the group commits nothing new")
        if world.mirror is not None and world.mirror.last_ms <= since_ms:
            late.append(f"the mirror copies nothing new: {world.mirror.copy.problem}")
        if world.remade is not None and world.remade.last_ms <= since_ms:
            late.append("the topic that was made again takes nothing")
        if world.many is not None:
            late.extend(world.many.late(since_ms))
        state = world.state()
        if len(state["isr"]) < BROKERS or state["leader"] < 0:
            late.append(f"the state is {state}")
        return late
