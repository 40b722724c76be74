"""What ends another thread's wait in a selector."""

from __future__ import annotations

import contextlib
import socket
from typing import Final

_DRAINED_AT_ONCE_BYTES: Final = 4096


class Waker:
    """A pair of sockets. Registered in a selector for reading, it ends a wait once `wake` was called."""

    def __init__(self) -> None:
        self._waker, self._woken = socket.socketpair()
        for end in (self._waker, self._woken):
            end.setblocking(False)

    def fileno(self) -> int:
        """The file descriptor that can be read after a `wake`."""
        return self._woken.fileno()

    def wake(self) -> None:
        """Ends a wait that has begun, or else the next one. Any thread may call it, also after `close`."""
        with contextlib.suppress(OSError):  # the pair is full, so the wait will end; or it is closed
            self._waker.send(b"\x00")

    def drain(self) -> None:
        """Makes the next wait last again, until the next `wake`."""
        with contextlib.suppress(BlockingIOError):
            while len(self._woken.recv(_DRAINED_AT_ONCE_BYTES)) == _DRAINED_AT_ONCE_BYTES:
                pass

    def close(self) -> None:
        """Closes both sockets."""
        self._waker.close()
        self._woken.close()
