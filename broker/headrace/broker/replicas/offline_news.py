"""Announces in ZooKeeper which partitions are offline here: any broker's Metadata says so, and elections
leave this broker out where they can.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from headrace.broker.cluster import OfflineName
from headrace.broker.workers import Jobs
from headrace.coordination.errors import CoordinationError
from headrace.coordination.offline_logs import OfflineLogRegistry
from headrace.coordination.standing import HeldNode

logger = logging.getLogger(__name__)

ANNOUNCED_MAX: Final = 1_000  # further ones are in this broker's own answers alone
RETRY_MS: Final = 5_000


class OfflineNews:
    """Called on the loop's thread; ZooKeeper is written by `jobs`, one at a time. `present` returns what is
    offline now, on any thread.
    """

    def __init__(
        self,
        registry: OfflineLogRegistry,
        jobs: Jobs,
        call_later: Callable[[float, Callable[[], None]], object],
        present: Callable[[], frozenset[OfflineName]],
    ) -> None:
        self._registry = registry
        self._jobs = jobs
        self._call_later = call_later
        self._present = present
        self._held: dict[OfflineName, HeldNode] = {}
        self._to_release: list[HeldNode] = []
        self._is_started = self._is_writing = False

    def begin(self, broker_id: int) -> None:
        """Announces what is offline before this broker is registered, and may be elected; instead of what the
        process before this one announced. Called on a thread, once, before `start`."""
        self._registry.forget(broker_id)
        try:
            self._announce(self._wanted())
        except CoordinationError as error:
            logger.warning("other brokers do not know yet which partitions are offline: %s", error)

    def start(self) -> None:
        """Begins to announce each change."""
        self._is_started = True
        self.changed()

    def changed(self) -> None:
        """Called after every change of what `present` returns."""
        if not self._is_started or self._is_writing:
            return
        wanted = self._wanted()
        if wanted != self._held.keys() or self._to_release:
            self._is_writing = True
            self._jobs.submit(lambda: self._announce(wanted), self._announced)

    def _wanted(self) -> frozenset[OfflineName]:
        return frozenset(sorted(self._present())[:ANNOUNCED_MAX])

    def _announce(self, wanted: frozenset[OfflineName]) -> None:
        for name in [name for name in self._held if name not in wanted]:
            self._to_release.append(self._held.pop(name))
        while self._to_release:  # before a log that is offline again gets a node of the same name
            self._to_release[0].release()
            del self._to_release[0]
        for name in sorted(wanted - self._held.keys()):
            self._held[name] = self._registry.announce(*name)

    def _announced(self, _result: None, error: Exception | None) -> None:
        self._is_writing = False
        if error is None:
            self.changed()
            return
        logger.warning("other brokers do not know yet which partitions are offline: %s", error)
        self._call_later(RETRY_MS, self.changed)
