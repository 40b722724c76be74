"""Calls for whose end nobody has to wait: each runs in a thread of its own, which keeps no process alive.

For waits that nothing else bounds, such as a name server's or a library's own. `concurrent.futures` joins its
threads when the process ends, so a call that hangs would hold up the end, too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def in_background(call: Callable[[], T], name: str) -> Future[T]:
    """Starts the call. `result(timeout_s)` of what is returned raises `TimeoutError` if it has not ended by
    then, or what the call has raised. `name`: of its thread."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            result = call()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
