"""All connections of a broker, and what they share: bounds, receive buffers, whose turn it is, deadlines.

Owns fairness: a connection with much to do gets a turn, then waits in the backlog while others get theirs.
Knows no sockets: `transport` moves the bytes.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol

from headrace.broker.loop import EventLoop
from headrace.broker.network.admission import Admission, LineLimiter
from headrace.broker.network.connection_limits import ConnectionLimits
from headrace.broker.network.crowding import Crowding
from headrace.broker.network.receiving import ReceiveBound, Receiver
from headrace.wire.frame_buffers import FrameBuffers

logger = logging.getLogger(__name__)

SCRATCH_BYTES: Final = 64 * 1024
SCRATCH_SMALL_BYTES: Final = 4 * 1024  # while the receive bound is full
RECEIVED_PER_WAKEUP_MAX_BYTES: Final = 64 * 1024 * 1024  # by all connections
SENT_PER_WAKEUP_MAX_BYTES: Final = 64 * 1024 * 1024
BACKLOG_TURN_S: Final = 0.005  # of each wakeup, for connections that have more to do than one turn
CHECK_MS: Final = 500  # how late a deadline may be noticed
CHECK_TURN_S: Final = 0.005  # of each wakeup: hundreds of connections may have to be closed
CHECK_LATE_S: Final = (
    2.0  # a check later than this follows a pause of the broker itself: clients are not judged
)


class Served(Receiver, Protocol):
    """A connection, as seen from here."""

    active_s: float
    ip: str

    @property
    def is_busy(self) -> bool:
        """Whether responses are pending or unsent."""

    @property
    def is_open(self) -> bool: ...

    def send(self) -> int: ...
    def take_turn(self) -> None: ...
    def check_receiving(self, now_s: float, *, others_wait: bool) -> None: ...
    def check_sending(self, now_s: float) -> None: ...
    def restart_clocks(self, now_s: float) -> None: ...
    def update_interest(self) -> None: ...
    def end(self) -> None: ...
    def close(self, problem: str, cause: str = "") -> None: ...
    def on_failure(self) -> None: ...


class Connections:
    """Called on the loop's thread. `clock_s` decides deadlines."""

    def __init__(
        self, loop: EventLoop, limits: ConnectionLimits, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self.loop = loop
        self.limits = limits
        self.clock_s = clock_s
        self.admission = Admission(limits, clock_s)
        self.lines = LineLimiter(clock_s)
        self.bound = ReceiveBound(limits.receiving_max_bytes)
        self.buffers = FrameBuffers(self.bound)
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.scratch_small = self.scratch[:SCRATCH_SMALL_BYTES]
        self.by_fd: dict[int, Served] = {}
        self.crowding = Crowding(self.by_fd.values, self.admission.count_of, clock_s)
        self.with_output: dict[Served, None] = {}
        self.blocked: dict[Served, int] = {}  # that have unsent responses: bytes of memory, the oldest first
        self.unsent_bytes = 0
        self.input_ended: dict[Served, None] = {}  # closed after their last response
        self.received_bytes = 0  # in this wakeup
        self.serves = True  # False: what arrives is discarded
        self.closed: Counter[str] = Counter()  # connections that the broker ended, by cause
        self.rate_pause_count = 0
        self.accept_failure_count = 0
        self._backlog: dict[Served, None] = {}
        self._serves_backlog = False
        self._check_due_s: float | None = None
        self._unchecked: deque[Served] = deque()  # of the check under way
        loop.at_wakeup_end(self.send_all)

    # --- turns ---

    def defer(self, transport: Served) -> None:
        """Gives a connection its next turn after the others had theirs."""
        self._backlog[transport] = None
        if not self._serves_backlog:
            self._serves_backlog = True
            self.loop.call_later(0, self._serve_backlog)

    def _serve_backlog(self) -> None:
        self._serves_backlog = False
        end_s = time.monotonic() + BACKLOG_TURN_S
        while self._backlog:
            transport = next(iter(self._backlog))
            del self._backlog[transport]
            self._guarded(transport, transport.take_turn)
            if time.monotonic() >= end_s:
                break
        if self._backlog and not self._serves_backlog:
            self._serves_backlog = True
            self.loop.call_later(0, self._serve_backlog)

    def send_all(self) -> None:
        """Sends the responses of all connections that have some; ends the wakeup."""
        self.received_bytes = 0
        if not self.with_output:
            return
        ready, self.with_output = self.with_output, {}
        left_bytes = SENT_PER_WAKEUP_MAX_BYTES
        for transport in ready:
            if left_bytes <= 0:
                self.with_output[transport] = None
                continue
            try:
                left_bytes -= transport.send()
            except Exception:
                self._fail(transport)
        if self.with_output:
            self.loop.call_later(0, _do_nothing)  # the next wakeup comes at once, and continues

    # --- deadlines ---

    def watch_deadlines(self) -> None:
        """Begins to check deadlines, until nothing has any."""
        if self._check_due_s is None and not self._unchecked:
            self._check_due_s = self.clock_s() + CHECK_MS / 1000
            self.loop.call_later(CHECK_MS, self._check_deadlines)

    def _check_deadlines(self) -> None:
        now_s = self.clock_s()
        due_s, self._check_due_s = self._check_due_s, None
        concerned: dict[Any, Any] = {**self.bound.partials, **self.blocked, **self.input_ended}
        transports: list[Served] = list(concerned)
        if due_s is not None and now_s - due_s > CHECK_LATE_S:
            for transport in transports:
                transport.restart_clocks(now_s)
        else:
            self._unchecked.extend(transports)
        self._check_some()

    def _check_some(self) -> None:
        """Checks for `CHECK_TURN_S`, the oldest first, and goes on in the next wakeup."""
        end_s = time.monotonic() + CHECK_TURN_S
        while self._unchecked:
            transport = self._unchecked.popleft()
            self._guarded(transport, partial(self._check, transport))
            if self._unchecked and time.monotonic() >= end_s:
                self.loop.call_later(0, self._check_some)
                return
        if self.bound.partials or self.blocked or self.input_ended:
            self.watch_deadlines()

    def _check(self, transport: Served) -> None:
        now_s = self.clock_s()
        transport.check_sending(now_s)
        # Each one that is closed makes room: no more are than others wait for.
        starved = self.bound.starved
        if transport in self.bound.partials and transport not in starved:
            transport.check_receiving(now_s, others_wait=bool(starved))

    def account_unsent(self, transport: Served, before_bytes: int, now_bytes: int) -> None:
        """Records the memory of a connection's unsent responses, -1 if it has none. Beyond the bound of all
        the longest waiting one is cut off.
        """
        self.unsent_bytes += max(0, now_bytes) - max(0, before_bytes)
        if now_bytes < 0:
            self.blocked.pop(transport, None)
            return
        self.blocked[transport] = now_bytes
        self.watch_deadlines()
        while self.unsent_bytes > self.limits.unsent_max_bytes:
            longest = next((each for each, size in self.blocked.items() if size > SCRATCH_BYTES), None)
            if longest is None:
                return
            longest.close(
                f"it does not read its responses, and all connections' unsent responses together exceed "
                f"headrace.response.unsent.max.bytes={self.limits.unsent_max_bytes}",
                "unread",
            )

    def close_idle(self) -> None:
        self.buffers.release_idle()
        before_s = self.clock_s() - self.limits.idle_max_s
        for transport in list(self.by_fd.values()):
            if transport.active_s < before_s and not transport.is_busy:
                self._guarded(transport, lambda served=transport: served.close("idle", "idle"))  # type: ignore[misc]

    # --- members ---

    def forget(self, transport: Served, fd: int) -> None:
        """Removes a connection from everything that is shared; called by the connection when it closes."""
        del self.by_fd[fd]
        self.with_output.pop(transport, None)
        self.input_ended.pop(transport, None)
        self._backlog.pop(transport, None)

    def _guarded(self, transport: Served, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception:
            self._fail(transport)

    def _fail(self, transport: Served) -> None:
        """Ends a connection whose handling raised; the others are served on."""
        logger.exception("%s: serving it failed, the connection ends", transport)
        try:
            transport.on_failure()
        except Exception:
            logger.exception("%s: ending it failed", transport)


def _do_nothing() -> None:
    return
