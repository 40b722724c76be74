"""The order and the share of control requests, which are all but Produce and Fetch.

The requests of one connection are handled one after the other, and connections take turns. In one wakeup they
get `TURN_MAX_S` together; what is left waits for the next wakeups, so that producers and consumers are served
meanwhile. Large messages are read and written on a thread. A connection that does not read its responses has
no further request handled.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from headrace.broker.core import OUTGOING_MAX_BYTES, ClientConnection, Slot
from headrace.broker.fair_workers import FairWorkers
from headrace.broker.loop import EventLoop
from headrace.broker.workers import Outcome
from headrace.wire.errors import WireError
from headrace.wire.messages import Request, decode_request

logger = logging.getLogger(__name__)

TURN_MAX_S: Final = 0.010
READ_HERE_MAX_BYTES: Final = 2 * 1024  # larger requests are read on a thread
WRITE_HERE_MAX_ITEMS: Final = 300  # responses with more items are written on a thread
ITEM_BYTES: Final = 16 * 1024  # so many bytes, such as a member's metadata, count as one item more
UNREAD_CHECK_MS: Final = 20  # how soon a connection that has read its responses is noticed

Frame = bytes | memoryview
Serve = Callable[[Slot, Frame, Request | None], None]


class _Line:
    """The requests of one connection that wait, and how many of its messages a thread reads or writes."""

    __slots__ = ("away", "listed", "requests")

    def __init__(self) -> None:
        self.requests: deque[tuple[Slot, bytes]] = deque()
        self.away = 0
        self.listed = False


class ControlTurns:
    """`serve(slot, frame, request)` handles one request; `request` is None if it is still to be decoded.

    Called on the loop's thread. `codec` reads and writes large messages.
    """

    def __init__(
        self,
        loop: EventLoop,
        codec: FairWorkers,
        serve: Serve,
        clock_s: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._loop = loop
        self._codec = codec
        self._serve = serve
        self._clock_s = clock_s
        self._lines: dict[ClientConnection, _Line] = {}
        self._ready: deque[ClientConnection] = deque()
        self._unread: list[ClientConnection] = []  # they have too much to read first
        self._spent_s = 0.0  # in this wakeup
        self._is_woken = False
        loop.at_wakeup_end(self._end_wakeup)

    def take(self, slot: Slot, frame: memoryview) -> None:
        """Handles a request now or later. The frame is valid during the call only. Raises `WireError`."""
        connection = slot.connection
        line = self._lines.get(connection)
        if (
            line is None
            and self._spent_s < TURN_MAX_S
            and len(frame) <= READ_HERE_MAX_BYTES
            and connection.outgoing_bytes < OUTGOING_MAX_BYTES
        ):
            self._handle(slot, frame, None)
            return
        if line is None:
            line = self._lines[connection] = _Line()
        line.requests.append((slot, bytes(frame)))
        connection.queue(len(frame))
        self._list(connection, line)

    def apart(self, connection: ClientConnection, job: Callable[[], Any], done: Outcome) -> None:
        """Runs `job()` on a thread, then `done(result, error)`, unless the connection was closed. Until then
        no further request of the connection is handled.
        """
        line = self._lines.setdefault(connection, _Line())
        line.away += 1

        def ended(result: Any, error: Exception | None) -> None:
            line.away -= 1
            if not connection.closed:
                self._guard(connection, lambda: done(result, error))
            self._list(connection, line)

        self._codec.client = connection.peer
        self._codec.submit(job, ended)

    def _list(self, connection: ClientConnection, line: _Line) -> None:
        """Puts a connection among those that may have a request handled, if it may."""
        if line.away or line.listed:
            return
        if connection.closed or not line.requests:
            self._lines.pop(connection, None)
            return
        line.listed = True
        self._ready.append(connection)
        self._wake()

    def _wake(self) -> None:
        if not self._is_woken:
            self._is_woken = True
            # A timer, since posted calls run in the same wakeup.
            self._loop.call_later(0, self._take_turns)

    def _take_turns(self) -> None:
        while self._ready and self._spent_s < TURN_MAX_S:
            connection = self._ready.popleft()
            line = self._lines[connection]
            if not connection.closed and connection.outgoing_bytes >= OUTGOING_MAX_BYTES:
                self._wait_for_reader(connection)
                continue
            line.listed = False
            if not connection.closed:
                self._next(connection, line)
            self._list(connection, line)
        self._is_woken = False
        if self._ready:
            self._wake()

    def _next(self, connection: ClientConnection, line: _Line) -> None:
        slot, frame = line.requests.popleft()
        if len(frame) <= READ_HERE_MAX_BYTES:
            connection.queue(-len(frame))
            self._guard(connection, lambda: self._handle(slot, frame, None))
            return

        def decoded(request: Request | None, error: Exception | None) -> None:
            connection.queue(-len(frame))
            if error is not None:
                raise error
            self._handle(slot, frame, request)

        self.apart(connection, lambda: decode_request(frame), decoded)

    def _handle(self, slot: Slot, frame: Frame, request: Request | None) -> None:
        start_s = self._clock_s()
        try:
            self._serve(slot, frame, request)
        finally:
            self._spent_s += self._clock_s() - start_s

    @staticmethod
    def _guard(connection: ClientConnection, call: Callable[[], None]) -> None:
        """Ends the connection if its request cannot be handled."""
        try:
            call()
        except Exception as error:
            if isinstance(error, WireError):
                connection.abort(f"{type(error).__name__}: {error}")
            else:
                logger.exception("%s: serving a request failed", connection.peer)
                connection.abort("internal error")
            # A thread's error is in `call`, too: request and connection would wait for the collector.
            error.__traceback__ = None

    def _wait_for_reader(self, connection: ClientConnection) -> None:
        if not self._unread:
            self._loop.call_later(UNREAD_CHECK_MS, self._check_unread)
        self._unread.append(connection)

    def _check_unread(self) -> None:
        unread, self._unread = self._unread, []
        self._ready.extend(unread)
        self._wake()

    def _end_wakeup(self) -> None:
        self._spent_s = 0.0


def items_of(tree: Any, enough: int = WRITE_HERE_MAX_ITEMS) -> int:
    """Counts the items of all arrays of a response's tree, and its bytes; stops counting at `enough`."""
    count = 0
    waiting = [tree]
    while waiting and count < enough:
        for value in waiting.pop().values():
            if isinstance(value, (list, tuple)):
                count += len(value)
                waiting.extend(item for item in value[:enough] if isinstance(item, dict))
            elif isinstance(value, bytes):
                count += len(value) // ITEM_BYTES
    return count
