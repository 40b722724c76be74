"""Publishes a publisher's books to `_audit`: at the start, every so often, on demand, at the end.

Owns the report numbers and one thread. A report that fails is not lost: what it told stays changed in the
books, and the next one tells it again. `reported_until` never runs ahead of what has arrived.
"""

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from headrace.client import BatchIdentity, BatchObserver, Producer
from headrace.events.handovers import HandoverBook, Tally
from headrace.process.clock import now_ms
from headrace.registry.serializers import AvroSerializer

logger = logging.getLogger(__name__)

RANGES_PER_REPORT_MAX: Final = 10_000
"""About 300 kB of Avro: well within one Kafka message."""
TALLIES_PER_REPORT_MAX: Final = 2_000
DELIVERY_WAIT_MAX_S: Final = 30.0
JOIN_WAIT_MAX_S: Final = 5.0


class ReportError(Exception):
    """A report did not arrive. The audit will know less than the publisher, and say so ("unknown")."""

    retriable = True


@dataclass(frozen=True, slots=True)
class Origin:
    """Who publishes: the constant part of every event's header."""

    datacenter: str
    server: str
    service: str

    def header(self, time_ms: int) -> dict[str, Any]:
        return {
            "time": time_ms,
            "datacenter": self.datacenter,
            "server": self.server,
            "service": self.service,
            "guid": str(uuid.uuid4()),
        }


class CountingObserver(BatchObserver):
    """Writes what the producer says of its batches into the books. Runs in the producer's sender thread."""

    def __init__(self, reporter: "Reporter") -> None:
        self._reporter = reporter

    def batch_closed(self, identity: BatchIdentity) -> None:
        self._reporter.batch_closed(identity)

    def batch_renumbered(self, old: BatchIdentity, new: BatchIdentity) -> None:
        self._reporter.batch_renumbered(old, new)


class Reporter:
    """The books with their lock, and what tells the audit of them. `producer` is for reports alone.

    `idle_final_s`: a tally that did not change for so long is final; longer than any delivery may take.
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
    ) -> None:
        self.publisher = str(uuid.uuid4())
        self._producer = producer
        self._serializer = serializer
        self._origin = origin
        self._topic = topic
        self._interval_s = interval_s
        self._idle_final_s = idle_final_s
        self._clock = clock
        self._wall_ms = wall_ms
        self._started_ms = wall_ms()
        self._book = HandoverBook(bucket_ms)
        self._lock = threading.Lock()
        self._reporting = threading.Lock()
        self._report_number = 0
        self._reported_until_ms = self._started_ms
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._loop, name=f"{origin.service}-reports", daemon=True)

    def start(self) -> None:
        self._thread.start()

    # counting

    def hand_over(self, topic: str, time_ms: int) -> None:
        with self._lock:
            self._book.hand_over(topic, time_ms, self._clock())

    def take_back(self, topic: str, time_ms: int) -> None:
        with self._lock:
            self._book.take_back(topic, time_ms, self._clock())

    def batch_closed(self, identity: BatchIdentity) -> None:
        with self._lock:
            self._book.batch_closed(identity, self._clock())

    def batch_renumbered(self, old: BatchIdentity, new: BatchIdentity) -> None:
        with self._lock:
            self._book.batch_renumbered(old, new, self._clock())

    # telling

    def report(self, *, closing: bool = False, timeout_s: float = DELIVERY_WAIT_MAX_S) -> None:
        """Tells everything that changed, and that all before now is told; returns when it has arrived.

        Raises `ReportError`; then the next report tells it. With `closing`, the publisher is closed: the last
        word.
        """
        deadline = time.monotonic() + timeout_s
        if not self._reporting.acquire(timeout=timeout_s):
            raise ReportError(f"another report has been on its way for {timeout_s:g} s")
        try:
            # A clock that was set back must not take anything back.
            until_ms = max(self._wall_ms(), self._reported_until_ms)
            with self._lock:
                self._book.finish_idle(self._clock() - self._idle_final_s)
                tallies = self._book.changed(closing=closing)
            *first, last = split(tallies)
            # "All is told" may only be said once the rest has arrived.
            for piece in first:
                self._send(piece, self._reported_until_ms, False, deadline)
            self._send(last, until_ms, closing, deadline)
            self._reported_until_ms = until_ms
        finally:
            self._reporting.release()

    def close(self, timeout_s: float = DELIVERY_WAIT_MAX_S) -> None:
        """Ends the thread and says the last word. Raises `ReportError` if that did not arrive."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(JOIN_WAIT_MAX_S)
        self.report(closing=True, timeout_s=timeout_s)

    def _send(self, tallies: list[Tally], until_ms: int, closed: bool, deadline: float) -> None:
        self._report_number += 1
        now_ms = self._wall_ms()
        record = {
            "header": self._origin.header(now_ms),
            "publisher": self.publisher,
            "started": self._started_ms,
            "report_number": self._report_number,
            "reported_until": until_ms,
            "state": "CLOSED" if closed else "OPEN",
            "bucket_ms": self._book.bucket_ms,
            "tallies": [_told(tally) for tally in tallies],
        }
        try:
            value = self._serializer.serialize(self._topic, record)
            sent = self._producer.send(self._topic, value, key=self.publisher.encode(), timestamp_ms=now_ms)
            sent.result(max(0.0, deadline - time.monotonic()))
        except Exception as error:
            # Registry, client and time-outs each have their errors; to the caller they are one: it has not
            # arrived.
            reason = str(error) or type(error).__name__
            raise ReportError(
                f"report {self._report_number} to {self._topic} did not arrive: {reason}"
            ) from error
        with self._lock:
            self._book.acknowledge(tallies)

    def _loop(self) -> None:
        failed = False
        while not self._stopping.is_set():
            try:
                self.report()
                if failed:
                    logger.info("%s: reports arrive again", self._origin.service)
                failed = False
            except ReportError as error:
                if not failed and not self._stopping.is_set():
                    logger.warning("%s: %s; it will be told again", self._origin.service, error)
                failed = True
            self._stopping.wait(self._interval_s)


def split(tallies: Iterable[Tally]) -> Iterator[list[Tally]]:
    """Tallies in pieces that fit a message each; one empty piece if there are none (a heartbeat)."""
    piece: list[Tally] = []
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


def _told(tally: Tally) -> dict[str, Any]:
    return {
        "part": tally.part,
        "topic": tally.topic,
        "bucket_start": tally.bucket_start_ms,
        "handed_over_count": tally.handed_over_count,
        "final": tally.final,
        "ranges": [each._asdict() for each in tally.ranges],
    }
