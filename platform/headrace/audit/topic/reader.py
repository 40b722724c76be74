"""Reading the audit topics: bytes to records, with the positions after them. Owns one consumer.

A value that is not an audit record, or that cannot be true, is set aside: it is counted, and the
address and problem of the last of them are kept. A registry that does not respond is retried, so that no
record is lost.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple
from uuid import UUID

from headrace.audit.batches.raw_reader import RawReader
from headrace.audit.topic.decoding import SCHEMA_FILES, AuditDecoder, NotAnAuditRecordError
from headrace.audit.topic.keeping import keep_records
from headrace.audit.topic.logs_read import (
    NO_LOGS,
    LastRead,
    Log,
    LogsRead,
    LogWatch,
    Mark,
    digest_of,
    named_id,
)
from headrace.audit.topic.possible import ImpossibleRecordError
from headrace.audit.topic.records import ProducerReport, ReceivedRecord
from headrace.audit.topic.set_aside import SetAside, added, note
from headrace.audit.topic.validity import check
from headrace.client import Admin, Consumer
from headrace.client.admin import LATEST
from headrace.client.errors import CorruptRecordsError, OffsetOutOfRangeError
from headrace.client.unpacking import ConsumerRecord
from headrace.events.schemas import read_schema
from headrace.process.clock import now_ms
from headrace.registry.client import SchemaRegistryClient
from headrace.registry.errors import RegistryError
from headrace.registry.serializers import record_name_subject
from headrace.wire.primitives import NO_UUID

logger = logging.getLogger(__name__)

RECORDS_PER_POLL_MAX: Final = 2_000
PRODUCERS_KEPT_MAX: Final = 200_000  # others are counted by their records' own timestamps, which costs more
PROBLEM_MAX_CHARS: Final = 500
LOG_PAUSE_S: Final = 10.0  # between warnings about records that were set aside


class Polled(NamedTuple):
    """What one poll returned; `positions` are the addresses after it, by (topic, partition)."""

    records: list[ReceivedRecord]
    positions: dict[tuple[str, int], int]
    set_aside: tuple[SetAside, ...] = ()
    logs: LogsRead = NO_LOGS


class ReportedProducers:
    """The producers that have reported: each of their batches is known to hold events of one bucket only."""

    def __init__(self) -> None:
        self._known: set[tuple[str, int]] = set()

    def add(self, producers: Iterable[tuple[str, int]]) -> None:
        """Adds (datacenter, producer id) pairs, up to `PRODUCERS_KEPT_MAX`."""
        for producer in producers:
            if len(self._known) >= PRODUCERS_KEPT_MAX:
                return
            self._known.add(producer)

    def learn(self, received: ReceivedRecord) -> None:
        """Adds the producers of a producer report; ignores other records."""
        if isinstance(received.record, ProducerReport):
            self.add((received.datacenter, producer_id) for producer_id in received.record.producer_ids())

    def trusts(self, datacenter: str, producer_id: int) -> bool:
        """Whether that producer has reported."""
        return (datacenter, producer_id) in self._known


class AuditReader:
    """Reads all partitions of `topics`, from `start_at` or else from their beginning. One thread uses it.

    `discover` finds topics and partitions that are created later. `source_of(topic, partition)`: the
    datacenter whose audit topic the partition is a copy of, None if it is no copy or that is not known.
    """

    def __init__(
        self,
        *,
        bootstrap: str,
        registry_url: str,
        topics: Iterable[str],
        start_at: Mapping[tuple[str, int], int] | None = None,
        client_id: str = "audit-reader",
        source_of: Callable[[str, int], str | None] = lambda _topic, _partition: None,
    ) -> None:
        self.set_aside: dict[tuple[str, int], SetAside] = {}
        """All records that were set aside, by (topic, partition)."""
        self._source_of = source_of
        self._warn_after_s = 0.0
        self._topics = tuple(topics)
        self._start_at = dict(start_at or {})
        self._watch = LogWatch()
        self._admin = Admin(bootstrap, client_id=client_id)
        self._registry = SchemaRegistryClient(registry_url)
        self._decoder = AuditDecoder(self._registry)
        self._consumer = Consumer(bootstrap, client_id=client_id, auto_offset_reset="error")
        self._raw = RawReader(bootstrap, client_id)
        self._undecoded: list[ConsumerRecord] = []
        self._restarted: set[Log] = set()
        self._unconfirmed: dict[Log, LastRead] = {}
        self._has_schemas = False

    def know(self, last: Mapping[Log, LastRead], marks: Iterable[Mark]) -> None:
        """Tells of which logs the positions in `start_at` are. Of another one all is read, from its start."""
        self._watch = LogWatch(last, marks)

    @property
    def unreadable_count(self) -> int:
        """How many records were set aside."""
        return sum(each.records for each in self.set_aside.values())

    def register_schemas(self) -> None:
        """Makes sure that the first registry has the current audit schemas.

        Ids follow from the content, so the records of a datacenter whose registry cannot be reached are
        readable, too. Raises `RegistryError`, `RegistryUnavailableError`.
        """
        ids = {}
        for file_name in SCHEMA_FILES:
            text = read_schema(file_name)
            ids[file_name] = self._registry.register(record_name_subject("", text), text)
        self._decoder.learn_own(ids)
        self._has_schemas = True

    def close(self) -> None:
        self._consumer.close()
        self._raw.close()
        self._registry.close()
        self._admin.close()

    def discover(self) -> list[tuple[str, int]]:
        """Starts to read new topics and partitions; returns all that are read.

        Raises `ClientError`; the first time also `RegistryUnavailableError`.
        """
        if not self._has_schemas:
            try:
                self.register_schemas()
            except RegistryError as error:
                logger.warning(
                    "the registry refuses an audit schema, so ids are looked up one by one: %s", error
                )
                self._has_schemas = True
        known = self._admin.topics()
        wanted = [
            (topic, partition)
            for topic in self._topics
            if topic in known
            for partition in known[topic].partitions
        ]
        fresh = [key for key in wanted if key not in self._consumer.assignment]
        if fresh:
            self._consumer.assign([*self._consumer.assignment, *fresh])
            for topic, partition in fresh:
                address = self._start_at.get((topic, partition))
                if address is None:
                    self._consumer.seek_to_beginning(topic, partition)
                else:
                    last = self._watch.last.get((topic, partition))
                    if last is not None and last.offset < address:
                        self._unconfirmed[topic, partition] = last
                        address = last.offset
                    self._consumer.seek(topic, partition, address, topic_id=self._known_id(topic, partition))
        return self._consumer.assignment

    def keep_records(self, keep_ms: int) -> bool:
        """Makes the brokers keep the topics for so long, at least; False while one of them does not exist.

        Raises `ClientError`.
        """
        topics = {topic for topic, _ in self._consumer.assignment}
        keep_records(self._admin, topics, keep_ms)
        return len(topics) == len(self._topics)

    def seek_to_timestamp(self, timestamp_ms: int) -> None:
        """Moves every partition to its first record with this timestamp or later."""
        for topic, partition in self._consumer.assignment:
            self._consumer.seek_to_timestamp(topic, partition, timestamp_ms)

    def ends(self) -> dict[tuple[str, int], int]:
        """Returns the current end of each partition that is read. Raises `ClientError`."""
        ends: dict[tuple[str, int], int] = {}
        for topic in {topic for topic, _ in self._consumer.assignment}:
            for partition, found in self._admin.list_offsets(topic, LATEST).items():
                ends[topic, partition] = found.offset
        return ends

    def poll(self, timeout_s: float) -> Polled:
        """Returns records that have arrived, in order within each partition.

        Raises `ClientError`, `RegistryError`, `RegistryUnavailableError`; the next call loses nothing.
        """
        if not self._undecoded:
            try:
                read = self._consumer.poll(timeout_s, max_records=RECORDS_PER_POLL_MAX)
                self._undecoded = list(self._confirmed(read))
            except OffsetOutOfRangeError as error:
                self._restart_at_beginning((error.topic, error.partition), str(error))
            except CorruptRecordsError as error:
                return self._skip_corrupt(error)
        # Kept until all are decoded: they must not be lost if the registry does not respond.
        decoded = []
        aside: dict[tuple[str, int], SetAside] = {}
        for record in self._undecoded:
            received, problem = self._decode(record)
            if received is None:
                note(aside, record.topic, record.partition, record.offset, problem)
            else:
                decoded.append(received)
        positions = {}
        for record in self._undecoded:
            key = (record.topic, record.partition)
            positions[key] = self._consumer.position(*key)
        logs = self._noted()
        self._undecoded = []
        return Polled(decoded, positions, self._warned(aside), logs)

    def _confirmed(self, records: Iterable[ConsumerRecord]) -> Iterator[ConsumerRecord]:
        """Yields the records without those that were read before this reader was made, by which it knows the
        log again. One that does not have its own is read from its start: it went back, and may have grown
        again. Records there have taken the place of others.
        """
        left_out: set[Log] = set()
        for record in records:
            log = (record.topic, record.partition)
            last = self._unconfirmed.pop(log, None)
            if last is None and log not in left_out:
                yield record
            elif last is not None and (record.offset, digest_of(record.value or b"")) != last[1:]:
                left_out.add(log)
                problem = f"{log[0]}-{log[1]} does not have the record at {last.offset} that was read last"
                self._restart_at_beginning(log, problem)

    def _noted(self) -> LogsRead:
        """Returns which logs the records are of that were read now."""
        read: dict[Log, list[tuple[int, bytes]]] = {}
        for record in self._undecoded:
            read.setdefault((record.topic, record.partition), []).append((record.offset, record.value or b""))
        again: list[Mark] = []
        for log, records in read.items():
            again += self._watch.note(log, named_id(self._consumer.topic_id(*log)), records)
        restarted = tuple(sorted(self._restarted & read.keys()))
        self._restarted.difference_update(restarted)
        return LogsRead({log: self._watch.last[log] for log in read}, tuple(again), restarted)

    def _known_id(self, topic: str, partition: int) -> UUID:
        last = self._watch.last.get((topic, partition))
        return UUID(last.topic_id) if last is not None and last.topic_id else NO_UUID

    def _warned(self, aside: dict[tuple[str, int], SetAside]) -> tuple[SetAside, ...]:
        """Adds to all that was set aside so far; warns, but not about each record."""
        for each in aside.values():
            self.set_aside[each[:2]] = added(self.set_aside.get(each[:2]), each)
            if time.monotonic() >= self._warn_after_s:
                self._warn_after_s = time.monotonic() + LOG_PAUSE_S
                logger.warning(
                    "set aside %d records of %s-%d, the last one at offset %d, which is not an audit "
                    "record: %s",
                    *(each.records, each.topic, each.partition, each.last_offset, each.problem),
                )
        return tuple(aside.values())

    def _skip_corrupt(self, error: CorruptRecordsError) -> Polled:
        """Continues behind a batch that cannot be read."""
        key = (error.topic, error.partition)
        at = self._consumer.position(*key)
        following = self._raw.next_batch_after(*key, at)
        if following is None:
            raise error  # a `ClientError`: the caller waits and tries again
        aside: dict[tuple[str, int], SetAside] = {}
        note(aside, *key, at, f"the batch is corrupt: {error}")
        self._consumer.seek(*key, following)
        return Polled([], {key: following}, self._warned(aside))

    def _restart_at_beginning(self, log: Log, problem: str) -> None:
        logger.warning("%s; continuing where the log begins now", problem)
        self._consumer.seek_to_beginning(*log)
        self._unconfirmed.pop(log, None)
        self._restarted.add(log)

    def _decode(self, record: ConsumerRecord) -> tuple[ReceivedRecord | None, str]:
        """Returns the record, or None and the problem for one that is not to be believed."""
        try:
            received = self._decoder.decode(record.value or b"")
            check(received, now_ms(), self._source_of(record.topic, record.partition))
        except (NotAnAuditRecordError, ImpossibleRecordError) as error:
            return None, str(error)[:PROBLEM_MAX_CHARS]
        return received._replace(log=(record.topic, record.partition)), ""
