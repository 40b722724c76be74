"""Batches that are opened on threads: whose turn it is, and how much may wait.

A request holds thousands of batches, each of which may take a thread for a tenth of a second. So hosts take
turns, and on each host its connections, and a turn is short. What one client sends delays another host by one
turn on each thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from headrace.broker.errors import Refused
from headrace.broker.produce.opening import Opened, open_batch
from headrace.broker.settings.config import TopicConfig
from headrace.broker.turns import Turns, host_of
from headrace.broker.workers import Workers
from headrace.wire.batch import BatchHeader
from headrace.wire.checking_fast import make_scanner
from headrace.wire.errors import ErrorCode

logger = logging.getLogger(__name__)

THREADS: Final = 2
TURN_S: Final = 0.02  # of one request; the batch that is being opened then is opened to its end
UNFINISHED_MAX_BYTES: Final = 256 * 1024 * 1024  # of requests that wait for the threads
UNCOMPRESSED_MAX_BYTES: Final = 16 * 1024 * 1024  # of one request, to be stored uncompressed

BUSY: Final = "too many batches are being checked: send it again"


class Unopened(NamedTuple):
    """A batch that waits to be opened, and the place of its partition in the request."""

    place: int
    batch: memoryview
    header: BatchHeader
    config: TopicConfig


Found = dict[int, "Opened | Refused"]
"""What became of batches, by their places."""


class _Request:
    """The batches of one request; those before `at` are opened. Compared by identity."""

    __slots__ = ("at", "client", "done", "found", "kept_bytes", "now_ms", "runs", "size_bytes", "unopened")

    def __init__(
        self, client: str, unopened: list[Unopened], now_ms: int, done: Callable[[Found], None]
    ) -> None:
        self.client = client
        self.unopened = unopened
        self.now_ms = now_ms
        self.done = done
        self.size_bytes = sum(len(each.batch) for each in unopened)
        self.found: Found = {}
        self.at = 0
        self.kept_bytes = 0  # to be stored uncompressed
        self.runs = False

    @property
    def is_opened(self) -> bool:
        return self.at == len(self.unopened)

    def refuse_rest(self, refused: Refused) -> None:
        self.found |= {each.place: refused for each in self.unopened[self.at :]}
        self.at = len(self.unopened)


class OpeningThreads:
    """Used on the loop's thread, except for the jobs that it gives to its own threads. `post` runs a call on
    the loop's.
    """

    def __init__(self, post: Callable[[Callable[[], None]], None]) -> None:
        self._post = post
        self._threads: Workers | None = None
        self._scanners = threading.local()
        self._open: dict[_Request, None] = {}  # in the order of arrival
        self._turns: Turns[_Request] = Turns()
        self._bytes = 0
        self._bytes_of_host: Counter[str] = Counter()
        self._running = 0
        self._has_stopped = False

    @property
    def unfinished(self) -> int:
        """Requests whose batches are being opened, or wait for that."""
        return len(self._open)

    def open(self, client: str, unopened: list[Unopened], now_ms: int, done: Callable[[Found], None]) -> bool:
        """Opens batches of `client` ("host:port"), then calls `done` on the loop's thread. They must not
        change meanwhile.

        False if too much waits for the threads already: nothing is done. Of two hosts the one that has more
        gives way to the other.
        """
        request = _Request(client, unopened, now_ms, done)
        host = host_of(client)
        while self._open and self._bytes + request.size_bytes > UNFINISHED_MAX_BYTES:
            if not self._makes_room(host, request.size_bytes):
                return False
        self._open[request] = None
        self._bytes += request.size_bytes
        self._bytes_of_host[host] += request.size_bytes
        self._turns.put(client, request)
        self._start()
        return True

    def stop(self) -> None:
        """Ends the threads. What waits for its turn is refused: its clients send it to another broker."""
        self._has_stopped = True
        if self._threads is not None:
            self._threads.stop()
        for request in [each for each in self._open if not each.runs]:
            self._give_up(request)

    def _makes_room(self, host: str, size_bytes: int) -> bool:
        """Gives up the last request of the host that has most, if `host` will have less."""
        crowded, most_bytes = self._bytes_of_host.most_common(1)[0]
        if most_bytes <= self._bytes_of_host[host] + size_bytes:
            return False
        for request in reversed(self._open):
            if host_of(request.client) == crowded and not request.runs:
                self._give_up(request)
                return True
        return False

    def _give_up(self, request: _Request) -> None:
        request.refuse_rest(Refused(ErrorCode.LEADER_NOT_AVAILABLE, BUSY))
        self._forget(request)
        self._post(partial(request.done, request.found))  # not while another request is handled

    def _forget(self, request: _Request) -> None:
        del self._open[request]
        host = host_of(request.client)
        self._bytes -= request.size_bytes
        self._bytes_of_host[host] -= request.size_bytes
        if not self._bytes_of_host[host]:
            del self._bytes_of_host[host]

    def _start(self) -> None:
        while self._running < THREADS and (request := self._turns.take()) is not None:
            if request in self._open:
                self._running += 1
                request.runs = True
                if self._threads is None:
                    self._threads = Workers("records", self._post, THREADS)
                self._threads.submit(partial(self._take_turn, request), partial(self._ended, request))

    def _ended(self, request: _Request, _: None, error: Exception | None) -> None:
        self._running -= 1
        request.runs = False
        if error is not None:
            logger.error("opening batches failed", exc_info=error)
            request.refuse_rest(Refused(ErrorCode.UNKNOWN_SERVER_ERROR, "the batch could not be checked"))
        if request.is_opened:
            self._forget(request)
            request.done(request.found)
        elif self._has_stopped:
            self._give_up(request)
        else:
            self._turns.put(request.client, request)
        if not self._has_stopped:
            self._start()

    def _take_turn(self, request: _Request) -> None:
        """Opens some batches, one at least. Called on a thread, which has a scanner of its own."""
        scan = getattr(self._scanners, "scan", None)
        if scan is None:
            scan = self._scanners.scan = make_scanner()[0]
        until_s = time.monotonic() + TURN_S
        while not request.is_opened:
            place, batch, header, config = request.unopened[request.at]
            found: Opened | Refused
            try:
                found = open_batch(batch, header, config, request.now_ms, scan)
                request.kept_bytes += 0 if found.records is None else len(found.records)
                if request.kept_bytes > UNCOMPRESSED_MAX_BYTES:
                    found = _too_much_uncompressed()
            except Refused as refused:
                found = refused.kept()
            request.found[place] = found
            request.at += 1
            if time.monotonic() >= until_s:
                return


def _too_much_uncompressed() -> Refused:
    return Refused(
        ErrorCode.MESSAGE_TOO_LARGE,
        "batches with more records than bytes are stored uncompressed, and those of one request take more "
        f"than {UNCOMPRESSED_MAX_BYTES} bytes: send fewer at once",
    )
