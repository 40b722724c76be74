"""When a client asks for metadata, and which answers it takes. Pure: no I/O, connections or clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from headrace.client.backoff import Backoff
from headrace.client.informants import PATIENCE_S

METADATA_RETRY: Final = Backoff(first_ms=50, max_ms=1000)
METADATA_MAX_AGE_MS: Final = 300_000
CONNECTING_S: Final = 0.1
"""Until it is looked again whether another broker can be asked. Each look may begin a connection."""
MAX_AGE_IN_SILENCE_S: Final = 2.0
"""Of metadata, while a broker does not answer."""
NEVER: Final = float("inf")


class MetadataUpdates:
    """Numbers the requests for metadata, from 1.

    A broker may never answer, and its connection stand until the request's timeout. So another broker is
    asked when a request has no answer after `PATIENCE_S`. Any answer is taken that is no older than another.
    """

    def __init__(self, max_age_ms: float, draw: Callable[[], float]) -> None:
        self._max_age_s = max_age_ms / 1000
        self._draw = draw
        self._is_wanted = True
        self._doubts = False
        self._asked = 0  # the latest request
        self._answered = 0  # the latest one that was answered
        self._waits_since_s: float | None = None  # for the latest request's answer
        self._failures = 0
        self._not_before_s = 0.0
        self._updated_s = -NEVER
        self._is_hurried = False

    @property
    def doubts(self) -> bool:
        """Whether another broker than the one that was asked last may know better."""
        return self._doubts or self.is_awaited

    @property
    def is_awaited(self) -> bool:
        """Whether the latest request has no answer yet."""
        return self._waits_since_s is not None

    def want(self) -> None:
        """What is known may be old."""
        self._is_wanted = True

    def doubt(self) -> None:
        """What is known is wrong, or not enough."""
        self._is_wanted = self._doubts = True

    def hurry(self) -> None:
        """A broker does not answer, and another one may lead by now."""
        self._is_hurried = self._doubts = True

    def restart(self) -> None:
        """What was asked before was about other topics: the backoff does not apply."""
        self._failures = 0
        self._not_before_s = 0.0
        self._is_wanted = True

    def due_s(self) -> float:
        """Returns when to ask."""
        if self._waits_since_s is not None:
            return self._waits_since_s + PATIENCE_S
        if self._is_wanted:
            return self._not_before_s
        max_age_s = min(self._max_age_s, MAX_AGE_IN_SILENCE_S) if self._is_hurried else self._max_age_s
        return max(self._not_before_s, self._updated_s + max_age_s)

    def put_off(self, now_s: float) -> None:
        """No other broker can be asked yet. Another look is due after `CONNECTING_S`."""
        self._waits_since_s = now_s + CONNECTING_S - PATIENCE_S

    def ask(self, now_s: float) -> int:
        """Returns the number of a request that is sent now."""
        self._asked += 1
        self._waits_since_s = now_s
        self._is_wanted = self._doubts = self._is_hurried = False
        return self._asked

    def is_news(self, number: int) -> bool:
        """Whether neither this request nor a later one has been answered."""
        return number > self._answered

    def answered(self, number: int, now_s: float, *, is_incomplete: bool) -> None:
        """Takes note of an answer that is news."""
        self._answered = number
        self._updated_s = now_s
        self._end(now_s, is_incomplete=is_incomplete)

    def failed(self, number: int, now_s: float) -> None:
        """Takes note that a request has no answer, or none that can be used."""
        if number == self._asked and self.is_news(number):
            self._end(now_s, is_incomplete=True)

    def _end(self, now_s: float, *, is_incomplete: bool) -> None:
        self._waits_since_s = None
        self._failures = self._failures + 1 if is_incomplete else 0
        self._is_wanted = self._is_wanted or is_incomplete
        self._doubts = self._doubts or is_incomplete
        # The backoff applies after a success, too: many partitions may request an update at once.
        self._not_before_s = now_s + METADATA_RETRY.delay_s(max(1, self._failures), self._draw)
