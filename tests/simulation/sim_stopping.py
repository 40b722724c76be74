"""Judges what is written of brokers that stop: once one has said so, nobody takes it into an in-sync set.

Looks at each write to ZooKeeper when it is made, so no watch and no server that is behind excuses it. Of a
broker that is elected because nobody else can lead nothing is promised here.
"""

from __future__ import annotations

import json
from typing import Any, Final

from headrace.coordination import znodes
from simulation.sim_zookeeper import ZooKeeper

STATE: Final = "/state"


class Departures:
    """Those of one world. `problems`: each broken promise."""

    def __init__(self, server: ZooKeeper) -> None:
        self.problems: list[str] = []
        self._server = server
        self._before: dict[str, Any] = {}
        server.on_write.append(self._written)

    def _written(self, path: str, data: bytes) -> None:
        if not (path.startswith(f"{znodes.TOPICS}/") and path.endswith(STATE)):
            return
        if not data:
            self._before.pop(path, None)
            return
        state = json.loads(data)
        before, self._before[path] = self._before.get(path), state
        if before is None:
            return  # a new topic, whose maker may not have heard of it yet
        taken_in = set(state["isr"]) - {*before["isr"], state["leader"]}
        at_ms = self._server.clock.now_ms
        self.problems += [
            f"broker {number} stops, and is taken into the in-sync set of {path} ({at_ms:.0f} ms)"
            for number in sorted(taken_in)
            if self._stops(number)
        ]

    def _stops(self, number: int) -> bool:
        nodes = self._server.nodes
        said, registered = nodes.get(znodes.stopping(number)), nodes.get(znodes.broker(number))
        return said is not None and registered is not None and said.owner == registered.owner
