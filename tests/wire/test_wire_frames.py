"""Frames that arrive in any pieces, and Kafka's partitioner."""

from __future__ import annotations

import itertools
import random
import resource
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as kafka_python_murmur2

from headrace.wire.errors import FrameTooLargeError
from headrace.wire.frame_buffers import KEEP_FROM_BYTES
from headrace.wire.frames import (
    FRAME_LIMIT_BYTES,
    KEPT_MAX_BYTES,
    PAGE_BYTES,
    SMALL_FRAMES_MAX,
    FrameReader,
)
from headrace.wire.partitioning import murmur2, partition_for_key


def frame(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


@pytest.mark.parametrize("step", [1, 2, 3, 4, 5, 7, 64, 10_000])
def test_frames_fed_in_pieces(step: int) -> None:
    frames = [b"", b"a", b"bcd" * 100, b"", b"\x00" * 9]
    stream = b"".join(map(frame, frames))
    reader = FrameReader()
    seen: list[bytes] = []
    for at in range(0, len(stream), step):
        reader.feed(stream[at : at + step])
        seen += [bytes(payload) for payload in reader]
    assert seen == frames
    assert reader.pending_bytes == 0


@given(st.lists(st.binary(max_size=40), max_size=8), st.lists(st.integers(0, 50), max_size=30))
def test_frames_cut_anywhere(frames: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(map(frame, frames))
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    reader = FrameReader()
    seen: list[bytes] = []
    for start, end in itertools.pairwise(edges):
        reader.feed(bytearray(stream[start:end]))
        seen += [bytes(payload) for payload in reader]
    assert seen == frames


@settings(deadline=None)
@given(
    st.lists(st.one_of(st.integers(0, 40), st.integers(0, 5_000_000)), max_size=5),
    st.lists(st.integers(1, 400_000), min_size=1, max_size=30),
)
def test_frames_received_where_they_belong(lengths: list[int], sizes: list[int]) -> None:
    """A socket's reader that writes the rest of each frame in place, in pieces of any size."""
    frames = [random.Random(length).randbytes(length) for length in lengths]
    stream = b"".join(map(frame, frames))
    reader = FrameReader()
    seen: list[bytes] = []
    pieces = itertools.cycle([size + len(stream) // 200 for size in sizes])
    at = 0
    while at < len(stream):
        target = reader.wanted()
        if target is None:
            piece = stream[at : at + next(pieces)]
            reader.feed(piece)
            at += len(piece)
        else:
            size = min(len(target), next(pieces), len(stream) - at)
            target[:size] = stream[at : at + size]
            target.release()
            reader.filled(size)
            at += size
        seen += [bytes(payload) for payload in reader]
    assert seen == frames
    assert reader.pending_bytes == 0 and reader.wanted() is None


def resident_bytes() -> int:
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * resource.getpagesize()


def test_a_length_alone_takes_no_memory() -> None:
    readers = [FrameReader() for _ in range(20)]
    before = resident_bytes()
    for reader in readers:
        reader.feed(struct.pack(">i", FRAME_LIMIT_BYTES) + b"five!")
        target = reader.wanted()
        assert target is not None and len(target) == FRAME_LIMIT_BYTES - 5
        target[:1000] = bytes(1000)
        target.release()
        reader.filled(1000)
        assert reader.pending_bytes == 4 + 5 + 1000
    assert resident_bytes() - before < 8 * 1024 * 1024, "of 2 GB that were announced"


def receive(reader: FrameReader, payload: bytes) -> memoryview:
    reader.feed(frame(payload)[:1000])
    target = reader.wanted()
    assert target is not None
    target[:] = payload[996:]
    size = len(target)
    target.release()
    reader.filled(size)
    (received,) = reader
    return received


def test_large_frames_use_memory_again_that_nobody_looks_at() -> None:
    reader = FrameReader()
    payloads = [random.Random(number).randbytes(3_000_000) for number in range(6)]
    kept: list[tuple[memoryview, bytes]] = []
    for payload in payloads:
        kept = [*kept[-1:], (receive(reader, payload), payload)]
        assert all(bytes(view) == content for view, content in kept), "the one before is still in use"
    held = reader._buffers.kept_bytes
    assert len(payloads[0]) <= held <= KEPT_MAX_BYTES
    kept.clear()
    for payload in payloads:
        assert bytes(receive(reader, payload)) == payload
    assert reader._buffers.kept_bytes == held, "no further memory is taken"
    for _ in range(2 * SMALL_FRAMES_MAX + 2):
        reader.feed(frame(b"nothing new"))
        assert [bytes(each) for each in reader] == [b"nothing new"]
    assert reader._buffers.kept_bytes == 0, "an idle connection gives it back"


def address_of(payload: memoryview) -> int:
    return int(np.frombuffer(payload, np.uint8).ctypes.data)


@pytest.mark.parametrize("into_page", [0, 1, 71, PAGE_BYTES - 1, PAGE_BYTES + 5, -7])
@pytest.mark.parametrize("first_bytes", [0, 5, 70_000])
def test_a_large_frame_begins_where_its_receiver_wants_it(into_page: int, first_bytes: int) -> None:
    """Each time: in a mapping at first, in memory that is kept later."""
    beginnings = list[bytes]()

    def place(beginning: memoryview) -> int:
        beginnings.append(bytes(beginning))
        return into_page

    reader = FrameReader(place=place)
    payload = random.Random(1).randbytes(KEEP_FROM_BYTES + 30_000)
    for _ in range(4):
        stream = frame(payload)
        reader.feed(stream[: 4 + first_bytes])
        assert beginnings.pop() == payload[:first_bytes]
        reader.feed(stream[4 + first_bytes :])
        (seen,) = reader
        assert address_of(seen) % PAGE_BYTES == into_page % PAGE_BYTES
        assert seen == payload
        del seen


def test_small_frames_have_no_place() -> None:
    reader = FrameReader(place=lambda _: pytest.fail("it was asked"))
    reader.feed(frame(bytes(KEEP_FROM_BYTES - 1))[:-1])
    reader.feed(b"x")
    assert [len(each) for each in reader] == [KEEP_FROM_BYTES - 1]


def test_a_reader_counts_the_bytes_it_holds() -> None:
    reader = FrameReader()
    reader.feed(b"\x00\x00")
    assert reader.pending_bytes == 2
    reader.feed(b"\x00\x05ab")
    assert reader.pending_bytes == 6


@pytest.mark.parametrize("head", [b"\x00\x00\x00\x0b", b"\xff\xff\xff\xff", b"GET / HTTP/1.1"])
@pytest.mark.parametrize("step", [1, 100])
def test_a_frame_over_the_limit_is_refused_once_its_length_is_known(head: bytes, step: int) -> None:
    reader = FrameReader(limit_bytes=10)
    with pytest.raises(FrameTooLargeError):
        for at in range(0, len(head), step):
            reader.feed(head[at : at + step])


@pytest.mark.parametrize(
    ("key", "hash_"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_javas(key: bytes, hash_: int) -> None:
    """The vectors of Apache Kafka's own UtilsTest."""
    assert murmur2(key) == hash_ & 0xFFFFFFFF


@given(st.binary(max_size=80), st.integers(1, 64))
def test_keys_get_the_partition_that_kafka_python_chooses(key: bytes, partition_count: int) -> None:
    theirs = (kafka_python_murmur2(key) & 0x7FFFFFFF) % partition_count
    assert partition_for_key(key, partition_count) == theirs
