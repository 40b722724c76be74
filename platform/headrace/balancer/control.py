"""Drives an engine: makes the fronts in ZooKeeper its backends, and its figures the status.

Owns the steps of a change: a broker is marked before it gets connections, and its mark is released after the
engine has stopped giving it any (`coordination.fronts` explains why). Runs on one asyncio loop; requests to
ZooKeeper run on threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import Any, Final, Protocol

from headrace.balancer.backends import Backend, BackendFigures, Phase, after_fronts, text_of, without_drained
from headrace.balancer.errors import BalancerError
from headrace.balancer.withdrawn import WithdrawnBrokers
from headrace.coordination.errors import CoordinationError
from headrace.coordination.fronts import Front, FrontRegistry
from headrace.coordination.standing import HeldNode
from headrace.process.command_line import HostPort

logger = logging.getLogger(__name__)

ROUND_INTERVAL_S: Final = 1.0


class Engine(Protocol):
    """Moves the bytes. Calls raise `BalancerError` or `OSError`."""

    @property
    def kind(self) -> str: ...
    async def start(self) -> None: ...
    async def apply(self, backends: Sequence[Backend]) -> None: ...
    async def figures(self) -> dict[int, BackendFigures]: ...
    async def reload(self) -> None: ...
    async def failed(self) -> str: ...
    async def stop(self) -> None: ...


class Control:
    """Drives one engine. `name` is unique among all balancers; `why` says why this engine was chosen."""

    def __init__(
        self, engine: Engine, fronts: FrontRegistry, *, name: str, listen: HostPort, why: str
    ) -> None:
        self._engine = engine
        self._fronts = fronts
        self._name = name
        self._listen = listen
        self._why = why
        self._backends: dict[int, Backend] = {}
        self._figures: dict[int, BackendFigures] = {}
        self._marks: dict[int, HeldNode] = {}
        self._withdrawn = WithdrawnBrokers()
        self._announced: list[Front] | None = None
        self._problem: str | None = None
        self._changed = asyncio.Event()
        self._reload_wanted = False

    async def run(self) -> None:
        """Serves until cancelled. Raises `BalancerError` if the engine ends by itself."""
        loop = asyncio.get_running_loop()

        def on_fronts(fronts: list[Front]) -> None:
            loop.call_soon_threadsafe(self._set_announced, fronts)

        await self._engine.start()
        failed = asyncio.create_task(self._engine.failed())
        looking = asyncio.create_task(self._withdrawn.watch())
        try:
            await asyncio.to_thread(self._fronts.forget, text_of(self._listen))
            await asyncio.to_thread(self._fronts.watch, on_fronts)
            while not failed.done():
                await self._round()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(ROUND_INTERVAL_S):
                        await self._changed.wait()
                self._changed.clear()
            raise BalancerError(failed.result())
        finally:
            failed.cancel()
            looking.cancel()
            await self._engine.stop()

    def want_reload(self) -> None:
        """Makes the next round reload the engine."""
        self._reload_wanted = True
        self._changed.set()

    def _set_announced(self, fronts: list[Front]) -> None:
        self._announced = fronts
        self._changed.set()

    async def _round(self) -> None:
        """Updates the engine; a problem is logged once and retried in the next round."""
        try:
            await self._update()
            self._problem = None
        except (BalancerError, CoordinationError, OSError) as error:
            problem = str(error) or type(error).__name__
            if problem != self._problem:
                logger.error("%s", problem)
            self._problem = problem

    async def _update(self) -> None:
        if self._reload_wanted:
            self._reload_wanted = False
            await self._engine.reload()
            logger.info("reloaded; open connections stay open")
        before = self._backends
        if self._announced is not None:
            self._backends = after_fronts(before, self._announced)
            self._withdrawn.follow(self._backends.values())
        for backend in self._backends.values():
            if before.get(backend.broker_id) != backend:
                logger.info("%s at %s:%d is %s", backend.name, *backend.address, backend.phase)
            if backend.phase is Phase.READY and backend.broker_id not in self._marks:
                mark = await asyncio.to_thread(self._fronts.mark, backend.broker_id, self._name)
                self._marks[backend.broker_id] = mark
        await self._engine.apply(tuple(self._backends.values()))
        for broker_id in list(self._marks):
            if self._backends[broker_id].phase is Phase.DRAINING:
                await asyncio.to_thread(self._marks[broker_id].release)
                del self._marks[broker_id]
        self._figures = await self._engine.figures()
        connections = {broker_id: figures.connections for broker_id, figures in self._figures.items()}
        kept = without_drained(self._backends, connections)
        for drained in self._backends.keys() - kept.keys():
            logger.info("%s is drained", self._backends[drained].name)
        self._backends = kept

    def status(self) -> dict[str, Any]:
        """The status that the page and `headrace status` show. Any thread may call."""
        rows = []
        for backend in tuple(self._backends.values()):
            figures = self._figures.get(backend.broker_id)
            row: dict[str, Any] = {
                "broker_id": backend.broker_id,
                "address": text_of(backend.address),
                "phase": str(backend.phase),
            }
            rows.append(row | (figures._asdict() if figures is not None else {"is_up": False}))
        serving = [row for row in rows if row["is_up"] and row["phase"] == Phase.READY]
        return {
            "engine": self._engine.kind,
            "why": self._why,
            "listen": text_of(self._listen),
            "problem": self._problem or (None if serving else "no broker takes connections"),
            "backends": rows,
            "withdrawn": self._withdrawn.rows(),
        }
