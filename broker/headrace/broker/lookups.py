"""Searches of logs by timestamp, off the event loop: a cold segment of small batches takes seconds to scan.

Owns their order and bounds. After each segment others have their turn: hosts, and on each host its
connections. What a search learned of a segment stays with the log, so a client that retries after a timeout
continues there. `log.search` does the reading.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from headrace.broker.errors import Refused
from headrace.broker.loop import Timer
from headrace.broker.promise import Promise
from headrace.broker.turns import Turns, host_of
from headrace.broker.workers import Workers
from headrace.log.search import Scanned, Search, SegmentScan, TimestampedOffset
from headrace.wire.errors import ErrorCode

RUNNING_MAX: Final = 2  # the threads fsync, too
WAITING_MAX: Final = 1_000
WAIT_MAX_MS: Final = 30_000

Outcome = TimestampedOffset | None | Exception


class _Lookup:
    """One search and the promise of its outcome. Compared by identity."""

    __slots__ = ("client", "deadline_ms", "promise", "scanned", "search")

    def __init__(self, search: Search, client: str, deadline_ms: float) -> None:
        self.search = search
        self.client = client
        self.scanned: Scanned | None = None  # the result of its last segment
        self.promise: Promise[Outcome] = Promise()
        self.deadline_ms = deadline_ms


class Lookups:
    """Called on the loop's thread. `workers` run the reading."""

    def __init__(
        self,
        workers: Workers,
        call_later: Callable[[float, Callable[[], None]], Timer],
        monotonic_ms: Callable[[], float] = lambda: time.monotonic() * 1000,
    ) -> None:
        self._workers = workers
        self._call_later = call_later
        self._monotonic_ms = monotonic_ms
        self._open: dict[_Lookup, None] = {}  # in the order of arrival, and of deadlines
        self._of_host: Counter[str] = Counter()  # how many of these
        self._turns: Turns[_Lookup] = Turns()
        self._running = 0
        self._checks_deadlines = False

    def find(self, search: Search, client: str) -> Promise[Outcome]:
        """Runs the search for `client` ("host:port"); resolves with what it found or the exception, within
        `WAIT_MAX_MS`.

        The exception is `Refused` when that time is over, or when `WAITING_MAX` others wait: those of the
        host that has the most give way to those of others.
        """
        lookup = _Lookup(search, client, self._monotonic_ms() + WAIT_MAX_MS)
        host = host_of(client)
        if len(self._open) >= WAITING_MAX and not self._makes_room(host):
            search.close()
            lookup.promise.resolve(_too_many())
            return lookup.promise
        self._open[lookup] = None
        self._of_host[host] += 1
        self._turns.put(client, lookup)
        self._start()
        if self._open and not self._checks_deadlines:
            self._checks_deadlines = True
            self._call_later(WAIT_MAX_MS, self._time_out)
        return lookup.promise

    def _makes_room(self, host: str) -> bool:
        """Ends the last search of the host that has the most, if `host` has fewer."""
        crowded, count = self._of_host.most_common(1)[0]
        if count <= self._of_host[host] + 1:
            return False
        self._end(next(each for each in reversed(self._open) if host_of(each.client) == crowded), _too_many())
        return True

    def _start(self) -> None:
        while self._running < RUNNING_MAX and (lookup := self._turns.take()) is not None:
            if lookup not in self._open:
                lookup.search.close()
                continue
            try:
                job = next(lookup.search) if lookup.scanned is None else lookup.search.send(lookup.scanned)
            except StopIteration as ended:
                self._end(lookup, ended.value)
                continue
            self._running += 1
            self._submit(lookup, job)

    def _submit(self, lookup: _Lookup, job: SegmentScan) -> None:
        def scanned(found: Scanned, error: Exception | None) -> None:
            self._running -= 1
            if error is None:
                job.learn()
                lookup.scanned = found
                self._turns.put(lookup.client, lookup)
            else:
                lookup.search.close()
                self._end(lookup, error)
            self._start()

        self._workers.submit(job.run, scanned)

    def _end(self, lookup: _Lookup, outcome: Outcome) -> None:
        if lookup in self._open:
            del self._open[lookup]
            host = host_of(lookup.client)
            self._of_host[host] -= 1
            if not self._of_host[host]:
                del self._of_host[host]
        lookup.promise.resolve(outcome)

    def _time_out(self) -> None:
        now_ms = self._monotonic_ms()
        for lookup in list(self._open):
            if lookup.deadline_ms > now_ms:
                break
            self._end(lookup, _refusal(f"not found within {WAIT_MAX_MS} ms"))
        self._checks_deadlines = bool(self._open)
        if self._open:
            self._call_later(next(iter(self._open)).deadline_ms - now_ms, self._time_out)


def _too_many() -> Refused:
    return _refusal(f"{WAITING_MAX} lookups by timestamp wait already")


def _refusal(problem: str) -> Refused:
    return Refused(ErrorCode.REQUEST_TIMED_OUT, f"{problem}; retry")
