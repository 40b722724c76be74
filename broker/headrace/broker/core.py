"""The sans-IO core: one client's bytes in, its responses and file slices out, in the order of its requests.

Owns framing, the order of responses and the bounds of one connection. It may not touch sockets, clocks or
disks: a `Service` serves the requests, a transport moves the bytes.
"""

from __future__ import annotations

import logging
import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from headrace.log.files import FileSlice
from headrace.wire.errors import FrameTooLargeError, MalformedMessageError
from headrace.wire.frame_buffers import FrameBuffers
from headrace.wire.primitives import Buffer

logger = logging.getLogger(__name__)

LENGTH_BYTES: Final = 4
JOIN_BELOW_BYTES: Final = 4 * 1024  # cheaper to copy than to gather
JOINED_MAX_BYTES: Final = 256 * 1024
REQUEST_HEAD_BYTES: Final = 8
API_KEY_BYTES: Final = 2  # the first ones of a request
LARGE_REQUEST_BYTES: Final = 1024 * 1024  # the service is asked about larger ones before they are received
# Pending responses, and bytes the client has not received, at which reading of its socket pauses. Requests
# that have arrived already are still served.
IN_FLIGHT_MAX: Final = 256
OUTGOING_MAX_BYTES: Final = 32 * 1024 * 1024
# Of requests of one connection that wait for their turn: reading pauses. One of them may be larger.
QUEUED_MAX_BYTES: Final = 1024 * 1024
# Requests off the fast paths that a connection may have served in one turn, before the others get theirs.
# One costs 20 to 200 µs, and 64 KiB may hold thousands of them.
SLOW_REQUESTS_PER_TURN_MAX: Final = 16
PAGE_BYTES: Final = 4096

Part = Buffer | FileSlice

_LENGTH = struct.Struct(">i")
_API_KEY = struct.Struct(">h")


class Service(Protocol):
    """Serves the requests of connections."""

    def handle(self, connection: ClientConnection, frame: memoryview, *, may_keep: bool) -> None:
        """Serves one request frame. `may_keep`: the handler may keep the frame and write to it; otherwise the
        frame is valid during the call only. A request that is not served on a fast path is taken from the
        connection's `turn_left`. Raises `WireError` if the connection must be closed.
        """

    def check_size(self, api_key: int, size_bytes: int) -> None:
        """Raises `FrameTooLargeError` if no request of this API may be so large. Called for requests of more
        than `LARGE_REQUEST_BYTES`, before the rest of them is received.
        """


class PendingResponse(Protocol):
    """A place in a connection's order of responses: `parts` is None until the response is known."""

    @property
    def parts(self) -> Sequence[Part] | None: ...


class Slot:
    """The place of one response in its connection's order; `fill` it once, at any time."""

    __slots__ = ("connection", "parts")

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.parts: Sequence[Part] | None = None

    def fill(self, parts: Sequence[Part]) -> None:
        self.parts = parts
        self.connection.on_output(self.connection)


class Waiting(Protocol):
    """A request that waits for something to happen, such as a Fetch for more bytes."""

    def end(self) -> None:
        """Responds at once, with what there is; on a closed connection it only stops waiting."""


class Closable(Protocol):
    """What ends with a connection."""

    def close(self) -> None: ...


class TemplateCache:
    """Produce's templates of this client's requests, by the bytes of their heads."""

    __slots__ = ("by_head", "head_ends")

    def __init__(self) -> None:
        self.by_head: dict[bytes, Any] = {}
        self.head_ends: tuple[int, ...] = ()


class ClientConnection:
    """One client. `on_output` is called when a response is known: call `release_responses`, then send what is
    outgoing. `abort(problem)` ends the connection from this side. `peer` names the client in log lines.
    `buffers` are shared by all connections of a server.
    """

    __slots__ = (
        "_buffers",
        "_head",
        "_partial",
        "_partial_filled",
        "_service",
        "_takes_whole",
        "abort",
        "closed",
        "fetch_template",
        "frame_limit_bytes",
        "is_held",
        "kept_bytes",
        "links",
        "nothing_follows",
        "on_output",
        "outgoing",
        "outgoing_bytes",
        "peer",
        "queued_bytes",
        "rest",
        "slots",
        "templates",
        "turn_left",
        "waiting",
    )

    def __init__(
        self,
        service: Service,
        *,
        peer: str,
        frame_limit_bytes: int,
        on_output: Callable[[ClientConnection], None],
        on_abort: Callable[[str], None],
        buffers: FrameBuffers | None = None,
    ) -> None:
        self._service = service
        self._buffers = FrameBuffers() if buffers is None else buffers
        self.peer = peer
        self.frame_limit_bytes = frame_limit_bytes
        self.on_output = on_output
        self.abort = on_abort
        self.slots: deque[PendingResponse] = deque()
        self.outgoing: deque[Part] = deque()
        self.outgoing_bytes = 0
        self.closed = False
        self.templates = TemplateCache()
        self.fetch_template: tuple[int, Any] | None = None  # the version and Fetch's template of the last one
        self.waiting: Waiting | None = None  # the request that waits, until it responds
        self.links: Closable | None = None  # its links to other brokers
        self.nothing_follows = False  # the client sends no more requests than it has sent: none waits
        self.turn_left = SLOW_REQUESTS_PER_TURN_MAX
        self.queued_bytes = 0  # of requests that wait for their turn
        self.kept_bytes = 0  # of requests that were read, and wait for others, such as ZooKeeper
        # Received, but not served: the turn was over, or a request holds those after it. `resume` before
        # receiving more.
        self.rest: memoryview | None = None
        self.is_held = False
        self._head = b""  # the first 1 to 3 bytes of a frame's length
        self._partial: memoryview | None = None  # a partly received frame
        self._partial_filled = 0
        self._takes_whole = True  # whether all memory of the partly received frame is taken already

    # --- requests ---

    @property
    def must_pause(self) -> bool:
        """Whether too many responses are pending or unsent to read more from the client now, or a request
        holds those after it.
        """
        waiting_bytes = self.queued_bytes + self.kept_bytes
        is_busy = waiting_bytes >= QUEUED_MAX_BYTES or self.outgoing_bytes >= OUTGOING_MAX_BYTES
        return self.is_held or is_busy or len(self.slots) >= IN_FLIGHT_MAX

    @property
    def partial_bytes(self) -> int:
        """Memory of the frame being received; 0 between frames."""
        if self._partial is None:
            return 0
        return len(self._partial) if self._takes_whole else self._partial_filled + PAGE_BYTES

    @property
    def rest_bytes(self) -> int:
        """What was received, but not served, besides the frame being received."""
        return self.queued_bytes + (0 if self.rest is None else len(self.rest))

    @property
    def partial_filled_bytes(self) -> int:
        """How much of the frame being received has arrived."""
        return 0 if self._partial is None else self._partial_filled

    @property
    def grows(self) -> bool:
        """Whether each further byte of the frame being received takes more memory."""
        return self._partial is not None and not self._takes_whole

    def wanted(self) -> memoryview | None:
        """Returns where the rest of a partly received frame belongs, or None between frames.

        Receive straight into it, then call `filled`.
        """
        if self._partial is None:
            return None
        return self._partial[self._partial_filled :]

    def filled(self, count: int) -> None:
        """Records that `count` bytes were received into `wanted`'s buffer. Raises `WireError`."""
        assert self._partial is not None
        before, self._partial_filled = self._partial_filled, self._partial_filled + count
        if before < API_KEY_BYTES:
            self._check_size(len(self._partial), self._partial[: self._partial_filled])
        if self._partial_filled == len(self._partial):
            frame, self._partial = self._partial, None
            self._serve(frame, may_keep=True)

    def resume(self) -> None:
        """Serves what was received before the last turn was over. Raises `WireError`."""
        rest, self.rest = self.rest, None
        if rest is not None:
            self.receive(rest, may_keep=True)

    def receive(self, data: memoryview, *, may_keep: bool = False) -> None:
        """Takes bytes from the client, valid during the call only unless `may_keep`.

        Raises `WireError` if the connection must be closed.
        """
        if self._head:
            missing = LENGTH_BYTES - len(self._head)
            self._head += bytes(data[:missing])
            if len(self._head) < LENGTH_BYTES:
                return
            data = data[missing:]
            length: int = _LENGTH.unpack(self._head)[0]
            if not 0 <= length <= self.frame_limit_bytes:
                raise self._too_large(length)
            self._begin_frame(length, data[:0])
            self._head = b""
        at, end = 0, len(data)
        if self._partial is not None:
            at = min(end, len(self._partial) - self._partial_filled)
            filled = self._partial_filled
            self._partial[filled : filled + at] = data[:at]
            self.filled(at)
        handle, length_at, limit_bytes = self._service.handle, _LENGTH.unpack_from, self.frame_limit_bytes
        while end - at >= LENGTH_BYTES:
            if self.turn_left <= 0 or self.is_held:
                self.rest = data[at:] if may_keep else memoryview(bytes(data[at:]))
                return
            start = at + LENGTH_BYTES
            length = length_at(data, at)[0]
            if not 0 <= length <= limit_bytes:
                raise self._too_large(length)
            if start + length > end:
                self._begin_frame(length, data[start:])
                return
            at = start + length
            if self.closed:
                return  # a handler ended the connection: later requests are not served
            if length < REQUEST_HEAD_BYTES:
                raise MalformedMessageError(f"a frame of {length} bytes holds no request")
            handle(self, data[start:at], may_keep=False)
        if at < end:
            self._head = bytes(data[at:])

    def _too_large(self, length: int) -> FrameTooLargeError:
        return FrameTooLargeError(
            f"a frame of {length} bytes; socket.request.max.bytes is {self.frame_limit_bytes} "
            "(TLS or HTTP sent to a plain Kafka port?)"
        )

    def _check_size(self, length: int, beginning: memoryview) -> None:
        """Asks the service about a large request as soon as its API is known."""
        if length > LARGE_REQUEST_BYTES and len(beginning) >= API_KEY_BYTES:
            self._service.check_size(_API_KEY.unpack_from(beginning)[0], length)

    def _begin_frame(self, length: int, beginning: memoryview) -> None:
        self._check_size(length, beginning)
        partial, self._takes_whole = self._buffers.begin(length, len(beginning))
        partial[: len(beginning)] = beginning
        self._partial = partial
        self._partial_filled = len(beginning)
        if not length:
            self.filled(0)

    def _serve(self, frame: memoryview, *, may_keep: bool) -> None:
        if len(frame) < REQUEST_HEAD_BYTES:
            raise MalformedMessageError(f"a frame of {len(frame)} bytes holds no request")
        self._service.handle(self, frame, may_keep=may_keep)

    def queue(self, size_bytes: int) -> None:
        """Notes that a request waits for its turn, or with a negative size that it is served."""
        if not self.closed:
            self.queued_bytes += size_bytes
            self.on_output(self)

    def wait(self, waiting: Waiting) -> None:
        """The request being served waits until `stop_waiting`, and no later one is served: as Apache Kafka
        does, so that a client has one request that waits for each of its connections.
        """
        self.waiting = waiting
        self.hold()

    def hand_over(self) -> None:
        """The request that waits is served anew: it may wait again, and then holds those after it again."""
        self.waiting = None
        self.is_held = False

    def stop_waiting(self) -> None:
        self.waiting = None
        self.release()

    def hold(self) -> None:
        """Serves no further request until `release`: the order stays while one is worked on elsewhere.

        Reading pauses, so what waits here is at most what one read of the socket brought.
        """
        self.is_held = True

    def release(self) -> None:
        """Serves the requests that wait, in this connection's next turn."""
        self.is_held = False
        self.on_output(self)

    # --- responses ---

    def open_slot(self) -> Slot:
        """Returns the place of the response to the request being served."""
        slot = Slot(self)
        self.slots.append(slot)
        return slot

    def release_responses(self) -> None:
        """Moves responses that are next in order to the outgoing queue; joins small ones."""
        slots = self.slots
        outgoing = self.outgoing
        small: list[Buffer] = []
        small_bytes = 0
        while slots and (parts := slots[0].parts) is not None:
            slots.popleft()
            for part in parts:
                is_slice = isinstance(part, FileSlice)
                size_bytes = part.length_bytes if isinstance(part, FileSlice) else len(part)
                self.outgoing_bytes += size_bytes
                if not is_slice and size_bytes < JOIN_BELOW_BYTES and small_bytes < JOINED_MAX_BYTES:
                    small.append(part)  # type: ignore[arg-type]
                    small_bytes += size_bytes
                    continue
                if small:
                    outgoing.append(b"".join(small))
                    small, small_bytes = [], 0
                if size_bytes:
                    outgoing.append(part)
        if small_bytes:
            outgoing.append(b"".join(small))

    def drop_input(self) -> None:
        """Forgets what was received and not served, since nothing will follow."""
        self._partial = None
        self.rest = None
        self._head = b""

    def end_waiting(self) -> None:
        """Ends what waits, such as a fetch, because the client is gone or sends nothing more."""
        self.nothing_follows = True
        if self.waiting is not None:
            self.waiting.end()

    def close(self) -> None:
        """Drops all responses, including responses not yet produced, and what was kept for later requests."""
        self.closed = True
        self.outgoing.clear()
        self.outgoing_bytes = 0
        self.drop_input()
        self.queued_bytes = 0
        self.templates = TemplateCache()
        self.fetch_template = None
        self.end_waiting()
        self.waiting = None
        self.slots.clear()
        if self.links is not None:
            self.links.close()
            self.links = None
        # The transport refers to its connection, too: without this only the garbage collector would free the
        # two, and all that refers to them.
        self.on_output = self.abort = _ignore


def _ignore(_: object) -> None:
    """What a closed connection calls: nobody listens any more."""
