"""Requests of every API and version that a broker advertises, built from Kafka's schemas as kio has them.

A request keeps its structure, so that it passes the first checks, and lies in single places: counts,
lengths, names, numbers. Some are then changed byte by byte. Frames that real clients sent (tests/golden) are
changed as well, and some frames ask for APIs and versions that no broker serves.
"""

from __future__ import annotations

import json
import random
import struct
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from types import NoneType
from typing import Any, Final, NamedTuple, get_args

from kio.index import KioIndexError, load_request_schema

from fuzzing.batches import records
from fuzzing.values import integer, mutate, text, uvarint
from headrace.wire.apis import ApiKey
from headrace.wire.messages import decode_request
from headrace.wire.primitives import NO_UUID

GOLDEN: Final = Path(__file__).parent.parent / "golden" / "frames.json"
ITEMS: Final = (0, 1, 1, 1, 2, 3, 20)
ITEMS_MANY: Final = 400
DEPTH_MANY: Final = 2
LIE: Final = 0.01
"""How often a count or a length is not the true one."""
FRAME_MAX_BYTES: Final = 4 << 20
HEAD_BYTES: Final = 8
"""API key, version, correlation id."""
API_KEYS_END: Final = 100
_BITS: Final = {
    "int8": 8,
    "int16": 16,
    "uint16": 16,
    "error_code": 16,
    "int32": 32,
    "timedelta_i32": 32,
    "int64": 64,
    "timedelta_i64": 64,
    "datetime_i64": 64,
}


@dataclass
class Names:
    """What the server knows, so that a request is not refused at its first name."""

    topics: list[str] = field(default_factory=list)
    topic_ids: list[uuid.UUID] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)
    configs: list[str] = field(default_factory=list)

    def of(self, schema: str, name: str) -> Sequence[str]:
        """Names that fit a field of a schema."""
        if name in ("group_id", "groups_names", "key", "coordinator_keys"):
            return self.groups
        if name in ("name", "config_name") and "Config" in schema:
            return self.configs
        if name in ("name", "topic", "topic_names", "resource_name"):
            return self.topics
        if name in ("protocol_type", "protocol_name"):
            return ("consumer", "range")
        return ()


class Captured(NamedTuple):
    """A request that a real client sent, without its length prefix, and the topic ids in it."""

    api_key: int
    version: int
    frame: bytes
    topic_ids: tuple[bytes, ...]


def captured_requests() -> list[Captured]:
    """The requests of tests/golden/frames.json."""
    found = []
    for entry in json.loads(GOLDEN.read_text()):
        frame = bytes.fromhex(entry["request"])
        request = decode_request(memoryview(frame))
        topics = request.body.topics if request.api_key in (ApiKey.PRODUCE, ApiKey.FETCH) else ()
        ids = {topic.topic_id.bytes for topic in topics if topic.topic_id and topic.topic_id != NO_UUID}
        found.append(Captured(request.api_key, request.version, frame, tuple(sorted(ids))))
    return found


class RequestMaker:
    """Makes frames. `versions`: `(api_key, min_version, max_version)` of each API that is served."""

    def __init__(self, versions: Sequence[tuple[int, int, int]], names: Names) -> None:
        self.names = names
        self.versions = versions
        self.captured = captured_requests()
        self.unknown: list[tuple[int, int]] = []
        """`(api_key, version)` of what is advertised and in no schema: nothing is built for these."""
        self._left_bytes = FRAME_MAX_BYTES
        self._schemas: list[Any] = []
        for key, low, high in versions:
            for version in range(low, high + 1):
                try:
                    self._schemas.append(load_request_schema(key, version))
                except KioIndexError:
                    self.unknown.append((key, version))

    def frame(self, rng: random.Random) -> bytes:
        """A frame with its length prefix."""
        self._left_bytes = FRAME_MAX_BYTES  # an array of arrays of batches must not take minutes to make
        kind = rng.random()
        if kind < 0.15:
            return _framed(rng, self.changed_capture(rng))
        schema = rng.choice(self._schemas)
        body = self._entity(rng, schema, 0)
        api_key, version = schema.__api_key__, schema.__version__
        if kind > 0.98:  # what nobody serves, or what another body belongs to
            api_key, version = rng.choice((*self.unknown, (rng.randrange(API_KEYS_END), rng.randrange(20))))
        head = struct.pack(">hhi", api_key, version, rng.randrange(1 << 31))
        client = text(rng, ("fuzz",))
        head += struct.pack(">h", len(client) if len(client) < 1 << 15 else -1)
        head += client if len(client) < 1 << 15 else b""
        if schema.__flexible__:
            head += self._tags(rng)
        if kind < 0.4:
            body = mutate(rng, body, [name.encode() for name in self.names.topics])
        return _framed(rng, head + body[:FRAME_MAX_BYTES])

    def changed_capture(self, rng: random.Random) -> bytes:
        """A real client's request, without its length prefix: usually damaged, and about topics of today."""
        captured = rng.choice(self.captured)
        frame = captured.frame
        for topic_id in captured.topic_ids if self.names.topic_ids else ():
            frame = frame.replace(topic_id, rng.choice(self.names.topic_ids).bytes)
        body = mutate(rng, frame[HEAD_BYTES:]) if rng.random() < 0.8 else frame[HEAD_BYTES:]
        return frame[:HEAD_BYTES] + body

    def _entity(self, rng: random.Random, schema: Any, depth: int) -> bytes:
        out = [self._field(rng, schema, each, depth) for each in fields(schema) if "tag" not in each.metadata]
        if schema.__flexible__:
            out.append(self._tags(rng))
        return b"".join(out)

    def _field(self, rng: random.Random, schema: Any, each: Any, depth: int) -> bytes:
        kind, nullable = _without_none(each.type)
        if getattr(kind, "__origin__", None) is tuple:
            if nullable and rng.random() < 0.1:
                return _count(rng, -1, schema.__flexible__)
            item, _ = _without_none(get_args(kind)[0])
            number = ITEMS_MANY if depth < DEPTH_MANY and rng.random() < 0.02 else rng.choice(ITEMS)
            number = number if self._left_bytes > 0 else 0
            items = [self._value(rng, schema, each, item, False, depth) for _ in range(number)]
            if items and rng.random() < 0.1:
                repeated = [items[0]] * rng.choice((1, 50))
                self._left_bytes -= sum(map(len, repeated))
                items += repeated if self._left_bytes > 0 else []
            return _count(rng, len(items), schema.__flexible__) + b"".join(items)
        if is_dataclass(kind) and nullable and rng.random() < 0.5:
            return b"\xff"
        return (b"\x01" if is_dataclass(kind) and nullable else b"") + self._value(
            rng, schema, each, kind, nullable, depth
        )

    def _value(
        self, rng: random.Random, schema: Any, each: Any, kind: Any, nullable: bool, depth: int
    ) -> bytes:
        if is_dataclass(kind):
            return self._entity(rng, kind, depth + 1)
        name = each.metadata["kafka_type"]
        if name == "bool":
            return rng.choice((b"\x00", b"\x01", b"\x01", b"\x07"))
        if name == "float64":
            return struct.pack(">d", rng.choice((0.0, -1.0, 1e308, float("nan"), float("inf"))))
        if name == "uuid":
            ids = self.names.topic_ids
            return rng.choice(ids).bytes if ids and rng.random() < 0.8 else rng.randbytes(16)
        if name in _BITS:
            bits = _BITS[name]
            mask = (1 << bits) - 1
            return (self._integer(rng, each.name, bits) & mask).to_bytes(bits // 8, "big")
        return self._bytes(rng, schema, each, name, nullable)

    def _integer(self, rng: random.Random, name: str, bits: int) -> int:
        value = integer(rng, bits)
        if name in ("max_wait", "timeout") and value > 0:
            return min(value, 50)  # a round must end: a long wait is not an error
        return abs(value) if bits == 16 and name == "acks" and value < -1 else value

    def _bytes(self, rng: random.Random, schema: Any, each: Any, kind: str, nullable: bool) -> bytes:
        flexible = schema.__flexible__
        size_bytes = 2 if kind == "string" else 4
        if nullable and rng.random() < 0.15:
            return _length(rng, -1, size_bytes, flexible)
        if kind == "string":
            value = text(rng, self.names.of(schema.__name__, each.name))
        elif kind == "records":
            value = records(rng)[:FRAME_MAX_BYTES] if self._left_bytes > 0 else b""
        else:
            value = rng.randbytes(rng.choice((0, 1, 20, 2000)))
        self._left_bytes -= len(value)
        return _length(rng, len(value), size_bytes, flexible) + value

    def _tags(self, rng: random.Random) -> bytes:
        if rng.random() > 0.03:
            return b"\x00"
        number = rng.choice((1, 2, 100))
        return uvarint(number) + b"".join(
            uvarint(rng.randrange(4)) + uvarint(len(data)) + data
            for data in (rng.randbytes(rng.choice((0, 1, 8))) for _ in range(number))
        )


def _framed(rng: random.Random, data: bytes) -> bytes:
    length = len(data) if rng.random() > LIE else integer(rng, 32)
    return length.to_bytes(4, "big", signed=True) + data


def _count(rng: random.Random, number: int, flexible: bool) -> bytes:
    if rng.random() < LIE:
        number = integer(rng, 32)
    return uvarint(number + 1) if flexible else number.to_bytes(4, "big", signed=True)


def _length(rng: random.Random, number: int, size_bytes: int, flexible: bool) -> bytes:
    if rng.random() < LIE:
        number = integer(rng, size_bytes * 8)
    if flexible:
        return uvarint(number + 1)
    top = 1 << (8 * size_bytes - 1)
    return max(-top, min(top - 1, number)).to_bytes(size_bytes, "big", signed=True)


def _without_none(annotation: Any) -> tuple[Any, bool]:
    found = get_args(annotation)
    if NoneType not in found:
        return annotation, False
    return next(each for each in found if each is not NoneType), True
