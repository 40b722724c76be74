"""Attacks by frames: each is within the broker's limits for a frame, and made to cost as much as it can."""

from __future__ import annotations

import itertools
import struct
import time
from typing import Final

import cramjam
from attacks.connection import Attacker, calls, cut_off, head

from headrace.wire.batch import seal
from headrace.wire.compression import Codec
from headrace.wire.primitives import uvarint
from headrace.wire.records import pack_record

TOPIC: Final = b"attacked"
MANY_BYTES: Final = 4 << 20
TINY_RECORDS: Final = 70_000
BOMB_BYTES: Final = 256 << 20
ADMIN_ITEMS: Final = 8_000


def produce_topics(address: str, deadline_s: float) -> int:
    """Produce: 10,000 topics, one unknown partition each."""
    body = head(0, 3) + struct.pack(">hhii", -1, 1, 1000, 10_000)
    return calls(
        address, body + (struct.pack(">h", 1) + b"q" + struct.pack(">iii", 1, 0, -1)) * 10_000, deadline_s
    )


def produce_partitions(address: str, deadline_s: float) -> int:
    """Produce: one topic, half a million partitions without records."""
    count = MANY_BYTES // 8
    body = head(0, 3) + struct.pack(">hhiih", -1, 1, 1000, 1, len(TOPIC)) + TOPIC + struct.pack(">i", count)
    return calls(address, body + struct.pack(">ii", 99, -1) * count, deadline_s)


def fetch_partitions(address: str, deadline_s: float) -> int:
    """Fetch: one partition, 260,000 times."""
    count = MANY_BYTES // 16
    body = head(1, 4) + struct.pack(">iiiibih", -1, 0, 1, 1 << 20, 0, 1, len(TOPIC)) + TOPIC
    return calls(
        address, body + struct.pack(">i", count) + struct.pack(">iqi", 0, 0, 1 << 20) * count, deadline_s
    )


def metadata_names(address: str, deadline_s: float) -> int:
    """Metadata: two million empty names."""
    count = MANY_BYTES // 2
    return calls(address, head(3, 4) + struct.pack(">i", count) + b"\0\0" * count + b"\0", deadline_s)


def list_offsets(address: str, deadline_s: float) -> int:
    """ListOffsets: one partition, 350,000 times."""
    count = MANY_BYTES // 12
    body = head(2, 1) + struct.pack(">iih", -1, 1, len(TOPIC)) + TOPIC + struct.pack(">i", count)
    return calls(address, body + struct.pack(">iq", 0, -1) * count, deadline_s)


def list_offsets_by_time(address: str, deadline_s: float) -> int:
    """ListOffsets by time: one partition, 200 times."""
    body = head(2, 1) + struct.pack(">iih", -1, 1, len(TOPIC)) + TOPIC + struct.pack(">i", 200)
    return calls(address, body + struct.pack(">iq", 0, 1) * 200, deadline_s)


def offset_commits(address: str, deadline_s: float) -> int:
    """OffsetCommit: 300,000 partitions of an unknown topic."""
    count = MANY_BYTES // 14
    body = head(8, 2) + struct.pack(">h", 1) + b"g" + struct.pack(">ihqih", -1, 0, -1, 1, 1) + b"x"
    return calls(address, body + struct.pack(">i", count) + struct.pack(">iqh", 0, 0, -1) * count, deadline_s)


def describe_groups(address: str, deadline_s: float) -> int:
    """DescribeGroups: two million empty names."""
    count = MANY_BYTES // 2
    return calls(address, head(15, 0) + struct.pack(">i", count) + b"\0\0" * count, deadline_s)


def header_tags(address: str, deadline_s: float) -> int:
    """ApiVersions: two million tagged fields in the request's header."""
    count = MANY_BYTES // 2
    packed = bytes((count & 0x7F | 0x80, count >> 7 & 0x7F | 0x80, count >> 14 & 0x7F | 0x80, count >> 21))
    return calls(address, head(18, 3) + packed + b"\x01\x00" * count + b"\x02a\x02b\x00", deadline_s)


def create_topics(address: str, deadline_s: float) -> int:
    """CreateTopics: 10,000 topics, only validated."""
    topics = b"".join(
        struct.pack(">h", 6) + b"x%05d" % n + struct.pack(">ihii", 1, 9, 0, 0) for n in range(10_000)
    )
    return calls(
        address, head(19, 2) + struct.pack(">i", 10_000) + topics + struct.pack(">ib", 1000, 1), deadline_s
    )


def metadata_creates(address: str, deadline_s: float) -> int:
    """Metadata that creates: 600 new topics a frame."""
    number = 0
    names = (b"flood-%08d" % n for n in itertools.count(time.time_ns() % 10**7))
    while time.monotonic() < deadline_s:
        listed = b"".join(struct.pack(">h", 14) + name for name in itertools.islice(names, 600))
        with cut_off(), Attacker(address) as attacker:
            attacker.call(head(3, 4) + struct.pack(">i", 600) + listed + b"\x01")
            number += 1
    return number


def tiny_records(address: str, deadline_s: float) -> int:
    """Produce: batches of half a MiB that hold 70,000 records of nothing."""
    packed = b"".join(pack_record(n, 0, None, None, ()) for n in range(TINY_RECORDS))
    return calls(address, _produce(_batch(packed, TINY_RECORDS, Codec.NONE)), deadline_s)


def bombs(address: str, deadline_s: float) -> int:
    """Produce: batches of a few kB that decompress to 256 MiB."""
    packed = bytes(cramjam.zstd.compress(bytes(BOMB_BYTES)))
    return calls(address, _produce(_batch(packed, 1000, Codec.ZSTD)), deadline_s)


def _batch(packed: bytes, count: int, codec: Codec) -> bytes:
    now_ms = int(time.time() * 1000)
    return seal(
        packed, record_count=count, base_timestamp_ms=now_ms, max_timestamp_ms=now_ms, attributes=int(codec)
    )


def _produce(batch: bytes) -> bytes:
    body = head(0, 3) + struct.pack(">hhiih", -1, -1, 10_000, 1, len(TOPIC)) + TOPIC
    return body + struct.pack(">iii", 1, 0, len(batch)) + batch


def reassignments(address: str, deadline_s: float) -> int:
    """AlterPartitionReassignments: one topic, 4,000 unknown partitions."""
    count = ADMIN_ITEMS // 2
    parts = b"".join(struct.pack(">i", number) + b"\x02\0\0\0\x01\0" for number in range(1, count + 1))
    topic = bytes([len(TOPIC) + 1]) + TOPIC + uvarint(count + 1) + parts + b"\0"
    body = head(45, 0, flexible=True) + struct.pack(">i", 1_000) + b"\x02" + topic + b"\0"
    return calls(address, body, deadline_s)


def broker_settings(address: str, deadline_s: float) -> int:
    """IncrementalAlterConfigs: the settings of 8,000 brokers that do not exist."""
    names = (b"%d" % (1_000 + number) for number in range(ADMIN_ITEMS))
    resources = b"".join(b"\4" + struct.pack(">h", len(name)) + name + struct.pack(">i", 0) for name in names)
    return calls(address, head(44, 0) + struct.pack(">i", ADMIN_ITEMS) + resources + b"\0", deadline_s)


def log_dirs(address: str, deadline_s: float) -> int:
    """DescribeLogDirs: one topic, 8,000 partitions."""
    parts = struct.pack(f">{ADMIN_ITEMS}i", *range(ADMIN_ITEMS))
    topic = struct.pack(">h", len(TOPIC)) + TOPIC + struct.pack(">i", ADMIN_ITEMS) + parts
    return calls(address, head(35, 1) + struct.pack(">i", 1) + topic, deadline_s)
