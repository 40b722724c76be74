"""One connection to one broker: a non-blocking socket, its frames, the requests in flight.

One thread's property.

Owns connecting, the negotiation of versions (ApiVersions, KIP-35 and KIP-511), pipelining, and deadlines.
It never blocks and has no loop: `client.network` watches its socket and calls it. Brokers answer in order,
so what is in flight is a queue.
"""

from __future__ import annotations

import enum
import os
import selectors
import socket
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from headrace.client.calls import SPOKEN, Call, api_versions_call
from headrace.client.cluster import Address
from headrace.client.errors import ClientError, NetworkError, RequestTimedOutError, UnsupportedApiError
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode, WireError
from headrace.wire.frames import FrameReader
from headrace.wire.primitives import INT32

RECEIVE_SIZE_BYTES: Final = 256 * 1024
RECEIVES_PER_EVENT_MAX: Final = 16
SEND_BUFFERS_MAX: Final = 64
CONNECT_MAX_S: Final = 5.0
"""An attempt: SYNs at 0, 1 and 3 s. The pauses grow, and so long a mended link would not be seen."""
SILENCE_MAX_S: Final = 20
"""A peer whose kernel acknowledges nothing for so long is gone: a cut link sends no word of it."""
PROBE_S: Final = 4
PROBES: Final = 3
SOFTWARE_VERSION: Final = "0.1.0"

Done = Callable[[Any, ClientError | None], None]
"""Called once with the answer, or with what went wrong."""


class State(enum.Enum):
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
    done: Done


@dataclass(slots=True)
class _Outgoing:
    data: memoryview
    sent: Done | None
    """Called when the last byte is with the kernel: all there is to know of a request without an answer."""


class Connection:
    """Call `start`, then `on_event` whenever the socket is ready for `events`; `send` once `state` is
    READY.
    """

    def __init__(
        self,
        address: Address,
        *,
        client_id: str,
        clock: Callable[[], float],
        request_timeout_s: float,
        frame_limit_bytes: int,
    ) -> None:
        self.address = address
        self.state = State.CLOSED
        self.versions: dict[int, int] = {}
        """API → the version to speak; only APIs that both sides know."""
        self.socket: socket.socket | None = None
        self._client_id = client_id
        self._clock = clock
        self._request_timeout_s = request_timeout_s
        self._connect_timeout_s = min(request_timeout_s, CONNECT_MAX_S)
        self._connect_deadline_s = 0.0
        self._heard_s = 0.0
        self._reader = FrameReader(limit_bytes=frame_limit_bytes)
        self._next_id = 0
        self._in_flight: deque[_InFlight] = deque()
        self._outgoing: deque[_Outgoing] = deque()

    @property
    def in_flight_count(self) -> int:
        """Requests whose answer is awaited, and those not yet with the kernel."""
        return max(len(self._in_flight), len(self._outgoing))

    @property
    def is_idle(self) -> bool:
        return not self._in_flight and not self._outgoing

    @property
    def events(self) -> int:
        """What to watch the socket for."""
        if self.state is State.CONNECTING:
            return selectors.EVENT_WRITE
        return selectors.EVENT_READ | (selectors.EVENT_WRITE if self._outgoing else 0)

    @property
    def deadline_s(self) -> float | None:
        """When `check_deadline` has to be called at the latest.

        An answer that is arriving is not late: megabytes over a slow link may take longer than a silence may.
        """
        if self.state is State.CONNECTING:
            return self._connect_deadline_s
        if not self._in_flight:
            return None
        first = self._in_flight[0]
        if self._reader.pending_bytes:
            return max(first.deadline_s, self._heard_s + first.timeout_s)
        return first.deadline_s

    def start(self, *, attempt: int = 0) -> None:
        """Begin to connect; a name of several addresses is tried at another one each `attempt`.

        Raises `NetworkError` if it fails at once (the name does not resolve, say).
        """
        try:
            found = socket.getaddrinfo(*self.address, type=socket.SOCK_STREAM)
            family, kind, protocol, _, target = found[attempt % len(found)]
            self.socket = socket.socket(family, kind, protocol)
            self.socket.setblocking(False)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _notice_silence(self.socket)
            self.state = State.CONNECTING
            self._connect_deadline_s = self._clock() + self._connect_timeout_s
            self.socket.connect(target)
        except BlockingIOError:
            return
        except OSError as error:
            self.close()
            raise NetworkError(f"cannot connect to {self.address}: {_reason(error)}") from None
        self._connected()

    def send(self, call: Call, done: Done, *, timeout_s: float | None = None) -> None:
        """Send a request; `done` is called from a later `on_event`, `check_deadline` or `close`, never from
        here.

        A connection that breaks meanwhile answers all it has in flight with a `NetworkError`. Raises
        `UnsupportedApiError` if broker and client share no version.
        """
        version = self.versions.get(call.api_key)
        if version is None:
            name = ApiKey(call.api_key).name
            raise UnsupportedApiError(f"the broker at {self.address} does not speak {name} as we do")
        self._send(call, version, done, self._request_timeout_s if timeout_s is None else timeout_s)

    def _send(self, call: Call, version: int, done: Done, timeout_s: float) -> None:
        self._next_id = (self._next_id + 1) & 0x7FFFFFFF
        data = call.encode(version, self._next_id, self._client_id)
        if call.expects_answer:
            deadline_s = self._clock() + timeout_s
            self._in_flight.append(_InFlight(self._next_id, call, version, timeout_s, deadline_s, done))
        self._outgoing.append(_Outgoing(memoryview(data), None if call.expects_answer else done))

    def on_event(self, mask: int) -> None:
        """The socket is ready for `mask`.

        Raises `NetworkError` after which the connection is of no use: `close` it.
        """
        try:
            if self.state is State.CONNECTING and mask & selectors.EVENT_WRITE:
                self._finish_connect()
            if mask & selectors.EVENT_READ:
                self._receive()
            if self._outgoing:
                self.flush()
        except OSError as error:
            raise NetworkError(f"connection to {self.address}: {_reason(error)}") from None
        except WireError as error:
            raise NetworkError(f"{self.address} sent what we cannot read: {error}") from None

    def flush(self) -> None:
        """Give the kernel what it takes. Raises `OSError`; `on_event` turns it into a `NetworkError`."""
        assert self.socket is not None
        while self._outgoing and self.state is not State.CONNECTING:
            heads = [self._outgoing[i].data for i in range(min(SEND_BUFFERS_MAX, len(self._outgoing)))]
            try:
                sent_bytes = self.socket.sendmsg(heads)
            except BlockingIOError:
                return
            while sent_bytes or (self._outgoing and not self._outgoing[0].data):
                first = self._outgoing[0]
                taken = min(sent_bytes, len(first.data))
                first.data = first.data[taken:]
                sent_bytes -= taken
                if first.data:
                    break
                self._outgoing.popleft()
                if first.sent is not None:
                    first.sent(None, None)

    def check_deadline(self, now_s: float) -> None:
        """Raises `NetworkError` if connecting or the oldest request in flight took too long."""
        deadline_s = self.deadline_s
        if deadline_s is None or now_s < deadline_s:
            return
        if self.state is State.CONNECTING:
            raise NetworkError(f"{self.address} did not accept a connection in {self._connect_timeout_s:g} s")
        name = ApiKey(self._in_flight[0].call.api_key).name
        raise RequestTimedOutError(f"{self.address} did not answer a {name} request in time")

    def close(self, error: ClientError | None = None) -> None:
        """Close the socket; everything in flight ends with `error`."""
        self.state = State.CLOSED
        if self.socket is not None:
            self.socket.close()
            self.socket = None
        error = error or NetworkError(f"the connection to {self.address} was closed")
        outgoing, in_flight = list(self._outgoing), list(self._in_flight)
        self._outgoing.clear()
        self._in_flight.clear()
        for request in outgoing:
            if request.sent is not None:
                request.sent(None, error)
        for pending in in_flight:
            pending.done(None, error)

    def _finish_connect(self) -> None:
        assert self.socket is not None
        code = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, "")
        self._connected()

    def _connected(self) -> None:
        self.state = State.NEGOTIATING
        self._negotiate(SPOKEN[ApiKey.API_VERSIONS][1])

    def _negotiate(self, version: int) -> None:
        call = api_versions_call(SOFTWARE_VERSION)
        self._send(call, version, self._on_versions, self._request_timeout_s)

    def _on_versions(self, body: Any, error: ClientError | None) -> None:
        if error is not None:
            return
        offered = {key.api_key: (key.min_version, key.max_version) for key in body.api_keys}
        if body.error_code == ErrorCode.UNSUPPORTED_VERSION and len(offered) <= 1:
            # Brokers older than us name only ApiVersions itself in this answer: ask again in their version.
            self._negotiate(min(offered.get(ApiKey.API_VERSIONS, (0, 0))[1], SPOKEN[ApiKey.API_VERSIONS][1]))
            return
        if body.error_code not in (ErrorCode.NONE, ErrorCode.UNSUPPORTED_VERSION):
            raise WireError(f"ApiVersions was answered with {ErrorCode(body.error_code).name}")
        self.versions = choose_versions(offered)
        self.state = State.READY

    def _receive(self) -> None:
        assert self.socket is not None
        for _ in range(RECEIVES_PER_EVENT_MAX):
            try:
                data = self.socket.recv(RECEIVE_SIZE_BYTES)
            except BlockingIOError:
                return
            if not data:
                raise OSError(0, "the broker closed it")
            self._heard_s = self._clock()
            self._reader.feed(data)
            for frame in self._reader:
                self._on_frame(frame)
                if self.socket is None:
                    return
            if len(data) < RECEIVE_SIZE_BYTES:
                return

    def _on_frame(self, frame: memoryview) -> None:
        if not self._in_flight or len(frame) < 4:
            raise WireError(f"a frame of {len(frame)} bytes that answers nothing")
        correlation_id = INT32.unpack_from(frame)[0]
        request = self._in_flight[0]
        if correlation_id != request.correlation_id:
            raise WireError(f"an answer to request {correlation_id}, expected {request.correlation_id}")
        answer = request.call.decode(frame, request.version)
        self._in_flight.popleft()
        request.done(answer, None)


def choose_versions(offered: dict[int, tuple[int, int]]) -> dict[int, int]:
    """For each API that both sides know the highest version both speak."""
    chosen = {}
    for api_key, (ours_min, ours_max) in SPOKEN.items():
        theirs_min, theirs_max = offered.get(api_key, (0, -1))
        version = min(ours_max, theirs_max)
        if version >= max(ours_min, theirs_min):
            chosen[int(api_key)] = version
    return chosen


def _notice_silence(connection: socket.socket) -> None:
    """Have the kernel break the connection with ETIMEDOUT after `SILENCE_MAX_S`, whether bytes of ours
    wait to be acknowledged (TCP_USER_TIMEOUT, RFC 5482) or nothing is on the way (keepalive probes).
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        idle_s = SILENCE_MAX_S - PROBES * PROBE_S
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENCE_MAX_S * 1000)


def _reason(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno else (error.strerror or str(error))
