"""The loop that folds the audit topics into the store: reads, folds, runs upkeep. Owns one thread's work.

Records and the positions up to which they were read enter the store together; a restart resumes there.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from sqlalchemy.exc import OperationalError

from headrace.audit import upkeep
from headrace.audit.reader import AuditReader, Polled, ReportedProducers
from headrace.audit.store import AuditStore
from headrace.client.errors import ClientError
from headrace.process.clock import now_ms
from headrace.registry.errors import RegistryError, RegistryUnavailableError

logger = logging.getLogger(__name__)

POLL_S: Final = 0.5
DISCOVER_S: Final = 2.0
RETRY_PAUSE_S: Final = 1.0
UPKEEP_S: Final = 600.0


class FoldLoop:
    """Folds until `stop`. `producers` are those that have reported, in any datacenter."""

    def __init__(
        self,
        store: AuditStore,
        make_reader: Callable[[dict[tuple[str, int], int]], AuditReader],
        *,
        keep_ms: int = upkeep.KEEP_DEFAULT_MS,
    ) -> None:
        self.producers = ReportedProducers()
        self._store = store
        self._make_reader = make_reader
        self._keep_ms = keep_ms
        self._problem = "starting"
        self._folded_count = 0
        self._unreadable_count = 0
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Ends `run` soon. Any thread."""
        self._stopping.set()

    def status(self) -> dict[str, Any]:
        """Returns plain data for `GET /status`."""
        return {
            "store": self._store.url,
            "folded": self._folded_count,
            "unreadable": self._unreadable_count,
            "trouble": self._problem,
        }

    def run(self) -> None:
        """Folds until `stop`."""
        self.producers.add(self._store.producers())
        reader = self._make_reader(self._store.positions())
        discover_at_s, upkeep_at_s = 0.0, time.monotonic() + UPKEEP_S
        try:
            while not self._stopping.is_set():
                now_s = time.monotonic()
                try:
                    if now_s >= discover_at_s:
                        reader.discover()
                        discover_at_s = now_s + DISCOVER_S
                    self._fold(reader.poll(POLL_S))
                    if now_s >= upkeep_at_s:
                        self._run_upkeep()
                        upkeep_at_s = now_s + UPKEEP_S
                    self._problem = ""
                except (ClientError, RegistryError, RegistryUnavailableError) as error:
                    if str(error) != self._problem:
                        logger.warning("folding waits: %s", error)
                    self._problem = str(error)
                    self._stopping.wait(RETRY_PAUSE_S)
                self._unreadable_count = reader.unreadable_count
        finally:
            reader.close()

    def _fold(self, polled: Polled) -> None:
        """Folds, retrying until the store accepts it: this process does not read these records again."""
        while polled.positions and not self._stopping.is_set():
            try:
                self._store.fold(polled.records, polled.positions)
            except OperationalError as error:
                logger.warning("the audit store cannot be written; retrying: %s", error.orig)
                self._problem = f"the audit store: {error.orig}"
                self._stopping.wait(RETRY_PAUSE_S)
                continue
            self._folded_count += len(polled.records)
            for received in polled.records:
                self.producers.learn(received)
            return

    def _run_upkeep(self) -> None:
        time_ms = now_ms()
        merged = upkeep.merge(self._store, time_ms - upkeep.MERGE_AGE_DEFAULT_MS)
        forgotten = upkeep.forget(self._store, time_ms - self._keep_ms)
        if merged or forgotten:
            logger.info("merged %d tallies, forgot %d hours", merged, forgotten)
