"""The simulated network: connections that delay, that a cut link swallows, and that end with a process.

A connection is one client's `ClientConnection` at a broker's sans-IO core, and the requests on it. Bytes of
one connection stay in order; between connections nothing is ordered. A cut is of one direction: what is sent
into it is lost, nobody hears of it, and the requests time out.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, Protocol
from weakref import WeakSet

from headrace.broker.core import ClientConnection, Service
from headrace.broker.network.links import Lost
from headrace.client.calls import Call
from headrace.client.errors import NetworkError
from headrace.log.files import FileSlice
from headrace.wire import fetch
from headrace.wire.apis import ApiKey
from headrace.wire.errors import WireError
from simulation.sim_clock import Clock, Life

FRAME_MAX_BYTES: Final = 1 << 24
DELAY_MIN_MS: Final = 0.1
DELAY_MAX_MS: Final = 3.0
DELAY_SPAN_MS: Final = DELAY_MAX_MS - DELAY_MIN_MS
ROUNDING_MS: Final = 0.001
VERSIONS: Final[Mapping[int, int]] = {
    ApiKey.FETCH: fetch.VERSION_MAX,
    ApiKey.PRODUCE: 9,
    ApiKey.LIST_OFFSETS: 7,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: 4,
    ApiKey.FIND_COORDINATOR: 3,
    ApiKey.OFFSET_COMMIT: 8,
    ApiKey.OFFSET_FETCH: 7,
    ApiKey.JOIN_GROUP: 5,
    ApiKey.SYNC_GROUP: 4,
    ApiKey.HEARTBEAT: 4,
    ApiKey.LEAVE_GROUP: 4,
}


def version_of(call: Call) -> int:
    """Returns the version in which a call is sent: its own least one, if that is greater."""
    return max(call.versions[0], min(VERSIONS[call.api_key], call.versions[1]))


Done = Callable[[Any], None]
Way = tuple[str, str]
"""From whom to whom."""


class ClientEnd(Protocol):
    """A client's end. `number`: in the order in which a world's connections began."""

    number: int

    def reset(self) -> None:
        """The other end says that there is no such connection."""


class Host:
    """What is reachable under a broker's number: its present life and service, or nothing."""

    def __init__(self, life: Life, service: Service, wake: Callable[[Callable[[], None]], None]) -> None:
        self.life = life
        self.service = service
        self.wake = wake
        self.connections: WeakSet[ClientEnd] = WeakSet()

    def reset_connections(self) -> None:
        """The process has ended, and its kernel says so; else its clients' connections are half-open."""
        for connection in sorted(self.connections, key=lambda each: each.number):
            connection.reset()


class Network:
    """`hosts` by broker number. `cuts`: by how many faults packets are lost on this way."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.hosts: dict[int, Host] = {}
        self.cuts: Counter[Way] = Counter()
        self._random = clock.draw.random
        self.slow = 1.0
        self.connections = 0

    def is_cut(self, source: str, target: str) -> bool:
        return self.cuts.get((source, target), 0) > 0

    def connected(self, connection: ClientEnd, host: Host) -> int:
        """Returns the number of a new connection, which ends with the host."""
        self.connections += 1
        host.connections.add(connection)
        return self.connections

    def delay_ms(self) -> float:
        return (DELAY_MIN_MS + DELAY_SPAN_MS * self._random()) * self.slow

    def ask_now(self, source: str, target: int, call: Call) -> Any:
        """Asks, and has the answer in the same moment: for callers that block. Raises `NetworkError`."""
        host = self.hosts.get(target)
        way = (source, str(target))
        is_away = host is None or host.life.is_dead or host.life.is_stopped
        if host is None or is_away or self.is_cut(*way) or self.is_cut(*way[::-1]):
            raise NetworkError(f"broker {target} does not answer")
        problems: list[str] = []
        server = ClientConnection(
            host.service,
            peer=f"{source}:1",
            frame_limit_bytes=FRAME_MAX_BYTES,
            on_output=lambda _: None,
            on_abort=problems.append,
        )
        server.turn_left = 1 << 30
        version = version_of(call)
        encoded = call.encode(version, 1, source)
        frame = bytearray(encoded if isinstance(encoded, bytes) else b"".join(encoded))
        host.wake(lambda: server.receive(memoryview(frame), may_keep=False))
        server.release_responses()
        parts = [part.read() if isinstance(part, FileSlice) else bytes(part) for part in server.outgoing]
        host.wake(server.close)
        if problems or not parts:
            raise NetworkError(f"broker {target}: {problems or 'no answer at once'}")
        return call.decode(memoryview(b"".join(parts))[4:], version)


class Link:
    """Requests from one process to one broker. Opens a connection when it needs one."""

    def __init__(
        self,
        network: Network,
        name: str,
        life: Life,
        target: int,
        wake: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        """`wake`: runs what happens here; by default it is just called."""
        self._network = network
        self._name = name
        self._life = life
        self._wake = wake
        self._target = target
        self._connection: _Connection | None = None

    def ask(self, call: Call, done: Done, timeout_ms: float) -> None:
        """Sends a call; `done` gets the response's body or `Lost`."""
        if self._connection is None or self._connection.is_broken:
            host = self._network.hosts.get(self._target)
            if host is None or host.life.is_dead:
                lost = Lost("connection refused", was_sent=False)
                self._later(self._network.delay_ms(), lambda: done(lost))
                return
            self._connection = _Connection(self._network, self._name, str(self._target), host, self._later)
        self._connection.ask(call, done, timeout_ms)

    def _later(self, delay_ms: float, call: Callable[[], None]) -> None:
        due = call if self._wake is None else partial(self._wake, call)
        self._network.clock.after(delay_ms, self._life, due)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.end("closed")
            self._connection = None


class ServerEnd:
    """A broker's end of one connection: bytes of the client in, responses out, in order. All of it happens in
    the broker's life.

    `respond` gets responses, whole frames at a time; `ended` why the broker gives the connection up.
    """

    def __init__(
        self,
        host: Host,
        clock: Clock,
        peer: str,
        respond: Callable[[bytes], None],
        ended: Callable[[str], None],
    ) -> None:
        self.host = host
        self._clock = clock
        self._respond = respond
        self._ended = ended
        self._unread: deque[bytes] = deque()
        self._server = ClientConnection(
            host.service,
            peer=f"{peer}:1",
            frame_limit_bytes=FRAME_MAX_BYTES,
            on_output=self._output,
            on_abort=ended,
        )

    def arrive(self, data: bytes) -> None:
        """Takes what the client has sent."""
        self._unread.append(data)
        self._receive()

    def _receive(self) -> None:
        """Reads on, unless a request holds those behind it: then they stay in the socket."""
        server = self._server
        while self._unread and not (server.closed or server.must_pause or server.rest is not None):
            server.turn_left = 1 << 30
            try:
                server.receive(memoryview(bytearray(self._unread.popleft())), may_keep=False)
            except WireError as error:
                self._ended(str(error))
                return
            self._output(server)

    def close_later(self, delay_ms: float) -> None:
        """The client has closed the connection: a living broker hears of it."""
        if not self.host.life.is_dead:
            self._clock.after(delay_ms, self.host.life, lambda: self.host.wake(self._server.close))

    def _output(self, server: ClientConnection) -> None:
        if (server.rest is not None or self._unread) and not server.is_held:
            self._clock.after(0.0, self.host.life, lambda: self.host.wake(self._resume))
        if not server.slots or server.slots[0].parts is None:
            return
        server.release_responses()
        if not server.outgoing:
            return
        parts = [part.read() if isinstance(part, FileSlice) else bytes(part) for part in server.outgoing]
        server.outgoing.clear()
        server.outgoing_bytes = 0
        self._respond(b"".join(parts))

    def _resume(self) -> None:
        if not self._server.closed and not self._server.is_held:
            self._server.turn_left = 1 << 30
            self._server.resume()
            self._output(self._server)
            self._receive()


class _Connection:
    def __init__(
        self,
        network: Network,
        source: str,
        target: str,
        host: Host,
        deliver: Callable[[float, Callable[[], None]], None],
    ) -> None:
        self._network = network
        self._ends = source, target
        self._host = host
        self._deliver = deliver
        self._waiting: deque[tuple[Call, Done, float, int]] = deque()
        self._checks_at_ms = math.inf
        self._arrives_ms = self._returns_ms = 0.0
        self._asked = 0
        self.number = network.connected(self, host)
        self.is_broken = False
        # Nothing passes what was dropped before it: then this end gives the connection up.
        self._drops_there = self._drops_back = False
        self._server = ServerEnd(host, network.clock, source, self._respond, self.end)

    def ask(self, call: Call, done: Done, timeout_ms: float) -> None:
        self._asked += 1
        deadline_ms = self._network.clock.now_ms + timeout_ms
        version = version_of(call)
        self._waiting.append((call, done, deadline_ms, version))
        if deadline_ms < self._checks_at_ms:
            self._check_at(deadline_ms)
        encoded = call.encode(version, self._asked, self._ends[0])
        frame = encoded if isinstance(encoded, bytes) else b"".join(encoded)
        if self._drops_there or self._network.is_cut(*self._ends):
            self._drops_there = True
            return
        if self._host.life.is_dead and int(self._ends[1]) in self._network.hosts:
            self.reset()  # the host is back, and knows nothing of this connection
            return
        now_ms = self._network.clock.now_ms
        self._arrives_ms = max(self._arrives_ms, now_ms + self._network.delay_ms())
        arrive = partial(self._host.wake, partial(self._arrive, frame))
        self._network.clock.after(self._arrives_ms - now_ms, self._host.life, arrive)

    def _arrive(self, frame: bytes) -> None:
        """At the broker."""
        if not self.is_broken:
            self._server.arrive(frame)

    def _respond(self, data: bytes) -> None:
        """At the broker: responses go back, in order."""
        is_cut = self._network.is_cut(self._ends[1], self._ends[0])
        if self.is_broken or self._drops_back or is_cut:
            self._drops_back = self._drops_back or is_cut
            return
        now_ms = self._network.clock.now_ms
        self._returns_ms = max(self._returns_ms, now_ms + self._network.delay_ms())
        self._deliver(self._returns_ms - now_ms, partial(self._return, data))

    def _return(self, data: bytes) -> None:
        """At the client. Data is whole frames."""
        at = 0
        while at < len(data) and not self.is_broken:
            length = int.from_bytes(data[at : at + 4], "big")
            frame = memoryview(data)[at + 4 : at + 4 + length]
            at += 4 + length
            call, done, _, version = self._waiting.popleft()
            expected = self._asked - len(self._waiting)
            assert int.from_bytes(frame[:4], "big") == expected, f"{self._ends}: not the answer to {expected}"
            done(call.decode(frame, version))

    def reset(self) -> None:
        """The other end says that there is no such connection."""
        if not self._network.is_cut(self._ends[1], self._ends[0]):
            self._deliver(self._network.delay_ms(), lambda: self.end("connection reset"))

    def _check_at(self, at_ms: float) -> None:
        """One event stands for the deadlines of all that wait."""
        self._checks_at_ms = at_ms
        self._deliver(at_ms - self._network.clock.now_ms, self._check_deadlines)

    def _check_deadlines(self) -> None:
        self._checks_at_ms = math.inf
        if self.is_broken or not self._waiting:
            return
        first_ms = min(deadline_ms for _, _, deadline_ms, _ in self._waiting)
        if first_ms <= self._network.clock.now_ms + ROUNDING_MS:
            self.end("timed out")
        else:
            self._check_at(first_ms)

    def end(self, problem: str) -> None:
        """The client gives the connection up: what it waits for is lost."""
        if self.is_broken:
            return
        self.is_broken = True
        self._server.close_later(self._network.delay_ms())
        waiting, self._waiting = self._waiting, deque()
        for _, done, _, _ in waiting:
            lost = Lost(problem, was_sent=True)
            self._deliver(0.0, lambda done=done, lost=lost: done(lost))  # type: ignore[misc]
