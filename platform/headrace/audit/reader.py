"""Reading the audit topics: bytes to records, with the positions after them. Owns one consumer.

A value that is not an audit record is counted, logged and skipped. A registry that does not respond is
retried, so that no record is lost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from headrace.audit.records import (
    AnyAuditRecord,
    GapRecord,
    HeartbeatRecord,
    LoadReport,
    ProducerReport,
    RangeTally,
    ReceivedRecord,
    to_ms,
)
from headrace.client import Admin, Consumer
from headrace.client.admin import EARLIEST, LATEST
from headrace.client.errors import OffsetOutOfRangeError
from headrace.events.schemas import AUDIT_PRODUCER_SCHEMA, read_schema
from headrace.registry.client import SchemaRegistryClient
from headrace.registry.errors import RegistryError
from headrace.registry.serializers import (
    AvroDeserializer,
    DeserializationError,
    FramingError,
    record_name_subject,
)

logger = logging.getLogger(__name__)

RECORDS_PER_POLL_MAX: Final = 2_000

SCHEMA_FILES: Final = (
    *(kind.schema_file for kind in (RangeTally, HeartbeatRecord, GapRecord, LoadReport)),
    AUDIT_PRODUCER_SCHEMA,
)

_READERS: Final[dict[str, Callable[[Mapping[str, Any]], AnyAuditRecord]]] = {
    "headrace.audit.RangeTally": RangeTally.from_avro,
    "headrace.audit.Positions": HeartbeatRecord.from_avro,
    "headrace.audit.Gap": GapRecord.from_avro,
    "headrace.audit.Load": LoadReport.from_avro,
    "headrace.audit.ProducerReport": ProducerReport.from_avro,
}


class Polled(NamedTuple):
    """What one poll returned; `positions` are the addresses after it, by (topic, partition)."""

    records: list[ReceivedRecord]
    positions: dict[tuple[str, int], int]


class ReportedProducers:
    """The producers that have reported: each of their batches is known to hold events of one bucket only."""

    def __init__(self) -> None:
        self._known: set[tuple[str, int]] = set()

    def add(self, producers: Iterable[tuple[str, int]]) -> None:
        """Adds (datacenter, producer id) pairs."""
        self._known.update(producers)

    def learn(self, received: ReceivedRecord) -> None:
        """Adds the producers of a producer report; ignores other records."""
        if isinstance(received.record, ProducerReport):
            self.add((received.datacenter, producer_id) for producer_id in received.record.producer_ids())

    def trusts(self, datacenter: str, producer_id: int) -> bool:
        """Whether that producer has reported."""
        return (datacenter, producer_id) in self._known


class AuditReader:
    """Reads all partitions of `topics`, from `start_at` or else from their beginning. One thread uses it.

    `discover` finds topics and partitions that are created later.
    """

    def __init__(
        self,
        *,
        bootstrap: str,
        registry_url: str,
        topics: Iterable[str],
        start_at: Mapping[tuple[str, int], int] | None = None,
        client_id: str = "audit-reader",
    ) -> None:
        self.unreadable_count = 0
        self._topics = tuple(topics)
        self._start_at = dict(start_at or {})
        self._admin = Admin(bootstrap, client_id=client_id)
        self._registry = SchemaRegistryClient(registry_url)
        self._deserializer = AvroDeserializer(self._registry)
        self._consumer = Consumer(bootstrap, client_id=client_id, auto_offset_reset="error")
        self._undecoded: list[Any] = []

    def register_schemas(self) -> None:
        """Makes sure that the first registry has the current audit schemas.

        Ids follow from the content, so the records of a datacenter whose registry cannot be reached are
        readable, too. Raises `RegistryError`, `RegistryUnavailableError`.
        """
        for file_name in SCHEMA_FILES:
            text = read_schema(file_name)
            self._registry.register(record_name_subject("", text), text)

    def close(self) -> None:
        self._consumer.close()
        self._registry.close()
        self._admin.close()

    def discover(self) -> list[tuple[str, int]]:
        """Starts to read new topics and partitions; returns all that are read. Raises `ClientError`."""
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
                    self._consumer.seek(topic, partition, address)
        return self._consumer.assignment

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
                self._undecoded = self._consumer.poll(timeout_s, max_records=RECORDS_PER_POLL_MAX)
            except OffsetOutOfRangeError as error:
                self._restart_at_beginning(error)
        # Kept until all are decoded: they must not be lost if the registry does not respond.
        decoded = [self._decode(record) for record in self._undecoded]
        positions = {}
        for record in self._undecoded:
            key = (record.topic, record.partition)
            positions[key] = self._consumer.position(*key)
        self._undecoded = []
        return Polled([received for received in decoded if received is not None], positions)

    def _restart_at_beginning(self, error: OffsetOutOfRangeError) -> None:
        start = self._admin.list_offsets(error.topic, EARLIEST, partitions=[error.partition])
        address = start[error.partition].offset
        logger.warning("%s; continuing at %d, where the log begins now", error, address)
        self._consumer.seek(error.topic, error.partition, address)

    def _decode(self, record: Any) -> ReceivedRecord | None:
        try:
            name, data = self._deserializer.read(record.value or b"")
            header = data["header"]
            return ReceivedRecord(
                _READERS[name](data),
                header["datacenter"],
                header["service"],
                header["server"],
                to_ms(header["time"]),
            )
        except (
            FramingError,
            DeserializationError,
            RegistryError,
            LookupError,
            TypeError,
            ValueError,
        ) as error:
            self.unreadable_count += 1
            logger.warning(
                "skipping %s-%d, offset %d, which is not an audit record: %s",
                record.topic,
                record.partition,
                record.offset,
                error,
            )
            return None
