"""Brokers whose fronts are not announced any more, so that they stay visible: whether they ended, or hang.

Owns what is known of each, and its checks. Such a broker gets no connections; it is forgotten once its front
is back, or some time after it has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from headrace.balancer.backends import Backend, Phase, text_of
from headrace.balancer.checking import NO_RESPONSE, check
from headrace.process.clock import monotonic_ms, now_ms
from headrace.process.command_line import HostPort

LOOK_INTERVAL_S: Final = 10.0
ENDED_KEPT_MS: Final = 3_600_000
WITHDRAWN_MAX: Final = 64


class Condition(StrEnum):
    """What a check says of a broker without a front."""

    UNCHECKED = "not checked yet"
    SILENT = "does not answer"
    ENDED = "not running"
    ANSWERING = "answers"


@dataclass(slots=True)
class Withdrawn:
    """One broker. `since_ms`: when its front went, in Unix ms; `seen_ms`: when its condition changed, on the
    monotonic clock.
    """

    address: HostPort
    since_ms: int
    seen_ms: int
    condition: Condition = Condition.UNCHECKED
    check: str = ""


def condition_of(problem: str) -> Condition:
    """The condition that a check's problem means; "" is no problem."""
    if not problem:
        return Condition.ANSWERING
    return Condition.SILENT if problem == NO_RESPONSE else Condition.ENDED


class WithdrawnBrokers:
    """Those of one balancer. All but `rows` are called on the loop of `watch`."""

    def __init__(self, check_broker: Callable[[HostPort], Awaitable[str]] = check) -> None:
        self._check = check_broker
        self._brokers: dict[int, Withdrawn] = {}
        self._changed = asyncio.Event()

    def follow(self, backends: Iterable[Backend]) -> None:
        """Notes which of the backends drain, and forgets those that are ready."""
        for backend in backends:
            known = self._brokers.get(backend.broker_id)
            if backend.phase is Phase.READY:
                self._brokers.pop(backend.broker_id, None)
            elif known is None or known.address != backend.address:
                self._brokers[backend.broker_id] = Withdrawn(backend.address, now_ms(), monotonic_ms())
                self._changed.set()
        while len(self._brokers) > WITHDRAWN_MAX:
            del self._brokers[min(self._brokers, key=lambda each: self._brokers[each].since_ms)]

    async def watch(self) -> None:
        """Checks each of them again and again, until cancelled."""
        while True:
            self._changed.clear()
            await self._look()
            try:
                async with asyncio.timeout(LOOK_INTERVAL_S if self._brokers else None):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def rows(self) -> list[dict[str, Any]]:
        """What is known of each, as plain data for `GET /status`. Any thread may call."""
        return [
            {
                "broker_id": broker_id,
                "address": text_of(each.address),
                "withdrawn_ms": each.since_ms,
                "condition": str(each.condition),
                "check": each.check,
            }
            for broker_id, each in sorted(self._brokers.copy().items())
        ]

    async def _look(self) -> None:
        looked_at = list(self._brokers.items())
        problems = await asyncio.gather(*(self._check(each.address) for _, each in looked_at))
        for (broker_id, each), problem in zip(looked_at, problems, strict=True):
            condition = condition_of(problem)
            if condition is not each.condition:
                each.seen_ms = monotonic_ms()
            each.condition, each.check = condition, problem or "ok"
            is_over = condition is Condition.ENDED and monotonic_ms() - each.seen_ms >= ENDED_KEPT_MS
            if is_over and self._brokers.get(broker_id) is each:
                del self._brokers[broker_id]
