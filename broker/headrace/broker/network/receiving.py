"""The bound on all request frames that are being received, and who may receive on when it is reached.

Owns `queued.max.request.bytes`: a receiver asks before it takes memory. One frame always proceeds, however
large, so that receivers never wait for each other in a circle: the bound is exceeded by one frame at most.
Requests that are passed on to other brokers count, too. Knows no sockets.
"""

from __future__ import annotations

from typing import Final, Protocol

from headrace.broker.network.connection_limits import ConnectionLimits

STEP_BYTES: Final = 256 * 1024  # received at a time
BEGINNING_MAX_BYTES: Final = 64 * 1024  # of a frame that is not admitted


class Receiver(Protocol):
    """A connection with a partly received frame. Compared by identity."""

    @property
    def taken_bytes(self) -> int:
        """The memory of its frame that was accounted."""

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
    """Counts the memory of unfinished frames against `max_bytes`.

    A frame gets its first `BEGINNING_MAX_BYTES` without asking. More of it is received only once all of it is
    admitted, in the order of asking: so nobody who has much memory waits for more.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.reserved_bytes = 0  # memory of frames being received, of those received, and of those passed on
        self.passed_on_bytes = 0
        self.partials: dict[Receiver, None] = {}  # that have an unfinished frame: the oldest first
        self.starved: dict[Receiver, int] = {}  # that wait to be admitted, with the frame's size
        self._admitted: dict[Receiver, int] = {}  # that may receive all of their frame, with its size
        self._committed_bytes = 0  # as `reserved_bytes`, but with all of the admitted frames
        self._roomy_bytes = max_bytes // 2

    def has_room(self, size_bytes: int) -> bool:
        """Whether so much may be taken before its bytes have arrived: while half of the bound is free."""
        return self._committed_bytes + size_bytes <= self._roomy_bytes

    @property
    def is_full(self) -> bool:
        return self.reserved_bytes >= self.max_bytes

    def allowance(self, receiver: Receiver, size_bytes: int, filled_bytes: int) -> int:
        """Returns how much more of its frame the receiver may receive now: 0 if it must wait to be fed."""
        left_bytes = size_bytes - filled_bytes
        if receiver in self._admitted:
            return min(left_bytes, STEP_BYTES)
        if filled_bytes < BEGINNING_MAX_BYTES and not self.is_full:
            return min(left_bytes, BEGINNING_MAX_BYTES - filled_bytes)
        if not self.starved and self._fits(size_bytes):
            self._admit(receiver, size_bytes, receiver.taken_bytes)
            return min(left_bytes, STEP_BYTES)
        self.starved[receiver] = size_bytes
        return 0

    def account(self, receiver: Receiver, before_bytes: int, now_bytes: int) -> None:
        """Records what a receiver's unfinished frame takes: 0 when it is complete or given up."""
        self.reserved_bytes += now_bytes - before_bytes
        if not before_bytes:
            self.partials[receiver] = None
        if not now_bytes:
            del self.partials[receiver]
            self.starved.pop(receiver, None)
            self._committed_bytes -= self._admitted.pop(receiver, before_bytes)
        elif receiver not in self._admitted:
            self._committed_bytes += now_bytes - before_bytes
        if now_bytes < before_bytes and self.starved:
            self._feed()

    def hold(self, size_bytes: int) -> None:
        """Records a request that is passed on to another broker; `release` it when it has ended."""
        self.passed_on_bytes += size_bytes
        self.keep(size_bytes)

    def release(self, size_bytes: int) -> None:
        self.passed_on_bytes -= size_bytes
        self.keep(-size_bytes)

    def keep(self, change_bytes: int) -> None:
        """Records that whole requests that wait to be served take so much more memory, or less."""
        self.reserved_bytes += change_bytes
        self._committed_bytes += change_bytes
        if change_bytes < 0 and self.starved:
            self._feed()

    def _fits(self, size_bytes: int) -> bool:
        """One frame is always admitted, however large: else those that wait could wait for ever."""
        return not self._admitted or self._committed_bytes + size_bytes <= self.max_bytes

    def _admit(self, receiver: Receiver, size_bytes: int, taken_bytes: int) -> None:
        # At least what it has taken: the first pages count, too.
        promised_bytes = max(size_bytes, taken_bytes)
        self._committed_bytes += promised_bytes - taken_bytes
        self._admitted[receiver] = promised_bytes

    def _feed(self) -> None:
        """Admits those that wait, in order, as far as there is room."""
        while self.starved:
            receiver, size_bytes = next(iter(self.starved.items()))
            if not self._fits(size_bytes):
                return
            del self.starved[receiver]
            self._admit(receiver, size_bytes, receiver.taken_bytes)
            receiver.feed()
