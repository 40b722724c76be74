"""Partitions of which counting does not go on: why, and when the auditor looks closely at one of them.

Owns the schedule alone, no connection. A close look reads a partition batch by batch, and all others wait for
it: so there is one at a time, and a pause after each.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Final

from headrace.wire.topic_names import TopicPartition

logger = logging.getLogger(__name__)

RETRY_S: Final = 5.0
"""After so long, a partition that is stuck is looked at again."""
PAUSE_S: Final = 2.0
"""Between close looks, at whichever partitions."""
LOOKS_MAX: Final = 3
"""After so many close looks in a row that did not help, what the broker refuses to read is set aside."""
_NEVER: Final = float("inf")


class StuckPartitions:
    """For the auditor's thread; others may read `problems`. `clock` is monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.problems: dict[TopicPartition, str] = {}
        self._look_at_s: dict[TopicPartition, float] = {}
        self._looks: dict[TopicPartition, int] = {}  # in a row, that did not help
        self._pause_until_s = 0.0

    def stop(self, key: TopicPartition, problem: str) -> None:
        """Counting of a partition waits; the log says so once for each problem."""
        if self.problems.get(key) != problem:
            logger.error("counting of %s-%d waits: %s", *key, problem)
        self.problems[key] = problem
        self._look_at_s[key] = self._clock() + RETRY_S

    def stop_for_good(self, key: TopicPartition, problem: str) -> None:
        """No look would help: it waits until the auditor is started again, or the topic is deleted."""
        self.stop(key, problem)
        self._look_at_s[key] = _NEVER

    def go_on(self, key: TopicPartition) -> None:
        """Forgets what was wrong with a partition: counting goes on, or the partition is gone."""
        for state in (self.problems, self._look_at_s, self._looks):
            state.pop(key, None)

    def note_look(self, key: TopicPartition) -> int:
        """A close look begins; returns how many in a row there were with this one. See `LOOKS_MAX`."""
        self._looks[key] = self._looks.get(key, 0) + 1
        return self._looks[key]

    def take_due(
        self, keys: Iterable[TopicPartition], is_failing: Callable[[TopicPartition], bool]
    ) -> TopicPartition | None:
        """Returns a partition to look at closely now: one that is stuck, or whose fetches fail; or None.

        The same one is due again after `RETRY_S`.
        """
        now_s = self._clock()
        if now_s < self._pause_until_s:
            return None
        for key in keys:
            if (key in self.problems or is_failing(key)) and now_s >= self._look_at_s.get(key, 0.0):
                self._look_at_s[key] = now_s + RETRY_S
                return key
        return None

    def pause(self) -> None:
        """A close look has ended: the next one comes later."""
        self._pause_until_s = self._clock() + PAUSE_S
