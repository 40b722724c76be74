"""The brokers behind the balancer: which ones get new connections, and which one gets the next. Pure.

A backend is *ready* while its broker announces its front: it gets new connections as long as it is healthy.
It is *draining* once the front is withdrawn, because the broker stops or has ended: open connections stay,
new ones go elsewhere. It is dropped when the last of them is closed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from headrace.coordination.fronts import Front
from headrace.process.command_line import HostPort

CHECK_INTERVAL_S: Final = 0.5
CHECK_TIMEOUT_S: Final = 2.0
CHECKS_TO_FALL: Final = 3
CONNECT_TIMEOUT_S: Final = 2.0


def text_of(address: HostPort) -> str:
    return f"{address[0]}:{address[1]}"


class Phase(StrEnum):
    READY = "ready"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class Backend:
    """One broker's front."""

    broker_id: int
    address: HostPort
    phase: Phase

    @property
    def name(self) -> str:
        return f"broker-{self.broker_id}"


class BackendFigures(NamedTuple):
    """What an engine reports of one backend: connections open now and in total, failed attempts, bytes from
    and to clients, the result of the last health check.
    """

    is_up: bool
    connections: int
    connections_total: int
    connect_errors: int
    bytes_in: int
    bytes_out: int
    check: str


def after_fronts(known: Mapping[int, Backend], fronts: Iterable[Front]) -> dict[int, Backend]:
    """The backends once exactly these fronts are announced."""
    ready = {
        front.broker_id: Backend(front.broker_id, (front.host, front.port), Phase.READY) for front in fronts
    }
    draining = {
        broker_id: Backend(broker_id, backend.address, Phase.DRAINING)
        for broker_id, backend in known.items()
        if broker_id not in ready
    }
    return dict(sorted((ready | draining).items()))


def without_drained(known: Mapping[int, Backend], connections: Mapping[int, int]) -> dict[int, Backend]:
    """The backends without those that drain and have no connection left."""
    return {
        broker_id: backend
        for broker_id, backend in known.items()
        if backend.phase is Phase.READY or connections.get(broker_id, 0)
    }


class Health(NamedTuple):
    """The health of one backend. It starts down, is up after one good check, and down after `CHECKS_TO_FALL`
    bad ones in a row, so that a broker that is merely busy keeps its connections.
    """

    is_up: bool = False
    failures: int = 0

    def after(self, good: bool) -> Health:
        if good:
            return Health(is_up=True)
        failures = self.failures + 1
        return Health(self.is_up and failures < CHECKS_TO_FALL, min(failures, CHECKS_TO_FALL))


def choose(up: Collection[int], connections: Mapping[int, int], total: Mapping[int, int]) -> int | None:
    """The backend for a new connection: the one with the fewest open ones, then with the fewest in total."""
    return min(
        up,
        key=lambda broker_id: (connections.get(broker_id, 0), total.get(broker_id, 0), broker_id),
        default=None,
    )
