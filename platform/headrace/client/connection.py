"""One connection to one broker: a non-blocking socket, its frames, the requests in flight. For one thread.

Owns connecting, the negotiation of versions (ApiVersions, KIP-35 and KIP-511), pipelining, and deadlines.
It never blocks and has no loop: `client.network` watches its socket and calls it. Brokers respond in order,
so the requests in flight are a queue.
"""

from __future__ import annotations

import enum
import itertools
import os
import selectors
import socket
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from headrace.client.calls import SUPPORTED_VERSIONS, Call, api_versions_call
from headrace.client.cluster import BrokerAddress
from headrace.client.errors import ClientError, NetworkError, RequestTimedOutError, UnsupportedApiError
from headrace.client.resolving import Target, look_up
from headrace.client.sockets import has_unread, open_socket, wake_at
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode, WireError
from headrace.wire.frames import FrameReader
from headrace.wire.primitives import INT32

RECEIVE_SIZE_BYTES: Final = 256 * 1024
RECEIVES_PER_EVENT_MAX: Final = 16
SEND_BUFFERS_MAX: Final = 64
CONNECT_MAX_S: Final = 5.0
"""Time for SYNs at 0, 1 and 3 s. The kernel's pauses grow: long attempts notice late that a link is up."""
SOFTWARE_VERSION: Final = "0.1.0"

OnResponse = Callable[[Any, ClientError | None], None]
"""Called once, with the response's body or with the error."""


class ConnectionState(enum.Enum):
    CONNECTING = "connecting"
    NEGOTIATING = "negotiating"
    READY = "ready"
    CLOSED = "closed"


@dataclass(slots=True)
class _InFlight:
    correlation_id: int
    call: Call
    version: int
    timeout_s: float
    deadline_s: float
    on_response: OnResponse


@dataclass(slots=True)
class _Outgoing:
    pieces: deque[memoryview]
    on_sent: OnResponse | None
    """Called when the kernel accepted the last byte; only for requests that get no response (acks=0)."""


class BrokerConnection:
    """Call `start`, then `on_event` when the socket is ready for `events`; `send` once `state` is READY."""

    def __init__(
        self,
        address: BrokerAddress,
        *,
        client_id: str,
        clock: Callable[[], float],
        request_timeout_s: float,
        frame_limit_bytes: int,
    ) -> None:
        self.address = address
        self.state = ConnectionState.CLOSED
        self.versions: dict[int, int] = {}
        """API key → the version to speak; only APIs that both sides support."""
        self.socket: socket.socket | None = None
        self._client_id = client_id
        self._clock = clock
        self._request_timeout_s = request_timeout_s
        self._connect_timeout_s = min(request_timeout_s, CONNECT_MAX_S)
        self._connect_deadline_s = 0.0
        self.started_s = 0.0
        """When `start` was called."""
        self.ready_s = 0.0
        """When `state` became READY."""
        self._received_s = 0.0
        self._wakes_at_bytes = 1
        self._sent_s = 0.0
        self._reader = FrameReader(limit_bytes=frame_limit_bytes, place=self._place)
        self._next_id = 0
        self._in_flight: deque[_InFlight] = deque()
        self._outgoing: deque[_Outgoing] = deque()

    @property
    def in_flight_count(self) -> int:
        """How many requests await a response or are not yet with the kernel."""
        return max(len(self._in_flight), len(self._outgoing))

    @property
    def waits_since_s(self) -> float | None:
        """Since when the broker has owed a response: since it was due, or since the latest bytes of it."""
        if not self._in_flight:
            return None
        first = self._in_flight[0]
        due_s = first.deadline_s - first.timeout_s + first.call.wait_s
        return max(due_s, self._received_s) if self._reader.pending_bytes else due_s

    def is_silent(self, since_s: float) -> bool:
        """Whether nothing has come of a response that was due before then."""
        waits_since_s = self.waits_since_s
        return waits_since_s is not None and waits_since_s <= since_s

    @property
    def has_ended(self) -> bool:
        """Whether the broker has ended the connection, or sent what nobody asked for, as far as the kernel
        knows. For a connection without requests in flight.
        """
        try:
            if self.socket is not None:
                self.socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True

    @property
    def events(self) -> int:
        """The selector events to watch the socket for."""
        if self.state is ConnectionState.CONNECTING:
            return selectors.EVENT_WRITE
        return selectors.EVENT_READ | (selectors.EVENT_WRITE if self._outgoing else 0)

    @property
    def deadline_s(self) -> float | None:
        """When to call `check_deadline`; None if nothing is pending.

        While a response is arriving, only a pause counts: megabytes over a slow link may take longer than the
        request's timeout.
        """
        if self.state is ConnectionState.CONNECTING:
            return self._connect_deadline_s
        if not self._in_flight:
            # A peer that reads nothing: requests without responses stay here, with what is behind them.
            return self._sent_s + self._request_timeout_s if self._outgoing else None
        first = self._in_flight[0]
        if self._reader.pending_bytes:
            return max(first.deadline_s, self._received_s + first.timeout_s)
        return first.deadline_s

    def start(self, *, attempt: int = 0, targets: Sequence[Target] | None = None) -> None:
        """Starts to connect. If the host has several IP addresses, `attempt` selects one.

        `targets`: what the host's name means; None: it is looked up here, which may block. Raises
        `NetworkError` if it fails at once, for example because the name does not resolve.
        """
        try:
            found = look_up(self.address) if targets is None else targets
            target = found[attempt % len(found)]
            self.socket = open_socket(target)
            self.state = ConnectionState.CONNECTING
            self.started_s = self._clock()
            self._connect_deadline_s = self.started_s + self._connect_timeout_s
            self.socket.connect(target[-1])
        except BlockingIOError:
            return
        except OSError as error:
            self.close()
            raise NetworkError(f"cannot connect to {self.address}: {problem_of(error)}") from None
        self._on_connected()

    def send(self, call: Call, on_response: OnResponse, *, timeout_s: float | None = None) -> None:
        """Sends a request; `on_response` is called from a later `on_event` or `close`, never from here.

        Raises `UnsupportedApiError` if broker and client share no version.
        """
        lowest, highest = call.versions
        version = min(self.versions.get(call.api_key, -1), highest)
        if version < lowest:
            name = ApiKey(call.api_key).name
            if call.api_key not in self.versions:
                raise UnsupportedApiError(
                    f"{self.address} does not serve {name}; if it is a balancer, which takes records of "
                    "producers alone, give the addresses of brokers"
                )
            raise UnsupportedApiError(
                f"the broker at {self.address} supports no version of {name} that this client speaks"
            )
        self._send(call, version, on_response, self._request_timeout_s if timeout_s is None else timeout_s)

    def _send(self, call: Call, version: int, on_response: OnResponse, timeout_s: float) -> None:
        self._next_id = (self._next_id + 1) & 0x7FFFFFFF
        data = call.encode(version, self._next_id, self._client_id)
        if call.expects_response:
            deadline_s = self._clock() + timeout_s
            self._in_flight.append(
                _InFlight(self._next_id, call, version, timeout_s, deadline_s, on_response)
            )
        if not self._outgoing:
            self._sent_s = self._clock()
        pieces = deque(memoryview(piece) for piece in (data if isinstance(data, list) else (data,)))
        self._outgoing.append(_Outgoing(pieces, None if call.expects_response else on_response))

    def flush(self) -> None:
        """Hands outgoing bytes to the kernel now, as many as it accepts, once the connection is ready: later
        ones, and the error if this fails, are left to `on_event`.
        """
        if self.state is ConnectionState.READY:
            with suppress(OSError):
                self._flush()

    def on_event(self, mask: int) -> None:
        """Handles that the socket is ready for `mask`.

        Raises `NetworkError` if the connection is unusable: `close` it then.
        """
        try:
            if self.state is ConnectionState.CONNECTING and mask & selectors.EVENT_WRITE:
                self._finish_connect()
            if mask & selectors.EVENT_READ:
                self._receive()
            if self._outgoing:
                self._flush()
        except OSError as error:
            raise NetworkError(f"connection to {self.address}: {problem_of(error)}") from None
        except WireError as error:
            raise NetworkError(f"cannot read what {self.address} sent: {error}") from None

    def _flush(self) -> None:
        """Hands outgoing bytes to the kernel, as many as it accepts."""
        assert self.socket is not None
        while self._outgoing and self.state is not ConnectionState.CONNECTING:
            queued = itertools.chain.from_iterable(request.pieces for request in self._outgoing)
            try:
                sent_bytes = self.socket.sendmsg(list(itertools.islice(queued, SEND_BUFFERS_MAX)))
            except BlockingIOError:
                return
            self._sent_s = self._clock()
            while self._outgoing:
                first = self._outgoing[0]
                pieces = first.pieces
                while pieces and sent_bytes >= len(pieces[0]):
                    sent_bytes -= len(pieces.popleft())
                if pieces:
                    pieces[0] = pieces[0][sent_bytes:]
                    break
                self._outgoing.popleft()
                if first.on_sent is not None:
                    first.on_sent(None, None)

    def check_deadline(self, now_s: float) -> None:
        """Raises `NetworkError` if connecting, sending or the oldest request in flight took too long."""
        deadline_s = self.deadline_s
        if deadline_s is None or now_s < deadline_s:
            return
        if self.state is ConnectionState.CONNECTING:
            raise NetworkError(f"{self.address} did not accept a connection in {self._connect_timeout_s:g} s")
        if not self._in_flight:
            raise RequestTimedOutError(f"{self.address} did not take a request in time")
        if self._wakes_at_bytes > 1 and self.socket is not None and has_unread(self.socket):
            self._received_s = now_s
            self._wake_at(1)
            return
        name = ApiKey(self._in_flight[0].call.api_key).name
        raise RequestTimedOutError(f"{self.address} did not answer a {name} request in time")

    def close(self, error: ClientError | None = None) -> None:
        """Closes the socket; requests in flight fail with `error` (default: a `NetworkError`)."""
        self.state = ConnectionState.CLOSED
        if self.socket is not None:
            self.socket.close()
            self.socket = None
        error = error or NetworkError(f"the connection to {self.address} was closed")
        outgoing, in_flight = list(self._outgoing), list(self._in_flight)
        self._outgoing.clear()
        self._in_flight.clear()
        for request in outgoing:
            if request.on_sent is not None:
                request.on_sent(None, error)
        for pending in in_flight:
            pending.on_response(None, error)

    def _finish_connect(self) -> None:
        assert self.socket is not None
        code = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, "")
        self._on_connected()

    def _on_connected(self) -> None:
        self.state = ConnectionState.NEGOTIATING
        self._negotiate(SUPPORTED_VERSIONS[ApiKey.API_VERSIONS][1])

    def _negotiate(self, version: int) -> None:
        call = api_versions_call(SOFTWARE_VERSION)
        self._send(call, version, partial(self._on_versions, version), self._request_timeout_s)

    def _on_versions(self, asked: int, body: Any, error: ClientError | None) -> None:
        if error is not None:
            return
        offered = {key.api_key: (key.min_version, key.max_version) for key in body.api_keys}
        if body.error_code == ErrorCode.UNSUPPORTED_VERSION and len(offered) <= 1:
            # An older broker lists only ApiVersions itself in this response: repeat in its version.
            theirs_max = offered.get(ApiKey.API_VERSIONS, (0, 0))[1]
            if not 0 <= theirs_max < asked:  # nor would it answer the next question
                raise WireError(f"it refuses version {asked} of ApiVersions, and names {theirs_max}")
            self._negotiate(theirs_max)
            return
        if body.error_code not in (ErrorCode.NONE, ErrorCode.UNSUPPORTED_VERSION):
            raise WireError(f"the response to ApiVersions is {ErrorCode(body.error_code).name}")
        self.versions = _common_versions(offered)
        self.state, self.ready_s = ConnectionState.READY, self._clock()

    def _receive(self) -> None:
        self._receive_some()
        if self._wakes_at_bytes > 1 or (self._in_flight and self._in_flight[0].call.chunk_bytes > 1):
            rest = self._reader.wanted()
            chunk_bytes = self._in_flight[0].call.chunk_bytes if self._in_flight else 1
            self._wake_at(1 if rest is None else min(chunk_bytes, len(rest)))

    def _wake_at(self, size_bytes: int) -> None:
        if size_bytes != self._wakes_at_bytes and self.socket is not None:
            self._wakes_at_bytes = size_bytes
            wake_at(self.socket, size_bytes)

    def _receive_some(self) -> None:
        reader = self._reader
        for _ in range(RECEIVES_PER_EVENT_MAX):
            assert self.socket is not None
            target = reader.wanted()
            try:
                if target is None:
                    data = self.socket.recv(RECEIVE_SIZE_BYTES)
                    received_bytes, asked_bytes = len(data), RECEIVE_SIZE_BYTES
                else:
                    asked_bytes = len(target)
                    received_bytes = self.socket.recv_into(target)
            except BlockingIOError:
                return
            if not received_bytes:
                raise OSError(0, "closed by the broker")
            self._received_s = self._clock()
            if target is None:
                reader.feed(data)
            else:
                target.release()
                reader.filled(received_bytes)
            for frame in reader:
                self._on_frame(frame)
                if self.socket is None:
                    return
            if received_bytes < asked_bytes:
                return

    def _place(self, beginning: memoryview) -> int:
        """See `Call.place`: of the response that comes now."""
        first = self._in_flight[0] if self._in_flight else None
        if first is None or first.call.place is None:
            return 0
        return first.call.place(beginning, first.version)

    def _on_frame(self, frame: memoryview) -> None:
        if not self._in_flight or len(frame) < 4:
            raise WireError(f"a frame of {len(frame)} bytes answers no request")
        correlation_id = INT32.unpack_from(frame)[0]
        request = self._in_flight[0]
        if correlation_id != request.correlation_id:
            raise WireError(f"a response to request {correlation_id}, expected {request.correlation_id}")
        body = request.call.decode(frame, request.version)
        self._in_flight.popleft()
        request.on_response(body, None)


def _common_versions(offered: dict[int, tuple[int, int]]) -> dict[int, int]:
    """Returns the highest common version of each API that both sides support."""
    chosen = {}
    for api_key, (ours_min, ours_max) in SUPPORTED_VERSIONS.items():
        theirs_min, theirs_max = offered.get(api_key, (0, -1))
        version = min(ours_max, theirs_max)
        if version >= max(ours_min, theirs_min):
            chosen[int(api_key)] = version
    return chosen


def problem_of(error: OSError) -> str:
    if isinstance(error, socket.gaierror) or not error.errno:  # whose numbers are none of the system's
        return error.strerror or str(error)
    return os.strerror(error.errno)
