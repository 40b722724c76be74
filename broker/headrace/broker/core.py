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

from headrace.broker.frame_buffers import FrameBuffers
from headrace.log.files import FileSlice
from headrace.wire.errors import FrameTooLargeError, MalformedMessageError, WireError
from headrace.wire.primitives import Buffer

logger = logging.getLogger(__name__)

LENGTH_BYTES: Final = 4
JOIN_BELOW_BYTES: Final = 4 * 1024  # cheaper to copy than to gather
JOINED_MAX_BYTES: Final = 256 * 1024
REQUEST_HEAD_BYTES: Final = 8
# Pending responses, and bytes the client has not received, at which reading of its socket pauses. Requests
# that have arrived already are still served.
IN_FLIGHT_MAX: Final = 256
OUTGOING_MAX_BYTES: Final = 32 * 1024 * 1024

Part = Buffer | FileSlice

_LENGTH = struct.Struct(">i")


class Service(Protocol):
    """Serves the requests of connections."""

    def handle(self, connection: ClientConnection, frame: memoryview, *, may_keep: bool) -> None:
        """Serves one request frame. `may_keep`: the handler may keep the frame and write to it; otherwise the
        frame is valid during the call only. Raises `WireError` if the connection must be closed.
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
        "_held",
        "_partial",
        "_partial_filled",
        "_service",
        "abort",
        "closed",
        "fetch_template",
        "frame_limit_bytes",
        "on_output",
        "outgoing",
        "outgoing_bytes",
        "peer",
        "slots",
        "templates",
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
        self._held: deque[memoryview] | None = None  # frames that wait for the request before them
        self._head = b""  # the first 1 to 3 bytes of a frame's length
        self._partial: memoryview | None = None  # a partly received frame
        self._partial_filled = 0

    # --- requests ---

    @property
    def must_pause(self) -> bool:
        """Whether too many responses are pending or unsent to read more from the client now, or a request
        holds those after it.
        """
        return (
            self._held is not None
            or len(self.slots) >= IN_FLIGHT_MAX
            or self.outgoing_bytes >= OUTGOING_MAX_BYTES
        )

    @property
    def partial_bytes(self) -> int:
        """Size of the frame being received; 0 between frames."""
        return 0 if self._partial is None else len(self._partial)

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
        self._partial_filled += count
        if self._partial_filled == len(self._partial):
            frame, self._partial = self._partial, None
            self._serve(frame, may_keep=True)

    def receive(self, data: memoryview) -> None:
        """Takes bytes from the client, valid during the call only.

        Raises `WireError` if the connection must be closed.
        """
        if self._head:
            missing = LENGTH_BYTES - len(self._head)
            self._head += bytes(data[:missing])
            if len(self._head) < LENGTH_BYTES:
                return
            data = data[missing:]
            self._begin_frame(self._length(self._head, 0), data[:0])
            self._head = b""
        at, end = 0, len(data)
        if self._partial is not None:
            at = min(end, len(self._partial) - self._partial_filled)
            filled = self._partial_filled
            self._partial[filled : filled + at] = data[:at]
            self.filled(at)
        handle = self._service.handle
        while end - at >= LENGTH_BYTES:
            start = at + LENGTH_BYTES
            length = self._length(data, at)
            if start + length > end:
                self._begin_frame(length, data[start:])
                return
            at = start + length
            if self.closed:
                return  # a handler ended the connection: later requests are not served
            if length < REQUEST_HEAD_BYTES:
                raise MalformedMessageError(f"a frame of {length} bytes holds no request")
            if self._held is None:
                handle(self, data[start:at], may_keep=False)
            else:
                self._held.append(memoryview(bytearray(data[start:at])))
        if at < end:
            self._head = bytes(data[at:])

    def _length(self, buffer: Buffer, at: int) -> int:
        length: int = _LENGTH.unpack_from(buffer, at)[0]
        if not 0 <= length <= self.frame_limit_bytes:
            raise FrameTooLargeError(
                f"a frame of {length} bytes; socket.request.max.bytes is {self.frame_limit_bytes} "
                "(TLS or HTTP sent to a plain Kafka port?)"
            )
        return length

    def _begin_frame(self, length: int, beginning: memoryview) -> None:
        partial = self._buffers.take(length)
        partial[: len(beginning)] = beginning
        self._partial = partial
        self._partial_filled = len(beginning)
        if not length:
            self.filled(0)

    def _serve(self, frame: memoryview, *, may_keep: bool) -> None:
        if len(frame) < REQUEST_HEAD_BYTES:
            raise MalformedMessageError(f"a frame of {len(frame)} bytes holds no request")
        if self._held is None:
            self._service.handle(self, frame, may_keep=may_keep)
        else:
            self._held.append(frame)

    def hold(self) -> None:
        """Serves no further request until `resume`, so that the order stays while one is worked on elsewhere.

        Reading pauses, so what waits here is at most what one read of the socket brought.
        """
        self._held = deque()

    def resume(self) -> None:
        """Serves the requests that wait, and those to come."""
        held, self._held = self._held or deque(), None
        try:
            while held and self._held is None and not self.closed:
                self._serve(held.popleft(), may_keep=True)
        except WireError as error:
            self.abort(f"{type(error).__name__}: {error}")
        except Exception:
            logger.exception("%s: serving a request failed", self.peer)
            self.abort("internal error")
        if self._held is not None:
            self._held.extend(held)
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

    def close(self) -> None:
        """Drops all responses, including responses not yet produced."""
        self.closed = True
        self.outgoing.clear()
        self.outgoing_bytes = 0
        self._partial = None
        if self._held is not None:
            self._held.clear()
