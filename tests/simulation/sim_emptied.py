"""A fault that aims at the moment between a broker's return and the controller's look at it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from headrace.coordination import znodes

if TYPE_CHECKING:
    from simulation.sim_disk_faults import DiskFaults
    from simulation.sim_faults import Faults
    from simulation.sim_moves import Moves
    from simulation.sim_world import World

DOWN_MS: Final = (2_000.0, 6_000.0)
ASKED_MS: Final = (50.0, 1_500.0)


class Emptied:
    """Those of one world."""

    def __init__(self, world: World, faults: Faults, moves: Moves, disks: DiskFaults) -> None:
        self._world = world
        self._faults = faults
        self._moves = moves
        self._disks = disks

    def leader(self) -> None:
        """The controller is gone, and its session lives on; the leader comes back with an empty disk. An
        administrator asks for the leader and the third broker, who alone has everything, as the replicas.
        """
        leader = self._world.state()["leader"]
        node = self._world.zookeeper.nodes.get(znodes.CONTROLLER)
        if node is None or not node.data or not self._disks.may_lose():
            return
        controller = json.loads(node.data)["broker_id"]
        others = set(self._world.brokers) - {leader, controller}
        if controller == leader or leader not in self._world.brokers or len(others) != 1:
            return
        (third,) = others
        self._faults.count("emptied-leader")
        self._faults.crash(controller, DOWN_MS)
        self._faults.sick = leader
        self._disks.replace(leader)
        asked_ms = self._world.clock.between(*ASKED_MS)
        self._world.later(asked_ms, lambda: self._moves.reassign_to(third, [leader, third]))
