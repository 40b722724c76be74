"""A Kafka that is a list, for reporters: it collects the reports that arrive, and fails as it is told."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any
from uuid import UUID

import fastavro

from headrace.events.schemas import read_schema

SCHEMA = fastavro.parse_schema(json.loads(read_schema("audit-producer.avsc")))


class FakeRegistry:
    def register(self, subject: str, schema: str) -> int:
        return 1


class FakeSent:
    def __init__(self, error: Exception | None) -> None:
        self._error = error

    def result(self, timeout: float | None = None) -> None:
        if self._error is not None:
            raise self._error


class FakeProducer:
    """Collects reports in `records`; `broken(n)` returns whether the n-th send fails."""

    def __init__(self) -> None:
        self.records: list[Any] = []
        self.keys: set[bytes] = set()
        self.sends = 0
        self.broken: Callable[[int], bool] = lambda _: False
        self.audit_topic_id = UUID(int=1)

    def send(self, topic: str, value: bytes, *, key: bytes, timestamp_ms: int) -> FakeSent:
        assert topic == "_audit"
        self.sends += 1
        if self.broken(self.sends):
            return FakeSent(TimeoutError("planted"))
        record = fastavro.schemaless_reader(io.BytesIO(value[5:]), SCHEMA, None)
        assert record["header"]["time"].timestamp() * 1000 == timestamp_ms
        self.records.append(record)
        self.keys.add(key)
        return FakeSent(None)

    def topic_id(self, topic: str) -> UUID:
        return self.audit_topic_id
