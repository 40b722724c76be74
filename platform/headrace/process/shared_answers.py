"""An answer that costs little, however many ask for it: one thread finds it for all that wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Generic, TypeVar

import anyio.to_thread

T = TypeVar("T")


class SharedAnswer(Generic[T]):
    """What `find`, which may block, returns to all that wait when it ends, and to nobody later: it begins
    again, `pause_s` after it ended at the earliest. Called on one event loop; those that wait take no thread.
    """

    def __init__(self, find: Callable[[], T], pause_s: float) -> None:
        self._find = find
        self._pause_s = pause_s
        self._next_s = 0.0
        self._finding: asyncio.Task[T] | None = None

    async def __call__(self) -> T:
        if self._finding is None or self._finding.done():
            self._finding = asyncio.create_task(self._found())
        # One that goes meanwhile does not end it for the others.
        return await asyncio.shield(self._finding)

    async def _found(self) -> T:
        await asyncio.sleep(max(0.0, self._next_s - time.monotonic()))
        try:
            return await anyio.to_thread.run_sync(self._find)
        finally:
            self._next_s = time.monotonic() + self._pause_s
