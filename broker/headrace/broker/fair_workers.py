"""Threads for blocking work that clients cause: calls to ZooKeeper, and large messages to be read or written.

Owns fairness and bounds. Hosts take turns, and on each host its connections; a connection has one job at a
time. So what one client queues delays another client by one job at most, however much it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from headrace.broker.errors import Refused
from headrace.broker.turns import host_of
from headrace.broker.workers import Outcome, Workers
from headrace.wire.errors import ErrorCode

WAITING_PER_CLIENT_MAX: Final = 2_000  # jobs of one connection
WAITING_MAX: Final = 20_000  # jobs of all connections
OWN: Final = ""  # the broker's own work: never refused
UPKEEP: Final = "upkeep"  # the broker's, too: it may take long, and nothing waits for it

Job = tuple[Callable[[], Any], Outcome]


class _Client:
    """The jobs of one connection: those that wait, and whether one runs."""

    __slots__ = ("jobs", "runs")

    def __init__(self) -> None:
        self.jobs: deque[Job] = deque()
        self.runs = False


class _Host:
    """The connections of one host that have jobs; the first of them is next."""

    __slots__ = ("clients", "running")

    def __init__(self) -> None:
        self.clients: dict[str, _Client] = {}
        self.running = 0

    def next_client(self) -> tuple[str, _Client] | None:
        """Returns the next connection whose job may start, and puts it last."""
        for peer, client in self.clients.items():
            if client.jobs and not client.runs:
                self.clients[peer] = self.clients.pop(peer)
                return peer, client
        return None


class FairWorkers:
    """`submit` and `client` are for the loop's thread only; `threads` is the number of threads of `workers`.

    `client` ("host:port") is whose request is being handled: its jobs are submitted in its name.
    """

    def __init__(self, workers: Workers, threads: int) -> None:
        self._workers = workers
        self._threads = threads
        # One host never has all threads.
        self._per_host = max(1, threads - 1)
        self._hosts: dict[str, _Host] = {}
        self._running = 0
        self._waiting = 0
        self.client = OWN

    @property
    def refusal(self) -> Refused | None:
        """The error of a job that would be submitted now; None if there is room."""
        if self.client == OWN:
            return None
        host = self._hosts.get(host_of(self.client))
        client = None if host is None else host.clients.get(self.client)
        if client is not None and len(client.jobs) >= WAITING_PER_CLIENT_MAX:
            return _full(f"{WAITING_PER_CLIENT_MAX} jobs of {self.client} wait already")
        if self._waiting >= WAITING_MAX:
            return _full(f"{WAITING_MAX} jobs wait already")
        return None

    def submit(self, job: Callable[[], Any], done: Outcome) -> None:
        """Runs `job()` on a thread when it is its client's turn, then `done(result, error)` on the loop's
        thread, in the client's name again. `error` is `Refused`, at once, if too many jobs wait.
        """
        refusal = self.refusal
        if refusal is not None:
            done(None, refusal)
            return
        host = self._hosts.setdefault(host_of(self.client), _Host())
        host.clients.setdefault(self.client, _Client()).jobs.append((job, done))
        self._waiting += 1
        self._start()

    def _start(self) -> None:
        while self._waiting and self._running < self._threads:
            found = self._next()
            if found is None:
                return
            self._run(*found)

    def _next(self) -> tuple[_Host, str, _Client] | None:
        for name, host in self._hosts.items():
            if name != OWN and host.running >= self._per_host:
                continue
            found = host.next_client()
            if found is not None:
                self._hosts[name] = self._hosts.pop(name)
                return host, *found
        return None

    def _run(self, host: _Host, peer: str, client: _Client) -> None:
        job, done = client.jobs.popleft()
        client.runs = True
        host.running += 1
        self._running += 1
        self._waiting -= 1

        def ended(result: Any, error: Exception | None) -> None:
            client.runs = False
            host.running -= 1
            self._running -= 1
            self.client = peer
            try:
                done(result, error)
            finally:
                if not client.jobs and not client.runs:
                    host.clients.pop(peer, None)
                if not host.clients:
                    self._hosts.pop(host_of(peer), None)
                self._start()

        self._workers.submit(job, ended)


class OwnJobs:
    """The same threads, for jobs that serve all clients: in the broker's own name, `OWN` or `UPKEEP`. Jobs of
    one name run one after the other.
    """

    def __init__(self, workers: FairWorkers, name: str = OWN) -> None:
        self._workers = workers
        self._name = name

    def submit(self, job: Callable[[], Any], done: Outcome) -> None:
        before, self._workers.client = self._workers.client, self._name
        try:
            self._workers.submit(job, done)
        finally:
            self._workers.client = before


def _full(problem: str) -> Refused:
    return Refused(ErrorCode.REQUEST_TIMED_OUT, f"{problem}; retry")
