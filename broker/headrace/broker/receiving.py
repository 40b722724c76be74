"""The bound on all request frames that are being received, and who may receive on when it is reached.

Owns `queued.max.request.bytes`: a receiver asks before it takes memory. The oldest unfinished frame always
proceeds, so that receivers never wait for each other in a circle: the bound is exceeded by one frame at most.
Requests that are passed on to other brokers count, too. Knows no sockets.
"""

from __future__ import annotations

from typing import Final, Protocol

from headrace.broker.connection_limits import ConnectionLimits

STEP_BYTES: Final = 256 * 1024  # granted at a time, so that no frame takes all that is free


class Receiver(Protocol):
    """A connection with a partly received frame. Compared by identity."""

    def feed(self) -> None:
        """Called when it may ask again, after it was refused."""


class Progress:
    """How quickly one frame arrives, measured from time to time."""

    __slots__ = ("_began_s", "_bytes", "_since_s")

    def __init__(self) -> None:
        self._began_s = self._since_s = 0.0
        self._bytes = 0

    def begin(self, now_s: float, arrived_bytes: int) -> None:
        """Measures from now on."""
        self._began_s = self._since_s = now_s
        self._bytes = arrived_bytes

    def problem(
        self, now_s: float, arrived_bytes: int, limits: ConnectionLimits, *, is_read: bool, others_wait: bool
    ) -> str:
        """Returns why the frame must be given up, or "". `is_read`: whether the broker reads the connection;
        if it does not, slowness is not the client's. `others_wait`: for the room that the frame takes.
        """
        age_s = now_s - self._began_s
        if others_wait and age_s >= limits.receive_timeout_s:
            return f"its request is incomplete after {age_s:.0f} s, and others wait for its room"
        if not is_read:
            self._since_s, self._bytes = now_s, arrived_bytes
            return ""
        since_s = now_s - self._since_s
        if since_s < (limits.receive_stall_max_s if others_wait else limits.receive_timeout_s):
            return ""
        new_bytes = arrived_bytes - self._bytes
        rate_min = limits.receive_bytes_per_second_min
        if new_bytes == 0 or new_bytes < rate_min * since_s:
            return (
                f"{new_bytes} bytes of its request arrived within {since_s:.1f} s"
                f"{', and others wait for its room' if others_wait else ''}"
                f"; headrace.request.receive.bytes.per.second.min is {rate_min}"
            )
        self._since_s, self._bytes = now_s, arrived_bytes
        return ""


class ReceiveBound:
    """Counts the memory of unfinished frames against `max_bytes`."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.reserved_bytes = 0  # frames being received, and requests passed on
        self.passed_on_bytes = 0
        self.partials: dict[Receiver, None] = {}  # that have an unfinished frame: the oldest first
        self.starved: dict[Receiver, None] = {}  # those of them that wait for room
        self._roomy_bytes = max_bytes // 2

    def has_room(self, size_bytes: int) -> bool:
        """Whether so much may be taken before its bytes have arrived: while half of the bound is free."""
        return self.reserved_bytes + size_bytes <= self._roomy_bytes

    @property
    def is_full(self) -> bool:
        return self.reserved_bytes >= self.max_bytes

    def allowance(self, receiver: Receiver, wanted_bytes: int) -> int:
        """Returns how many bytes the receiver may receive now: 0 if it must wait to be fed."""
        free_bytes = self.max_bytes - self.reserved_bytes
        if free_bytes > 0:
            return min(wanted_bytes, free_bytes, STEP_BYTES)
        if next(iter(self.partials), receiver) is receiver:
            return min(wanted_bytes, STEP_BYTES)
        self.starved[receiver] = None
        return 0

    def account(self, receiver: Receiver, before_bytes: int, now_bytes: int) -> None:
        """Records what a receiver's unfinished frame takes: 0 when it is complete or given up."""
        self.reserved_bytes += now_bytes - before_bytes
        if not before_bytes:
            self.partials[receiver] = None
        elif not now_bytes:
            del self.partials[receiver]
            self.starved.pop(receiver, None)
        if now_bytes < before_bytes and self.starved:
            self._feed()

    def hold(self, size_bytes: int) -> None:
        """Records a request that is passed on to another broker; `release` it when it has ended."""
        self.reserved_bytes += size_bytes
        self.passed_on_bytes += size_bytes

    def release(self, size_bytes: int) -> None:
        self.reserved_bytes -= size_bytes
        self.passed_on_bytes -= size_bytes
        if self.starved:
            self._feed()

    def _feed(self) -> None:
        """Lets as many receivers ask again as there is room for, and the oldest in any case."""
        oldest = next(iter(self.partials), None)
        if oldest is not None and oldest in self.starved:
            del self.starved[oldest]
            oldest.feed()
        free_bytes = self.max_bytes - self.reserved_bytes
        while self.starved and free_bytes > 0:
            receiver = next(iter(self.starved))
            del self.starved[receiver]
            free_bytes -= STEP_BYTES
            receiver.feed()
