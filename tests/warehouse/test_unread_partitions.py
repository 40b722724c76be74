"""A partition without a leader holds up nothing but itself: loads go on without it, and say so."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import pytest

from fix_client import FakeCluster
from headrace.cli import warehouse
from headrace.cli.errors import CommandError, ExitCode
from headrace.warehouse import api, job
from headrace.warehouse.loading import LoadResult
from headrace.warehouse.made_again import Said
from headrace.warehouse.manifest import TableState
from headrace.warehouse.options import WarehouseOptions
from headrace.warehouse.plan import unread_text
from headrace.warehouse.planning import doubtful_partitions, reason_of
from headrace.warehouse.source import metadata as metadata_module
from headrace.warehouse.source.errors import NoSuchTopicError
from headrace.warehouse.source.metadata import MetadataClient
from headrace.warehouse.source.options import LATEST, parse
from headrace.warehouse.source.resolve import resolve_ranges
from headrace.warehouse.topic_logs import Log, TopicLogs
from headrace.wire.errors import ErrorCode, ProtocolError

NO_LEADER = ProtocolError(ErrorCode.LEADER_NOT_AVAILABLE, "topic t partition 1")


@contextmanager
def one_without_leader(count: int = 3) -> Iterator[tuple[FakeCluster, MetadataClient]]:
    """A topic of which partition 1 has no leader, and a client that waits for it for an instant."""
    cluster = FakeCluster()
    try:
        cluster.create("page-view", count)
        cluster.topic_ids["page-view"] = uuid.uuid4()
        cluster.leaders["page-view", 1] = -1
        with MetadataClient([cluster.bootstrap], 0.2) as metadata:
            yield cluster, metadata
    finally:
        cluster.close()


def test_what_can_be_read_of_a_topic_is_told_apart_from_what_cannot() -> None:
    with one_without_leader() as (cluster, metadata):
        found = metadata.readable("page-view")
        assert found.starts == {0: 0, 2: 0} and found.leaders.keys() == {0, 2}
        assert {number: problem.code for number, problem in found.problems.items()} == {  # type: ignore[attr-defined]
            1: ErrorCode.LEADER_NOT_AVAILABLE
        }
        cluster.leaders["page-view", 1] = 1
        assert metadata.readable("page-view").problems == {}


def test_a_topic_of_which_nothing_can_be_read_is_an_error() -> None:
    with one_without_leader() as (cluster, metadata):
        cluster.leaders.update({("page-view", number): -1 for number in (0, 2)})
        with pytest.raises(ProtocolError, match="page-view partition 0"):
            metadata.readable("page-view")
        with pytest.raises(ProtocolError, match="page-view partition 0"):
            metadata.topic_id("page-view")
        with pytest.raises(NoSuchTopicError):
            metadata.readable("nowhere")


def test_a_leader_that_does_not_answer_is_a_reason() -> None:
    cluster = FakeCluster(brokers=2)
    try:
        cluster.create("page-view", 2)
        cluster.leaders.update({("page-view", 0): 1, ("page-view", 1): 2})
        with MetadataClient([f"127.0.0.1:{cluster.brokers[0].port}"], 0.2) as metadata:
            assert metadata.readable("page-view").problems == {}
            cluster.brokers[1].stop()
            found = metadata.readable("page-view")
            assert found.leaders.keys() == {0}
            assert "does not answer" in str(found.problems[1])
    finally:
        cluster.close()


def test_a_partition_that_an_answer_leaves_out_is_named_and_others_are_not_believed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Half an answer is no reason to leave a partition out of a load without a word."""
    cluster = FakeCluster()
    try:
        cluster.create("page-view", 3)
        with MetadataClient([cluster.bootstrap], 0.2) as metadata:
            asked, whole = metadata_module._list_offsets, [("page-view", number) for number in (0, 2)]
            monkeypatch.setattr(
                metadata_module,
                "_list_offsets",
                lambda _, wanted: asked([*whole, ("t", 0)], {**wanted, ("t", 0): -2}),
            )
            found = metadata.readable("page-view")
            assert found.starts == {0: 0, 2: 0}
            assert "partition 1 is not in the answer" in str(found.problems[1])
            with pytest.raises(ProtocolError, match="is not in the answer"):
                metadata.offsets({("page-view", 1): LATEST, **dict.fromkeys(whole, LATEST)})
    finally:
        cluster.close()


def test_other_partitions_are_asked_without_it() -> None:
    """Offsets, an id, and a read of assigned partitions all waited for the leader of a partition that nobody
    asked about, and failed.
    """
    with one_without_leader() as (cluster, metadata):
        assert metadata.offsets({("page-view", 0): LATEST}) == {("page-view", 0): 0}
        assert metadata.leaders_of([("page-view", 0), ("page-view", 9)]).keys() == {("page-view", 0)}
        assert metadata.topic_id("page-view") == str(cluster.topic_ids["page-view"])
        assigned = {"kafka.bootstrap.servers": cluster.bootstrap, "assign": '{"page-view": [0, 2]}'}
        ranges = resolve_ranges(metadata, parse(assigned))
        assert [each.partition for each in ranges] == [0, 2]
        with pytest.raises(ProtocolError, match="page-view partition 1"):
            metadata.leaders_of([("page-view", 1)])
        with pytest.raises(ProtocolError, match="page-view partition 1"):
            metadata.offsets({("page-view", 1): LATEST})


def test_the_reason_is_in_words() -> None:
    assert reason_of(NO_LEADER) == "no leader"
    assert reason_of(OSError("its leader x:1 does not answer")) == "its leader x:1 does not answer"


def test_a_log_that_cannot_be_read_is_not_gone() -> None:
    """What an operator says of another one, which went back, is not said of it."""
    state = TableState(ends={0: 100, 1: 100}, topic_ids={})
    logs = TopicLogs(WarehouseOptions("", "", "", ""), "t", "", {0: Log(0, 50, ("", 0))}, frozenset({1}))
    assert doubtful_partitions(state, logs, Said("new")) == {0: True}


def test_what_was_not_loaded_is_named_once_for_each_reason() -> None:
    text = unread_text("t", {7: "no leader", **dict.fromkeys(range(10, 30), "no leader"), 3: "busy"})
    assert text.startswith(
        "t: these partitions cannot be read now, and were not loaded: 3 (busy); 7, 10, 11, 12, 13, 14, 15, "
        "16 and 13 more (no leader). Start"
    )
    assert unread_text("t", {}) == ""


def test_a_load_that_went_without_a_partition_fails_with_its_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Airflow shows the line behind this mark as the error of the task."""
    result = LoadResult("t", sequence=3, rows=5, unread={1: "no leader"})
    monkeypatch.setattr(api, "load_topics", lambda *_, **__: [result])
    words = ["load", "t", "--bootstrap", "b:1", "--registry-url", "http://r", "--hdfs-url", "hdfs://h"]
    assert job.main([*words, "--webhdfs-url", "http://h"]) == 1
    shown = capsys.readouterr()
    assert '"rows": 5' in shown.out
    assert shown.err.startswith("headrace warehouse: t: these partitions cannot be read now")


def test_the_command_shows_what_was_loaded_and_then_what_was_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = [LoadResult("t", sequence=3, rows=5, unread={1: "no leader"}), LoadResult("u")]
    monkeypatch.setattr(api, "load_topics", lambda *_, **__: results)
    monkeypatch.setattr(warehouse, "spark", lambda *_, **__: nullcontext())
    monkeypatch.setattr(warehouse, "warehouse", lambda _: None)
    with pytest.raises(CommandError, match="t: these partitions cannot be read now") as raised:
        warehouse.load(["t", "u"])
    assert raised.value.exit_code == ExitCode.NEGATIVE
    assert capsys.readouterr().out.splitlines() == [
        "t: load 3 added 5 rows to 0 hours, 0 files, in 0.0 s",
        "u: nothing new",
    ]
