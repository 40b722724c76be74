"""Links to other brokers, on the event loop: the front passes Produce on through them, and followers fetch.

Owns whose link each of them is. A sender has one link per broker, opened by its first request for it; when it
breaks, all its requests fail at once, and the next request opens another. A broker answers in order, so what
shares a link waits for the slowest: each client of a front is a sender of its own. `links` moves the bytes.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Final

from headrace.broker.loop import EventLoop
from headrace.broker.network.links import (
    IN_FLIGHT_MAX_BYTES,
    RESPONSE_WAIT_MAX_S,
    Answered,
    Link,
    Lost,
    Outgoing,
    Sender,
)
from headrace.broker.network.names import Names, Resolve, look_up
from headrace.broker.network.receiving import ReceiveBound
from headrace.client.calls import Call, produce_call
from headrace.client.cluster import BrokerAddress
from headrace.client.errors import NetworkError
from headrace.wire.primitives import NO_UUID
from headrace.wire.produce import ProducePartition, ProduceRequest, ProduceResponse, ProduceTopic

logger = logging.getLogger(__name__)

CLIENT_ID: Final = "headrace-front"
DEADLINE_CHECK_MS: Final = 500  # how late an overdue request or connection may be noticed
LINKS_TO_A_BROKER_MAX: Final = 1_024  # senders that come when there are so many share one link
LINKS_SHARE: Final = 16  # all links take at most this part of the process's descriptors
REQUEST_OVERHEAD_BYTES: Final = 256  # overhead charged per request
RESPONSE_MAX_BYTES: Final = 16 * 1024 * 1024

Done = Callable[[ProduceResponse | Lost], None]


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
        self._links: dict[Link, None] = {}
        self._counts: Counter[BrokerAddress] = Counter()
        self._spare: defaultdict[BrokerAddress, list[Link]] = defaultdict(list)  # of senders that are gone
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
        outgoing = Outgoing(produce_call(kept, by_id=by_id), size_bytes)
        return self._send(sender or self._shared, BrokerAddress(host, port), outgoing, answered)

    def ask(
        self, host: str, port: int, call: Call, done: Answered, *, timeout_s: float = RESPONSE_WAIT_MAX_S
    ) -> bool:
        """Sends a call that refers to no received bytes, at once if nothing waits before it; as `send`."""
        outgoing = Outgoing(call, REQUEST_OVERHEAD_BYTES, timeout_s, at_once=True)
        return self._send(self._shared, BrokerAddress(host, port), outgoing, done)

    def _send(self, sender: Sender, address: BrokerAddress, outgoing: Outgoing, done: Answered) -> bool:
        if address in sender.shares:
            sender = self._shared
        link = sender.links.get(address)
        if link is not None and link.is_over:
            link.end()
            link = None
        if link is None and (link := self._take_spare(address)) is not None:
            link.serve(sender)
        if link is None and sender is not self._shared and self._has_all_links(address):
            sender.shares.add(address)  # for good: else a later request could overtake one of the shared link
            sender = self._shared
            link = sender.links.get(address)
        if link is None:
            try:
                link = Link(self, sender, address)
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

    def _take_spare(self, address: BrokerAddress) -> Link | None:
        """Returns a link of a sender that is gone, the one that was used last."""
        spare = self._spare[address]
        while spare:
            link = spare.pop()
            if not link.is_over:
                return link
            link.end()
        return None

    def _has_all_links(self, address: BrokerAddress) -> bool:
        return self._counts[address] >= LINKS_TO_A_BROKER_MAX or len(self._links) >= self._links_max

    @property
    def is_idle(self) -> bool:
        """Whether nothing is on its way to or from any broker."""
        return all(link.is_idle for link in self._links)

    def keep(self, link: Link, address: BrokerAddress) -> None:
        """Keeps a link whose sender is gone for the next one, until the broker closes it as idle: clients
        that come and go quickly would use up the ports for connections that end."""
        self._spare[address].append(link)

    def forget(self, link: Link, address: BrokerAddress) -> None:
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
