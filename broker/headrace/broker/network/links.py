"""One link to another broker, on the event loop: requests go out in order, their responses come back.

Owns its connection, and the requests that are not finished. `peers` decides whose link it is. Connecting,
versions and keepalive are those of `client.connection`.
"""

from __future__ import annotations

import logging
import selectors
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

from headrace.broker.loop import READABLE, WRITABLE, EventLoop
from headrace.broker.network.names import Names
from headrace.broker.network.receiving import ReceiveBound
from headrace.client.calls import Call
from headrace.client.cluster import BrokerAddress
from headrace.client.connection import CONNECT_MAX_S, BrokerConnection, ConnectionState
from headrace.client.errors import ClientError, NetworkError, UnsupportedApiError

logger = logging.getLogger(__name__)

RESPONSE_WAIT_MAX_S: Final = 30.0
COMING_MAX_S: Final = 120.0  # that a response takes longer than its request may, as long as bytes of it come
IN_FLIGHT_MAX_BYTES: Final = 128 * 1024 * 1024  # of one link; requests beyond it are refused
IDLE_MAX_S: Final = 60.0  # its broker closes it after connections.max.idle.ms: ten minutes by default


class Lost(NamedTuple):
    """No response will come. `was_sent`: the broker may nonetheless have received it."""

    problem: str
    was_sent: bool


Answered = Callable[[Any], None]
"""Called once, with the response's body or with `Lost`."""


class _Unfinished:
    """A request without a response; with acks=0, one that the kernel has not accepted completely."""

    __slots__ = ("_link", "deadline_s", "done", "size_bytes", "timeout_s")

    def __init__(self, link: Link, size_bytes: int, timeout_s: float, done: Answered) -> None:
        self._link = link
        self.size_bytes = size_bytes
        self.timeout_s = timeout_s
        self.deadline_s = link.clock_s() + timeout_s
        self.done = done

    def finish(self, response: Any, error: ClientError | None) -> None:
        """Called exactly once, by the connection."""
        self._link.remove(self)
        if error is not None:
            self.done(Lost(str(error), was_sent=True))
        else:
            self.done(response)


class Outgoing(NamedTuple):
    """A request to send, later if the link is not ready: what it refers to must not change until then.

    `at_once`: it does not wait until the loop's next turn for others to go with it, unless some wait already.
    """

    call: Call
    size_bytes: int
    timeout_s: float = RESPONSE_WAIT_MAX_S
    at_once: bool = False


class Owner(Protocol):
    """All links, as one of them sees them."""

    loop: EventLoop
    names: Names
    bound: ReceiveBound
    client_id: str
    response_max_bytes: int
    clock_s: Callable[[], float]

    def keep(self, link: Link, address: BrokerAddress) -> None: ...
    def forget(self, link: Link, address: BrokerAddress) -> None: ...


class Sender:
    """The links of one client of a front. Use it by `Peers.send`."""

    __slots__ = ("is_closed", "links", "shares")

    def __init__(self) -> None:
        self.links: dict[BrokerAddress, Link] = {}
        self.shares: set[BrokerAddress] = set()  # the brokers to which it has no link of its own
        self.is_closed = False

    def close(self) -> None:
        """The client is gone: its links serve others once what it has sent is answered."""
        self.is_closed = True
        for link in list(self.links.values()):
            link.keep_if_spent()


class Link:
    """A connection to one broker. Raises `NetworkError` if it cannot be started."""

    def __init__(self, peers: Owner, sender: Sender, address: BrokerAddress) -> None:
        self._peers = peers
        self._address = address
        self._sender = sender
        self._unfinished: dict[_Unfinished, None] = {}  # in the order of arrival, and of deadlines
        self._unfinished_bytes = 0
        self._unsent: deque[tuple[_Unfinished, Call]] = deque()  # until the connection is ready
        self._connection: BrokerConnection | None = None  # until the host's address is known
        self._name_deadline_s = peers.clock_s() + CONNECT_MAX_S
        self._fd = -1
        self._events = READABLE | WRITABLE
        self._has_failed = False
        self._active_s = peers.clock_s()
        known = peers.names.known(address.host)
        if known is not None:
            self._connect(known)
        else:
            peers.names.find(address.host, self._found)

    def clock_s(self) -> float:
        return self._peers.clock_s()

    def __str__(self) -> str:
        return f"link to the broker at {self._address}"

    def _found(self, ip: str | None, problem: str) -> None:
        """Connects once the host's address is known."""
        if self._has_failed:
            return
        try:
            if ip is None:
                raise NetworkError(problem)
            self._connect(ip)
        except NetworkError as error:
            self.fail(error)

    def _connect(self, ip: str) -> None:
        connection = BrokerConnection(
            BrokerAddress(ip, self._address.port),
            client_id=self._peers.client_id,
            clock=self._peers.clock_s,
            request_timeout_s=CONNECT_MAX_S,  # for the negotiation of versions
            frame_limit_bytes=self._peers.response_max_bytes,
        )
        connection.start()
        assert connection.socket is not None
        self._connection = connection
        self._fd = connection.socket.fileno()
        self._peers.loop.register(self._fd, self, self._events)

    @property
    def is_idle(self) -> bool:
        return not self._unfinished

    @property
    def is_over(self) -> bool:
        """Whether nothing may be sent on it any more: its broker has closed it, or may be about to, since
        nobody has used it for long. What is sent at that moment is lost.
        """
        if self._unfinished or self._connection is None:
            return False
        return self.clock_s() - self._active_s >= IDLE_MAX_S or self._connection.has_ended

    def end(self) -> None:
        """Ends a link that nothing waits for."""
        self.fail(NetworkError("it was idle"))

    def send(self, outgoing: Outgoing, done: Answered) -> bool:
        """Sends a request after those before it; False if too much is in flight."""
        bound, size_bytes = self._peers.bound, outgoing.size_bytes
        if self._unfinished and (self._unfinished_bytes + size_bytes > IN_FLIGHT_MAX_BYTES or bound.is_full):
            return False
        unfinished = _Unfinished(self, size_bytes, outgoing.timeout_s, done)
        self._unfinished[unfinished] = None
        self._unfinished_bytes += size_bytes
        bound.hold(size_bytes)
        if self._connection is None or self._connection.state is not ConnectionState.READY:
            self._unsent.append((unfinished, outgoing.call))
            return True
        self._hand_over(unfinished, outgoing.call)
        if not self._events & WRITABLE:
            if outgoing.at_once:
                self._connection.flush()
            self._watch()
        return True

    def _hand_over(self, unfinished: _Unfinished, call: Call) -> None:
        """Gives a request to the connection, which is ready."""
        assert self._connection is not None
        try:
            self._connection.send(call, unfinished.finish, timeout_s=unfinished.timeout_s)
        except UnsupportedApiError as error:  # its broker is older than this one: others may be sent
            self.remove(unfinished)
            unfinished.done(Lost(str(error), was_sent=False))

    def remove(self, finished: _Unfinished) -> None:
        """Removes a finished request."""
        self._active_s = self.clock_s()
        del self._unfinished[finished]
        self._unfinished_bytes -= finished.size_bytes
        self._peers.bound.release(finished.size_bytes)

    def on_ready(self, events: int) -> None:
        assert self._connection is not None
        # As in `selectors`: an error makes the socket ready for both.
        mask = selectors.EVENT_READ if events & ~WRITABLE else 0
        mask |= selectors.EVENT_WRITE if events & ~READABLE else 0
        try:
            self._connection.on_event(mask)
            if self._connection.state is ConnectionState.READY:
                while self._unsent:
                    self._hand_over(*self._unsent.popleft())
        except ClientError as error:
            self.fail(error)
            return
        self._watch()
        self.keep_if_spent()

    def on_failure(self) -> None:
        self.fail(NetworkError("handling its response failed"))

    def _watch(self) -> None:
        assert self._connection is not None
        wanted = self._connection.events
        events = READABLE if wanted & selectors.EVENT_READ else 0
        events |= WRITABLE if wanted & selectors.EVENT_WRITE else 0
        if events != self._events:
            self._events = events
            self._peers.loop.modify(self._fd, events)

    def check_deadline(self, now_s: float) -> None:
        """Ends the link if its oldest request, or the connection itself, took too long."""
        try:
            if self._connection is not None:
                self._connection.check_deadline(now_s)
            elif now_s >= self._name_deadline_s:
                raise NetworkError(f"the name {self._address.host} was not resolved in {CONNECT_MAX_S:g} s")
        except NetworkError as error:
            self.fail(error)
            return
        oldest = next(iter(self._unfinished), None)
        if oldest is not None and now_s >= self._deadline_s(oldest):
            waited_s = oldest.timeout_s + now_s - oldest.deadline_s
            self.fail(NetworkError(f"{self._address} did not respond within {waited_s:.0f} s"))

    def _deadline_s(self, oldest: _Unfinished) -> float:
        """A response whose bytes are coming has longer, as the connection gives it, but not for ever."""
        connection, until_s = self._connection, oldest.deadline_s
        if connection is None or connection.state is not ConnectionState.READY:
            return until_s
        return min(max(until_s, connection.deadline_s or 0.0), until_s + COMING_MAX_S)

    def serve(self, sender: Sender) -> None:
        """From now on it is the sender's link; nothing is in flight on it."""
        self._sender = sender
        sender.links[self._address] = self

    def keep_if_spent(self) -> None:
        """Ends serving a sender that is gone, if everything is answered."""
        if self._sender.is_closed and self.is_idle and self._sender.links.pop(self._address, None) is self:
            self._peers.keep(self, self._address)

    def fail(self, error: ClientError) -> None:
        """Ends the link; its requests are lost."""
        level = logging.DEBUG if self.is_idle else logging.WARNING
        logger.log(level, "the link to the broker at %s broke: %s", self._address, error)
        self._has_failed = True
        if self._sender.links.get(self._address) is self:
            del self._sender.links[self._address]
        self._peers.forget(self, self._address)
        unsent, self._unsent = self._unsent, deque()
        if self._connection is not None:
            self._peers.loop.unregister(self._fd)
            self._connection.close(error)
        for unfinished, _ in unsent:
            self.remove(unfinished)
            unfinished.done(Lost(str(error), was_sent=False))
