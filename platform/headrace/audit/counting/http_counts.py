"""Counts that publishers of any language report by HTTP: `POST /counts` of a datacenter's auditor.

Owns the JSON form (docs/reporting.md), its bounds, and how a report becomes the record that an
`EventPublisher` writes to `_audit`. A report that is accepted is one that the audit believes.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, Protocol

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from headrace.audit.batches.tally import BUCKET_DEFAULT_MS
from headrace.audit.counting.counts_arrived import NONE, CountsArrived, Named
from headrace.audit.times import LAST_NAMED_MS
from headrace.audit.topic.avro_times import to_datetime
from headrace.audit.topic.possible import COUNT_MAX, ImpossibleRecordError
from headrace.audit.topic.publish import FLUSH_TIMEOUT_S, AuditPublishError, UnpublishableRecordError
from headrace.audit.topic.records import AuditRecord, HandoverTally, ProducerReport, ReceivedRecord
from headrace.audit.topic.validity import check
from headrace.events.header import NAME_MAX_CHARS
from headrace.events.schemas import AUDIT_PRODUCER_SCHEMA
from headrace.process.clock import now_ms
from headrace.process.status import Answer
from headrace.registry.strict_json import JsonError, loads, shown
from headrace.wire.topic_names import is_topic_name

logger = logging.getLogger(__name__)

PATH: Final = "/counts"
TALLIES_MAX: Final = 2_000
TIME_MIN_MS: Final = 100_000_000_000
"""In 1973: an earlier time is most likely in seconds."""
PUBLISH_WAIT_MAX_S: Final = 10.0
_PART_BYTES: Final = 5  # the part's number stays below `COUNT_MAX`, 2**40


def _checked_name(name: str) -> str:
    if not name.isprintable():
        raise ValueError(f"{shown(name)} has characters that cannot be printed")
    return name


def _checked_topic(name: str) -> str:
    if not is_topic_name(name):
        raise ValueError(f"no topic can have the name {shown(name)}")
    return name


def _checked_uuid(text: str) -> str:
    try:
        return str(uuid.UUID(text))
    except ValueError:
        raise ValueError(f"{shown(text)} is not a UUID; make one when the process starts") from None


def _checked_time(time_ms: int) -> int:
    if not TIME_MIN_MS <= time_ms <= LAST_NAMED_MS:
        raise ValueError(f"{shown(time_ms)} is not a time in milliseconds since 1970")
    return time_ms


def _checked_bucket(start_ms: int) -> int:
    if _checked_time(start_ms) % BUCKET_DEFAULT_MS:
        raise ValueError(f"{start_ms} is not a multiple of {BUCKET_DEFAULT_MS} ms")
    return start_ms


_Name = Annotated[str, Field(min_length=1, max_length=NAME_MAX_CHARS), AfterValidator(_checked_name)]
_TimeMs = Annotated[int, AfterValidator(_checked_time)]


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class CountedBucket(_Part):
    """What a publisher has handed over so far of one topic and ten minutes of event time."""

    topic: Annotated[str, AfterValidator(_checked_topic)]
    bucket_start_ms: Annotated[int, AfterValidator(_checked_bucket)]
    handed_over_count: Annotated[int, Field(ge=0, le=COUNT_MAX)]
    final: bool = False


class CountsReport(_Part):
    """One report. docs/reporting.md has the meaning of each field."""

    publisher: Annotated[str, AfterValidator(_checked_uuid)]
    service: _Name
    server: _Name
    started_ms: _TimeMs
    report_number: Annotated[int, Field(ge=1, le=COUNT_MAX)]
    reported_until_ms: _TimeMs
    arrived_number: Annotated[int, Field(ge=0, le=COUNT_MAX)] = 0
    closed: bool = False
    tallies: Annotated[list[CountedBucket], Field(max_length=TALLIES_MAX)]


class InvalidCountsError(ValueError):
    """A report cannot be meant. The message, one line, names the field and its value."""


@dataclass(frozen=True, slots=True)
class CountsRecord:
    """A report as the record of `_audit`: an `AuditRecord`."""

    schema_file: ClassVar[str] = AUDIT_PRODUCER_SCHEMA

    report: CountsReport
    arrived: Named = NONE

    def key(self) -> str:
        return self.report.publisher

    def to_avro(self) -> dict[str, Any]:
        report = self.report
        return {
            "publisher": report.publisher,
            "started": to_datetime(report.started_ms),
            "report_number": report.report_number,
            "arrived_number": self.arrived.report_number,
            "arrived_made": None if self.arrived.made_ms is None else to_datetime(self.arrived.made_ms),
            "reported_until": to_datetime(report.reported_until_ms),
            "state": "CLOSED" if report.closed else "OPEN",
            "counts_only": True,
            "bucket_ms": BUCKET_DEFAULT_MS,
            "tallies": [
                {
                    "part": part_of(tally),
                    "topic": tally.topic,
                    "bucket_start": to_datetime(tally.bucket_start_ms),
                    "handed_over_count": tally.handed_over_count,
                    "final": tally.final,
                    "ranges": [],
                }
                for tally in report.tallies
            ],
        }


def part_of(tally: CountedBucket) -> int:
    """Returns the number of the tally in its publisher: the same topic and bucket always have the same."""
    name = f"{tally.topic}/{tally.bucket_start_ms}".encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=_PART_BYTES).digest())


def parse(body: bytes) -> CountsReport:
    """Returns the report in a request's body. Raises `InvalidCountsError`."""
    try:
        report = CountsReport.model_validate(loads(body))
    except JsonError as error:
        raise InvalidCountsError(f"the body is not JSON: {error}") from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        raise InvalidCountsError(_one_line(first)) from None
    number, arrived = report.report_number, report.arrived_number
    if arrived >= number:
        raise InvalidCountsError(
            f"arrived_number: {arrived} is not below report_number, which is {number}; name the last report "
            "before this one that was answered with 200, or 0"
        )
    parts: dict[int, CountedBucket] = {}
    for tally in report.tallies:
        if (other := parts.setdefault(part_of(tally), tally)) is not tally:
            of = "is in the report twice" if other.topic == tally.topic else f"collides with {other.topic}"
            raise InvalidCountsError(f"tallies: {tally.topic} at {tally.bucket_start_ms} {of}")
    return report


def _one_line(error: Mapping[str, Any]) -> str:
    """Returns where the problem is, the problem, and the value that has it unless the message names it."""
    # A field that nobody knows may have any name.
    names = (each if isinstance(each, int) or each.isidentifier() else shown(each) for each in error["loc"])
    where = ".".join(map(str, names))
    problem = f"{where or 'the body'}: {error['msg']}"
    if error["type"] in ("missing", "value_error") or isinstance(error["input"], dict | list):
        return problem
    return f"{problem} (its value is {shown(error['input'])})"


class Publishes(Protocol):
    """What is used of `audit.topic.publish.AuditPublisher`, which one thread uses at a time."""

    def publish(
        self, record: AuditRecord, *, service: str | None = None, server: str | None = None
    ) -> None: ...

    def flush(self, timeout_s: float = FLUSH_TIMEOUT_S) -> None: ...

    def close(self) -> None: ...


class CountsDesk:
    """Takes reports and writes them to `_audit`; several threads may call `take`."""

    def __init__(self, datacenter: str, publisher: Publishes, clock_ms: Callable[[], int] = now_ms) -> None:
        self._datacenter = datacenter
        self._publisher = publisher
        self._clock_ms = clock_ms
        self._lock = threading.Lock()
        self._taken_count = 0
        self._arrived = CountsArrived()

    @property
    def taken_count(self) -> int:
        """How many reports were written since the start."""
        return self._taken_count

    def close(self) -> None:
        self._publisher.close()

    def take(self, body: bytes) -> Answer:
        """Answers 200 once the report is on the disks of all in-sync replicas, 422 if it cannot be meant, 503
        if it cannot be written now.
        """
        try:
            report = parse(body)
            self._check(report)
            self._write(report)
        except InvalidCountsError as error:
            return Answer(422, {"error": str(error)})
        except UnpublishableRecordError as error:
            return Answer(422, {"error": f"no message holds this report: {error}"})
        except AuditPublishError as error:
            logger.warning("a report of counts was not written: %s", error)
            return Answer(503, {"error": f"{error}; send the report again later"})
        return Answer(200, {"publisher": report.publisher, "report_number": report.report_number})

    def _check(self, report: CountsReport) -> None:
        """Raises `InvalidCountsError` for a report that the audit would not believe."""
        tallies = tuple(
            HandoverTally(
                part_of(each), each.topic, each.bucket_start_ms, each.handed_over_count, each.final, ()
            )
            for each in report.tallies
        )
        record = ProducerReport(
            report.publisher, report.started_ms, report.report_number, report.closed, tallies, True
        )
        time_ms = self._clock_ms()
        received = ReceivedRecord(record, self._datacenter, report.service, report.server, time_ms)
        try:
            check(received, time_ms)
        except ImpossibleRecordError as error:
            raise InvalidCountsError(str(error)) from None

    def _write(self, report: CountsReport) -> None:
        if not self._lock.acquire(timeout=PUBLISH_WAIT_MAX_S):
            raise AuditPublishError(f"other reports have been in flight for {PUBLISH_WAIT_MAX_S:g} s")
        try:
            name, number = report.publisher, report.report_number
            named = self._arrived.before(name, number, report.arrived_number)
            self._publisher.publish(CountsRecord(report, named), service=report.service, server=report.server)
            arrived = Named(number, self._clock_ms())
            self._publisher.flush(PUBLISH_WAIT_MAX_S)
            self._arrived.note(name, arrived, named)
            self._taken_count += 1
        finally:
            self._lock.release()
