"""What some worlds begin with, before other faults come: one fault that is long, and that others would hide.

Each has a chance of its own, so that other worlds stay as they are.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Final

from headrace.broker.replicas.cut_off import UNREACHED_MORE_MS
from simulation.sim_session import SESSION_MS

if TYPE_CHECKING:
    from simulation.sim_world import World

SHARE: Final = 0.06
"""How many worlds begin with each."""
DEAF_MS: Final = 13_000.0
BOTH_WAYS: Final = 0.7
HANDED_OVER_MS: Final = SESSION_MS + UNREACHED_MORE_MS + 2_000.0
"""How soon another broker leads when no follower reaches the leader."""
ACKNOWLEDGED_MS: Final = 5_000.0
"""How soon it acknowledges something then."""


def play(world: World) -> None:
    """Lets one of them happen, or mostly none."""
    if Random(f"deaf {world.seed}").random() < SHARE:
        world.faults.deafen()
        world.clock.run_until(world.clock.now_ms + DEAF_MS)
        return
    draw = Random(f"unreached {world.seed}")
    if draw.random() < SHARE:
        _unreached(world, is_mutual=draw.random() < BOTH_WAYS)


def _unreached(world: World, *, is_mutual: bool) -> None:
    """The leader's followers do not reach it, though all live: when a session would have ended another one
    must lead, and acknowledge what clients send.
    """
    leader = world.state()["leader"]
    ways = {(str(other), str(leader)) for other in world.brokers if other != leader}
    if is_mutual:
        ways |= {(target, source) for source, target in ways}
    what = f"nothing of the others reaches broker {leader}"
    world.faults.cut_ways(what, ways, HANDED_OVER_MS + ACKNOWLEDGED_MS)
    world.clock.run_until(world.clock.now_ms + HANDED_OVER_MS)
    before = _acknowledged(world)
    world.faults.hurry()
    world.clock.run_until(world.clock.now_ms + ACKNOWLEDGED_MS - 1.0)
    if _acknowledged(world) == before:
        world.problems.append(
            f"nothing is acknowledged, though only broker {leader} does not hear the others"
            f" ({world.clock.now_ms:.0f} ms): {world.state()}"
        )


def _acknowledged(world: World) -> int:
    return sum(len(producer.acknowledged) for producer in world.producers)
