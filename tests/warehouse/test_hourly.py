"""The Parquet files that a task writes: rows by hour, bounds on what is held, the format."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.warehouse import hourly
from headrace.warehouse.hourly import HourlyFiles, by_hour, dictionary_columns
from headrace.warehouse.source.ranges import Range, shares

SCHEMA = pa.schema(
    [("header", pa.struct([("time", pa.timestamp("us", "UTC")), ("guid", pa.string())])), ("n", pa.int64())]
)


def rows_of(numbers: list[int]) -> pa.RecordBatch:
    headers = [{"time": number, "guid": f"g{number:050}"} for number in numbers]
    return pa.RecordBatch.from_pylist(
        [{"header": header, "n": number} for header, number in zip(headers, numbers, strict=True)],
        schema=SCHEMA,
    )


@settings(deadline=None)
@given(st.lists(st.integers(-1, 5), max_size=60))
def test_rows_are_divided_by_hour_in_their_order(hours: list[int]) -> None:
    parts = list(by_hour(rows_of(list(range(len(hours)))), np.array(hours, np.int32)))
    assert [hour for hour, _ in parts] == sorted(set(hours))
    for hour, part in parts:
        assert part.column("n").to_pylist() == [n for n, each in enumerate(hours) if each == hour]


def test_files_hold_every_row_and_a_task_holds_a_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hourly, "ROW_GROUP_SIZE_BYTES", 8_000)
    monkeypatch.setattr(hourly, "FILE_SIZE_MAX_BYTES", 10_000)
    monkeypatch.setattr(hourly, "HELD_SIZE_MAX_BYTES", 20_000)
    stored: list[tuple[int, int, Any]] = []
    files = HourlyFiles(SCHEMA, "{}", lambda *file: stored.append(file))
    hours = np.arange(50, dtype=np.int32) % 7
    for start in range(0, 5_000, 50):
        files.append(rows_of(list(range(start, start + 50))), hours)
        held = sum(file.held_bytes for file in files._open.values())
        assert held <= 20_000
    assert files.close() == len(stored) > 7
    assert [number for _, number, _ in stored] == list(range(len(stored)))
    found: dict[int, list[int]] = {}
    for hour, _, data in stored:
        found.setdefault(hour, []).extend(pq.read_table(pa.BufferReader(data)).column("n").to_pylist())
    assert found == {hour: [n for n in range(5_000) if n % 50 % 7 == hour] for hour in range(7)}


def test_late_events_keep_nothing_else_of_their_batches_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hourly, "ROW_GROUP_SIZE_BYTES", 100_000)
    stored: dict[int, Any] = {}
    files = HourlyFiles(SCHEMA, "{}", lambda hour, _, data: stored.update({hour: data}))
    batch, hours = rows_of(list(range(500))), np.zeros(500, np.int32)
    hours[-1] = 1
    for _ in range(50):
        files.append(batch.take(pa.array(range(500))), hours)
    late = files._open[1]
    kept_bytes = sum(each.get_total_buffer_size() for each in late._rows)
    assert kept_bytes < 4 * late.held_bytes
    files.close()
    rows = pq.read_table(pa.BufferReader(stored[1]))
    assert rows.column("n").to_pylist() == [499] * 50
    assert rows.column("header").to_pylist() == [batch.column("header")[499].as_py()] * 50


def test_events_of_all_hours_open_no_more_files_than_a_task_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hourly, "HOURS_OPEN_MAX", 20)
    stored: list[tuple[int, int, Any]] = []
    most = 0

    def store(*file: Any) -> None:
        nonlocal most
        most = max(most, len(files._open) + 1)
        stored.append(file)

    files = HourlyFiles(SCHEMA, "{}", store)
    for start in range(0, 1_000, 100):
        # Every second event is of the hour 7, as those of all other clients.
        hours = np.array([7 if n % 2 else 1_000 + n for n in range(start, start + 100)], np.int32)
        files.append(rows_of(list(range(start, start + 100))), hours)
    assert files.close() == len(stored)
    assert most == 21
    assert [hour for hour, _, _ in stored].count(7) == 1
    rows = [
        row for *_, data in stored for row in pq.read_table(pa.BufferReader(data)).column("n").to_pylist()
    ]
    assert sorted(rows) == list(range(1_000))


def test_a_file_has_the_format_of_sparks_writer() -> None:
    stored: list[Any] = []
    files = HourlyFiles(SCHEMA, '{"type":"struct"}', lambda _hour, _number, data: stored.append(data))
    files.append(rows_of([1, 2, 3]), np.zeros(3, np.int32))
    files.close()
    file = pq.ParquetFile(pa.BufferReader(stored[0]))
    assert file.metadata.metadata[b"org.apache.spark.sql.parquet.row.metadata"] == b'{"type":"struct"}'
    columns = [file.metadata.row_group(0).column(index) for index in range(3)]
    assert {column.compression for column in columns} == {"ZSTD"}
    assert [column.has_dictionary_page for column in columns] == [False, True, False]
    assert all(column.statistics.has_min_max for column in columns)
    assert str(file.schema.column(0).converted_type) == "TIMESTAMP_MICROS"
    assert dictionary_columns(SCHEMA) == ["header.guid"]


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000)), max_size=5), st.integers(1, 8))
def test_shares_cover_every_offset_once_and_have_the_same_size(
    spans: list[tuple[int, int]], count: int
) -> None:
    ranges = [Range("t", number, start, start + size) for number, (start, size) in enumerate(spans)]
    found = shares(ranges, count)
    assert len(found) <= count
    sizes = [sum(range_.size for range_ in share) for share in found]
    assert sum(sizes) == sum(range_.size for range_ in ranges)
    assert not sizes or max(sizes) - min(sizes) <= 1 or min(sizes) > 0
    covered = [
        (part.partition, offset)
        for share in found
        for part in share
        for offset in range(part.from_offset, part.to_offset)
    ]
    assert covered == [
        (range_.partition, offset)
        for range_ in ranges
        for offset in range(range_.from_offset, range_.to_offset)
    ]
