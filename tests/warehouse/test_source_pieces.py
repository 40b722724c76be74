"""The source's options, ranges and columns, without Spark and brokers."""

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import httpx
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fix_client import FakeCluster
from headrace.registry.client import SchemaRegistryClient
from headrace.warehouse.source import avro, columns
from headrace.warehouse.source.columns import END_MARK, record_batches
from headrace.warehouse.source.errors import CorruptBatchesError, OptionError, SourceError
from headrace.warehouse.source.examining import Batch
from headrace.warehouse.source.metadata import MetadataClient
from headrace.warehouse.source.options import SourceOptions, format_offsets, parse, parse_offsets
from headrace.warehouse.source.ranges import Range, split
from headrace.warehouse.source.resolve import partitions_of, resolve_ranges
from headrace.warehouse.source.stream import limited
from headrace.warehouse.source.stream_offsets import StreamOffsets
from headrace.wire.batch import read_header, readdress
from headrace.wire.compression import Codec
from headrace.wire.records import Record, encode_batch

EMPTY_RECORD = '{"type": "record", "name": "E", "fields": []}'
BOOTSTRAP = {"kafka.bootstrap.servers": "127.0.0.1:9092"}

SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestampType", pa.int32()),
    ]
)
LOAD_SCHEMA = pa.schema(
    [
        ("payload", pa.binary()),
        ("schemaId", pa.int32()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
    ]
)

framed = st.builds(
    lambda schema_id, rest: b"\0" + schema_id.to_bytes(4, "big") + rest,
    st.integers(0, 2**31 - 1),
    st.binary(max_size=40),
)
records = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=12),
        st.none() | framed | st.binary(max_size=40),
        st.integers(0, 4_000_000_000),
    ),
    min_size=1,
    max_size=30,
)
stored = st.lists(st.tuples(records, st.sampled_from(Codec)), min_size=1, max_size=5)


def log_of(batches: list[tuple[list[tuple[Any, Any, int]], Codec]]) -> tuple[list[Batch], list[Record], int]:
    """Batches as a broker stores them, their records, and the end address."""
    found: list[Batch] = []
    expected: list[Record] = []
    address = 1000
    for index, (rows, codec) in enumerate(batches):
        made = [Record(offset, time_ms, key, value) for offset, (key, value, time_ms) in enumerate(rows)]
        data = bytearray(encode_batch(made, codec=codec))
        base_offset = readdress(data, 0, address, leader_epoch=0)
        found.append(Batch(read_header(data, 0), bytes(index) + data, index))
        expected += [record._replace(offset=base_offset + record.offset) for record in made]
        address += len(data)
    return found, expected, address


def rows_of(batches: Iterator[pa.RecordBatch]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


@settings(max_examples=60, deadline=None)
@given(stored, st.data(), st.booleans())
def test_compiled_and_plain_loop_give_the_same_rows(
    batches: list[Any], data: st.DataObject, for_load: bool
) -> None:
    found, expected, end = log_of(batches)
    first = data.draw(st.integers(1000, end))
    last = data.draw(st.integers(first, end))
    part = Range("t", 3, first, last)
    schema = LOAD_SCHEMA if for_load else SCHEMA
    plain = rows_of(record_batches(found, part, schema))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "COMPILED_FROM_SIZE_BYTES", 0)
        assert rows_of(record_batches(found, part, schema)) == plain
    wanted = [record for record in expected if first <= record.offset < last]
    assert [row["offset"] for row in plain] == [record.offset for record in wanted]
    assert [row["timestamp"].timestamp() for row in plain] == [
        record.timestamp_ms / 1000 for record in wanted
    ]
    if for_load:
        assert [row["payload"] for row in plain] == [payload_of(record.value) for record in wanted]
    else:
        assert [(row["key"], row["value"]) for row in plain] == [
            (record.key, record.value) for record in wanted
        ]


def payload_of(value: bytes | None) -> bytes | None:
    if value is None or len(value) < 5 or value[0] != 0:
        return None
    return value[5:] + END_MARK


def test_arrow_batches_have_a_target_size_except_for_a_larger_kafka_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(columns, "COMPILED_FROM_SIZE_BYTES", 0)
    monkeypatch.setattr(columns, "ROWS_TARGET", 100)
    monkeypatch.setattr(columns, "SIZE_BYTES_TARGET", 5000)
    many = [([(None, b"v" * 30, 1)] * 60, Codec.NONE)] * 4
    large = [([(None, b"w" * 3000, 2)] * 300, Codec.ZSTD)]
    found, expected, end = log_of([*many, *large, *many])
    made = list(record_batches(found, Range("t", 0, 0, end), SCHEMA))
    assert [value for batch in made for value in batch.column("value").to_pylist()] == [
        record.value for record in expected
    ]
    assert max(batch.num_rows for batch in made) == 300
    assert len(made) == 9


def test_broken_records_are_refused_by_both_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    [batch], _, end = log_of([([(b"k", b"v" * 10, 1)] * 3, Codec.NONE)])
    broken = bytearray(batch.buffer)
    broken[61] = 0x7E
    for threshold in (0, 1 << 30):
        monkeypatch.setattr(columns, "COMPILED_FROM_SIZE_BYTES", threshold)
        with pytest.raises(CorruptBatchesError, match="the batch of 3 records at addresses 1000 to"):
            rows_of(record_batches([batch._replace(buffer=bytes(broken))], Range("t", 0, 0, end), SCHEMA))


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), max_size=6), st.integers(1, 40))
def test_splits_cover_every_offset_once(sizes: list[tuple[int, int]], parts: int) -> None:
    ranges = [Range("t", number, start, start + size) for number, (start, size) in enumerate(sizes)]
    found = split(ranges, parts)
    for each in ranges:
        own = sorted(part for part in found if part.partition == each.partition)
        at = each.from_offset
        for part in own:
            assert part.from_offset == at < part.to_offset
            at = part.to_offset
        assert at == each.to_offset
    total = sum(each.size for each in ranges)
    assert len(found) >= min(parts, total)
    assert len(found) <= parts + len(ranges)


@given(
    st.dictionaries(st.tuples(st.sampled_from("ab"), st.integers(0, 5)), st.integers(0, 1000)),
    st.integers(1, 5000),
)
def test_a_limited_batch_advances_and_stays_within_the_log(
    latest: dict[tuple[str, int], int], limit: int
) -> None:
    start = dict.fromkeys(latest, 0)
    ends = limited(start, latest, limit)
    assert all(0 <= ends[partition] <= latest[partition] for partition in latest)
    assert sum(ends.values()) <= max(limit + len(latest), limit)
    assert ends == latest or sum(ends.values()) > 0
    kept = StreamOffsets(ends, {topic: f"id-of-{topic}" for topic, _ in ends})
    assert StreamOffsets.from_json(json.loads(json.dumps(kept.to_json()))) == kept


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"subscribe": "t"}, "'kafka.bootstrap.servers' must be specified"),
        (
            BOOTSTRAP,
            "One of the following options must be specified for Kafka source: subscribe, subscribePattern",
        ),
        ({**BOOTSTRAP, "subscribe": "t", "assign": "{}"}, "Only one of the following options"),
        ({**BOOTSTRAP, "subscribe": " , "}, "No topics to subscribe to"),
        (
            {**BOOTSTRAP, "subscribe": "t", "startingOffsets": "latest"},
            "starting offset can't be latest for batch",
        ),
        (
            {**BOOTSTRAP, "subscribe": "t", "endingOffsets": "earliest"},
            "ending offset can't be earliest for batch",
        ),
        (
            {**BOOTSTRAP, "subscribe": "t", "startingOffsets": '{"t":{"0":-1}}'},
            "startingOffsets for t-0 can't be",
        ),
        (
            {**BOOTSTRAP, "subscribe": "t", "endingOffsets": '{"t":{"0":-2}}'},
            "ending offset for t-0 can't be",
        ),
        ({**BOOTSTRAP, "subscribe": "t", "startingOffsets": "7"}, 'Expected e.g. {"topicA":{"0":23,"1":-1}'),
        ({**BOOTSTRAP, "assign": "[]"}, 'Expected e.g. {"topicA":[0,1],"topicB":[0,1]}'),
        ({**BOOTSTRAP, "subscribe": "t", "minPartitions": "0"}, "'minpartitions' must be a positive integer"),
        (
            {**BOOTSTRAP, "subscribe": "t", "failOnDataLoss": "maybe"},
            "'failondataloss' must be true or false",
        ),
        ({**BOOTSTRAP, "subscribe": "t", "bogus": "1"}, "Option 'bogus' is not supported"),
        ({**BOOTSTRAP, "subscribePattern": "("}, "no regular expression"),
        ({**BOOTSTRAP, "subscribe": "t", "kafka.security.protocol": "SSL"}, "only PLAINTEXT"),
        ({**BOOTSTRAP, "subscribe": "t", "columns": "value,payload"}, "one of the two"),
        (
            {"kafka.bootstrap.servers": " , ", "subscribe": "t"},
            "names no broker: it is ' , '; write HOST:PORT",
        ),
        (
            {**BOOTSTRAP, "subscribe": "t", "startingOffsetsByTimestampStrategy": "newest"},
            "must be error or latest, but is 'newest'",
        ),
        ({**BOOTSTRAP, "subscribe": "t", "valueFormat": "avro"}, "'schema.registry.url' must be specified"),
    ],
)
def test_options_are_refused_in_sparks_words(options: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse(options)
    assert words in str(caught.value)


def test_a_stream_may_start_at_the_latest_offset_but_has_no_end() -> None:
    assert parse({**BOOTSTRAP, "subscribe": "t"}, streaming=True).start.offsets == "latest"
    assert parse({**BOOTSTRAP, "topic": "t"}).start.offsets == "earliest"
    with pytest.raises(OptionError, match="ending offset not valid in streaming queries"):
        parse({**BOOTSTRAP, "subscribe": "t", "endingOffsets": "latest"}, streaming=True)


def test_offsets_in_sparks_json_round_trip() -> None:
    offsets = {("a", 0): 23, ("a", 1): -1, ("b", 0): -2}
    assert parse_offsets(format_offsets(offsets)) == offsets
    # What a checkpoint has can be given as startingOffsets: the ids of topics have no partitions.
    assert parse_offsets(json.dumps(StreamOffsets(offsets, {"a": "some-id"}).to_json())) == offsets


@pytest.mark.parametrize("fail_fast", [True, False])
def test_a_registry_that_does_not_answer_makes_no_value_null(
    monkeypatch: pytest.MonkeyPatch, fail_fast: bool
) -> None:
    client = partial(SchemaRegistryClient, retry_rounds=1, sleep=lambda _: None)
    monkeypatch.setattr(avro, "SchemaRegistryClient", client)
    options = SourceOptions(("x:1",), registry_url="http://127.0.0.1:1", fail_fast=fail_fast)
    decode = avro.decoder(options, EMPTY_RECORD)
    with pytest.raises(SourceError, match="no schema 7 for a value: "):
        decode(b"\0\0\0\0\7", 5)


def test_a_registry_that_does_not_answer_beside_another_makes_no_value_null(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that does not know the schema has answered: that says nothing of the others."""

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.host == "west":
            raise httpx.ConnectError("connection refused", request=request)
        return httpx.Response(404, json={"error_code": 40403, "message": "Schema 1 not found"})

    monkeypatch.setattr(
        avro,
        "SchemaRegistryClient",
        partial(SchemaRegistryClient, transport=httpx.MockTransport(answer), retry_rounds=1),
    )
    options = SourceOptions(("x:1",), registry_url="http://east,http://west", fail_fast=False)
    with pytest.raises(SourceError, match=r"no schema 1 for a value: .*west"):
        avro.decoder(options, EMPTY_RECORD)(b"\0\0\0\0\1", 7)
    assert avro.decoder(replace(options, registry_url="http://east"), EMPTY_RECORD)(b"\0\0\0\0\1", 7) is None


def test_an_unknown_schema_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        return httpx.Response(404, json={"error_code": 40403, "message": "Schema not found"})

    monkeypatch.setattr(
        avro, "SchemaRegistryClient", partial(SchemaRegistryClient, transport=httpx.MockTransport(answer))
    )
    options = SourceOptions(("x:1",), registry_url="http://127.0.0.1:1", fail_fast=False)
    decode = avro.decoder(options, EMPTY_RECORD)
    assert [decode(b"\0\0\0\0\7", offset) for offset in range(3)] == [None] * 3
    assert asked == ["/schemas/ids/7"]
    strict = avro.decoder(replace(options, fail_fast=True), EMPTY_RECORD)
    with pytest.raises(SourceError, match=r"the value at offset 5 can't be decoded .*Schema not found"):
        strict(b"\0\0\0\0\7", 5)


def test_a_pattern_is_not_held_up_by_topics_that_it_leaves_out() -> None:
    """One of their partitions had no leader, and no read by a pattern was planned until it had one."""
    cluster = FakeCluster()
    try:
        cluster.create("page-view", 1)
        cluster.create("other", 1)
        cluster.leaders["other", 0] = -1
        with MetadataClient([cluster.bootstrap], 1.0) as metadata:
            options = parse({**BOOTSTRAP, "subscribePattern": "page-.*"})
            assert partitions_of(metadata, options) == [("page-view", 0)]
    finally:
        cluster.close()


def test_a_partition_that_is_assigned_twice_is_read_once() -> None:
    cluster = FakeCluster()
    try:
        with MetadataClient([cluster.bootstrap], 1.0) as metadata:
            options = parse({**BOOTSTRAP, "assign": '{"t": [0, 0]}'})
            assert [range_.partition for range_ in resolve_ranges(metadata, options)] == [0]
    finally:
        cluster.close()
