"""The topics that threads of an application wait for, and how they learn that metadata has come.

Owns which topics the sender thread asks metadata of on behalf of others.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable

from headrace.client.cluster import TopicPartition
from headrace.client.latch import Latch
from headrace.client.network import Network
from headrace.wire.errors import ErrorCode


class AwaitedTopics:
    """Any thread may call the methods under "other threads"; the sender thread calls the others."""

    def __init__(self, network: Network) -> None:
        self.version = 0
        """Counts the metadata that has come."""
        self._network = network
        self._changes: deque[tuple[str, int]] = deque()  # topics, and how many threads more wait for each
        self._waiting: dict[str, int] = {}
        self._news = Latch()  # set by the next change of what follows, or of `version`
        self._has_ended = False

    # --- other threads ---

    def want(self, topic: str) -> None:
        """Fetches metadata of `topic`, even if it is known already."""
        self._changes.append((topic, 1))
        self._network.wake()

    def release(self, topic: str) -> None:
        """Ends a `want`. A topic that was not found is left out of metadata requests once no thread waits for
        it.
        """
        self._changes.append((topic, -1))

    def wait(self, newer_than: int, timeout_s: float) -> None:
        """Waits until `version` exceeds `newer_than`, or the producer stops."""
        until_s = time.monotonic() + timeout_s
        while True:
            news = self._news
            left_s = until_s - time.monotonic()
            if self.version > newer_than or self._has_ended or left_s <= 0:
                return
            news.wait(left_s)

    # --- the sender thread ---

    def look(self) -> None:
        """Asks for what is wanted since the last call."""
        network = self._network
        while self._changes:
            topic, change = self._changes.popleft()
            waiting = self._waiting.pop(topic, 0) + change
            if waiting:
                self._waiting[topic] = waiting
            if change > 0:
                network.add_topics([topic])
                network.request_update()
            elif not waiting and not network.cluster.partition_count(topic):
                network.forget_topic(topic)

    def tell(self, busy: Iterable[TopicPartition] = ()) -> None:
        """Wakes the threads that wait, if metadata has come. A topic that was deleted is left out of metadata
        requests from now on, which might create it again, unless batches for it are `busy`.
        """
        if self._network.cluster_version != self.version:
            needed = {topic for topic, _ in busy} | self._waiting.keys()
            for name, info in self._network.cluster.topics.items():
                if info.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and name not in needed:
                    self._network.forget_topic(name)
            self.version = self._network.cluster_version
            self._tell()

    def end(self) -> None:
        """Wakes all threads: nothing more will come."""
        self._has_ended = True
        self._tell()

    def _tell(self) -> None:
        news, self._news = self._news, Latch()
        news.set()
