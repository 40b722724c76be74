"""Copies: batches that have their addresses already are appended as they are, many at once."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fix_failing_disk import FailingDisk
from headrace.log.config import LogConfig
from headrace.log.errors import AddressMismatchError, AddressOutOfRangeError, LogStorageError
from headrace.log.partition import PartitionLog
from headrace.wire.batch import hop, read_header, readdress
from headrace.wire.records import Record, encode_batch


def batch(value: bytes = b"v", count: int = 1, **fields: Any) -> bytearray:
    return bytearray(encode_batch([Record(0, 1_000 + i, None, value) for i in range(count)], **fields))


def content(log: PartitionLog) -> bytes:
    return b"".join(each.read() for each in log.slices(log.start_address, 1 << 30))


def test_verbatim_batches_must_begin_at_the_end(tmp_path: Path) -> None:
    source = PartitionLog(tmp_path / "a-0")
    for number in range(5):
        source.append(batch(b"%d" % number))
    source.flush()
    data = content(source)
    middle = read_header(data).size_bytes

    copy = PartitionLog(tmp_path / "b-0", LogConfig(segment_bytes=1_024))
    assert copy.append_verbatim(data[middle:]) == (middle, len(data)), "an empty log takes any address"
    assert (copy.start_address, copy.end_address) == (middle, len(data))
    with pytest.raises(AddressMismatchError, match=f"does not belong at address {len(data)}"):
        copy.append_verbatim(data[:middle])
    with pytest.raises(AddressMismatchError, match=f"does not belong at address {len(data)}"):
        copy.append_verbatim(batch(base_offset=len(data), last_offset_delta=len(batch()) - 1))
    copy.flush()
    assert content(copy) == data[middle:]
    copy.close()
    again = PartitionLog(tmp_path / "b-0")
    assert (again.start_address, again.end_address) == (middle, len(data))
    again.close()
    source.close()


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 2_000), min_size=1, max_size=30),
    producer_ids=st.lists(st.integers(-1, 2), min_size=1, max_size=5),
    epochs=st.lists(st.integers(0, 3), min_size=1, max_size=3).map(sorted),
    fetches=st.lists(st.integers(1, 8), min_size=1, max_size=5),
    segment_bytes=st.integers(1_024, 9_000),
    reads_headers=st.booleans(),
)
def test_a_copy_knows_what_its_source_knows(
    sizes: list[int],
    producer_ids: list[int],
    epochs: list[int],
    fetches: list[int],
    segment_bytes: int,
    reads_headers: bool,
) -> None:
    """Its segments, producers, epochs and known starts, however many batches come at once."""
    with tempfile.TemporaryDirectory() as folder:
        config = LogConfig(segment_bytes=segment_bytes)
        source, copy = (PartitionLog(Path(folder) / f"{name}-0", config) for name in "ab")
        for number, size in enumerate(sizes):
            source.leader_epoch = epochs[number * len(epochs) // len(sizes)]
            producer = producer_ids[number % len(producer_ids)]
            numbers = {"producer_id": producer, "producer_epoch": 0, "base_sequence": number}
            source.append(batch(b"x" * size, **(numbers if producer >= 0 else {})))
        source.flush()
        data = content(source)
        ends = [0, *(at + header.size_bytes for at, header in hop(data))]
        at = 0
        for count in fetches * len(sizes):
            first, at = at, min(at + count, len(sizes))
            if first == at:
                break
            fetched = data[ends[first] : ends[at]]
            headers = [header for _, header in hop(fetched)] if reads_headers else None
            assert copy.append_verbatim(fetched, headers) == (ends[first], ends[at])
        copy.flush()
        assert content(copy) == data
        names = [sorted(each.name for each in log.directory.glob("*.log")) for log in (source, copy)]
        assert names[0] == names[1]
        known = [{key: entry[:2] for key, entry in log.producers} for log in (source, copy)]
        assert known[0] == known[1]
        assert list(known[0]) == list(known[1])
        assert [log.epochs.end_of(epoch, len(data)) for log in (source, copy) for epoch in range(4)] == [
            source.epochs.end_of(epoch, len(data)) for epoch in range(4)
        ] * 2
        for address in range(0, len(data), 97):
            assert source.position(address) == copy.position(address)
        for log in (source, copy):
            log.close()


def test_a_copy_whose_disk_is_full_keeps_whole_segments_and_their_producers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, copy = (PartitionLog(tmp_path / f"{name}-0", LogConfig(segment_bytes=1_024)) for name in "ab")
    for number in range(20):
        source.append(batch(b"x" * 200, producer_id=7, producer_epoch=0, base_sequence=number))
    source.flush()
    data = content(source)
    size = read_header(data).size_bytes
    whole = 1_024 // size
    disk = FailingDisk(monkeypatch, room_bytes=(whole + 1) * size)
    with pytest.raises(LogStorageError, match="Free space there"):
        copy.append_verbatim(data)
    copy.flush()
    assert content(copy) == data[: whole * size]
    entry = copy.producers.get(7)
    assert entry is not None and entry.batches[-1].last_sequence == whole - 1
    disk.room_bytes = 1 << 30
    copy.append_verbatim(data[whole * size :])
    copy.flush()
    assert content(copy) == data
    for log in (source, copy):
        log.close()


def test_half_a_batch_is_nothing_to_append(tmp_path: Path) -> None:
    log = PartitionLog(tmp_path / "t-0")
    with pytest.raises(AddressMismatchError, match="there is no whole batch to append"):
        log.append_verbatim(batch()[:-1])
    assert log.end_address == 0
    log.close()


@pytest.mark.parametrize("wrong", ["first", "last", "size"])
def test_headers_that_do_not_belong_to_the_batches_are_refused(tmp_path: Path, wrong: str) -> None:
    source, copy = PartitionLog(tmp_path / "a-0"), PartitionLog(tmp_path / "b-0")
    for _ in range(3):
        source.append(batch(b"x" * 200))
    source.flush()
    data = content(source)
    headers = [header for _, header in hop(data)]
    if wrong == "size":
        data = data[:-1]
    else:
        at = 0 if wrong == "first" else -1
        headers[at] = headers[at]._replace(base_offset=headers[at].base_offset + 1)
    copy.append_verbatim(content(source)[: headers[1].size_bytes])  # no longer empty: it takes one address
    with pytest.raises(AddressMismatchError, match="does not belong at address"):
        copy.append_verbatim(data[headers[1].size_bytes :], headers[1:] if wrong != "first" else headers[:2])
    assert copy.end_address == headers[1].size_bytes
    for log in (source, copy):
        log.close()


def test_a_copy_that_begins_later_has_nothing_at_the_address_that_its_follower_read(tmp_path: Path) -> None:
    data = batch()
    readdress(data, 0, 700, leader_epoch=0)
    copy = PartitionLog(tmp_path / "t-0")
    assert copy.slices(0, 1_000) == [], "the end of an empty log"
    copy.append_verbatim(data)
    with pytest.raises(AddressOutOfRangeError, match=r"offset 0 is outside \[700, "):
        copy.slices(0, 1_000, copy.end_address)
    copy.close()
