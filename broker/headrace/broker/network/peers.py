"""Links to other brokers, on the event loop: requests go out, their responses come back. The front passes
Produce on through them, and followers fetch.

Owns the order of requests to a broker, and their bounds in bytes and time. A sender has one link per broker,
opened by its first request for it; when it breaks, all its requests fail at once, and the next request opens
another. A broker answers in order, so what shares a link waits for the slowest: each client of a front is a
sender of its own. Connecting, versions and keepalive are those of `client.connection`.
"""

from __future__ import annotations

import logging
import selectors
import sys
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from headrace.broker.loop import READABLE, WRITABLE, EventLoop
from headrace.broker.network.names import Names, Resolve, look_up
from headrace.broker.network.receiving import ReceiveBound
from headrace.client.calls import Call, produce_call
from headrace.client.cluster import BrokerAddress
from headrace.client.connection import CONNECT_MAX_S, BrokerConnection, ConnectionState
from headrace.client.errors import ClientError, NetworkError
from headrace.wire.primitives import NO_UUID
from headrace.wire.produce import ProducePartition, ProduceRequest, ProduceResponse, ProduceTopic

logger = logging.getLogger(__name__)

CLIENT_ID: Final = "headrace-front"
RESPONSE_WAIT_MAX_S: Final = 30.0
DEADLINE_CHECK_MS: Final = 500  # how late an overdue request or connection may be noticed
IN_FLIGHT_MAX_BYTES: Final = 128 * 1024 * 1024  # of one link; requests beyond it are refused
LINKS_TO_A_BROKER_MAX: Final = 1_024  # senders that come when there are so many share one link
LINKS_SHARE: Final = 16  # all links take at most this part of the process's descriptors
REQUEST_OVERHEAD_BYTES: Final = 256  # overhead charged per request
RESPONSE_MAX_BYTES: Final = 16 * 1024 * 1024


class Lost(NamedTuple):
    """No response will come. `was_sent`: the broker may nonetheless have received it."""

    problem: str
    was_sent: bool


Done = Callable[[ProduceResponse | Lost], None]
Answered = Callable[[Any], None]
"""Called once, with the response's body or with `Lost`."""


class _Unfinished:
    """A request without a response; with acks=0, one that the kernel has not accepted completely."""

    __slots__ = ("_link", "deadline_s", "done", "size_bytes", "timeout_s")

    def __init__(self, link: _Link, size_bytes: int, timeout_s: float, done: Answered) -> None:
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


class Peers:
    """All links, by sender and address. `clock_s` decides deadlines. `bound` counts requests until they end,
    beside those that are being received; `resolve` finds addresses of host names. `client_id` is what other
    brokers see, `response_max_bytes` the largest response that is read.
    """

    def __init__(
        self,
        loop: EventLoop,
        clock_s: Callable[[], float] = time.monotonic,
        *,
        bound: ReceiveBound | None = None,
        resolve: Resolve = look_up,
        client_id: str = CLIENT_ID,
        response_max_bytes: int = RESPONSE_MAX_BYTES,
        descriptors: int = -1,
    ) -> None:
        """`descriptors`: how many files and sockets this process may have open; -1: as many as it wants."""
        self._links_max = sys.maxsize if descriptors < 0 else descriptors // LINKS_SHARE
        self.client_id = client_id
        self.response_max_bytes = response_max_bytes
        self.loop = loop
        self.clock_s = clock_s
        self.bound = ReceiveBound(IN_FLIGHT_MAX_BYTES) if bound is None else bound
        self.names = Names(loop, clock_s, resolve)
        self._links: dict[_Link, None] = {}
        self._counts: Counter[BrokerAddress] = Counter()
        self._spare: defaultdict[BrokerAddress, list[_Link]] = defaultdict(list)  # of senders that are gone
        self._shared = Sender()
        self._checks_deadlines = False

    def sender(self) -> Sender:
        """Returns a sender whose requests wait for one another only."""
        return Sender()

    def send(
        self,
        host: str,
        port: int,
        request: ProduceRequest,
        done: Done,
        sender: Sender | None = None,
        *,
        may_keep: bool = False,
    ) -> bool:
        """Sends a request; `done` is called later, or at once if no connection can be started. With acks=0
        its response is empty, and comes when the kernel has accepted the request. Without a `sender` it
        shares the link that `ask` uses. `may_keep`: its batches stay as they are until it is answered;
        otherwise they are valid during this call only, and are copied.

        False if too much is in flight on the link already: nothing was sent.
        """
        size_bytes = REQUEST_OVERHEAD_BYTES + sum(
            len(part.records or b"") for topic in request.topics for part in topic.partitions
        )

        def answered(response: ProduceResponse | Lost | None) -> None:
            done(response or ProduceResponse([]))

        # Nothing is sent before the loop's next turn, when other clients' frames have been received.
        kept = request if may_keep else _copied(request)
        by_id = any(topic.topic_id != NO_UUID for topic in request.topics)
        outgoing = _Outgoing(produce_call(kept, by_id=by_id), size_bytes)
        return self._send(sender or self._shared, BrokerAddress(host, port), outgoing, answered)

    def ask(
        self, host: str, port: int, call: Call, done: Answered, *, timeout_s: float = RESPONSE_WAIT_MAX_S
    ) -> bool:
        """Sends a call that refers to no received bytes; as `send`."""
        outgoing = _Outgoing(call, REQUEST_OVERHEAD_BYTES, timeout_s)
        return self._send(self._shared, BrokerAddress(host, port), outgoing, done)

    def _send(self, sender: Sender, address: BrokerAddress, outgoing: _Outgoing, done: Answered) -> bool:
        if address in sender.shares:
            sender = self._shared
        link = sender.links.get(address)
        if link is None and self._spare[address]:
            link = self._spare[address].pop()
            link.serve(sender)
        if link is None and sender is not self._shared and self._has_all_links(address):
            sender.shares.add(address)  # for good: else a later request could overtake one of the shared link
            sender = self._shared
            link = sender.links.get(address)
        if link is None:
            try:
                link = _Link(self, sender, address)
            except NetworkError as error:
                logger.warning("%s", error)
                done(Lost(str(error), was_sent=False))
                return True
            link.serve(sender)
            self._links[link] = None
            self._counts[address] += 1
        if not link.send(outgoing, done):
            return False
        if not self._checks_deadlines:
            self._checks_deadlines = True
            self.loop.call_later(DEADLINE_CHECK_MS, self._check_deadlines)
        return True

    def _has_all_links(self, address: BrokerAddress) -> bool:
        return self._counts[address] >= LINKS_TO_A_BROKER_MAX or len(self._links) >= self._links_max

    @property
    def is_idle(self) -> bool:
        """Whether nothing is on its way to or from any broker."""
        return all(link.is_idle for link in self._links)

    def keep(self, link: _Link, address: BrokerAddress) -> None:
        """Keeps a link whose sender is gone for the next one, until the broker closes it as idle: clients
        that come and go quickly would use up the ports for connections that end."""
        self._spare[address].append(link)

    def forget(self, link: _Link, address: BrokerAddress) -> None:
        """Removes a link; called by the link when it ends."""
        if link in self._links:
            del self._links[link]
            self._counts[address] -= 1
        if link in self._spare[address]:
            self._spare[address].remove(link)

    def close(self) -> None:
        """Ends all links; their requests are lost."""
        for link in list(self._links):
            link.fail(NetworkError("the broker stops"))

    def _check_deadlines(self) -> None:
        """Repeats while a request is unfinished: one timer for all requests instead of one per request."""
        now_s = self.clock_s()
        for link in list(self._links):
            link.check_deadline(now_s)
        self._checks_deadlines = not self.is_idle
        if self._checks_deadlines:
            self.loop.call_later(DEADLINE_CHECK_MS, self._check_deadlines)


class Sender:
    """The links of one client of a front. Use it by `Peers.send`."""

    __slots__ = ("is_closed", "links", "shares")

    def __init__(self) -> None:
        self.links: dict[BrokerAddress, _Link] = {}
        self.shares: set[BrokerAddress] = set()  # the brokers to which it has no link of its own
        self.is_closed = False

    def close(self) -> None:
        """The client is gone: its links serve others once what it has sent is answered."""
        self.is_closed = True
        for link in list(self.links.values()):
            link.keep_if_spent()


class _Outgoing(NamedTuple):
    """A request to send, later if the link is not ready: what it refers to must not change until then."""

    call: Call
    size_bytes: int
    timeout_s: float = RESPONSE_WAIT_MAX_S


class _Link:
    """A connection to one broker. Raises `NetworkError` if it cannot be started."""

    def __init__(self, peers: Peers, sender: Sender, address: BrokerAddress) -> None:
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

    def send(self, outgoing: _Outgoing, done: Answered) -> bool:
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
        self._connection.send(outgoing.call, unfinished.finish, timeout_s=unfinished.timeout_s)
        if not self._events & WRITABLE:
            self._watch()
        return True

    def remove(self, finished: _Unfinished) -> None:
        """Removes a finished request."""
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
                    unfinished, call = self._unsent.popleft()
                    self._connection.send(call, unfinished.finish, timeout_s=unfinished.timeout_s)
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
        if oldest is not None and now_s >= oldest.deadline_s:
            self.fail(NetworkError(f"{self._address} did not respond within {oldest.timeout_s:g} s"))

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


def _copied(request: ProduceRequest) -> ProduceRequest:
    """Returns a request that may be kept: received batches are valid during the call only."""
    topics = [
        ProduceTopic(
            topic.name,
            topic.topic_id,
            [
                ProducePartition(part.partition, None if part.records is None else bytes(part.records))
                for part in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return request._replace(topics=topics)
