"""Files of a table that lie: each is refused by name, in bounded memory; no topic leaves the tables."""

from __future__ import annotations

import random
import resource
from io import BytesIO
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fix_memory_hdfs import MemoryHdfs
from fuzzing.values import mutate
from headrace.warehouse import arrow_tables
from headrace.warehouse.arrow_tables import ColumnTypeError, column_names, read_file
from headrace.warehouse.counting import NotParquetError
from headrace.warehouse.layout import TopicNameError, TopicPaths
from headrace.warehouse.manifest import DataFile
from headrace.warehouse.versions import LocatedFile

PATH: Final = "/data/t/hourly/dt=2026-11-20/hour=18/0.parquet"
ROWS: Final = 300
SCHEMA: Final = pa.schema([pa.field("number", pa.int64()), pa.field("text", pa.string())])
MUTATIONS: Final = 400
MEMORY_GROWTH_MAX_BYTES: Final = 1 << 30


def parquet(table: pa.Table, **options: object) -> bytes:
    sink = BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


def honest() -> bytes:
    texts = [f"value {number % 7}" for number in range(ROWS)]
    return parquet(pa.table({"number": list(range(ROWS)), "text": texts}, schema=SCHEMA), row_group_size=100)


def located(content: bytes, rows: int = ROWS) -> tuple[MemoryHdfs, LocatedFile]:
    hdfs = MemoryHdfs()
    hdfs.files[PATH] = content
    return hdfs, LocatedFile(DataFile(PATH, PATH, 0, rows, len(content), 1), PATH)


def test_an_honest_file_is_read() -> None:
    rows = read_file(*located(honest()), SCHEMA, {})
    assert rows.num_rows == ROWS and rows.column("number").to_pylist() == list(range(ROWS))
    assert read_file(*located(honest()), pa.schema([]), {}).num_rows == 0
    assert column_names(*located(honest())) == ["number", "text"]


@pytest.mark.parametrize(
    "content",
    [b"", b"PAR1", b"PAR1" * 3, b"\0" * 1000, b"PAR1\xff\xff\xff\x7fPAR1", b"not parquet at all, PAR1"],
)
def test_what_is_no_parquet_file_is_named(content: bytes) -> None:
    for read in (lambda: read_file(*located(content), SCHEMA, {}), lambda: column_names(*located(content))):
        with pytest.raises(NotParquetError) as refused:
            read()
        assert PATH in str(refused.value) and str(refused.value).isprintable()
        assert len(str(refused.value)) < 600


def test_whatever_rots_in_a_file_it_is_read_or_named() -> None:
    whole, rng = honest(), random.Random(5)
    refused = 0
    for number in range(MUTATIONS):
        content = whole[: number * len(whole) // MUTATIONS] if number % 4 == 0 else mutate(rng, whole)
        try:
            rows = read_file(*located(content), SCHEMA, {})
            assert rows.schema == SCHEMA and rows.num_rows == ROWS
        except NotParquetError as error:
            assert PATH in str(error)
            refused += 1
    assert refused > MUTATIONS // 4


def test_a_column_that_the_newest_schema_does_not_read_is_no_fault_of_the_file() -> None:
    """After a version that no level but NONE lets in, each file of before was called unreadable."""
    newest = pa.schema([pa.field("text", pa.struct([("x", pa.int64())]))])
    with pytest.raises(ColumnTypeError, match="column text is of the type 'string' of schema 1, and the new"):
        read_file(*located(honest()), newest, {})
    assert read_file(*located(honest()), pa.schema([SCHEMA.field("number")]), {}).num_rows == ROWS


def test_a_file_with_other_rows_than_its_manifest_says_is_named() -> None:
    with pytest.raises(NotParquetError, match=f"it has {ROWS} rows, its manifest {ROWS + 1}"):
        read_file(*located(honest(), ROWS + 1), SCHEMA, {})


@pytest.mark.parametrize("value_bytes", [4_000, 10_000_000])
def test_a_few_bytes_that_unpack_to_hundreds_of_gigabytes_are_refused_soon(
    monkeypatch: pytest.MonkeyPatch, value_bytes: int
) -> None:
    """One value in a dictionary, and a million rows that name it; of a huge one a few rows are too many."""
    monkeypatch.setattr(arrow_tables, "UNPACKED_MAX_BYTES", 64 << 20)
    count, value = 1_000_000, "x" * value_bytes
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), [value])
    content = parquet(pa.table({"number": [0] * count, "text": texts}), store_schema=False)
    assert len(content) < 1 << 20
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(NotParquetError, match="rows unpack to"):
        read_file(*located(content, count), SCHEMA, {})
    growth = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert growth < MEMORY_GROWTH_MAX_BYTES


def test_pages_that_unpack_to_more_than_is_read_are_refused_before_they_are_decoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No dictionary: each value is there, and the same bytes a thousand times are few once compressed."""
    monkeypatch.setattr(arrow_tables, "UNPACKED_MAX_BYTES", 8 << 20)
    texts = pa.array(["x" * 1_000_000] * 40)
    rows = pa.table({"number": range(40), "text": texts})
    content = parquet(rows, use_dictionary=False, compression="zstd")
    assert len(content) < 100_000
    with pytest.raises(NotParquetError, match="its rows unpack to up to 40"):
        read_file(*located(content, 40), SCHEMA, {})


@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "zstd", "brotli", "lz4"])
@pytest.mark.parametrize("data_page_version", ["1.0", "2.0"])
def test_honest_dictionaries_of_long_values_are_read(
    monkeypatch: pytest.MonkeyPatch, compression: str, data_page_version: str
) -> None:
    """One long value among many short ones: by its length alone the rows could be too many."""
    monkeypatch.setattr(arrow_tables, "UNPACKED_MAX_BYTES", 1 << 20)
    texts = [*["short", None] * 200, "long" * 2_000]
    rows = pa.table(
        {
            "number": range(401),
            "text": texts,
            "more": [{"of": [text, text], "by": [("k", text)]} for text in texts],
        },
        schema=pa.schema(
            [
                *SCHEMA,
                pa.field(
                    "more",
                    pa.struct([("of", pa.list_(pa.string())), ("by", pa.map_(pa.string(), pa.string()))]),
                ),
            ]
        ),
    )
    content = parquet(rows, compression=compression, data_page_version=data_page_version, row_group_size=300)
    read = read_file(*located(content, 401), rows.schema, {})
    assert read.to_pylist() == rows.to_pylist()
    measured: list[object] = []
    opened = pq.ParquetFile

    def open_file(*arguments: Any, **options: Any) -> Any:
        measured.extend(options.get("read_dictionary") or ())
        return opened(*arguments, **options)

    monkeypatch.setattr(pq, "ParquetFile", open_file)
    assert read_file(*located(content, 401), rows.schema, {}).equals(read)
    assert "text" in measured, "else this test would not show how measured columns are read"


@pytest.mark.parametrize(
    "topic", ["../other", "a/b", "..", ".", "", "_log", "a\nb", "a\0b", "a b", "\x1b[31m", "é", "%2e%2e"]
)
def test_a_name_that_leaves_the_tables_is_refused(topic: str) -> None:
    with pytest.raises(TopicNameError) as refused:
        TopicPaths("/data", topic)
    assert str(refused.value).isprintable()
