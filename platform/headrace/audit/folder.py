"""Folding the audit topics into the store: the loop between reader and store. Owns one thread's work.

The store says where to go on; what was read and how far go into it together.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from sqlalchemy.exc import OperationalError

from headrace.audit import upkeep
from headrace.audit.reader import AuditReader, Read
from headrace.audit.records import ProducerReport
from headrace.audit.store import AuditStore
from headrace.client.errors import ClientError
from headrace.process.clock import now_ms
from headrace.registry.errors import RegistryError, RegistryUnavailableError

logger = logging.getLogger(__name__)

POLL_S: Final = 0.5
DISCOVER_S: Final = 2.0
TROUBLE_PAUSE_S: Final = 1.0
UPKEEP_S: Final = 600.0


class Folder:
    """Folds until `stop`. `trusts` knows the producers that have reported, of all datacenters."""

    def __init__(
        self,
        store: AuditStore,
        make_reader: Callable[[dict[tuple[str, int], int]], AuditReader],
        *,
        keep_ms: int = upkeep.KEEP_DEFAULT_MS,
        wall_ms: Callable[[], int] = now_ms,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._make_reader = make_reader
        self._keep_ms = keep_ms
        self._wall_ms = wall_ms
        self._clock = clock
        self._producers: set[tuple[str, int]] = set()
        self._trouble = "starting"
        self._folded_count = 0
        self._unreadable_count = 0
        self._stopping = threading.Event()

    def stop(self) -> None:
        """End `run` soon. Any thread."""
        self._stopping.set()

    def trusts(self, datacenter: str, producer_id: int) -> bool:
        """Whether that producer has reported, so that its batches are known to keep to one bucket each."""
        return (datacenter, producer_id) in self._producers

    def status(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "store": self._store.url,
            "folded": self._folded_count,
            "unreadable": self._unreadable_count,
            "trouble": self._trouble,
        }

    def run(self) -> None:
        """Fold until `stop`."""
        self._producers = self._store.producers()
        reader = self._make_reader(self._store.positions())
        discover_at_s, upkeep_at_s = 0.0, self._clock() + UPKEEP_S
        try:
            while not self._stopping.is_set():
                now_s = self._clock()
                try:
                    if now_s >= discover_at_s:
                        reader.discover()
                        discover_at_s = now_s + DISCOVER_S
                    self._fold(reader.poll(POLL_S))
                    if now_s >= upkeep_at_s:
                        self._keep_up()
                        upkeep_at_s = now_s + UPKEEP_S
                    self._trouble = ""
                except (ClientError, RegistryError, RegistryUnavailableError) as error:
                    if str(error) != self._trouble:
                        logger.warning("folding waits: %s", error)
                    self._trouble = str(error)
                    self._stopping.wait(TROUBLE_PAUSE_S)
                self._unreadable_count = reader.unreadable_count
        finally:
            reader.close()

    def _fold(self, read: Read) -> None:
        """Fold until the store takes it: what was read is not read again by this process."""
        while read.positions and not self._stopping.is_set():
            try:
                self._store.fold(read.said, read.positions)
            except OperationalError as error:
                logger.warning("the audit store does not take it yet: %s", error.orig)
                self._trouble = f"the audit store: {error.orig}"
                self._stopping.wait(TROUBLE_PAUSE_S)
                continue
            self._folded_count += len(read.said)
            for said in read.said:
                if isinstance(said.record, ProducerReport):
                    ids = said.record.producer_ids()
                    self._producers.update((said.datacenter, producer_id) for producer_id in ids)
            return

    def _keep_up(self) -> None:
        now_ms = self._wall_ms()
        merged = upkeep.merge(self._store, now_ms - upkeep.MERGE_AGE_DEFAULT_MS)
        forgotten = upkeep.forget(self._store, now_ms - self._keep_ms)
        if merged or forgotten:
            logger.info("merged %d tallies, forgot %d hours", merged, forgotten)
