"""Locates the copies of many topics at once. Owns the connections for that, while they are needed.

Each topic takes a dozen answers, one after another. Over a slow line, after a restart of a broker at the
target, hundreds of topics would stand still for minutes.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Final, NamedTuple, TypeVar

from headrace.mirror.side import MirrorSide

AT_ONCE_MAX: Final = 8
FEW_TOPICS: Final = 4
"""So many are located by the connections that are there, one after another."""
UNUSED_MAX_S: Final = 60.0
"""How long the others stay open without use."""

_Work = TypeVar("_Work")
_Found = TypeVar("_Found")


class Sides(NamedTuple):
    """Connections to the source and to the target; for one thread."""

    source: MirrorSide
    target: MirrorSide

    def beside(self) -> Sides:
        """Returns others, to the same clusters, which know what these know of brokers that do not answer."""
        return Sides(self.source.beside(), self.target.beside())

    def close(self) -> None:
        self.source.close()
        self.target.close()


class Locators:
    """What locates copies; called from one thread. `own`: the connections that are there, whose owner closes
    them.
    """

    def __init__(self, own: Sides) -> None:
        self._own = own
        self._sides: list[Sides] = []
        self._used_s = 0.0

    def located(
        self, topics: Mapping[str, _Work], locate: Callable[[Sides, str, _Work], _Found]
    ) -> Generator[tuple[str, _Found], None, None]:
        """Yields each topic with what `locate` returns for it, in the order in which they are done; in other
        threads if there are many. Raises what it raises. A caller that has enough closes the generator.
        """
        if len(topics) <= FEW_TOPICS:
            if self._sides and time.monotonic() - self._used_s >= UNUSED_MAX_S:
                self.close()
            for topic, work in topics.items():
                yield topic, locate(self._own, topic, work)
            return
        count = min(AT_ONCE_MAX, len(topics))
        while len(self._sides) < count:
            self._sides.append(self._own.beside())
        idle: queue.SimpleQueue[Sides] = queue.SimpleQueue()
        for sides in self._sides[:count]:
            idle.put(sides)

        def run(topic: str, work: _Work) -> tuple[str, _Found]:
            sides = idle.get_nowait()  # there are as many as threads
            try:
                return topic, locate(sides, topic, work)
            finally:
                idle.put(sides)

        pool = ThreadPoolExecutor(count, thread_name_prefix="mirror-locating")
        try:
            for done in as_completed([pool.submit(run, *each) for each in topics.items()]):
                yield done.result()
        finally:
            pool.shutdown(cancel_futures=True)
            self._used_s = time.monotonic()

    def close(self) -> None:
        """Closes what was opened beside `own`."""
        while self._sides:
            self._sides.pop().close()
