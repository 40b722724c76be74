"""The loop that folds the audit topics into the store: reads, folds, runs upkeep. Owns one thread's work.

Records and the positions up to which they were read enter the store together; a restart resumes there. A
store that cannot be opened or read is tried again, with growing pauses; one into which another process folds
is opened again, and this one goes on behind what that one stored. One whose file is damaged is set
aside, and a new one is folded from the beginning of the audit topics. The auditor of this process counts
meanwhile.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from sqlalchemy.exc import OperationalError, SQLAlchemyError

from headrace.audit.findings import Policy
from headrace.audit.gathering.drills import ended_drills, forget_drills
from headrace.audit.report.drill_scores import DrillScore, drill_score
from headrace.audit.report.naming import DetectionTime, detection_times, forget_names, name_findings
from headrace.audit.report.settled import Keeper
from headrace.audit.store import upkeep
from headrace.audit.store.place import StorePlace
from headrace.audit.store.store import (
    AuditStore,
    StoreError,
    StoreSharedError,
    is_damage,
    is_too_large,
    problem_of,
)
from headrace.audit.topic.logs_read import LastRead, Log, Mark
from headrace.audit.topic.reader import AuditReader, Polled, ReportedProducers
from headrace.audit.topic.set_aside import SetAside
from headrace.client.errors import ClientError
from headrace.process.clock import now_ms
from headrace.registry.errors import RegistryError, RegistryUnavailableError

logger = logging.getLogger(__name__)

POLL_S: Final = 0.5
DISCOVER_S: Final = 2.0
RETRY_PAUSE_S: Final = 1.0
OPEN_PAUSE_MAX_S: Final = 30.0  # between attempts to open the store; the first pause is RETRY_PAUSE_S
FAILURES_MAX: Final = 10  # in a row; then the store is opened again
UPKEEP_S: Final = 600.0
NAME_S: Final = 5.0  # between looks at what is wrong now
NAME_SHARE: Final = 0.1  # of the time, at most, that these looks take
DAY_MS: Final = 24 * 3_600_000
KEEP_S: Final = 60.0  # between looks at how long the audit topics keep their records


class FoldLoop:
    """Folds until `stop`. `producers` are those that have reported, in any datacenter."""

    def __init__(
        self,
        place: StorePlace,
        make_reader: Callable[[dict[tuple[str, int], int]], AuditReader],
        *,
        keep_ms: int = upkeep.KEEP_DEFAULT_MS,
        datacenter: str = "",
    ) -> None:
        """`keep_ms`: how long the store keeps an hour of which nothing new is reported. `datacenter`: that of
        this process, whose clock alone forgets nothing.
        """
        self.producers = ReportedProducers()
        self._place = place
        self._make_reader = make_reader
        self._keep_ms = keep_ms
        self._datacenter = datacenter
        self._problem = "starting"
        self._failures = 0
        self._folded_count = 0
        self._refused_count = 0
        self._unreadable_count = 0
        self._set_aside: list[SetAside] = []
        self._detection: list[DetectionTime] = []
        self._keeper = Keeper()
        self._drill: DrillScore | None = None
        self._looked_ms: int | None = None
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Ends `run` soon. Any thread."""
        self._stopping.set()

    def status(self) -> dict[str, Any]:
        """Returns plain data for `GET /status`."""
        return {
            "store": self._place.url,
            "set_aside_store": self._place.set_aside_as,
            "folded": self._folded_count,
            "refused": self._refused_count,
            "unreadable": self._unreadable_count,
            "set_aside": [each._asdict() for each in self._set_aside],
            "detection": [each._asdict() for each in self._detection],
            "drill": None if self._drill is None else self._drill.to_json(),
            "looked_ms": self._looked_ms,
            "trouble": self._problem,
        }

    def run(self) -> None:
        """Folds until `stop`."""
        damage = ""
        while not self._stopping.is_set():
            store = self._opened(damage)
            if store is None:
                return
            damage, self._failures = "", 0
            try:
                self._fold_into(store)
            except SQLAlchemyError as error:
                if is_damage(error):
                    damage = f"the audit store {self._place.url} is damaged: {problem_of(error)}"
            except StoreSharedError as error:
                logger.error("%s", error)
                self._problem = str(error)
                self._stopping.wait(RETRY_PAUSE_S)
            finally:
                store.close()

    def _opened(self, damage: str) -> AuditStore | None:
        """Returns the store, a new one if the old one has this damage; None if `stop` came first."""
        pause_s = RETRY_PAUSE_S
        while not self._stopping.is_set():
            try:
                if damage:
                    self._place.set_aside(damage)
                    damage = ""
                return self._place.open()
            except StoreError as error:
                if str(error) != self._problem:
                    logger.error("%s; trying again until it works, the counting goes on", error)
                self._problem = str(error)
            self._stopping.wait(pause_s)
            pause_s = min(2 * pause_s, OPEN_PAUSE_MAX_S)
        return None

    def _fold_into(self, store: AuditStore) -> None:
        """Folds until `stop`. Raises the `SQLAlchemyError`, or `StoreSharedError`, of a store that must be
        opened again.
        """
        known = self._read_store(store)
        if known is None:
            return
        positions, last, marks = known
        reader = self._make_reader(positions)
        reader.know(last, marks)
        discover_at_s, keep_at_s, upkeep_at_s = 0.0, 0.0, time.monotonic() + UPKEEP_S
        name_at_s, begun_ms = time.monotonic() + NAME_S, now_ms()
        try:
            while not self._stopping.is_set():
                now_s = time.monotonic()
                try:
                    if now_s >= discover_at_s:
                        reader.discover()
                        discover_at_s = now_s + DISCOVER_S
                    if now_s >= keep_at_s and reader.keep_records(self._keep_ms):
                        keep_at_s = now_s + KEEP_S
                    polled = reader.poll(POLL_S)
                except (ClientError, RegistryError, RegistryUnavailableError) as error:
                    self._wait_for(error)
                    continue
                self._fold(store, polled)
                self._unreadable_count = reader.unreadable_count
                self._set_aside = list(reader.set_aside.values())
                self._problem = ""
                if now_s >= name_at_s:
                    self._name(store, begun_ms)
                    took_s = time.monotonic() - now_s
                    name_at_s = now_s + max(NAME_S, took_s / NAME_SHARE)
                if now_s >= upkeep_at_s:
                    self._run_upkeep(store)
                    upkeep_at_s = now_s + UPKEEP_S
        finally:
            reader.close()

    def _wait_for(self, error: Exception) -> None:
        """Waits a moment for what others must do."""
        if str(error) != self._problem:
            logger.warning("folding waits: %s", error)
        self._problem = str(error)
        self._stopping.wait(RETRY_PAUSE_S)

    def _read_store(self, store: AuditStore) -> tuple[dict[Log, int], dict[Log, LastRead], list[Mark]] | None:
        """Returns the positions up to which the store is folded, and of which logs they are; None if `stop`
        came first.
        """
        while not self._stopping.is_set():
            try:
                self.producers.add(store.producers())
                return (store.positions(), *store.logs_read())
            except SQLAlchemyError as error:
                self._note_store(error)
        return None

    def _note_store(self, error: SQLAlchemyError) -> None:
        """Waits a moment. Raises the error of a damaged store, and one that does not go away: the file may
        have been replaced.
        """
        self._failures += 1
        if is_damage(error) or self._failures > FAILURES_MAX:
            raise error
        problem = f"the audit store: {problem_of(error)}"
        if problem != self._problem:
            logger.error("%s; retrying until it works", problem)
        self._problem = problem
        self._stopping.wait(RETRY_PAUSE_S)

    def _fold(self, store: AuditStore, polled: Polled) -> None:
        """Folds, retrying until the store accepts it: this process does not read these records again."""
        while polled.positions and not self._stopping.is_set():
            try:
                store.fold(polled.records, polled.positions, polled.set_aside, polled.logs)
            except OperationalError as error:
                if is_too_large(error):
                    polled = self._without_refused(store, polled)
                else:
                    self._note_store(error)
                continue
            except (SQLAlchemyError, OverflowError, ValueError) as error:
                if is_damage(error):
                    raise
                if not self._is_readable(store):
                    continue
                logger.warning("the audit store refuses a record; folding one by one: %s", error)
                polled = self._without_refused(store, polled)
                continue
            self._failures = 0
            self._folded_count += len(polled.records)
            for received in polled.records:
                self.producers.learn(received)
            return

    def _is_readable(self, store: AuditStore) -> bool:
        """Whether the store itself works, so that a record must be the cause of an error."""
        try:
            store.positions()
        except SQLAlchemyError as error:
            self._note_store(error)
            return False
        return True

    def _without_refused(self, store: AuditStore, polled: Polled) -> Polled:
        """Returns the poll without the records that the store refuses when they are folded alone."""
        kept = []
        for received in polled.records:
            if problem := store.refuses(received):
                logger.error("a record of %s is set aside: %s", received.datacenter, problem)
                self._refused_count += 1
            else:
                kept.append(received)
        if len(kept) == len(polled.records):
            self._stopping.wait(RETRY_PAUSE_S)  # each alone is accepted: the cause was the store
        return polled._replace(records=kept)

    def _name(self, store: AuditStore, begun_ms: int) -> None:
        """Notes what is wrong now, and how long it took to be named; keeps verdicts on settled hours."""
        try:
            name_findings(store, now_ms(), begun_ms)
            self._keeper.keep_some(store, now_ms())
            with store.reading() as connection:
                self._detection = detection_times(connection, now_ms() - DAY_MS)
                self._drill = drill_score(connection, ended_drills(connection), now_ms(), Policy())
            self._looked_ms = now_ms()
        except SQLAlchemyError as error:
            self._note_store(error)

    def _run_upkeep(self, store: AuditStore) -> None:
        try:
            time_ms = upkeep.present_ms(store, now_ms(), self._datacenter)
            merged = upkeep.merge(store, time_ms - upkeep.MERGE_AGE_DEFAULT_MS)
            forgotten = upkeep.forget(store, time_ms - self._keep_ms)
            forget_names(store, time_ms)
            forget_drills(store, time_ms)
        except SQLAlchemyError as error:
            self._note_store(error)
            return
        if merged or forgotten:
            logger.info("merged %d tallies, forgot %d hours", merged, forgotten)
