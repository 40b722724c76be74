"""The calls of `ConsumerGroup.commit` that wait for the group's thread, and what became of them."""

from __future__ import annotations

import threading
import time

from headrace.client.latch import Latch


class CommitRequests:
    """Any thread may call `request`, `wait` and `is_met`; the group's thread calls the others."""

    def __init__(self) -> None:
        self.requested = self.made = 0
        self.has_ended = False
        self._lock = threading.Lock()  # of what follows; it is held for no wait
        self._news = Latch()  # set when `made` or `has_ended` changes next
        self._waiting: dict[int, str | None] = {}  # request → why it failed: of the threads that wait now

    def request(self) -> int:
        """Returns the number of a new request: it is met when `made` has reached it."""
        with self._lock:
            self.requested += 1
            self._waiting[self.requested] = None
            return self.requested

    def wait(self, number: int, timeout_s: float) -> str | None:
        """Waits until a request is met, or has failed: returns why, or None. See `is_met`, too."""
        until_s = time.monotonic() + timeout_s
        try:
            while True:
                news = self._news
                left_s = until_s - time.monotonic()
                if self.made >= number or self.has_ended or left_s <= 0:
                    break
                news.wait(left_s)
        finally:
            with self._lock:
                problem = self._waiting.pop(number)
        return problem

    def is_met(self, number: int) -> bool:
        return self.made >= number

    def finish(self, requested: int, problem: str | None = None) -> None:
        """All requests up to this one are met, or have failed, if there is a problem."""
        with self._lock:
            for number in self._waiting:
                if self.made < number <= requested:
                    self._waiting[number] = problem
            self.made = requested
        self._tell()

    def end(self) -> None:
        """No request will be met any more."""
        self.has_ended = True
        self._tell()

    def _tell(self) -> None:
        news, self._news = self._news, Latch()
        news.set()
