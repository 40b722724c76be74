"""A value that costs little, however many ask for it: one thread finds it, at most once in a while."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Generic, TypeVar

import anyio.to_thread

T = TypeVar("T")


class Remembered(Generic[T]):
    """What `find`, which may block, returns, for `kept_s`. Called on one event loop; those who wait for the
    same value take no thread.
    """

    def __init__(self, find: Callable[[], T], kept_s: float) -> None:
        self._find = find
        self._kept_s = kept_s
        self._until_s = 0.0
        self._finding: asyncio.Task[T] | None = None

    async def __call__(self) -> T:
        finding = self._finding
        if finding is None or (finding.done() and time.monotonic() >= self._until_s):
            finding = self._finding = asyncio.create_task(self._found())
        # Who goes meanwhile does not end it for the others.
        return await asyncio.shield(finding)

    async def _found(self) -> T:
        try:
            return await anyio.to_thread.run_sync(self._find)
        finally:
            self._until_s = time.monotonic() + self._kept_s
