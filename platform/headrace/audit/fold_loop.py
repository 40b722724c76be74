"""The loop that folds the audit topics into the store: reads, folds, runs upkeep. Owns one thread's work.

Records and the positions up to which they were read enter the store together; a restart resumes there.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from sqlalchemy.exc import OperationalError, SQLAlchemyError

from headrace.audit import upkeep
from headrace.audit.reader import AuditReader, Polled, ReportedProducers
from headrace.audit.set_aside import SetAside
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
        self._refused_count = 0
        self._unreadable_count = 0
        self._set_aside: list[SetAside] = []
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Ends `run` soon. Any thread."""
        self._stopping.set()

    def status(self) -> dict[str, Any]:
        """Returns plain data for `GET /status`."""
        return {
            "store": self._store.url,
            "folded": self._folded_count,
            "refused": self._refused_count,
            "unreadable": self._unreadable_count,
            "set_aside": [each._asdict() for each in self._set_aside],
            "trouble": self._problem,
        }

    def run(self) -> None:
        """Folds until `stop`."""
        positions = self._read_store()
        if positions is None:
            return
        reader = self._make_reader(positions)
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
                except (ClientError, RegistryError, RegistryUnavailableError, SQLAlchemyError) as error:
                    if str(error) != self._problem:
                        logger.warning("folding waits: %s", error)
                    self._problem = str(error)
                    self._stopping.wait(RETRY_PAUSE_S)
                self._unreadable_count = reader.unreadable_count
                self._set_aside = list(reader.set_aside.values())
        finally:
            reader.close()

    def _read_store(self) -> dict[tuple[str, int], int] | None:
        """Returns the positions up to which the store is folded; None if `stop` came first.

        A store that cannot be read is tried again: the auditor of this process counts meanwhile.
        """
        while not self._stopping.is_set():
            try:
                self.producers.add(self._store.producers())
                return self._store.positions()
            except SQLAlchemyError as error:
                self._note_store(error)
        return None

    def _note_store(self, error: SQLAlchemyError) -> None:
        problem = f"the audit store: {getattr(error, 'orig', None) or error}"
        if problem != self._problem:
            logger.error("%s; retrying until it works", problem)
        self._problem = problem
        self._stopping.wait(RETRY_PAUSE_S)

    def _fold(self, polled: Polled) -> None:
        """Folds, retrying until the store accepts it: this process does not read these records again."""
        while polled.positions and not self._stopping.is_set():
            try:
                self._store.fold(polled.records, polled.positions, polled.set_aside)
            except OperationalError as error:
                self._note_store(error)
                continue
            except (SQLAlchemyError, OverflowError, ValueError) as error:
                if not self._is_readable():
                    continue
                logger.warning("the audit store refuses a record; folding one by one: %s", error)
                polled = self._without_refused(polled)
                continue
            self._folded_count += len(polled.records)
            for received in polled.records:
                self.producers.learn(received)
            return

    def _is_readable(self) -> bool:
        """Whether the store itself works, so that a record must be the cause of an error."""
        try:
            self._store.positions()
        except SQLAlchemyError as error:
            self._note_store(error)
            return False
        return True

    def _without_refused(self, polled: Polled) -> Polled:
        """Returns the poll without the records that the store refuses when they are folded alone."""
        kept = []
        for received in polled.records:
            if problem := self._store.refuses(received):
                logger.error("a record of %s is set aside: %s", received.datacenter, problem)
                self._refused_count += 1
            else:
                kept.append(received)
        if len(kept) == len(polled.records):
            self._stopping.wait(RETRY_PAUSE_S)  # each alone is accepted: the cause was the store
        return polled._replace(records=kept)

    def _run_upkeep(self) -> None:
        time_ms = now_ms()
        merged = upkeep.merge(self._store, time_ms - upkeep.MERGE_AGE_DEFAULT_MS)
        forgotten = upkeep.forget(self._store, time_ms - self._keep_ms)
        if merged or forgotten:
            logger.info("merged %d tallies, forgot %d hours", merged, forgotten)
