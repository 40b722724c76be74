"""Reading the audit topics: bytes to records, positions that go with them. Owns one consumer.

A value that is no audit record is counted, logged and passed over; a registry that does not answer is
waited for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from headrace.audit.fold import FoldedRecord, Said
from headrace.audit.records import Gap, LoadReport, Positions, ProducerReport, RangeTally, to_ms
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
    *(kind.schema_file for kind in (RangeTally, Positions, Gap, LoadReport)),
    AUDIT_PRODUCER_SCHEMA,
)

_READERS: Final[dict[str, Callable[[Mapping[str, Any]], FoldedRecord]]] = {
    "headrace.audit.RangeTally": RangeTally.from_avro,
    "headrace.audit.Positions": Positions.from_avro,
    "headrace.audit.Gap": Gap.from_avro,
    "headrace.audit.Load": LoadReport.from_avro,
    "headrace.audit.ProducerReport": ProducerReport.from_avro,
}


class Read(NamedTuple):
    """What one poll brought, and where to go on after it: (topic, partition) → address."""

    said: list[Said]
    positions: dict[tuple[str, int], int]


class AuditReader:
    """Reads all partitions of `topics`, from where `start_at` says; partitions it does not name from the
    beginning.

    Topics and partitions that come later are found by `discover`. One thread uses it.
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
        self._left_over: list[Any] = []

    def teach_registry(self) -> None:
        """Make sure that the first registry knows today's audit schemas, whoever wrote with them.

        Ids follow from the content, so records of a datacenter whose registry cannot be reached are
        readable too. Raises `RegistryError`, `RegistryUnavailableError`.
        """
        for file_name in SCHEMA_FILES:
            text = read_schema(file_name)
            self._registry.register(record_name_subject("", text), text)

    def close(self) -> None:
        self._consumer.close()
        self._registry.close()
        self._admin.close()

    def discover(self) -> list[tuple[str, int]]:
        """Take up topics and partitions that are new; returns all that are read. Raises `ClientError`."""
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
        """Go to the first records that young, everywhere."""
        for topic, partition in self._consumer.assignment:
            self._consumer.seek_to_timestamp(topic, partition, timestamp_ms)

    def ends(self) -> dict[tuple[str, int], int]:
        """Where each partition read ends now. Raises `ClientError`."""
        ends: dict[tuple[str, int], int] = {}
        for topic in {topic for topic, _ in self._consumer.assignment}:
            for partition, found in self._admin.list_offsets(topic, LATEST).items():
                ends[topic, partition] = found.offset
        return ends

    def poll(self, timeout_s: float) -> Read:
        """Records that came, in order within each partition.

        Raises `ClientError`, `RegistryError`, `RegistryUnavailableError`: call again, nothing is passed over.
        """
        if not self._left_over:
            try:
                self._left_over = self._consumer.poll(timeout_s, max_records=RECORDS_PER_POLL_MAX)
            except OffsetOutOfRangeError as error:
                self._begin_again(error)
        # Decoded before they are let go: a registry that does not answer must not lose them.
        read = Read([], {})
        for record in self._left_over:
            said = self._decode(record)
            if said is not None:
                read.said.append(said)
        for record in self._left_over:
            key = (record.topic, record.partition)
            read.positions[key] = self._consumer.position(*key)
        self._left_over = []
        return read

    def _begin_again(self, error: OffsetOutOfRangeError) -> None:
        start = self._admin.list_offsets(error.topic, EARLIEST, partitions=[error.partition])
        address = start[error.partition].offset
        logger.warning("%s; going on at %d, where that log begins now", error, address)
        self._consumer.seek(error.topic, error.partition, address)

    def _decode(self, record: Any) -> Said | None:
        try:
            name, data = self._deserializer.read(record.value or b"")
            header = data["header"]
            return Said(
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
                "no audit record at %s-%d, offset %d, passed over: %s",
                record.topic,
                record.partition,
                record.offset,
                error,
            )
            return None
