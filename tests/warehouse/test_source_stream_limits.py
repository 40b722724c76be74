"""How much a micro-batch reads, how far a stream is behind, and which errors keep their traceback."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StructType

from fix_client import FakeCluster
from headrace.warehouse.source import stream
from headrace.warehouse.source.errors import DataLossError, NoSuchTopicError, OptionError
from headrace.warehouse.source.examining import Batch
from headrace.warehouse.source.lag import lag_bytes
from headrace.warehouse.source.options import SourceOptions
from headrace.warehouse.source.plain_errors import plain_errors
from headrace.warehouse.source.ranges import Range
from headrace.warehouse.source.record_limit import Batches, ends_within
from headrace.warehouse.source.stream_offsets import JsonOffsets, StreamOffsets

Log = list[tuple[int, int]]
"""Batches of a partition: their records and bytes."""
A, B = ("t", 0), ("t", 1)


def kept(offsets: dict[tuple[str, int], int], topic_id: str = "") -> JsonOffsets:
    """What a checkpoint has of them."""
    return StreamOffsets(offsets, {"t": topic_id}).to_json()


class Cluster:
    """A cluster whose partitions begin at these offsets, and whose topics have one id."""

    def __init__(self, first: dict[tuple[str, int], int], topic_id: str = "") -> None:
        self._first = first
        self._topic_id = topic_id

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def offsets(self, wanted: dict[tuple[str, int], int]) -> dict[tuple[str, int], int]:
        return {each: self._first[each] for each in wanted}

    def topic_ids(self, topics: set[str]) -> dict[str, str]:
        return dict.fromkeys(topics, self._topic_id)

    def leaders(self, topics: set[str]) -> dict[tuple[str, int], tuple[str, int]]:
        return {(topic, 0): ("x", 1) for topic in topics}

    def leaders_of(self, partitions: set[tuple[str, int]]) -> dict[tuple[str, int], tuple[str, int]]:
        return dict.fromkeys(partitions, ("x", 1))


def offsets_of(log: Log) -> list[int]:
    """The offsets of all records: a batch has them at the last of its addresses."""
    found: list[int] = []
    end = 0
    for records, size_bytes in log:
        end += size_bytes
        found += range(end - records, end)
    return found


def reading(logs: dict[tuple[str, int], Log]) -> Batches:
    def batches(range_: Range) -> Iterator[Batch]:
        at = 0
        for records, size_bytes in logs[range_.topic, range_.partition]:
            base, at = at + size_bytes - records, at + size_bytes
            if at > range_.from_offset and base < range_.to_offset:
                header = SimpleNamespace(
                    base_offset=base, next_offset=at, record_count=records, size_bytes=size_bytes
                )
                yield cast(Batch, SimpleNamespace(header=header))

    return batches


batch = st.integers(1, 50).flatmap(lambda records: st.tuples(st.just(records), st.integers(records, 500)))


@settings(deadline=None)
@given(st.lists(batch, max_size=8), st.lists(batch, max_size=8), st.integers(1, 40))
def test_a_limit_of_records_is_kept_and_everything_is_read(one: Log, other: Log, limit: int) -> None:
    logs = {A: one, B: other}
    latest = {partition: sum(size for _, size in log) for partition, log in logs.items()}
    at, read = dict.fromkeys(logs, 0), 0
    while at != latest:
        ends = ends_within(at, latest, limit, reading(logs))
        found = sum(
            at[partition] <= offset < ends[partition]
            for partition, log in logs.items()
            for offset in offsets_of(log)
        )
        assert found <= limit
        assert all(at[partition] <= ends[partition] <= latest[partition] for partition in logs)
        assert ends != at, "a stream that stands still never ends"
        at, read = ends, read + found
    assert read == sum(len(offsets_of(log)) for log in logs.values())


def test_shares_follow_what_is_left() -> None:
    logs = {A: [(1, 10)] * 90, B: [(1, 10)] * 10}
    assert ends_within({A: 0, B: 0}, {A: 900, B: 100}, 20, reading(logs)) == {A: 180, B: 20}


@pytest.mark.parametrize(
    ("ends", "fails", "found"),
    [
        ([100, 700], True, 700),
        ([100] * 1_000, True, None),
        ([100, 700], False, 700),
        ([100] * 1_000, False, 100),
    ],
)
def test_a_topic_that_was_made_again_ends_a_stream_and_a_new_leader_does_not(
    monkeypatch: pytest.MonkeyPatch, ends: list[int], fails: bool, found: int | None
) -> None:
    """Its records up to the place that the stream had reached would be passed over without a word."""
    monkeypatch.setattr(stream, "RETRY_PAUSE_MS", 1)
    options = SourceOptions(
        ("x:1",), request_timeout_ms=20, fail_on_data_loss=fails, max_offsets_per_trigger=1_000
    )
    reader, shown = stream.StreamReader(options, StructType([])), iter(ends)
    monkeypatch.setattr(reader, "_latest", lambda: StreamOffsets({A: next(shown)}))
    start = kept({A: 500})
    if found is None:
        with pytest.raises(DataLossError, match=r"OFFSET_CHANGED.*t-0 offset was changed from 500 to 100"):
            reader.latestOffset(start, ReadAllAvailable())
    else:
        for limit in (ReadAllAvailable(), ReadMaxRows(1_000)):
            shown = iter(ends)
            assert reader.latestOffset(start, limit) == kept({A: found})


@pytest.mark.parametrize("fails", [True, False])
def test_a_partition_that_one_answer_lacks_is_not_deleted(
    monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """A broker that was cut off before a topic was made does not know it. By a pattern its partitions counted
    as deleted: the query ended, or, where a loss is allowed, read the whole topic again as a new one.
    """
    monkeypatch.setattr(stream, "RETRY_PAUSE_MS", 1)
    options = SourceOptions(("x:1",), topic_pattern="t", request_timeout_ms=1_000, fail_on_data_loss=fails)
    reader, shown = (
        stream.StreamReader(options, StructType([])),
        iter([{A: 700}, {A: 710, B: 990}]),
    )
    monkeypatch.setattr(reader, "_latest", lambda: StreamOffsets(next(shown)))
    start = kept({A: 500, B: 900})
    assert reader.latestOffset(start, ReadAllAvailable()) == kept({A: 700, B: 990})
    gone = stream.StreamReader(replace(options, request_timeout_ms=20), StructType([]))
    monkeypatch.setattr(gone, "_latest", lambda: StreamOffsets({A: 700}))
    if fails:
        with pytest.raises(DataLossError, match=r"PARTITIONS_DELETED.*Partitions t-1 have been deleted"):
            gone.latestOffset(start, ReadAllAvailable())
    else:
        assert gone.latestOffset(start, ReadAllAvailable()) == kept({A: 700})


@pytest.mark.parametrize("kind", ["refused", "allowed", "cut off for a moment", "without ids", "of Kafka"])
def test_a_topic_that_was_made_again_and_has_grown_is_not_taken_for_the_old_one(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Its log reached beyond the place of the stream, which read other records from there, without a word."""
    monkeypatch.setattr(stream, "RETRY_PAUSE_MS", 1)
    options = SourceOptions(("x:1",), request_timeout_ms=20, fail_on_data_loss=kind != "allowed")
    reader = stream.StreamReader(options, StructType([]))
    ids = iter(["old"] if kind == "without ids" else ["old", "new"] if kind == "cut off for a moment" else [])
    told = "" if kind == "without ids" else "new"
    start = kept({A: 500}, "" if kind == "of Kafka" else "new" if kind == "cut off for a moment" else "old")
    monkeypatch.setattr(reader, "_latest", lambda: StreamOffsets({A: 700}, {"t": next(ids, told)}))
    monkeypatch.setattr(reader, "_cluster", lambda: Cluster({A: 0}, "new"))
    if kind == "refused":
        with pytest.raises(
            DataLossError, match=r"PARTITIONS_DELETED.*Topic t was made again.*id old.*id new\. .*startingOff"
        ):
            reader.latestOffset(start, ReadAllAvailable())
        return
    end = reader.latestOffset(start, ReadAllAvailable())
    assert end == kept({A: 700}, "old" if kind == "without ids" else "new")
    if kind != "without ids":
        ranges = [task.range_ for task in reader.partitions(start, end)]
        assert ranges == [Range("t", 0, 0 if kind == "allowed" else 500, 700)]


@pytest.mark.parametrize("fails", [True, False])
def test_a_micro_batch_that_is_repeated_is_not_read_from_another_topic(
    monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """After a crash Spark asks for what was planned before, and the topic may be another one by then."""
    monkeypatch.setattr(stream, "RETRY_PAUSE_MS", 1)
    options = SourceOptions(("x:1",), request_timeout_ms=20, fail_on_data_loss=fails)
    reader = stream.StreamReader(options, StructType([]))
    monkeypatch.setattr(reader, "_cluster", lambda: Cluster({A: 0}, "new"))
    start, end = kept({A: 500}, "old"), kept({A: 700}, "old")
    if fails:
        with pytest.raises(DataLossError, match="t was made again"):
            reader.partitions(start, end)
    else:
        assert reader.partitions(start, end) == []
    assert [task.range_ for task in reader.partitions(kept({A: 500}), kept({A: 700}))] == [
        Range("t", 0, 500, 700)
    ]


def test_the_lag_of_a_query() -> None:
    source = {
        "endOffset": {"t": {"0": 5, "1": 7}},
        "latestOffset": {"t": {"0": 9, "1": 7}, "new": {"0": 3}, "t@id": {}},
    }
    other = {"endOffset": 5, "latestOffset": 9}
    progress = {"sources": [source, other, {"endOffset": None, "latestOffset": None}]}
    expected = {"t": {0: 4, 1: 0}, "new": {0: 3}}
    assert lag_bytes(progress) == lag_bytes(json.dumps(progress)) == expected
    texts = SimpleNamespace(
        endOffset=json.dumps(source["endOffset"]), latestOffset=json.dumps(source["latestOffset"])
    )
    assert lag_bytes(SimpleNamespace(sources=[texts])) == expected


@pytest.mark.parametrize(
    ("runtime", "is_debug", "error", "is_hidden"),
    [
        ("PYTHON_WORKER", False, OptionError, True),
        ("PYTHON_WORKER", True, OptionError, False),
        ("PYTHON_WORKER", False, KeyError, False),
        ("", False, OptionError, False),
    ],
)
def test_expected_errors_of_a_worker_have_no_traceback(
    monkeypatch: pytest.MonkeyPatch,
    runtime: str,
    is_debug: bool,
    error: type[Exception],
    is_hidden: bool,
) -> None:
    monkeypatch.setenv("SPARK_PYTHON_RUNTIME", runtime)
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")
    with pytest.raises(error), plain_errors(is_debug=is_debug):
        raise error("wrong")
    assert bool(os.environ["SPARK_HIDE_TRACEBACK"]) is is_hidden


@pytest.mark.parametrize(("begins_at", "fails"), [(0, False), (300, True)])
def test_a_new_partition_whose_first_records_are_gone_is_a_loss(
    monkeypatch: pytest.MonkeyPatch, begins_at: int, fails: bool
) -> None:
    """Retention was faster than the stream, which passed over them without a word."""
    for allows_loss in (False, True):
        options = SourceOptions(("x:1",), fail_on_data_loss=not allows_loss)
        reader = stream.StreamReader(options, StructType([]))
        monkeypatch.setattr(reader, "_latest", lambda: StreamOffsets({A: 500, B: 900}))
        monkeypatch.setattr(reader, "_cluster", lambda: Cluster({B: begins_at}))
        if fails and not allows_loss:
            with pytest.raises(DataLossError, match=r"Added partition t-1 starts from 300 instead of 0\."):
                reader.latestOffset(kept({A: 500}), ReadAllAvailable())
        else:
            ends = reader.latestOffset(kept({A: 500}), ReadAllAvailable())
            assert ends == kept({A: 500, B: 900})


def test_a_query_of_what_is_there_names_its_wrong_topic_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is asked first, before any other method of the reader."""
    monkeypatch.setenv("SPARK_PYTHON_RUNTIME", "PYTHON_WORKER")
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")
    cluster = FakeCluster()
    cluster.creates_topics = False
    try:
        options = SourceOptions((cluster.bootstrap,), topics=("page-veiw",), request_timeout_ms=1_000)
        with pytest.raises(NoSuchTopicError, match="there is no topic 'page-veiw'"):
            stream.StreamReader(options, StructType([])).prepareForTriggerAvailableNow()
    finally:
        cluster.close()
    assert os.environ["SPARK_HIDE_TRACEBACK"] == "1"
