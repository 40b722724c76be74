"""Reports a publisher's counts to `_audit`: at the start, at an interval, on demand, at the end.

Owns the report numbers and one thread. Counts in a report that fails are not lost: the next report repeats
them. `reported_until` never exceeds what has arrived.
"""

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple, Self
from uuid import UUID

from headrace.client import BatchIdentity, BatchObserver, Producer
from headrace.client.errors import ClientError, RecordTooLargeError
from headrace.client.latch import Latch
from headrace.events.arrived import Arrived
from headrace.events.handovers import Handover, HandoverCounts, PartTally
from headrace.events.header import Origin
from headrace.events.journal_replay import DeadJournal
from headrace.events.journaled import Journaled, NoJournal
from headrace.events.spool import Spool
from headrace.process.clock import now_ms
from headrace.registry.errors import RegistryError, RegistryUnavailableError
from headrace.registry.serializers import AvroSerializer
from headrace.registry.value_validation import SerializationError
from headrace.wire.content import to_bytes
from headrace.wire.primitives import NO_UUID

logger = logging.getLogger(__name__)

RANGES_PER_REPORT_MAX: Final = 10_000
"""About 500 kB of Avro, well below the limit of a Kafka message."""
TALLIES_PER_REPORT_MAX: Final = 2_000
DELIVERY_WAIT_MAX_S: Final = 30.0
JOIN_WAIT_MAX_S: Final = 5.0
_UNSENT: Final = (ClientError, RegistryError, RegistryUnavailableError, SerializationError, TimeoutError)
"""To callers they mean the same: the report is missing. What a signal's handler raises is none of them."""


class ReportError(Exception):
    """A report did not arrive. Until one does, the audit shows the affected events as unknown."""

    retriable = True


class UnreportableError(ReportError):
    """No report can hold such counts, now or later: they are those of a journal that rotted."""

    retriable = False


class CountingObserver(BatchObserver):
    """Counts the sequence numbers of the producer's batches, and keeps these in the publisher's spool.

    Runs in the producer's sender thread.
    """

    def __init__(self, reporter: "Reporter", spool: Spool | None = None) -> None:
        self._reporter = reporter
        self._spool = spool

    def batch_encoded(self, identity: BatchIdentity, data: bytearray) -> None:
        if self._spool is not None:
            self._spool.batch_encoded(identity, data)

    def batch_closed(self, identity: BatchIdentity) -> None:
        self._reporter.batch_closed(identity)

    def batch_renumbered(self, old: BatchIdentity, new: BatchIdentity) -> None:
        if self._spool is not None:
            self._spool.batch_renumbered(old, new)
        self._reporter.batch_renumbered(old, new)


class Standing(NamedTuple):
    """A publisher, and how far it has reported: `report_number` is that of its last report, `arrived` the
    last one that is known to have arrived.
    """

    publisher: str
    started_ms: int
    report_number: int
    counts: HandoverCounts
    arrived: Arrived | None = None

    @classmethod
    def of_dead(cls, dead: DeadJournal) -> Self:
        """Returns what the journal of a publisher that died says of it."""
        publisher = str(dead.description["publisher"])
        return cls(publisher, dead.started_ms, dead.report_number, dead.counts, dead.arrived)


class Reporter:
    """The counts with their lock, and the thread that reports them. `producer` is used for reports only.

    `idle_final_s`: a tally that did not change for this time is final; it must exceed any delivery's time.
    """

    def __init__(
        self,
        producer: Producer,
        serializer: AvroSerializer,
        origin: Origin,
        *,
        topic: str,
        bucket_ms: int,
        interval_s: float,
        idle_final_s: float,
        clock: Callable[[], float] = time.monotonic,
        wall_ms: Callable[[], int] = now_ms,
        standing: Standing | None = None,
        journal: Journaled | None = None,
        at_start: Callable[[UUID], object] | None = None,
    ) -> None:
        """`standing`: of the publisher that is reported (default: a new one). Changes are in `journal` first.
        `at_start` is called with the id of the audit topic once a report has arrived, until it raises no
        `ReportError`; another error of it is logged.
        """
        standing = standing or Standing(str(uuid.uuid4()), wall_ms(), 0, HandoverCounts(bucket_ms))
        self.publisher = standing.publisher
        self._journal: Journaled = journal or NoJournal()
        self._at_start = at_start
        self._producer = producer
        self._serializer = serializer
        self._origin = origin
        self._topic = topic
        self._interval_s = interval_s
        self._idle_final_s = idle_final_s
        self._clock = clock
        self._wall_ms = wall_ms
        self._started_ms = standing.started_ms
        self._counts = standing.counts
        self._lock = threading.Lock()
        self._turn: Latch | None = None  # of the report that is under way; set at its end
        self._report_number = standing.report_number
        self._arrived = standing.arrived
        self._topic_id = NO_UUID  # of the audit topic in which the last report arrived
        self._reported_until_ms = self._started_ms
        self._looked_s = clock()  # for tallies that are idle
        self._stopping = Latch()
        self._thread = threading.Thread(target=self._loop, name=f"{origin.service}-reports", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def report_dead(self, dead: Standing) -> None:
        """Sends the last report of another publisher of this service, which died. Raises `ReportError`."""
        heir = Reporter(
            self._producer,
            self._serializer,
            self._origin,
            topic=self._topic,
            bucket_ms=dead.counts.bucket_ms,
            interval_s=self._interval_s,
            idle_final_s=self._idle_final_s,
            clock=self._clock,
            wall_ms=self._wall_ms,
            standing=dead,
        )
        heir.report(closing=True)
        logger.info(
            "%s: publisher %s was killed; its counts are reported", self._origin.service, dead.publisher
        )

    # --- counting ---

    def hand_over(self, topic: str, time_ms: int, handover: Handover | None = None) -> None:
        """Counts an event, and notes in `handover` that it is counted."""
        with self._lock:
            self._journal.hand_over(topic, time_ms, self._counts.bucket_start(time_ms), 1)
            self._counts.hand_over(topic, time_ms, self._clock(), handover=handover)

    def take_back(self, topic: str, time_ms: int) -> None:
        with self._lock:
            self._journal.hand_over(topic, time_ms, self._counts.bucket_start(time_ms), -1)
            self._counts.take_back(topic, time_ms, self._clock())

    def settle(self) -> None:
        """Writes the journal anew by what is counted: a signal's handler may have raised between the two."""
        with self._lock:
            self._journal.rewrite(self._counts)

    def batch_closed(self, identity: BatchIdentity) -> None:
        with self._lock:
            self._journal.batch_closed(identity)
            self._counts.batch_closed(identity, self._clock())

    def batch_renumbered(self, old: BatchIdentity, new: BatchIdentity) -> None:
        with self._lock:
            self._journal.batch_renumbered(old, new)
            self._counts.batch_renumbered(old, new, self._clock())

    # --- reporting ---

    def report(self, *, closing: bool = False, timeout_s: float = DELIVERY_WAIT_MAX_S) -> None:
        """Reports everything that changed, and that it is complete until now; returns once it has arrived.

        `closing`: reports the publisher as closed. Raises `ReportError`; the next report then repeats it.
        """
        deadline = time.monotonic() + timeout_s
        turn = Latch()  # no lock: a signal's handler may raise between `acquire()` and a `try`
        try:
            self._take(turn, deadline, timeout_s)
            # `reported_until` must not decrease, even if the clock was set back.
            until_ms = max(self._wall_ms(), self._reported_until_ms)
            with self._lock:
                self._finish_idle()
                tallies = self._counts.changed(closing=closing)
            *first, last = split(tallies)
            # Only the last piece raises `reported_until`: by then all others have arrived.
            for piece in first:
                self._send(piece, self._reported_until_ms, False, deadline)
            self._send(last, until_ms, closing, deadline)
            self._reported_until_ms = until_ms
        finally:
            if self._turn is turn:
                self._turn = None
            turn.set()

    def _finish_idle(self) -> None:
        """Makes tallies final that did not change for long. Behind a pause as long as that (by SIGSTOP, say),
        what waited has no numbers yet: the producer's thread was paused, too.
        """
        now_s = self._clock()
        if now_s - self._looked_s < max(self._idle_final_s, 2 * self._interval_s):
            self._journal.finished(self._counts.finish_idle(now_s - self._idle_final_s))
        self._looked_s = now_s

    def _take(self, turn: Latch, deadline: float, timeout_s: float) -> None:
        """Waits until no other report is under way. Raises `ReportError`."""
        while True:
            with self._lock:
                other = self._turn
                if other is None:
                    self._turn = turn
                    return
            if not other.wait(max(0.0, deadline - time.monotonic())):
                raise ReportError(f"another report has been in flight for {timeout_s:g} s")

    def close(self, timeout_s: float = DELIVERY_WAIT_MAX_S) -> None:
        """Ends the thread and sends the last report. Raises `ReportError` if it did not arrive: then the
        journal is left to the next publisher of this service, which may be in this process. May be called
        again, if a signal's handler raised in it.
        """
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(JOIN_WAIT_MAX_S)
        try:
            self.report(closing=True, timeout_s=timeout_s)
        except ReportError:
            self._end_journal().leave()
            raise
        self._end_journal().delete()

    def _end_journal(self) -> Journaled:
        with self._lock:
            journal, self._journal = self._journal, NoJournal()  # a late callback finds no closed file
        return journal

    def _send(self, tallies: list[PartTally], until_ms: int, closed: bool, deadline: float) -> None:
        self._report_number += 1
        with self._lock:
            self._journal.begin_report(self._report_number)
        time_ms = self._wall_ms()
        record = {
            "header": self._origin.header(time_ms),
            "publisher": self.publisher,
            "started": self._started_ms,
            "report_number": self._report_number,
            "reported_until": until_ms,
            "state": "CLOSED" if closed else "OPEN",
            "arrived_number": 0 if self._arrived is None else self._arrived.report_number,
            "arrived_made": None if self._arrived is None else self._arrived.made_ms,
            "counts_only": False,
            "bucket_ms": self._counts.bucket_ms,
            "tallies": [_to_avro(tally) for tally in tallies],
        }
        try:
            value = self._serializer.serialize(self._topic, record)
            future = self._producer.send(
                self._topic, value, key=self.publisher.encode(), timestamp_ms=time_ms
            )
            future.result(max(0.0, deadline - time.monotonic()))
        except _UNSENT as error:
            problem = str(error) or type(error).__name__
            is_lasting = isinstance(error, SerializationError | RecordTooLargeError)
            raise (UnreportableError if is_lasting else ReportError)(
                f"report {self._report_number} to {self._topic} did not arrive: {problem}"
            ) from error
        self._arrived = Arrived(self._report_number, time_ms)
        topic_id = self._producer.topic_id(self._topic)
        with self._lock:
            self._counts.acknowledge(tallies)
            if topic_id not in (NO_UUID, self._topic_id):  # the topic may be made again
                self._journal.belongs_to(topic_id)
                self._topic_id = topic_id
            self._journal.report_arrived(self._arrived)
            self._journal.compact(self._counts)

    def _loop(self) -> None:
        failed, has_started = False, False
        while not self._stopping.is_set:
            try:
                self.report()
                if not has_started and self._at_start is not None:
                    self._at_start(self._topic_id)
                has_started = True
                if failed:
                    logger.info("%s: reports arrive again", self._origin.service)
                failed = False
            except ReportError as error:
                if not failed and not self._stopping.is_set:
                    logger.warning("%s: %s; the next report repeats it", self._origin.service, error)
                failed = True
            except Exception:
                # Such as one of the disk, over a dead publisher's journal: it ends no reports.
                logger.exception("%s: reports go on, after an error", self._origin.service)
                has_started = True
            self._stopping.wait(self._interval_s)


def split(tallies: Iterable[PartTally]) -> Iterator[list[PartTally]]:
    """Yields the tallies in pieces that fit a message; one empty piece if there are none (a heartbeat)."""
    piece: list[PartTally] = []
    ranges_count = 0
    for tally in tallies:
        full = (
            ranges_count + len(tally.ranges) > RANGES_PER_REPORT_MAX or len(piece) >= TALLIES_PER_REPORT_MAX
        )
        if piece and full:
            yield piece
            piece, ranges_count = [], 0
        piece.append(tally)
        ranges_count += len(tally.ranges)
    yield piece


def _to_avro(tally: PartTally) -> dict[str, Any]:
    return {
        "part": tally.part,
        "topic": tally.topic,
        "bucket_start": tally.bucket_start_ms,
        "handed_over_count": tally.handed_over_count,
        "final": tally.final,
        "ranges": [{**each._asdict(), "content": to_bytes(each.content)} for each in tally.ranges],
    }
