"""`EventPublisher`, which a service calls: adds the header, serializes, counts, sends.

Owns the two producers (events and reports) and the order in which they are closed.
"""

import socket
import struct
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from headrace.client import DeliveryFuture, Producer
from headrace.client.accumulator import TAKEN_NOTE, remove_note
from headrace.client.errors import ClientError, ClosedError
from headrace.client.lifecycle import Client
from headrace.events.handovers import BUCKET_DEFAULT_MS, Handover, HandoverCounts
from headrace.events.header import Origin
from headrace.events.journal import Journal
from headrace.events.journal_replay import DeadJournal
from headrace.events.reporter import CountingObserver, Reporter, ReportError, Standing
from headrace.events.schemas import AUDIT_PRODUCER_SCHEMA, read_schema
from headrace.events.spool import SPOOL_MAX_BYTES, SPOOLS_MAX_BYTES, Spool, open_spool
from headrace.events.succession import default_state_dir, open_journal, succeed
from headrace.process.clock import now_ms
from headrace.process.disk import kernel
from headrace.process.timestamps import time_problem
from headrace.registry.client import SchemaRegistryClient
from headrace.registry.serializers import AvroSerializer, record_name_subject
from headrace.registry.value_validation import SerializationError
from headrace.wire.topic_names import TOPIC_NAME_RULE, is_topic_name

AUDIT_TOPIC: Final = "_audit"
PUBLISHED_HEADER: Final = "published-ms"
REPORT_INTERVAL_DEFAULT_S: Final = 10.0
DELIVERY_TIMEOUT_DEFAULT_MS: Final = 120_000
MAX_BLOCK_DEFAULT_MS: Final = 60_000
LINGER_DEFAULT_MS: Final = 50.0
"""Events are many and small, and no caller waits for one: larger batches save work in every later tier."""
IDLE_FINAL_FACTOR: Final = 4
"""A tally becomes final after so many times the longest way of an event without a change."""

_MILLISECONDS: Final = struct.Struct(">q")
_RESERVED_OPTIONS: Final = ("batch_boundary_ms", "observer", "idempotent", "acks")


class InvalidEventError(ValueError):
    """Caused by the caller: an event does not fit its topic's schema. Nothing was counted or sent.

    The message names topic, field and value.
    """


class PublisherClosedError(RuntimeError):
    """Caused by the caller: the publisher was closed."""


PUBLISHED_NOTE: Final = "headrace: the event is published all the same"


class EventPublisher(Client):
    """Publishes a service's events and counts them for the audit. A context manager; thread-safe. After
    `os.fork` the child must create its own.

    `publish` returns a future at once. Every event gets the `header` record and is counted when it is handed
    over. The counts, and the sequence numbers of the events, are reported to this datacenter's `_audit` every
    `report_interval_s`, on `flush` and on `close`. They are in a journal in `state_dir`, too (default:
    `events.succession.default_state_dir`): if the process is killed, the next publisher of this service and
    server reports what died with it. `journal=False` keeps none; the audit then shows such events as unknown.
    The last `spool_bytes` of events are kept beside it, so that `headrace audit repair` can bring those that
    were lost on their way; 0 keeps none.

    The schema of topic `t` is the file `t.avsc` in `schemas_dir` (default: headrace's own schemas), or
    `schemas["t"]`. `producer_options` go to `client.Producer` (compression, linger_ms, …).
    """

    def __init__(
        self,
        *,
        datacenter: str,
        service: str,
        bootstrap: str,
        registry_url: str | Sequence[str],
        server: str | None = None,
        schemas_dir: str | Path | None = None,
        schemas: Mapping[str, str] | None = None,
        bucket_ms: int = BUCKET_DEFAULT_MS,
        report_interval_s: float = REPORT_INTERVAL_DEFAULT_S,
        audit_topic: str = AUDIT_TOPIC,
        producer_options: Mapping[str, Any] | None = None,
        allow_before_1990: bool = False,
        state_dir: str | Path | None = None,
        journal: bool = True,
        spool_bytes: int = SPOOL_MAX_BYTES,
        wall_ms: Callable[[], int] = now_ms,
    ) -> None:
        """Raises `ValueError` for invalid options. Connects in the background.

        `allow_before_1990`: also publish events that are older. Without it such a time is refused: it is most
        likely a number of seconds.
        """
        options = _with_defaults(producer_options or {})
        if spool_bytes > SPOOLS_MAX_BYTES:
            raise ValueError(
                f"spool_bytes is {spool_bytes}; at most {SPOOLS_MAX_BYTES} are kept of an ended publisher"
            )
        self._origin = Origin(datacenter, server or socket.gethostname(), service)
        self._schemas_dir = None if schemas_dir is None else Path(schemas_dir)
        self._schemas = dict(schemas or {})
        self._wall_ms = wall_ms
        self._allow_before_1990 = allow_before_1990
        self._serializers: dict[str, AvroSerializer] = {}
        self._lock = threading.Lock()
        self._closed = self._ended = False
        self._closing: object | None = None  # the call of `close` that is under way
        self._registry = SchemaRegistryClient(registry_url)
        standing = Standing(str(uuid.uuid4()), wall_ms(), 0, HandoverCounts(bucket_ms))
        described = self._description(standing.publisher, bootstrap, audit_topic, bucket_ms)
        # First, because it refuses addresses that are none: no journal is left of such a publisher.
        reports = Producer(bootstrap, client_id=f"{service}-reports", compression="zstd", linger_ms=0)
        self._journal = kept = _journal(state_dir, described, standing.started_ms) if journal else None
        self._spool = _spool(kept, described, spool_bytes)
        # An event is counted before the client has room for it, and taken back if it gets none.
        longest_ms = options["delivery_timeout_ms"] + options["max_block_ms"]
        try:
            self._reporter = self._begin_reports(
                reports, standing, kept, described, report_interval_s, longest_ms
            )
            self._producer = self._open_producer(bootstrap, bucket_ms, options)
        except BaseException:
            self._give_up(reports, kept)
            raise
        self._reports = reports
        super().__init__("publisher")
        self._reporter.start()

    @property
    def publisher_id(self) -> str:
        """The UUID that identifies this publisher in the audit."""
        return self._reporter.publisher

    def publish(
        self,
        topic: str,
        record: Mapping[str, Any],
        *,
        key: str | bytes | None = None,
        time_ms: int | None = None,
        partition: int | None = None,
    ) -> DeliveryFuture:
        """Publishes one event with a `header` made here. `time_ms` is the event's time (default: now), in
        milliseconds since 1970; seconds and microseconds are refused.

        Raises `InvalidEventError`, `MissingSchemaError`, `PublisherClosedError`, `ForkedError`, and the
        errors of the registry's client and of `Producer.send`; the event was then neither counted nor sent.
        The outcome of an accepted event is in the future, and in the audit.
        """
        if self._closed:
            self._check_usable()
        published_ms = self._wall_ms()
        event_ms = published_ms if time_ms is None else self._checked_time(topic, time_ms)
        if not isinstance(record, Mapping):
            raise InvalidEventError(f"{topic}: an event must be a mapping of fields, not {record!r:.80}")
        if "header" in record:
            raise InvalidEventError(
                f"{topic}: field header is {record['header']!r}, but the publisher sets the header"
            )
        serializer = self._serializers.get(topic) or self._serializer(topic)
        try:
            value = serializer.serialize(topic, {"header": self._origin.header(event_ms), **record})
        except SerializationError as error:
            raise InvalidEventError(f"{topic}: {error}") from None
        encoded_key = key.encode() if isinstance(key, str) else key
        kept = None
        handover = Handover()
        try:
            self._reporter.hand_over(topic, event_ms, handover)
            if self._spool is not None:
                kept = self._spool.hand_over(topic, event_ms, encoded_key, value)
            return self._producer.send(
                topic,
                value,
                key=encoded_key,
                partition=partition,
                timestamp_ms=event_ms,
                headers=((PUBLISHED_HEADER, _MILLISECONDS.pack(published_ms)),),
            )
        except BaseException as error:
            self._take_back(topic, event_ms, handover, kept, error)
            raise

    def _take_back(
        self,
        topic: str,
        event_ms: int,
        handover: Handover,
        kept: tuple[int, int] | None,
        error: BaseException,
    ) -> None:
        """Counts an event no more, unless it is sent all the same: `error` may be a signal's handler's."""
        remove_note(error, PUBLISHED_NOTE)
        if remove_note(error, TAKEN_NOTE):
            error.add_note(PUBLISHED_NOTE)
        else:
            if handover.is_counted:
                self._reporter.take_back(topic, event_ms)
            if self._spool is not None:
                self._spool.take_back(kept)
        if not isinstance(error, ClientError):
            self._reporter.settle()

    def flush(self, timeout_s: float = 60.0) -> None:
        """Waits until every event is delivered or has failed, and a report of them has arrived.

        Raises `FlushTimeoutError`, `ReportError`, `ForkedError`.
        """
        if self._forked:
            self._check_usable()
        deadline = time.monotonic() + timeout_s
        self._producer.flush(timeout_s)
        self._reporter.report(timeout_s=max(0.1, deadline - time.monotonic()))

    def close(self, timeout_s: float | None = None) -> None:
        """Delivers all events in `timeout_s` (None: the delivery timeout), then sends the last report.

        Raises `ReportError` if that report did not arrive: the audit shows this publisher's events as unknown
        until the next one of its service starts. May be called again, also after a signal: then it goes on.
        """
        if self._forked:
            return
        mine = object()
        try:
            with self._lock:
                if self._closing is not None or self._ended:
                    return  # also in a handler of a signal that came while it closes
                self._closing = mine
                self._closed = True
            self._close(timeout_s)
        finally:
            if self._closing is mine:
                self._closing = None

    def _close(self, timeout_s: float | None) -> None:
        try:
            self._producer.close(timeout_s)
            self._reporter.close()
        except ReportError:
            self._end()
            raise
        self._end()

    def _end(self) -> None:
        if self._spool is not None:
            self._spool.close()
        self._reports.close(1.0)
        self._registry.close()
        self._ended = True

    @property
    def _is_closed(self) -> bool:
        return self._closed

    def _check_usable(self) -> None:
        """Raises `ForkedError` or `PublisherClosedError`."""
        try:
            super()._check_usable()
        except ClosedError:
            raise PublisherClosedError(f"the publisher of {self._origin.service} is closed") from None

    def after_fork_in_child(self) -> None:
        """Leaves journal and spool to the parent, which writes them: the child has the same mapped files."""
        super().after_fork_in_child()
        self._closed = True
        for kept in (self._journal, self._spool):
            if kept is not None:
                kept.leave_to_parent()

    def _begin_reports(
        self,
        reports: Producer,
        standing: Standing,
        journal: Journal | None,
        description: Mapping[str, str | int],
        interval_s: float,
        longest_ms: float,
    ) -> Reporter:
        schema = read_schema(AUDIT_PRODUCER_SCHEMA, self._schemas_dir)
        return Reporter(
            reports,
            AvroSerializer(self._registry, schema, strategy=record_name_subject),
            self._origin,
            topic=str(description["audit_topic"]),
            bucket_ms=int(description["bucket_ms"]),
            interval_s=interval_s,
            idle_final_s=IDLE_FINAL_FACTOR * longest_ms / 1000,
            wall_ms=self._wall_ms,
            standing=standing,
            journal=journal,
            at_start=partial(succeed, journal, description, self._report_dead) if journal else None,
        )

    def _open_producer(self, bootstrap: str, bucket_ms: int, options: Mapping[str, Any]) -> Producer:
        return Producer(
            bootstrap,
            client_id=self._origin.service,
            acks="all",
            idempotent=True,
            batch_boundary_ms=bucket_ms,
            observer=CountingObserver(self._reporter, self._spool),
            **options,
        )

    def _give_up(self, reports: Producer, journal: Journal | None) -> None:
        """Ends what was begun before an option was found to be invalid."""
        reports.close(0)
        self._registry.close()
        if journal is not None:
            journal.delete()
        if self._spool is not None:
            self._spool.delete()

    def _description(
        self, publisher: str, bootstrap: str, audit_topic: str, bucket_ms: int
    ) -> dict[str, str | int]:
        """Returns what a journal says of its publisher."""
        origin = self._origin
        return {
            "publisher": publisher,
            "datacenter": origin.datacenter,
            "service": origin.service,
            "server": origin.server,
            "bootstrap": bootstrap,
            "audit_topic": audit_topic,
            "bucket_ms": bucket_ms,
            "kernel": kernel(),
        }

    def _report_dead(self, dead: DeadJournal) -> None:
        """Sends the last report of a publisher that died. Raises `ReportError`."""
        self._reporter.report_dead(Standing.of_dead(dead))

    def _checked_time(self, topic: str, time_ms: int) -> int:
        if not isinstance(time_ms, int):
            raise InvalidEventError(f"{topic}: time_ms is {time_ms!r}, expected milliseconds since 1970")
        problem = time_problem(time_ms, allow_before_1990=self._allow_before_1990)
        if problem:
            way_out = (
                "; EventPublisher(allow_before_1990=True) allows it"
                if problem.endswith("before 1990")
                else ""
            )
            raise InvalidEventError(f"{topic}: time_ms: {problem}{way_out}")
        return time_ms

    def _serializer(self, topic: str) -> AvroSerializer:
        if not isinstance(topic, str) or not is_topic_name(topic):
            # Brokers refuse it, and the audit a whole report that names it.
            raise InvalidEventError(f"{topic!r:.80} is not a topic name: use {TOPIC_NAME_RULE}")
        with self._lock:
            text = self._schemas.get(topic) or read_schema(f"{topic}.avsc", self._schemas_dir)
            self._serializers[topic] = AvroSerializer(self._registry, text)
            return self._serializers[topic]


def _journal(
    state_dir: str | Path | None, description: Mapping[str, str | int], started_ms: int
) -> Journal | None:
    folder = (default_state_dir() if state_dir is None else Path(state_dir)) / "publishers"
    return open_journal(folder, str(description["publisher"]), description, started_ms)


def _spool(journal: Journal | None, description: Mapping[str, str | int], size_bytes: int) -> Spool | None:
    if journal is None or size_bytes <= 0:
        return None
    return open_spool(journal.path.parent, str(description["publisher"]), description, size_bytes)


def _with_defaults(producer_options: Mapping[str, Any]) -> dict[str, Any]:
    for name in _RESERVED_OPTIONS:
        if name in producer_options:
            raise ValueError(f"producer_options: {name} is set by the publisher itself")
    return {
        "compression": "zstd",
        "delivery_timeout_ms": DELIVERY_TIMEOUT_DEFAULT_MS,
        "linger_ms": LINGER_DEFAULT_MS,
        "max_block_ms": MAX_BLOCK_DEFAULT_MS,
        **producer_options,
    }


def published_ms(headers: Sequence[tuple[str, bytes | None]]) -> int | None:
    """Returns when an event was published, by its publisher's clock; None if its headers lack the time."""
    for name, value in headers:
        if name == PUBLISHED_HEADER and value is not None and len(value) == _MILLISECONDS.size:
            return int(_MILLISECONDS.unpack(value)[0])
    return None
