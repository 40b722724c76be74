"""Publishing audit records: header, Avro, acknowledgement by all in-sync replicas.

Owns the producer's side of the audit topics, and their creation.
"""

from __future__ import annotations

import socket
import time
import uuid
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

from headrace.audit.topic.avro_times import to_datetime
from headrace.audit.topic.load_report import LoadReport
from headrace.audit.topic.records import AUDIT_TOPIC, DATACENTER_TIER, AuditRecord, HeartbeatRecord
from headrace.client import Admin, DeliveryFuture, Producer
from headrace.client.errors import BrokerError, ClientError, RecordTooLargeError
from headrace.events.schemas import read_schema
from headrace.process.clock import now_ms
from headrace.registry.client import SchemaRegistryClient
from headrace.registry.errors import RegistryError, RegistryUnavailableError
from headrace.registry.serializers import AvroSerializer, SerializationError, record_name_subject
from headrace.wire.errors import ErrorCode

FLUSH_TIMEOUT_S: Final = 60.0


class AuditPublishError(Exception):
    """A record could not be published.

    The records since the last `flush` may or may not be in the log: publish them again.
    """


class UnpublishableRecordError(AuditPublishError):
    """This record can never be published: no schema or no message holds it."""


class AuditPublisher:
    """Publishes audit records to one topic, which it creates if necessary. One thread uses it at a time.

    `topic` is `ANALYSIS_AUDIT_TOPIC` in the analysis cluster, `AUDIT_TOPIC` elsewhere. Schemas are registered
    under the record's full name, because the topic carries records of several kinds.
    """

    def __init__(
        self,
        *,
        bootstrap: str,
        registry_url: str,
        datacenter: str,
        service: str,
        topic: str = AUDIT_TOPIC,
    ) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._datacenter = datacenter
        self._service = service
        self._registry = SchemaRegistryClient(registry_url)
        self._producer = Producer(bootstrap, client_id=f"audit-{service}", compression="zstd")
        self._serializers: dict[str, AvroSerializer] = {}
        self._unacknowledged: list[DeliveryFuture] = []
        self._has_topic = False

    def publish(self, record: AuditRecord, *, service: str | None = None, server: str | None = None) -> None:
        """Sends one record; `flush` waits for it. `service` and `server`: those of another speaker.

        Raises `AuditPublishError`, or `UnpublishableRecordError`.
        """
        time_ms = now_ms()
        header = {
            "time": to_datetime(time_ms),
            "datacenter": self._datacenter,
            "server": server or socket.gethostname(),
            "service": service or self._service,
            "guid": str(uuid.uuid4()),
        }
        try:
            self._ensure_topic()
            serializer = self._serializer(record.schema_file)
            value = serializer.serialize(self._topic, {"header": header, **record.to_avro()})
            key = record.key().encode()
            for partition in self._partitions(record):
                self._unacknowledged.append(
                    self._producer.send(
                        self._topic, value, key=key, partition=partition, timestamp_ms=time_ms
                    )
                )
        except (SerializationError, RecordTooLargeError) as error:
            raise UnpublishableRecordError(str(error)) from error
        except (ClientError, RegistryError, RegistryUnavailableError) as error:
            raise AuditPublishError(f"could not publish to {self._topic}: {error}") from error

    def flush(self, timeout_s: float = FLUSH_TIMEOUT_S) -> None:
        """Returns once all in-sync replicas have acknowledged everything. Raises `AuditPublishError`."""
        waiting, self._unacknowledged = self._unacknowledged, []
        deadline = time.monotonic() + timeout_s
        try:
            self._producer.flush(timeout_s)
            for future in waiting:
                future.result(timeout=max(0.0, deadline - time.monotonic()))
        except (ClientError, TimeoutError) as error:
            raise AuditPublishError(f"could not publish to {self._topic}: {error}") from error

    def close(self) -> None:
        """Closes the connections. Records that are not flushed may be lost."""
        self._producer.close(0.0)
        self._registry.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ensure_topic(self) -> None:
        if self._has_topic:
            return
        with Admin(self._bootstrap) as admin:
            try:
                if self._topic not in admin.topics():
                    admin.create_topic(self._topic, 1)
            except BrokerError as error:
                if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                    raise
        self._has_topic = True

    def _partitions(self, record: AuditRecord) -> Sequence[int | None]:
        """Returns the partitions that a record goes to. Publishers' clocks are measured by their reports'
        places between a datacenter's heartbeats (`audit.store.clocks`), so each partition gets these: a
        service may have created the topic with several.
        """
        if isinstance(record, HeartbeatRecord) and record.tier == DATACENTER_TIER:
            return range(self._producer.partition_count(self._topic))
        return (None,)

    def _serializer(self, schema_file: str) -> AvroSerializer:
        serializer = self._serializers.get(schema_file)
        if serializer is None:
            text = read_schema(schema_file)
            serializer = AvroSerializer(self._registry, text, strategy=record_name_subject)
            self._serializers[schema_file] = serializer
        return serializer


def publish_load(publisher: AuditPublisher, load: LoadReport, timeout_s: float = FLUSH_TIMEOUT_S) -> None:
    """Publishes the report of a committed load, in as many records as its size takes, and flushes.

    Raises `AuditPublishError`; the call may be repeated, now or by a later run, without harm.
    """
    for piece in load.split():
        publisher.publish(piece)
    publisher.flush(timeout_s)
