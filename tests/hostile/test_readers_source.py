"""Bytes that nobody opened, given to the Spark source: every row once, bad batches by name, no other loss."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fix_bad_batches import flipped, poisoned, resealed, spoil_in_file, timed, undecompressable
from fix_broker import StartCluster
from headrace.client import Admin, Producer
from headrace.warehouse.source import columns
from headrace.warehouse.source.columns import PROBLEM_PREFIX, record_batches
from headrace.warehouse.source.errors import CorruptBatchesError
from headrace.warehouse.source.examining import Batch, Examiner
from headrace.warehouse.source.options import OnCorrupt, SourceOptions
from headrace.warehouse.source.ranges import Range, split
from headrace.warehouse.source.reading import read_batches
from headrace.wire.batch import CODEC_MASK, HEADER_SIZE_BYTES, read_header, readdress
from headrace.wire.compression import Codec, compress
from headrace.wire.records import Record, encode_batch, pack_record

TIMED = ("timestamp", pa.timestamp("us", "UTC"))
PLACE = (("partition", pa.int32()), ("offset", pa.int64()), TIMED)
RAW = pa.schema([("key", pa.binary()), ("value", pa.binary()), *PLACE, ("problem", pa.string())])
LOAD = pa.schema([("payload", pa.binary()), ("schemaId", pa.int32()), *PLACE])


def log_of(batches: list[bytes], start: int = 1000) -> tuple[bytearray, list[int]]:
    """The batches as a broker stores them, and where each begins, and the end."""
    data, cuts = bytearray(), [start]
    for batch in batches:
        stored = bytearray(batch)
        readdress(stored, 0, cuts[-1], leader_epoch=3)
        data += stored
        cuts.append(start + len(data))
    return data, cuts


def some_log(seed: int, count: int) -> tuple[bytearray, list[int]]:
    rng = random.Random(seed)
    return log_of(
        [
            encode_batch(
                [
                    Record(0, 1_000 + i, None, rng.randbytes(rng.randint(0, 40)))
                    for i in range(rng.randint(1, 5))
                ],
                codec=rng.choice(list(Codec)),
            )
            for _ in range(count)
        ]
    )


def rows_of(batches: list[Batch], end: int, *, is_compiled: bool, schema: pa.Schema = RAW) -> pa.Table:
    read = record_batches(batches, Range("t", 3, 0, end), schema, is_compiled=is_compiled, on_corrupt="keep")
    return pa.Table.from_batches(read, schema)


@settings(max_examples=400, deadline=None)
@given(st.integers(0, 2**32), st.data())
def test_a_flipped_bit_costs_at_most_the_batch_that_it_is_in(seed: int, choices: st.DataObject) -> None:
    data, cuts = some_log(seed, 6)
    at = choices.draw(st.integers(0, len(data) - 1))
    data[at] ^= 1 << choices.draw(st.integers(0, 7))
    hit = max(index for index, cut in enumerate(cuts) if cut - cuts[0] <= at)
    examiner = Examiner(choices.draw(st.integers(cuts[0], cuts[1] - 1)))
    found: list[Batch] = []
    address = cuts[0]
    while address < cuts[-1]:  # as fetches do: a batch that claims too much ends a response
        more, end_unknown = examiner.whole_batches(bytes(data[address - cuts[0] :]), address)
        assert more and end_unknown is None
        found += more
        address = found[-1].header.next_offset
        examiner.resume_at(address)
    assert [batch.header.address for batch in found] == cuts[:-1]
    bad = [index for index, batch in enumerate(found) if batch.problem]
    is_epoch = 12 <= at - (cuts[hit] - cuts[0]) < 16  # no CRC covers it
    assert bad == ([] if is_epoch else [hit])


@given(
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 60)), min_size=1, max_size=20), st.integers(0, 80)
)
def test_a_compacted_kafka_log_has_no_bad_batch(batches: list[tuple[int, int]], twin: int) -> None:
    """Compaction takes offsets away. So many may be gone before a batch that it seems to lie at its address;
    the next ones do not.
    """
    batches.insert(twin % len(batches), (-1, 0))
    data, position = b"", 0
    for gap, size_bytes in batches:
        batch = encode_batch([Record(0, 1, None, b"v" * size_bytes)])
        base = position + (len(batch) - 1 if gap < 0 else gap)
        data += base.to_bytes(8, "big") + batch[8:]
        position = base + 1
    found, end_unknown = Examiner(0).whole_batches(data, None)
    assert end_unknown is None and len(found) == len(batches)
    assert [batch.problem for batch in found] == [""] * len(found)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300), st.integers(1, 2**31 - 1), st.data())
def test_arbitrary_bytes_as_records_become_rows_or_a_problem(
    payload: bytes, count: int, choices: st.DataObject
) -> None:
    """Each batch keeps its count: as records, or as rows without value. In both loops, and no row is odd."""
    count = choices.draw(st.sampled_from([1, 2, 3, 20, len(payload) // 7 + 1, count]))
    codec = choices.draw(st.sampled_from(Codec))
    packed = compress(codec, payload) if choices.draw(st.booleans()) else payload
    good = encode_batch([Record(0, 5, b"k", b"v")] * 3)
    [first, second], _ = (lambda log: (cut(*log), log[1]))(log_of([good, good]))
    header = read_header(good)._replace(
        attributes=int(codec), record_count=count, last_offset_delta=count - 1
    )
    header = header._replace(base_timestamp_ms=choices.draw(st.integers(-(2**63), 2**63 - 1)))
    hostile = bytearray(resealed(header, packed))
    readdress(hostile, 0, 5000, leader_epoch=0)
    batch = Batch(read_header(hostile), bytes(hostile), 0)
    if not 0 < count <= len(hostile):
        # A broker stores no batch with more records than bytes: the examiner makes it one record.
        sound = batch.header._replace(
            base_offset=5000 + len(hostile) - 1, record_count=1, last_offset_delta=0
        )
        batch = batch._replace(header=sound)
    end = 1 << 62
    for is_compiled in (True, False):
        raw = rows_of([first, batch, second], end, is_compiled=is_compiled)
        assert raw.num_rows == 6 + batch.header.record_count
        offsets = raw.column("offset").to_pylist()
        assert offsets[3 : 3 + batch.header.record_count] == sorted(set(offsets[3:-3]))
        assert raw.column("value").to_pylist()[:3] == raw.column("value").to_pylist()[-3:] == [b"v"] * 3
        problems = set(raw.column("problem").to_pylist()[3:-3])
        assert len(problems) == 1
        if problems != {None}:
            assert raw.column("value").to_pylist()[3] == bytes(hostile)[: batch.header.size_bytes]
        loaded = rows_of([first, batch, second], end, is_compiled=is_compiled, schema=LOAD)
        assert loaded.column("offset").to_pylist() == offsets


def cut(data: bytearray, cuts: list[int]) -> list[Batch]:
    return [Batch(read_header(data, at - cuts[0]), bytes(data), at - cuts[0]) for at in cuts[:-1]]


@pytest.mark.parametrize("deltas", [(0, 0, 1), (2, 1, 0), (0, 1, 3), (-1, 0, 1), (0, 1, 2**31 - 1)])
def test_offsets_outside_their_batch_are_no_records(deltas: tuple[int, ...]) -> None:
    """Rows that repeat an address, or lie where another batch is, would cost another batch's rows."""
    packed = b"".join(pack_record(delta, 0, None, b"v", ()) for delta in deltas)
    batch = resealed(read_header(encode_batch([Record(0, 5, None, b"v")] * 3)), packed)
    data, cuts = log_of([batch])
    for is_compiled in (True, False):
        rows = rows_of(cut(data, cuts), cuts[-1], is_compiled=is_compiled)
        assert rows.column("offset").to_pylist() == [cuts[-1] - 3, cuts[-1] - 2, cuts[-1] - 1]
        assert all(problem.startswith(PROBLEM_PREFIX) for problem in rows.column("problem").to_pylist())


def test_a_bomb_and_a_wrong_count_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "UNPACKED_SIZE_MAX_BYTES", 1 << 20)
    good = read_header(encode_batch([Record(0, 5, None, b"v")] * 3))
    packed = good._replace(attributes=good.attributes & ~CODEC_MASK | Codec.ZSTD)
    bomb = resealed(packed, compress(Codec.ZSTD, b"\xff" * (2 << 20)))
    claims = resealed(good._replace(record_count=50, last_offset_delta=49), b"\0" * 100)
    data, cuts = log_of([bomb, claims])
    for is_compiled in (True, False):
        rows = rows_of(cut(data, cuts), cuts[-1], is_compiled=is_compiled)
        assert rows.num_rows == 53
        problems = list(dict.fromkeys(rows.column("problem").to_pylist()))
        assert "more than 1048576 bytes" in problems[0]
        assert "50 records in 100 bytes" in problems[1]


def test_times_that_no_column_holds_are_bounded() -> None:
    good = read_header(encode_batch([Record(0, 5, None, b"v")] * 3))
    most = ((1 << 63) - 1) // 1000 * 1000
    cases = {2**63 - 1: most, -(2**63): -most, 1_763_839_200_000_000: 1_763_839_200_000_000_000}
    for base_ms, stored_us in cases.items():
        for sign in (1, -1):
            packed = b"".join(pack_record(i, sign * i, None, b"v", ()) for i in range(3))
            data, cuts = log_of([resealed(good, packed, base_ms=base_ms)])
            for is_compiled in (True, False):
                rows = rows_of(cut(data, cuts), cuts[-1], is_compiled=is_compiled)
                times = rows.column("timestamp").cast(pa.int64()).to_pylist()
                assert times[0] == stored_us
                assert all(abs(time) <= most for time in times)


def test_a_range_with_bad_batches_from_a_broker(broker_cluster: StartCluster) -> None:
    cluster = broker_cluster()
    with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap) as producer:
        admin.create_topic("rotten", 1)
        for index in range(12):
            for record in range(4):
                producer.send("rotten", b"%d/%d" % (index, record) * 9, partition=0)
            producer.flush(30)
        end = admin.list_offsets("rotten", -1)[0].offset
    folder: Path = cluster[1].data_dir / "rotten-0"
    spoils = {0: flipped, 3: flipped, 4: poisoned, 7: undecompressable, 11: flipped}
    bad = spoil_in_file(folder, {**spoils, 9: timed(2**62, 2**62)})

    def read(on_corrupt: OnCorrupt, part: Range, size_bytes: int) -> list[dict[str, Any]]:
        options = SourceOptions((cluster.bootstrap,), fetch_size_bytes=size_bytes, on_corrupt=on_corrupt)
        read = record_batches(read_batches(part, options), part, RAW, on_corrupt=on_corrupt)
        table = pa.Table.from_batches(read, RAW).drop_columns("timestamp")
        return list(table.to_pylist())

    whole = Range("rotten", 0, 0, end)
    first = bad[0]
    with pytest.raises(CorruptBatchesError) as caught:
        read("fail", whole, 1 << 20)
    assert f"batch of 4 records at addresses 0 to {first.next_offset} cannot be read" in str(caught.value)
    assert "CRC" in str(caught.value) and "onCorrupt=skip" in str(caught.value)
    expected = [b"%d/%d" % (i, j) * 9 for i in range(12) if i not in spoils for j in range(4)]
    for size_bytes in (1, 1 << 20):
        assert [row["value"] for row in read("skip", whole, size_bytes)] == expected
        for parts in (1, 3, 40):
            rows = [row for part in split([whole], parts) for row in read("keep", part, size_bytes)]
            offsets = [row["offset"] for row in rows]
            assert (len(offsets), offsets) == (48, sorted(set(offsets)))
            assert [row["value"] for row in rows if row["problem"] is None] == expected
            dead = {row["offset"] for row in rows if row["problem"] is not None}
            assert dead == {bad[index].base_offset + record for index in spoils for record in range(4)}
    kept = [row for row in read("keep", whole, 1 << 20) if row["problem"] is not None]
    with next(folder.glob("*.log")).open("rb") as file:
        assert kept[0]["value"] == file.read(first.size_bytes)
    assert len(kept[0]["value"]) > HEADER_SIZE_BYTES
    assert [row["value"] for row in kept[1:4]] == [None] * 3
