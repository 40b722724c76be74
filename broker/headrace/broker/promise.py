"""A value that comes later, on the event loop's thread. Owns nothing else: no threads, no timeouts."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Generic, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Promise(Generic[T]):
    """`resolve` gives it its value, and runs the callbacks given to `then`. A second `resolve` is ignored, so
    that a timeout and a response may race.
    """

    __slots__ = ("_callbacks", "_done", "_value")

    def __init__(self) -> None:
        self._callbacks: list[Callable[[T], None]] = []
        self._done = False
        self._value: T

    @property
    def done(self) -> bool:
        return self._done

    @property
    def taken(self) -> Promise[Any]:
        """Resolves once nothing of the request is kept that asked for this value."""
        return self

    def resolve(self, value: T) -> None:
        if self._done:
            return
        self._done = True
        self._value = value
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            try:
                callback(value)
            except Exception:
                # One client's callback: the others that wait for the same value still get it.
                logger.exception(
                    "a callback of a promise failed: %s", getattr(callback, "__qualname__", callback)
                )

    def then(self, callback: Callable[[T], None]) -> None:
        if self._done:
            callback(self._value)
        else:
            self._callbacks.append(callback)


class Parked(Promise[T]):
    """A value that may come long after its request was taken: the handler that takes it resolves `taken`."""

    __slots__ = ("_taken",)

    def __init__(self) -> None:
        super().__init__()
        self._taken: Promise[None] = Promise()

    @property
    def taken(self) -> Promise[None]:
        return self._taken
